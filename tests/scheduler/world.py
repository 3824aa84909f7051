"""A small log in memory for tests of the scheduler (development.fairness.world)."""

from development.fairness.world import ACTOR, BEGIN, GIB, World

__all__ = ["ACTOR", "BEGIN", "GIB", "World"]
