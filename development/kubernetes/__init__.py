"""A whole stack on a real Kubernetes API server, and what must hold of it."""
