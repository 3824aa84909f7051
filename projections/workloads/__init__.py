"""Workloads, their pods, their due times and their histories."""
