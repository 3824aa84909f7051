"""The workload aggregate: one name in one project, through all its incarnations."""
