"""What the agent reads from a Kubernetes cluster."""
