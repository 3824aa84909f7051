"""What the scheduler decides by: one module per rule, in four folders, and one line per rule in `registry`. Pure."""
