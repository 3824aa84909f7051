"""What the agent changes in a Kubernetes cluster."""
