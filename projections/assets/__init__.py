"""Environments, compute resources and templates, from which workloads are made."""
