"""The autoscaler: lets each inference have as many replicas as its load needs."""
