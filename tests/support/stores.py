"""The event stores that the contract suite holds to the same promises."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from events.commit import Commit
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import Committed, EventStore, Outcome
from services.runtime.nats.connection import connect
from services.runtime.process.settings import Settings

COLLECT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """An empty log, and a way to open several stores on it."""

    kind: str
    open: Callable[[], "asyncio.Future[EventStore]"]


async def memory_log() -> AsyncIterator[Log]:
    store = MemoryEventStore()

    async def open_store() -> EventStore:
        return store

    yield Log(kind="memory", open=lambda: asyncio.ensure_future(open_store()))


async def jetstream_log(kind: str, settings: Settings) -> AsyncIterator[Log]:
    """`settings` are those of the service `commands`, which may do all that a store does."""
    clients = []

    async def open_store() -> EventStore:
        client = await connect(settings, "commands", suffix=str(len(clients)))
        clients.append(client)
        return JetStreamEventStore(client)

    yield Log(kind=kind, open=lambda: asyncio.ensure_future(open_store()))
    for client in clients:
        await client.close()


def seqs(outcome: Outcome) -> list[int]:
    """Sequences of what was committed; fails the test where nothing was."""
    assert isinstance(outcome, Committed), outcome
    return [commit.seq for commit in outcome.commits]


async def collect(
    store: EventStore, after_seq: int, count: int, *, aggregates: Sequence[str] = ()
) -> list[list[Commit]]:
    """What a follower is handed, until it has `count` commits."""
    handed: list[list[Commit]] = []
    total = 0
    following = store.follow(after_seq, aggregates=aggregates, idle_seconds=0.2)
    try:
        async with asyncio.timeout(COLLECT_SECONDS):
            async for commits in following:
                if commits:
                    handed.append(commits)
                total += len(commits)
                if total >= count:
                    break
    finally:
        await following.aclose()
    return handed


def flat(handed: list[list[Commit]]) -> list[Commit]:
    return [commit for commits in handed for commit in commits]
