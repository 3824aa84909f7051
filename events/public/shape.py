"""What all public events have in common, and how what the log says is made fit for them. Pure."""

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from events.commit import Commit
from events.ids import KEY_PATTERN

MOST_CHARACTERS: Final = 1_000
"""Of one text: a message of a cluster may be long, and an event must fit a message."""
MOST_NAME_CHARACTERS: Final = 256
"""Of a name that stands in a list."""
LARGEST: Final = 2**53 - 1
"""Every reader of JSON can hold such a number exactly."""


class PublicActor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who caused an event, as an id of Muster's own that says nothing about the person."""

    id: str
    """The same for all that one person or program does; `muster.<service>` for a service."""
    kind: Literal["user", "service"]
    """A person or program with a token, or a service of Muster."""


class PublicEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The data of a public event. Every field is always there; what is not known is null or empty."""

    actor: PublicActor
    """Who caused it."""


class OfWorkload(PublicEvent, frozen=True, kw_only=True, rename="camel"):
    """About one workload."""

    workload_id: str
    """UUID. A name that is used again is another workload."""
    name: str
    """Unique among the living workloads of the project."""
    project_id: str
    """UUID."""


class Told(NamedTuple):
    """One public event, and whom it is for."""

    event_index: int
    """Number of the event of the commit that it goes back to, from 0."""
    event: PublicEvent
    project_id: str
    workload_id: str = ""
    """Empty where it is about no workload."""
    part: int = 0
    """Where one event of the log becomes several of the same type: which one, from 0."""
    shared: bool = False
    """Whether other projects are told the same."""


class Around(Protocol):
    """What else the log says, as of the commit."""

    def project_of(self, workload_key: str) -> str:
        """Id of the project of a living workload; empty where there is none."""
        ...

    def projects_on(self, cluster_id: str) -> list[str]:
        """Ids of the projects with unfinished workloads on a cluster, in order."""
        ...

    def projects(self) -> list[str]:
        """Ids of all living projects, in order."""
        ...


class Happening[S](NamedTuple):
    """A commit, and the state of its aggregate before and after."""

    commit: Commit
    before: S
    after: S
    around: Around

    @property
    def actor(self) -> PublicActor:
        actor = self.commit.record.actor
        return PublicActor(id=cut(actor.id, MOST_NAME_CHARACTERS), kind=actor.kind)

    def for_all(self, index: int, event: PublicEvent, projects: list[str]) -> list[Told]:
        """The same for several projects."""
        return [Told(index, event, project_id, shared=True) for project_id in projects]


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def fit(number: int) -> int:
    """As near as every reader can come to it."""
    return max(-LARGEST, min(number, LARGEST))


def fit_or_none(number: int | None) -> int | None:
    return None if number is None else fit(number)


@lru_cache(maxsize=4096)
def token(text: str) -> bool:
    """Whether it may stand in a subject."""
    return bool(KEY_PATTERN.match(text))


def fields_of(event: PublicEvent) -> dict[str, Any]:
    """As a reader gets them."""
    return msgspec.to_builtins(event)
