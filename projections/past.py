"""Rows as they were: what is kept of a row when a commit replaces it. Pure.

A table whose rows have a `version` (the sequence of the commit that made them) has a table of the past beside it. Each
of its rows held from `version` on, and no longer at `until_seq`. Columns that change often stand there for themselves.
The others stand together as JSON, and only where the commit that replaced the row changed one of them: so a row of the
past is small, and what the others were is said by the next such row, or by the row of now (projections/past_views.py).
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import msgspec

from projections.columns import Column, columns_of

SINCE: Final = "version"
"""The column that makes a table take part: the sequence since which its row holds."""
UNTIL: Final = "until_seq"
"""The sequence of the commit that replaced the row."""
SELDOM: Final = "seldom"
"""JSON: the columns that seldom change, where one of them changed."""

_ENCODER: Final = msgspec.json.Encoder()


def has_past(row: type) -> bool:
    """Whether rows of this type are kept when they are replaced."""
    return any(column.name == SINCE for column in columns_of(row))


def kept_columns(row: type) -> tuple[Column[Any], ...]:
    """What a row of the past has for itself: its key, and what changes often."""
    return tuple(c for c in columns_of(row) if c.stored and (c.key or c.often))


def seldom_columns(row: type) -> tuple[Column[Any], ...]:
    return tuple(c for c in columns_of(row) if c.stored and not (c.key or c.often))


class Leaving[S]:
    """Makes rows of the past of one table, of what its rows are made of."""

    def __init__(self, row: type[msgspec.Struct], _: type[S]) -> None:
        kept = kept_columns(row)
        names = [column.name for column in kept]
        self._type = msgspec.defstruct(f"{row.__name__}Left", [*names, UNTIL, SELDOM], gc=False)
        self._of_row: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
        self._values = [value for column in kept if (value := column.value) is not None]
        self._seldom = [
            (c.name, value, c.type == "json") for c in seldom_columns(row) if (value := c.value) is not None
        ]

    def of_row(self, row: msgspec.Struct, until_seq: int) -> Any:
        """What is left of a row that a commit replaces."""
        return self._type(*self._of_row(row), until_seq, None)

    def of_state(self, state: S, until_seq: int) -> Any:
        """What is left of the row that would be made of this state."""
        return self._type(*[value(state) for value in self._values], until_seq, None)

    def say_seldom(self, left: Any, state: S) -> None:
        """Add what changes seldom, of the state that the row was made of."""
        values = ((name, value(state), is_json) for name, value, is_json in self._seldom)
        said = {name: msgspec.Raw(str(value).encode()) if is_json else value for name, value, is_json in values}
        left.seldom = _ENCODER.encode(said).decode()
