"""Reserved GPUs and waiting workloads, hour by hour."""
