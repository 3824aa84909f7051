"""Which node is the best of those with room: one module per score. Pure."""
