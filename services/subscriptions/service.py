"""Keeps a consumer of FEED for each subscription, lets its reader in, and cuts off whose subscription is no more.

What there should be follows from the log; what there is, is looked at again and again. So several instances are
harmless, and one that is killed between two steps only delays.
"""

import asyncio
import contextlib
import random
from typing import Final

import structlog
from nats.errors import Error as NatsError

from events.aggregate import PROJECT
from events.public.cloudevents import Place
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import EventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.jetstream_api import JetStreamError
from services.runtime.nats.nkeys import KeyPair
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import assert_streams
from services.runtime.process import failpoints
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from services.subscriptions.callout import Callout
from services.subscriptions.connections import Connections
from services.subscriptions.feed import Feed
from services.subscriptions.positions import Positions
from services.subscriptions.reconcile import plan

SERVICE: Final = "subscriptions"
LOOK_SECONDS: Final = 5.0
"""How often consumers and connections are looked at where nothing has changed."""
STILL_SECONDS: Final = 10.0
"""For which a FEED that is behind a position must stand still before it counts as all there is: who writes it anew may
be restarted meanwhile. Until then, its readers are refused, and ask again."""
CATCH_UP_SECONDS: Final = 5.0
"""Within which what was just committed is known here; it takes some milliseconds."""
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
_TROUBLE: Final = "subscriptions"

log = structlog.get_logger(__name__)


