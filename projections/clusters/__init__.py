"""Clusters and their node pools."""
