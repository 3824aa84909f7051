"""Writes the public events to FEED."""
