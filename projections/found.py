"""What the read models answer, and up to which sequence of the log it speaks. No I/O."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping

from projections.schemas import Schema
from projections.use_hours import Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rows: Sequence[RowMapping]
    next: int | None
    """Offset of the page after this one; None where there is none."""
    seq: int
    """Up to which sequence of the log the rows speak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    rows: Sequence[RowMapping]
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePods:
    """A node, and the pods that hold something of it."""

    node: RowMapping
    rows: Sequence[RowMapping]
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    count: int
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStream:
    rows: AsyncIterator[RowMapping]
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseHours:
    amounts: Amounts
    names: dict[str, str]
    """Of projects, or clusters, by id; of what has no row there, none."""
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UseNow(Page):
    """A page of `use_statement`, and its sum over everything."""

    total: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A place of the log at which it may be looked at: never within an atomic batch."""

    seq: int
    """Of the last commit before or at it; 0: before the first."""
    at: datetime | None
    """The time that was asked for; of a sequence, the greatest time of a commit up to it, None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMoment:
    moment: Moment
    settled: bool
    """Whether no later commit can belong before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    schema: str
    shape: int
    seq: int
    halted: str | None
    """Why the projector stopped; None while it does not."""
    rebuilding_schema: str | None
    rebuild_seq: int | None
    rebuild_target_seq: int | None
    schemas: Sequence[Schema]
    """Every projection schema, the current one among them."""