class Subscriptions:
    """Makes what is there what should be there."""

    def __init__(
        self,
        store: EventStore,
        directory: Directory,
        feed: Feed,
        positions: Positions,
        connections: Connections,
    ) -> None:
        self._store = store
        self._directory = directory
        self._feed = feed
        self._positions = positions
        self._connections = connections
        self._there: set[str] = set()
        """Consumers, as far as is known."""
        self._newest = ("", 0)
        """When FEED was made, and its newest sequence, at the last look."""
        self._grew_at = 0.0
        """When that had last changed."""
        self._next_look = 0.0
        self._ended = asyncio.Event()
        """Set when a subscription has ended."""

    async def round(self) -> None:
        """Look, where it is time, and do what follows. Raises UnansweredError, JetStreamError, NatsError."""
        clock = asyncio.get_running_loop().time
        floors = await self._feed.consumers() if clock() >= self._next_look else None
        if floors is not None:
            self._there = set(floors)
        todo = plan(self._directory.subscriptions, self._there)
        if todo.delete:
            # Another instance may have heard of a new subscription before this one.
            await self._catch_up()
            todo = plan(self._directory.subscriptions, self._there)
        for subscription_id in todo.delete:
            await self._end(subscription_id)
        await self._make_all(todo.make)
        if floors is not None:
            wanted = self._directory.subscriptions
            await self._positions.note({name: floor for name, floor in floors.items() if name in wanted})
            await self._positions.save(self._directory.seq)
            self._next_look = clock() + LOOK_SECONDS

    def look_again(self) -> None:
        """At the next round."""
        self._next_look = 0.0

    async def _catch_up(self) -> None:
        """Wait until all that stands in the log by now is known here. Raises UnansweredError, JetStreamError."""
        newest = await self._store.last_seq(aggregates=(PROJECT.name,))
        if not await self._directory.reached(newest, timeout_seconds=CATCH_UP_SECONDS):
            raise UnansweredError(f"subscriptions are known up to {self._directory.seq}, and the log is at {newest}")

    async def _end(self, subscription_id: str) -> None:
        """An open pull ends with the consumer, and the connection is closed. Its key lets nobody in any more."""
        await self._feed.delete(subscription_id)
        failpoints.reached("subscription_consumer_deleted")
        await self._connections.cut_off(subscription_id)
        self._there.discard(subscription_id)
        self._positions.forget(subscription_id)
        self._ended.set()
        log.info("subscription_ended", subscription_id=subscription_id)

    async def _make_all(self, missing: tuple[str, ...]) -> None:
        if not missing:
            return
        info = await self._feed.info()
        state = info.state
        # While FEED is being written anew, those who were further are told nothing twice.
        now = asyncio.get_running_loop().time()
        if (info.created, state.last_seq) != self._newest:
            self._newest, self._grew_at = (info.created, state.last_seq), now
        grows = now - self._grew_at < STILL_SECONDS
        last = await self._feed.place_at(state.last_seq) if state.last_seq else None
        for subscription_id in missing:
            found = self._directory.subscriptions.get(subscription_id)
            if found is None:
                continue
            subscription, project_id = found
            read = self._positions.get(subscription_id)
            if read is not None and grows and (last is None or last < read):
                continue
            start = await self._feed.first_from(Place(subscription.from_seq, 0), state)
            made = await self._feed.make(subscription_id, project_id, start)
            failpoints.reached("subscription_consumer_made")
            if made and read is not None:
                rest = await self._feed.first_from(Place(read.seq, read.number + 1), state)
                if rest > start:
                    await self._feed.reset(subscription_id, rest)
            self._there.add(subscription_id)
            log.info("subscription_ready", subscription_id=subscription_id, from_sequence=start)

    async def run(self, health: Health, stop: asyncio.Event) -> None:
        """Rounds until `stop`."""
        pause = FIRST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                await self.round()
            except (UnansweredError, JetStreamError, NatsError) as error:
                # Who is let in, and what runs, does not hang on it.
                health.warnings[_TROUBLE] = f"consumers of FEED cannot be looked after: {error}"
                log.warning("subscriptions_not_looked_after", error=str(error))
                self.look_again()
                await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                health.warnings.pop(_TROUBLE, None)
                pause = FIRST_PAUSE_SECONDS
                missing = self._directory.subscriptions.keys() - self._there
                await self._directory.moved(FIRST_PAUSE_SECONDS if missing else LOOK_SECONDS)

    async def watch(self, stop: asyncio.Event) -> None:
        """Until `stop`, look who is connected, and cut off whose subscription is no more: what another instance let in,
        or this one before it was started again. Beside the rounds, since servers take their time to answer.
        """
        in_vain = 0
        while not stop.is_set():
            self._ended.clear()
            try:
                await self._connections.look()
                await self._catch_up()
                await self._connections.cut_off_others(self._directory.subscriptions)
                in_vain = 0
            except (UnansweredError, JetStreamError, NatsError) as error:
                in_vain += 1
                if in_vain > 1:  # one that meets a moving log, or a busy server, is no news
                    log.warning("connections_not_looked_at", error=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._ended.wait()


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """The service."""
    if settings.callout_key_dir is None:
        raise ValueError("MUSTER_CALLOUT_KEY_DIR is not set: without its keys nobody can be let in")
    issuer, responder = (
        KeyPair((settings.callout_key_dir / name).read_text().strip()) for name in ("issuer", "responder")
    )
    nc = await connect(settings, SERVICE)
    requests = Requests(nc)
    store = JetStreamEventStore(nc, requests=requests)
    directory = Directory(store, health.reader())
    connections = Connections(nc, requests)
    feed = Feed(requests)
    positions = Positions(store.snapshots, feed)
    callout: Callout | None = None
    try:
        await assert_streams(nc)
        await directory.start()
        await positions.load()
        asked = await connect(settings, SERVICE, suffix="callout", key=responder)
        callout = Callout(asked, issuer, directory, connections, feed)
        await callout.start()
        health.ready()
        work = Subscriptions(store, directory, feed, positions, connections)
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(work.run(health, stop), name="subscriptions"),
                tasks.create_task(work.watch(stop), name="connections"),
            ]
            await directory.until(stop)
            for task in working:
                task.cancel()
    finally:
        health.not_ready("stopping")
        if callout is not None:
            await callout.close()
        await directory.close()
        await nc.close()
