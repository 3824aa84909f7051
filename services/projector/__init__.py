"""Keeps the read models in Postgres: follows the log, folds it into rows, writes them with its place in the log."""
