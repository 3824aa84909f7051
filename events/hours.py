"""The hours aggregate: how busy the GPUs of a project were, hour by hour. There is one for each project and month.

Samples of GPUs expire, and each hour is measured from them once, soon after its end. Hours are noted in order: one that
comes late, or a second time, changes nothing, however many measure.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.ids import key_of_id
from events.prices import HOUR, is_full_hour
from events.refusal import Refusal

MOST_ROWS: Final = 500
MOST_BYTES: Final = 300_000
"""Of one project in an hour, as JSON: NATS takes 1 MB, and an agent may call GPUs what it likes."""
OLDEST: Final = timedelta(days=31)
"""How long after it an hour may be measured; samples are kept for less."""
MILLI_SECONDS_PER_HOUR: Final = 3_600_000
"""One GPU for an hour, in thousandths of a GPU times seconds."""


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one owner had in one place. Amounts are thousandths of a GPU times seconds."""

    owner: str
    """Actor id."""
    cluster_id: str
    """Of the pods."""
    measured: int
    """Of the reserved time that of which samples tell how busy the GPU was."""
    used: int
    """That time, each part times how busy the GPU was."""
    pool: str = ""
    """Of the nodes."""
    priority_class: str = ""
    """Of the workloads, when this was measured."""
    gpu_model: str = ""
    """Empty where it is not known."""


class HoursMeasured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """So busy were the GPUs of a project in one hour."""

    project_id: str
    """Id of the project."""
    hour: datetime
    """When the hour begins."""
    rows: tuple[Measured, ...]
    """What each owner had in each place. Amounts are thousandths of a GPU times seconds."""


class Hours(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    project_id: str = ""
    newest: datetime | None = None
    """The last hour that was noted."""

    def takes(self, hour: datetime) -> bool:
        return self.newest is None or hour > self.newest


def evolve(state: Hours, event: HoursMeasured) -> Hours:
    """The state after one event; the very same where the event does not fit it: then it changes nothing."""
    if not event.project_id or state.project_id not in {"", event.project_id} or not state.takes(event.hour):
        return state
    return replace(state, project_id=event.project_id, newest=event.hour)


class NoteHours(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """An hour of a project was measured."""

    project_id: str
    hour: datetime
    rows: tuple[Measured, ...]

    def __post_init__(self) -> None:
        """Raises ValueError where these cannot be."""
        if not is_full_hour(self.hour):
            raise ValueError("no full hour")
        if not 0 < len(self.rows) <= MOST_ROWS or any(not 0 <= row.used <= row.measured for row in self.rows):
            raise ValueError("no measured rows")


def hours_key(project_id: str, hour: datetime) -> str | None:
    """None where the id is none of ours. Of the id, and not of the name: one that was deleted and one that is called so
    now may both have used the same hour.
    """
    return None if key_of_id(project_id) is None else f"{UUID(project_id).hex}-{hour.astimezone(UTC):%Y%m}"


def decide(command: NoteHours, state: Hours, context: Context) -> Decision[HoursMeasured]:
    if not context.now - OLDEST <= command.hour <= context.now - HOUR:
        return Refusal(
            code="invalid",
            field="hour",
            message=f"must be over, and since {OLDEST.days} days at most, got {command.hour:%Y-%m-%dT%H:%M:%SZ}",
        )
    if not state.takes(command.hour):
        return ()
    return (HoursMeasured(project_id=command.project_id, hour=command.hour, rows=command.rows),)
