"""The gate: decides whether an actor may give a command, and stamps it with what `decide` must know of that."""
