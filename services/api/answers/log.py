"""The log itself, what was refused, and the state of what serves it. Pure."""

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

from msgspec import UNSET, UnsetType

from events.codec import EVENTS_OF
from events.commands import COMMANDS
from events.commit import BatchPart
from services.api.answers.forms import Form
from services.api.answers.workloads import Actor
from services.api.shown_events import Moment, ShownEvent

COMMAND_NAMES: Final = tuple(sorted(command.__name__ for command in COMMANDS))
if TYPE_CHECKING:
    type Aggregate = str
    type CommandName = str
else:
    Aggregate = StrEnum("Aggregate", {name.upper(): name for name in EVENTS_OF})
    CommandName = StrEnum("CommandName", {"UNREADABLE": ""} | {name.upper(): name for name in COMMAND_NAMES})


class Commit(Form, frozen=True, kw_only=True):
    """What one command did to one thing."""

    sequence: int
    """Its place in the log."""
    at: Moment
    """When it was decided."""
    aggregate: Aggregate
    """The kind of the thing."""
    id: str | None
    """Of the thing: a workload, cluster or project; null of the tenant, of nodes, which have none, and of messages."""
    name: str | None
    """Of the workload, project or cluster; null where it is not known here."""
    node: str | None
    """Name of the node, where the thing is one."""
    cluster_id: str | None
    """The cluster that it is, or is in."""
    project_id: str | None
    """The project that it is, or is in."""
    workload_ids: list[str]
    """Every workload that it concerns."""
    actor: Actor
    """Who gave the command."""
    command_id: str
    """Of the command."""
    correlation_id: str | None
    """The request id that all of it goes back to."""
    events: list[ShownEvent]
    """What was decided, in order; none where the message was declared void."""
    batch: BatchPart | None
    """Where it is part of an atomic batch."""


class Events(Form, frozen=True, kw_only=True):
    """A page of the log, oldest first; with order=desc newest first."""

    events: list[Commit]
    """One for each commit."""
    next: int | None
    """The sequence after which the next page begins; null at the log's end. With order=desc the sequence before which
    the search goes on, also where this page found less than was asked for; null at the log's beginning.
    """


class AuditEntry(Form, frozen=True, kw_only=True, omit_defaults=True):
    """A refusal, or an administrative act."""

    sequence: int
    """In its stream."""
    at: Moment
    """When it was."""
    outcome: Literal["refused", "admitted", "unreadable"]
    """`unreadable`: a record that nobody can read."""
    command: CommandName
    """What was asked for."""
    command_id: str
    """Of the command."""
    actor: Actor | UnsetType = UNSET
    """Who asked; missing where the token was not trusted."""
    target: str = ""
    """Id, or the name of what was to be made."""
    project_id: str | None = None
    """The project that it is about."""
    code: str = ""
    """Of the refusal; for what was admitted the right that it took."""
    message: str = ""
    """A sentence."""
    correlation_id: str = ""
    """The request id."""


class Audit(Form, frozen=True, kw_only=True):
    """Refusals and administrative acts, newest first."""

    records: list[AuditEntry]
    """Those that were found."""
    searched_back_to: Moment | None
    """How far back was searched; null where nothing older could be among them."""


class Rebuild(Form, frozen=True, kw_only=True):
    """Tables that are being made anew."""

    schema: str
    """Schema in which the new tables are made."""
    sequence: int | None
    """Last sequence that they have followed."""
    target_sequence: int | None
    """Sequence at which they replace the old tables."""


class ProjectionStatus(Form, frozen=True, kw_only=True):
    """How far the lists have followed the log."""

    schema: str
    """Schema that holds the tables."""
    sequence: int
    """Last sequence that they have followed."""
    log_sequence: int
    """Last sequence of the log."""
    lag: int
    """Commits between the two."""
    halted: str | None
    """Why they stopped. Null if they did not."""
    rebuilding: Rebuild | None
    """The rebuild in progress, if any."""


class Stream(Form, frozen=True, kw_only=True):
    """A stream that takes nothing more once it is full."""

    name: str
    """Name of the stream."""
    bytes: int
    """Bytes that it holds."""
    max_bytes: int
    """Bytes that it can hold."""
    fullness: float
    """From 0 to 1."""
    nearly_full: bool
    """Whether an administrator must act."""


class Streams(Form, frozen=True, kw_only=True):
    """How full the streams are."""

    streams: list[Stream]
    """Those that take nothing more once they are full."""


class Health(Form, frozen=True, kw_only=True):
    """Whether the process lives, or serves."""

    status: Literal["alive", "ready", "alarm"]
    """`alarm`: it serves, and a person must mend something."""
    alarms: dict[str, str] | UnsetType = UNSET
    """What that is, by service."""
