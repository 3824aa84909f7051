"""Code that people send along with a workload: its archive, and where it is kept."""
