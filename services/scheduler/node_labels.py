"""Labels of nodes as columns that rules can compare: what is found out once holds until a label changes. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from events.workload.needs import whole_number

MOST_KEPT_BYTES: Final = 64 * 1024**2
"""Of answers to whole questions; each takes a byte for every node."""


class LabelColumn(NamedTuple):
    """One label of all nodes. Element i is of node i."""

    numbers: NDArray[np.int64]
    """The number of its value, -1 where it has no such label."""
    values: tuple[str, ...]
    """By number."""
    number_of: Mapping[str, int]


_NOT_MADE: Final = LabelColumn(np.zeros(0, dtype=np.int64), (), {})


class NodeLabels:
    """Columns are made when they are first asked for: most labels nobody ever asks for."""

    __slots__ = ("_answers", "_columns", "_nodes", "_none", "_wholes")

    def __init__(self, nodes: Sequence[Mapping[str, str]]) -> None:
        self._nodes = nodes
        # Keys that no node has share one column: a workload may name a thousand of them.
        self._none = LabelColumn(np.full(len(nodes), -1, dtype=np.int64), (), {})
        self._columns: dict[str, LabelColumn] | None = None
        self._wholes: dict[str, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
        self._answers: dict[object, NDArray[np.bool_]] = {}

    def with_more(self, nodes: Sequence[Mapping[str, str]]) -> "NodeLabels":
        """The same, and those of further nodes behind them."""
        return NodeLabels((*self._nodes, *nodes))

    def of(self, rows: Sequence[int]) -> list[Mapping[str, str]]:
        """All labels of these nodes."""
        return [self._nodes[row] for row in rows]

    def column(self, key: str) -> LabelColumn:
        if self._columns is None:
            self._columns = {key: _NOT_MADE for labels in self._nodes for key in labels}
        found = self._columns.get(key, self._none)
        if found is _NOT_MADE:
            number_of: dict[str, int] = {}
            numbers = [
                -1 if (value := labels.get(key)) is None else number_of.setdefault(value, len(number_of))
                for labels in self._nodes
            ]
            found = LabelColumn(np.array(numbers, dtype=np.int64), tuple(number_of), number_of)
            self._columns[key] = found
        return found

    def wholes(self, key: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(the label as a whole number, whether it is one); per node."""
        column = self.column(key)
        found = self._wholes.get(key if column is not self._none else "")
        if found is None:
            numbers, values, _ = column
            # The last one stands for nodes without the label, whose number is -1.
            wholes = [whole_number(value) for value in values] + [None]
            as_numbers = np.array([0 if each is None else each for each in wholes], dtype=np.int64)
            found = as_numbers[numbers], np.array([each is not None for each in wholes], dtype=np.bool_)[numbers]
            self._wholes[key if column is not self._none else ""] = found
        return found

    def knows(self, question: object) -> bool:
        """Whether it was asked already."""
        return question in self._answers

    def answer(self, question: object, ask: Callable[[], NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """What `ask` says, per node, of a question that only labels decide; asked once."""
        found = self._answers.get(question)
        if found is None:
            if len(self._answers) * max(len(self._nodes), 1) >= MOST_KEPT_BYTES:
                self._answers.clear()
            found = self._answers[question] = ask()
        return found
