"""The log as programs use it: the event store, reading it as it grows, folds and their snapshots."""
