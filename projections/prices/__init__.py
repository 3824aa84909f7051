"""What an hour of a GPU costs."""
