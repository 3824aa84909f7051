"""The calendar lets the pod on a node: nothing is planned there that would have to end it, or that is not for it."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Closing

MOST_NAMED: Final = 3
"""Entries in one sentence."""
NAME: Final = "calendar"


def refuses(view: View) -> Booleans:
    refused = np.zeros(len(view.rows), dtype=np.bool_)
    for each in view.closings:
        refused |= each.rows[view.rows]
    return refused


def words(view: View) -> str:
    """How many nodes are closed by what, and until when."""
    counts = [(int(each.rows[view.rows].sum()), each) for each in view.closings]
    told = [f"{count} by {each.called}, {times(each)}" for count, each in counts if count]
    more = len(told) - MOST_NAMED
    return ", ".join(told[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def times(closing: Closing) -> str:
    if not closing.left_seconds:
        return f"which goes on until {closing.ends_at:%Y-%m-%d %H:%M} UTC"
    return (
        f"from {closing.starts_at:%Y-%m-%d %H:%M} to {closing.ends_at:%Y-%m-%d %H:%M} UTC, when pods of it could still "
        "run, which do not give way"
    )


FILTER: Final = Filter(name=NAME, asks=lambda _: True, closed=Check(refuses=refuses, words=words))
