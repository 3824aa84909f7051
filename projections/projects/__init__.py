"""Projects, their settings and roles, and what their workloads hold."""
