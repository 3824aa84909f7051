"""Departments, in which projects stand."""
