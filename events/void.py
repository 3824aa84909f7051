"""The void aggregate: one per message of the log that nobody can read, and that an administrator declared to say
nothing.

Its key is the message's sequence, so that a reader who meets the message finds the record of it by name, and the guard
alone makes it the only one. The message itself stays where it is: a log has no holes.
"""

from typing import assert_never

import msgspec

from events.commit import About, Commit, CommitRecord
from events.decision import Context, Decision
from events.refusal import Refusal
from events.subjects import split_aggregate_subject

# -- events ----------------------------------------------------------------------------------------------------------


class MessageVoided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator declared a message void that cannot be read. Every reader skips it."""

    seq: int
    """Sequence of the message."""
    subject: str
    """Subject of the message."""
    cause: str
    """Why it cannot be read."""
    reason: str
    """Reason that the administrator gave."""
    parent_seq: int = 0
    """Sequence of the message before it on its subject; 0 if there is none. Each reader checks that itself."""
    about: About = About()
    """What is known of its aggregate from the commits before it."""


VoidEvent = MessageVoided

# -- state -----------------------------------------------------------------------------------------------------------


class Void(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    seq: int = 0
    """Of the message; 0 where nothing was declared."""


def evolve(_: Void, event: VoidEvent) -> Void:
    match event:
        case MessageVoided():
            return Void(seq=event.seq)
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class Unreadable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the log that cannot be read, as the service that looked at it found it."""

    subject: str
    cause: str
    parent_seq: int = 0
    about: About = About()


def nothing_at(seq: int, found: Unreadable, void: Commit) -> Commit:
    """What stands in the log in the voided message's place: a commit without events, on the same chain."""
    try:
        aggregate, key = split_aggregate_subject(found.subject)
    except ValueError:
        aggregate = key = ""
    record = CommitRecord(
        commit_id=f"void-{seq}",
        command_id=void.record.command_id,
        actor=void.record.actor,
        occurred_at=void.record.occurred_at,
        parent_seq=found.parent_seq,
        events=(),
        about=found.about,
    )
    return Commit(aggregate=aggregate, key=key, seq=seq, record=record, events=())


class VoidMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    seq: int
    reason: str
    found: Unreadable | None = None
    """What stands there: `commands` looks itself, and overwrites what was sent."""


VoidCommand = VoidMessage


def decide(command: VoidCommand, state: Void, _: Context) -> Decision[VoidEvent]:
    match command:
        case VoidMessage():
            if state.seq == command.seq:
                return ()
            found = command.found
            if found is None:
                return Refusal(
                    code="message_readable",
                    field="sequence",
                    message=f"message {command.seq} can be read; only a message that cannot be read can be "
                    "declared void",
                )
            return (
                MessageVoided(
                    seq=command.seq,
                    subject=found.subject,
                    cause=found.cause,
                    reason=command.reason,
                    parent_seq=found.parent_seq,
                    about=found.about,
                ),
            )
        case _:
            assert_never(command)
