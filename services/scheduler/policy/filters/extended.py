"""A node has the extended resources (S037)."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Integers


def _column(columns: dict[str, Integers], resource: str, view: View) -> Integers:
    """Of the view's nodes; zeros where no node ever had any."""
    column = columns.get(resource)
    return np.zeros(len(view.rows), dtype=np.int64) if column is None else column[view.rows]


def _lacking(columns: dict[str, Integers], view: View) -> Booleans:
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
    return "; ".join(told)


def full(view: View) -> Booleans:
    return _lacking(view.room.extended, view)


def need(view: View) -> str:
    told: list[str] = []
    for each in view.request.extended:
        free = _column(view.room.extended, each.resource, view)
        if (free < each.amount).any():
            told.append(f"need {each.amount} of {each.resource}, most free {max(int(free.max()), 0)}")
    return f"short of extended resources ({'; '.join(told)})"


FILTER: Final = Filter(
    name="extended",
    asks=lambda request: bool(request.extended),
    never=Check(refuses=too_small, words=largest),
    full=Check(refuses=full, words=need),
)
