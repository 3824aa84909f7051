"""The scheduler: follows the log, plans, and binds pods to nodes in atomic batches."""
