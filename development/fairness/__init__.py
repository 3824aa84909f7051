"""Days of load on a small cluster, with the scheduler's own fold and plan and a clock that jumps."""
