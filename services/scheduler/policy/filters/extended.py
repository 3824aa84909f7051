"""A node has the extended resources (S037)."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Integers

MOST_NAMED: Final = 3
"""Resources in one sentence."""


def _column(columns: dict[str, Integers], resource: str, view: View) -> Integers:
    """Of the view's nodes; zeros where no node ever had any."""
    column = columns.get(resource)
    return np.zeros(len(view.rows), dtype=np.int64) if column is None else column[view.rows]


def _lacking(columns: dict[str, Integers], view: View) -> Booleans:
    if any(each.resource not in columns for each in view.request.extended):
        return np.ones(len(view.rows), dtype=np.bool_)
    lacking = np.zeros(len(view.rows), dtype=np.bool_)
    for each in view.request.extended:
        lacking |= _column(columns, each.resource, view) < each.amount
    return lacking


def too_small(view: View) -> Booleans:
    return _lacking(view.room.nodes.capacity_extended, view)


def largest(view: View) -> str:
    told: list[str] = []
    for each in view.request.extended:
        most = int(_column(view.room.nodes.capacity_extended, each.resource, view).max())
        if most < each.amount:
            told.append(f"needs {each.amount} of {each.resource} (the most on one node is {most})")
    return _some(told)


def full(view: View) -> Booleans:
    return _lacking(view.room.extended, view)


def need(view: View) -> str:
    told: list[str] = []
    for each in view.request.extended:
        free = _column(view.room.extended, each.resource, view)
        if (free < each.amount).any():
            told.append(f"need {each.amount} of {each.resource}, most free {max(int(free.max()), 0)}")
    return f"short of extended resources ({_some(told)})"


def _some(told: list[str]) -> str:
    """The reason stands in the log and is told again when it changes, so it must not grow with what was asked for."""
    more = len(told) - MOST_NAMED
    return "; ".join(told[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


FILTER: Final = Filter(
    name="extended",
    asks=lambda request: bool(request.extended),
    never=Check(refuses=too_small, words=largest),
    full=Check(refuses=full, words=need),
    by_room=True,
)
