"""The calendar lets the pod on a node: nothing is planned there that would have to end it, or that is not for it."""

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Closed, Closing

MOST_NAMED: Final = 3
"""Entries in one sentence."""
NAME: Final = "calendar"
UNNAMED: Final = "maintenance or reservations"
_TOLD: Final = re.compile(
    r"(maintenance \S+|reservation \S+ for (?:project \S+|department \S+|workloads)(?: with \S+)?)"
    r" (?:from \S+ \S+ to|until) (\d{4}-\d\d-\d\d \d\d:\d\d) UTC"
)
"""An entry in a sentence, as `times` has it."""
_WINDOWS: Final = re.compile(r"only in its windows \((.+?)\)")
_OPENS: Final = re.compile(r"the next one opens at (\d{4}-\d\d-\d\d \d\d:\d\d) UTC")


def refuses(view: View) -> Booleans:
    refused = np.zeros(len(view.rows), dtype=np.bool_)
    for each in view.closings:
        refused |= each.rows[view.rows]
    return refused


def words(view: View) -> str:
    """How many nodes are closed by what, and until when."""
    counts = [(int(each.rows[view.rows].sum()), each) for each in view.closings]
    found = [(count, each) for count, each in counts if count]
    alone = len(found) == 1 and found[0][0] == len(view.rows)  # how many is said already
    told = [f"{'' if alone else f'{count} by '}{each.called} {times(each)}" for count, each in found]
    more = len(told) - MOST_NAMED
    return ", ".join(told[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def times(closing: Closing) -> str:
    """A non-preemptible pod that could still run then is kept away before it begins, too."""
    ends = f"{closing.ends_at:%Y-%m-%d %H:%M} UTC"
    return f"from {closing.starts_at:%Y-%m-%d %H:%M} to {ends}" if closing.left_seconds else f"until {ends}"


def in_windows(closed: Closed) -> str:
    return f"only in its windows ({closed.told})"


def opens(closed: Closed) -> str:
    """When the next window of a project does; empty where there is none."""
    return "" if closed.opens_at is None else f"the next one opens at {closed.opens_at:%Y-%m-%d %H:%M} UTC"


def entries(closings: Iterable[Closing], closed: Closed | None = None) -> frozenset[str]:
    """What sentences say of these, such that `told_of` finds the same."""
    window = told_of(f"{in_windows(closed)}; {opens(closed)}") if closed is not None else frozenset[str]()
    return frozenset(f"{each.called} until {each.ends_at:%Y-%m-%d %H:%M}" for each in closings) | window


def told_of(message: str) -> frozenset[str]:
    """The entries that a sentence names, each with its end, and the windows with the next one."""
    named = {f"{called} until {ends}" for called, ends in _TOLD.findall(message)}
    return frozenset(named.union(_WINDOWS.findall(message), _OPENS.findall(message)))


FILTER: Final = Filter(name=NAME, asks=lambda _: True, closed=Check(refuses=refuses, words=words))
