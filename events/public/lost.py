"""The public event of history that is lost: of a message of the log that nobody can read any more. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

from events.installation import Log
from events.public.shape import Happening, PublicEvent, Told, cut, fit
from events.void import Void


class HistoryLost(PublicEvent, frozen=True, kw_only=True, rename="camel"):
    """Something that happened is not known any more, so events of it are missing, or were told and hold no more. Look
    at things as they are now.
    """

    cause: Literal["message_voided", "log_restored"]
    """`message_voided`: a message of the log could not be read, and an administrator declared it void. `log_restored`:
    the log was restored from a backup, and what came after that backup is lost."""
    message: str
    """The same in a sentence."""
    from_sequence: int
    """The first sequence of the log that is lost."""
    to_sequence: int
    """The last one. After a restore it is `fromSequence`: nobody knows how far the log went, and its sequences are used
    again."""
    workload_id: str | None
    """The workload that it is about. Null: it may be about any, or about something else."""


EVENTS: Final[tuple[type[PublicEvent], ...]] = (HistoryLost,)


def tell(happening: Happening[Void]) -> Iterator[Told]:
    """The public events of a record that declares a message void."""
    for index, event in enumerate(happening.commit.events):
        about = event.about
        of_workload = event.subject.startswith("ev.workload.")
        told = HistoryLost(
            actor=happening.actor,
            cause="message_voided",
            message=f"message {fit(event.seq)} of the log could not be read, and an administrator declared it void",
            from_sequence=fit(event.seq),
            to_sequence=fit(event.seq),
            workload_id=cut(about.id) if about.id and of_workload else None,
        )
        projects = [about.project_id] if about.project_id else happening.around.projects()
        yield from happening.for_all(index, told, projects)


def tell_restored(happening: Happening[Log]) -> Iterator[Told]:
    """The public events of a restore: one for every project that the backup knows."""
    for index, event in enumerate(happening.commit.events):
        told = HistoryLost(
            actor=happening.actor,
            cause="log_restored",
            message=f"the log was restored from a backup of {event.backed_up_at:%Y-%m-%d %H:%M:%S} UTC; what came "
            f"after sequence {fit(event.seq)} is lost",
            from_sequence=fit(event.seq + 1),
            to_sequence=fit(event.seq + 1),
            workload_id=None,
        )
        yield from happening.for_all(index, told, happening.around.projects())
