"""This machine as a cluster of one node."""
