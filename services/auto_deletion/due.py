"""Which due deletions, and moves of projects that lost their department, are sent now. Pure.

The table of due rows lags a little behind the log, so a row that was sent just now still stands there: it is not sent
again for a while. Sent twice it would do nothing (the decider looks at the generation), but it would cost.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from events.commit import service_actor
from events.envelope import AdmittedCommand
from events.ids import derived_command_id
from events.project import MoveLostProject
from events.workload.commands import DeleteWorkload

SERVICE: Final = "auto_deletion"
RESEND_AFTER: Final = timedelta(seconds=5)
"""A projector that is up is never this late, and an answer that was lost is asked for again soon enough."""


class Due(NamedTuple):
    """A workload that is to be deleted now."""

    workload_id: str
    generation: int | None
    """Which one of its auto-deletions is due; None: what it needs is gone."""
    gone: Literal["project", "cluster"] = "project"
    """With no generation: its project, where it came in at that moment or had ended before; or its cluster, where it
    had not ended.
    """


class Lost(NamedTuple):
    """A project that stands in a department that was deleted at the moment when it came in."""

    project_id: str
    department_id: str


Work = Due | Lost


def plan[W: Work](
    due: Sequence[W], sent: Mapping[W, datetime], now: datetime, *, most: int
) -> tuple[list[W], dict[W, datetime]]:
    """What to send now, at most so many, and what counts as sent afterwards (what is long past is forgotten)."""
    # A clock that was put back must not hold anything back until it has caught up.
    recent = {row: at for row, at in sent.items() if timedelta() <= now - at < RESEND_AFTER}
    to_send = [row for row in dict.fromkeys(due) if row not in recent][:most]
    return to_send, recent | dict.fromkeys(to_send, now)


def command(row: Work) -> AdmittedCommand:
    """The same row is the same command, however often and by however many instances it is sent."""
    if isinstance(row, Lost):
        return AdmittedCommand(
            command_id=derived_command_id(SERVICE, row.project_id, row.department_id),
            actor=service_actor(SERVICE),
            command=MoveLostProject(project_id=row.project_id, department_id=row.department_id),
        )
    left_over = row.generation is None
    return AdmittedCommand(
        command_id=derived_command_id(SERVICE, row.workload_id, row.gone if left_over else str(row.generation)),
        actor=service_actor(SERVICE),
        command=DeleteWorkload(
            workload_id=row.workload_id,
            generation=row.generation,
            project_deleted=left_over and row.gone == "project",
            cluster_removed=left_over and row.gone == "cluster",
        ),
    )
