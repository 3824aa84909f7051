"""Pods of a workload that stay together: on nodes with the same value of a label (S042). Pure."""

from typing import NamedTuple

import numpy as np

from services.scheduler.candidates import Candidates
from services.scheduler.planning import Planning
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Integers, Pending, PodClass, Together


class Stay:
    """Where the pods of one entry go: to the value at which others of the workload are, else to the one that takes the
    most of them, by the first pool that has room.
    """

    def __init__(
        self, planning: Planning, together: Together, entry: Pending, pools: list[tuple[str, Candidates]]
    ) -> None:
        self._planning, self._together = planning, together
        self._column, values, _ = planning.snapshot.nodes.labels.column(together.label)
        self._value = value_of_others(planning, together, entry, self._column)
        if self._value is None:
            counts = (_counts(candidates, self._column, values, len(entry.pods)) for _, candidates in pools)
            self._value = next((int(each.argmax()) for each in counts if each.any()), None)

    def best(self, candidates: Candidates, most_gpu_milli: int | None, *, within: Booleans | None = None) -> int | None:
        """As `Candidates.best`; where the pods need not stay together, any node is better than none."""
        index = None
        if self._value is not None:
            there = self._column[candidates.rows] == self._value
            there = there if within is None else there & within
            index = candidates.best(most_gpu_milli=most_gpu_milli, within=there)
        if index is None and not self._together.required:
            return candidates.best(most_gpu_milli=most_gpu_milli, within=within)
        if index is not None and self._value is not None:
            self._planning.values[self._together] = self._value
        return index


def most_together(planning: Planning, together: Together, candidates: Candidates, most: int) -> int:
    """About how many pods find room at one value, at the one that takes the most of them; no fewer than do."""
    column, values, _ = planning.snapshot.nodes.labels.column(together.label)
    return int(_counts(candidates, column, values, most).max(initial=0))


class Elsewhere(NamedTuple):
    """Nodes that are not where the other pods are."""

    apart: Booleans
    """Per node of the view."""
    words: str
    """They follow a number of nodes."""


def elsewhere(planning: Planning, pod_class: PodClass, view: View) -> Elsewhere | None:
    """None where the pods may go to any node of the view."""
    together = pod_class.together
    value = planning.values.get(together) if together is not None and together.required else None
    if together is None or value is None:
        return None
    column, values, _ = planning.snapshot.nodes.labels.column(together.label)
    words = f"where {together.label} is not {values[value]}, as where the other pods are"
    return Elsewhere(column[view.rows] != value, words)


def value_of_others(planning: Planning, together: Together, entry: Pending, column: Integers) -> int | None:
    """The number of the value at which other pods of the workload are, where there are any."""
    keys = planning.snapshot.nodes.keys
    if together not in planning.values and entry.beside in keys:
        value = int(column[keys.index(entry.beside)])
        if value >= 0:
            planning.values[together] = value
    return planning.values.get(together)


def _counts(candidates: Candidates, column: Integers, values: tuple[str, ...], most: int) -> Integers:
    """About how many pods find room at each value, no more than are wanted. Where several take all of them, the first
    that was seen.
    """
    numbers = column[candidates.rows]
    fitting = np.minimum(candidates.fitting(), most)[numbers >= 0]
    sums = np.bincount(numbers[numbers >= 0], weights=fitting, minlength=len(values))
    return np.minimum(sums, most).astype(np.int64)
