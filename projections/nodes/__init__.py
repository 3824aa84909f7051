"""Nodes and their reservations."""
