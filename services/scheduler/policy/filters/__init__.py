"""Which nodes a pod may go to: one module per filter. Pure."""
