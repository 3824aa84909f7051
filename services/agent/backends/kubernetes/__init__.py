"""The backend `kubernetes`: pods on a real cluster follow what the log says (docs: design of the cluster agent)."""
