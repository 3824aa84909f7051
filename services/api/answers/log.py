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
    """Its position in the log."""
    at: Moment
    """When it was decided."""
    aggregate: Aggregate
    """The kind of thing that it changed."""
    id: str | None
    """Id of the workload, cluster or project. Null for the tenant, for nodes and for void messages."""
    name: str | None
    """Name of the workload, project or cluster. Null if it is not known."""
    node: str | None
    """Name of the node, if it changed a node."""
    cluster_id: str | None
    """Id of the cluster that it changed, or that the thing belongs to."""
    project_id: str | None
    """Id of the project that it changed, or that the thing belongs to."""
    workload_ids: list[str]
    """Every workload that it concerns."""
    actor: Actor
    """Who gave the command."""
    command_id: str
    """Id of the command."""
    correlation_id: str | None
    """Id of the API request that it goes back to."""
    events: list[ShownEvent]
    """What was decided, in order. Empty if the message was declared void."""
    batch: BatchPart | None
    """Its place in an atomic batch, if it is part of one."""


class Events(Form, frozen=True, kw_only=True):
    """A page of the log, oldest first; with order=desc newest first."""

    events: list[Commit]
    """One for each commit."""
    next: int | None
    """The sequence that the next page starts after. Null at the end of the log. With order=desc the next page continues
    before it, even if this page is not full. Null then means the beginning of the log."""


class AuditEntry(Form, frozen=True, kw_only=True, omit_defaults=True):
    """A refusal, or an administrative act."""

    sequence: int
    """Its position in the audit."""
    at: Moment
    """When it happened."""
    outcome: Literal["refused", "admitted", "unreadable"]
    """Whether the gate let the command pass. `unreadable`: the record cannot be read."""
    command: CommandName
    """The command."""
    command_id: str
    """Id of the command."""
    actor: Actor | UnsetType = UNSET
    """Who gave the command. Missing if the token was not trusted."""
    target: str = ""
    """Id of the thing, or name of what should be created."""
    project_id: str | None = None
    """Id of its project."""
    code: str = ""
    """Code of the refusal, or the right that was used."""
    message: str = ""
    """Why it was refused, as a sentence."""
    correlation_id: str = ""
    """Id of the API request."""


class Audit(Form, frozen=True, kw_only=True):
    """Refusals and administrative acts, newest first."""

    records: list[AuditEntry]
    """The records that match."""
    searched_back_to: Moment | None
    """Time of the oldest record that was searched. Null if every record was searched."""


class Rebuild(Form, frozen=True, kw_only=True):
    """A rebuild in progress."""

    schema: str
    """Schema in which the new tables are made."""
    sequence: int | None
    """Last sequence that they have followed."""
    target_sequence: int | None
    """Sequence at which they replace the old tables."""


class LastRebuild(Form, frozen=True, kw_only=True):
    """The rebuild that made the tables."""

    seconds: float
    """How long it took."""
    events: int
    """Events of the log that it read."""


class ProjectionSchema(Form, frozen=True, kw_only=True):
    """Tables beside those in use."""

    schema: str
    """Schema that holds them."""
    state: Literal["building", "replaced", "leftover", "shadow", "sandbox"]
    """`building`: they are being filled. `replaced`: a rebuild replaced them, and the next one drops them. `leftover`:
    a rebuild that did not end left them, and the next one drops them. `shadow`: they show one moment, and stay until
    somebody drops them. `sandbox`: a replay of the log is played into them."""
    sequence: int | None
    """The moment that a shadow shows."""
    since: Moment | None
    """When they became complete."""
    bytes: int
    """Bytes on disk."""


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
    lag_seconds: float
    """How long the oldest of these commits has been in the log. 0 if there is none."""
    shape: int
    """Version of the tables' structure."""
    since: Moment | None
    """Since when these tables are in use. Null if an older version made them."""
    bytes: int
    """Bytes on disk, with indexes."""
    last_rebuild: LastRebuild | None
    """The rebuild that made these tables. Null if they were there from the start, or an older version made them."""
    halted: str | None
    """Why they stopped. Null if they did not."""
    rebuilding: Rebuild | None
    """The rebuild in progress, if any."""
    others: list[ProjectionSchema]
    """Tables beside those in use, the oldest first."""


class Stream(Form, frozen=True, kw_only=True):
    """A stream that refuses new messages when it is full."""

    name: str
    """Name of the stream."""
    bytes: int
    """Bytes that it holds."""
    max_bytes: int
    """Bytes that it can hold."""
    fullness: float
    """Used share of its limit, from 0 to 1."""
    nearly_full: bool
    """Whether it is so full that an administrator should act."""


class Streams(Form, frozen=True, kw_only=True):
    """How full the streams are."""

    streams: list[Stream]
    """The streams that refuse new messages when they are full."""


class Health(Form, frozen=True, kw_only=True):
    """Whether the process is alive, or ready."""

    status: Literal["alive", "ready", "alarm"]
    """`alarm`: it is ready, but a person must repair something."""
    alarms: dict[str, str] | UnsetType = UNSET
    """What must be repaired, by service."""
