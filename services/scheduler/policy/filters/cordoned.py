"""A node takes new pods only where nobody has cordoned it with Muster's own mark."""

from typing import Final

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans

MOST_NAMED: Final = 3
"""Nodes in one sentence."""


def refuses(view: View) -> Booleans:
    return view.room.nodes.cordoned[view.rows]


def words(view: View) -> str:
    """Who cordoned which node, and when. A person stands there by id: the API shows the name."""
    nodes = view.room.nodes
    rows = sorted((int(row) for row in view.rows if nodes.cordoned[row]), key=lambda row: nodes.names[row])
    told = [
        f"{nodes.names[row]} cordoned by {nodes.cordons[row].by} at {nodes.cordons[row].at:%Y-%m-%d %H:%M} UTC"
        for row in rows[:MOST_NAMED]
    ]
    more = len(rows) - MOST_NAMED
    return ", ".join(told) + (f" and {more} more cordoned" if more > 0 else "")


FILTER: Final = Filter(name="cordoned", asks=lambda _: True, closed=Check(refuses=refuses, words=words))
