"""Sends the deletion of ended workloads whose time has come, and measures budgets."""
