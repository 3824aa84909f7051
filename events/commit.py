"""The commit record: one command's events on one aggregate, the unit of the log.

A command that touches one aggregate is one message. One that touches several (workloads and the nodes that hold them)
is an atomic batch of such messages, one per aggregate, each guarded; `batch` ties them together, and nobody may ever
look at the log in the middle of one.
"""

from datetime import datetime
from typing import Any, Literal

import msgspec

from events.actors import SERVICE_PREFIX


class Actor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who caused a commit, as an id of Muster's own that says nothing about the person."""

    id: str
    """Id of a person or program with a token, which the stream ACTORS maps to them; `muster.<service>` for a
    service."""
    kind: Literal["user", "service"] = "user"
    """A person or program with a token, or a service of Muster."""


def service_actor(service: str) -> Actor:
    return Actor(id=f"{SERVICE_PREFIX}{service}", kind="service")


class About(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the gate must know about the aggregate to decide on the next command, without reading its history."""

    id: str | None = None
    """Id of the thing after this commit; for a workload, of its newest incarnation."""
    owner: str | None = None
    """Actor id of the owner of a workload: who submitted it, or got it since."""
    project_id: str | None = None
    """UUID of its project."""
    cluster_id: str | None = None
    """UUID of the cluster that it runs on, or of the cluster itself."""


class BatchPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place of this message in an atomic batch."""

    id: str
    """Id of the batch, the same for all of its parts."""
    index: int
    """Number of this part, from 1."""
    count: int
    """Number of parts in the batch."""


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event as it is stored: its registered name, the version of its shape, and its fields."""

    type: str
    """Its registered name."""
    data: msgspec.Raw
    """Its fields."""
    version: int = 1
    """Version of its shape."""


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored message. `Commit` is the same with decoded events and its place in the log."""

    commit_id: str
    """Id of this commit. Its writer finds the commit by it if the answer was lost."""
    command_id: str
    """Id of the command that caused it. The same command again makes no second commit."""
    actor: Actor
    """Who gave the command."""
    occurred_at: datetime
    """When it was decided, by the clock of the decider, in UTC."""
    parent_seq: int
    """Sequence of the aggregate's commit before this one; 0 for the first. It is also the guard of the append."""
    events: tuple[EventRecord, ...]
    """What was decided, in order. At least one."""
    body_hash: str = ""
    """Hash of the request that the command came from; empty for commands of services."""
    correlation_id: str = ""
    """Id of the API request that this commit goes back to."""
    causation_id: str = ""
    """What directly caused this commit."""
    batch: BatchPart | None = None
    """The place in an atomic batch, if it is part of one."""
    about: About = About()
    """What the gate must know about the aggregate."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit record read from, or just written to, the log."""

    aggregate: str
    key: str
    seq: int
    """Stream sequence: its place in the total order; also the aggregate's version after it."""
    record: CommitRecord
    events: tuple[Any, ...]
    """Decoded (and upcast) events, each one of the aggregate's event union."""

    @property
    def ends_batch(self) -> bool:
        """Whether a follower may stop after this commit: it stands alone or closes its batch."""
        return self.record.batch is None or self.record.batch.index == self.record.batch.count

    @property
    def batch_end(self) -> int:
        """Sequence of the last commit of its batch; its own where it stands alone."""
        part = self.record.batch
        return self.seq if part is None else self.seq - part.index + part.count
