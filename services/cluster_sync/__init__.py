"""cluster_sync: makes clusters follow the log (WANTED), and makes what happens in them facts of the log (OBSERVED)."""
