"""Values of credentials: sealed for the one store that keeps them, and for the agent that a run needs them on."""
