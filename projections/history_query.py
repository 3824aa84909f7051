"""Which records of a workload's history are asked for (S080), and the statement that finds them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, func, select

from projections.filters import check_text, contains
from projections.tables import history

MOST_PEOPLE: Final = 100
_ID: Final = r"\ya_[a-z2-7]{26}\y"
"""Of somebody within a sentence, as a regular expression of Postgres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    types: Collection[str] = ()
    """Of these types of events only. Empty: of all."""
    text: str = ""
    """Whose sentence holds this, in any case."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """By id, of people whom sentences name: these stand there by their ids, and are looked for by their names."""
    begin: datetime | int | None = None
    """From this time, or sequence of the log, on."""
    end: datetime | int | None = None
    """Up to it, with it."""
    newest_first: bool = False


ALL_RECORDS: Final = HistoryQuery()


def people_statement(workload_id: str) -> Select[Any]:
    """Ids of people whom the sentences of a workload's history name, each in an array: MOST_PEOPLE at most."""
    h = history.c
    found = select(func.regexp_matches(h.message, _ID, "g")).where(h.workload_id == workload_id)
    return found.distinct().limit(MOST_PEOPLE)


def history_statement(workload_id: str, asked: HistoryQuery, *, offset: int, limit: int) -> Select[Any]:
    """Records, in the order that is asked for. Raises InvalidQueryError where Postgres can hold no such text."""
    h = history.c
    statement = select(history).where(h.workload_id == workload_id, *_conditions(asked))
    order = (h.seq.desc(), h.index.desc()) if asked.newest_first else (h.seq, h.index)
    return statement.order_by(*order).offset(offset).limit(limit)


def _conditions(asked: HistoryQuery) -> list[ColumnElement[bool]]:
    h = history.c
    conditions: list[ColumnElement[bool]] = []
    if asked.types:
        conditions.append(h.type.in_(asked.types))
    if asked.text:
        shown: ColumnElement[Any] = h.message
        for id_, name in asked.names.items():
            shown = func.replace(shown, id_, name)
        conditions.append(contains(shown, check_text("text", asked.text)))
    if asked.begin is not None:
        conditions.append((h.seq if isinstance(asked.begin, int) else h.at) >= asked.begin)
    if asked.end is not None:
        conditions.append((h.seq if isinstance(asked.end, int) else h.at) <= asked.end)
    return conditions
