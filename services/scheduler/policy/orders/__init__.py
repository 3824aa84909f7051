"""Which workload goes first: one module per order. Pure."""
