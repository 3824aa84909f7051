"""The proxy's shell: follows the log, knows the keys of tokens, and serves HTTP until it is told to stop.

All that it knows follows from the log, and what it hands out is sealed with a secret that all proxies have: several of
them are alike, and one that is killed takes with it only the requests that are under way.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.aggregate import BrokenChainError
from events.load import REPORT_SECONDS
from events.subjects import load_subject
from events.workload.exposure import proxy_address
from services.proxy.door import Door
from services.proxy.forward import takes
from services.proxy.holding import Holding
from services.proxy.replicas import InTurn
from services.proxy.routes import FOLDED, SNAPSHOT_SHAPE, Bounds, Routes
from services.proxy.sessions import Sessions
from services.runtime.identity.authentication import authenticator
from services.runtime.identity.directory import Directory
from services.runtime.identity.identities import verified
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from services.runtime.webhooks.addresses import networks_of

NAME: Final = "proxy"
STOP_SECONDS: Final = 2.0
"""Requests under way get this long at the end."""
BACKLOG: Final = 1_000
SOONEST_REPORT_SECONDS: Final = 0.05
"""Between two reports of load."""

log = structlog.get_logger(__name__)


def bounds_of(settings: Settings) -> Bounds:
    return Bounds(
        pod_networks=networks_of(settings.proxy_pod_networks),
        own_ports=settings.own_ports,
        cluster_id=settings.proxy_cluster,
    )


class RoutesFollower:
    """Keeps the routes as the log has them."""

    def __init__(self, store: JetStreamEventStore, bounds: Bounds) -> None:
        self._store = store
        self._bounds = bounds
        self._snapshots = FoldSnapshots(store.snapshots, NAME, shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)
        self.routes = Routes(bounds)
        self.moved: Callable[[], None] = lambda: None
        """Called once the routes may have changed."""

    async def begin(self, *, from_snapshot: bool) -> None:
        """From the newest snapshot, or anew."""
        self.routes = Routes(self._bounds)
        if from_snapshot and (found := await self._snapshots.load()) is not None:
            self.routes.restore(*found)

    async def save(self) -> None:
        """Before the end: the next start reads what came since."""
        await self._snapshots.save(self.routes.seq, self.routes.chains, datetime.now(UTC))

    async def follow(self, health: Health, caught_up: asyncio.Event) -> None:
        """For ever; `caught_up` is set once all that was in the log at the beginning is known."""
        newest = await self._store.last_seq()
        follow = follow_into(self._store, self.routes, on_standing=health.reader())
        try:
            async with contextlib.aclosing(follow) as arrivals:
                async for commits in arrivals:
                    if commits:
                        self.moved()
                    if self.routes.seq >= newest:
                        caught_up.set()
                    else:
                        health.reading(self.routes.seq, newest)
                    now = datetime.now(UTC)
                    if self._snapshots.due(self.routes.seq, now):
                        await self._snapshots.save(self.routes.seq, self.routes.chains, now)
                    await asyncio.sleep(0)
        except BrokenChainError:
            # The snapshot's fault, perhaps: without it, only the log's own is left.
            await self._snapshots.forget()
            raise


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises what ends the folds, and OSError where the port is taken."""
    address = proxy_address(settings.proxy_url)
    if address is None:
        log.info("proxy_idle", reason="MUSTER_PROXY_URL is not set: no workload can expose a URL")
        health.ready()
        await stop.wait()
        return
    nc = await connect(settings, NAME)
    verifier = authenticator(settings)
    store = JetStreamEventStore(nc)
    directory = Directory(store, health.reader())
    follower = RoutesFollower(store, bounds_of(settings))
    try:
        await assert_streams(nc)
        await verifier.start()
        await directory.start()
        await follower.begin(from_snapshot=True)
        held = asyncio.Event()
        replicas = Holding(
            follower.routes,
            InTurn(follower.routes, most=settings.proxy_max_connections_per_workload),
            takes=takes,
            most=settings.proxy_max_connections_per_workload,
            most_held=settings.proxy_max_held_per_workload,
            hold_seconds=settings.proxy_hold_seconds,
            on_held=held.set,
        )
        follower.moved = replicas.moved
        door = Door(
            address=address,
            routes=follower.routes,
            replicas=replicas,
            sessions=Sessions(settings.password_of(NAME)),
            verify=lambda token: verified(token, verifier, directory),
            account_there=lambda digest: directory.account_with(digest) is not None,
            session_seconds=settings.proxy_session_hours * 3600,
            idle_seconds=settings.proxy_idle_seconds,
            most_bytes=settings.proxy_max_body_bytes,
            most_connections=settings.proxy_max_connections,
        )
        caught_up = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(follower.follow(health, caught_up), name="proxy routes"),
                    tasks.create_task(_report(nc, follower.routes, replicas, held), name="proxy loads"),
                    tasks.create_task(_serve(door, settings, health, caught_up), name="proxy http"),
                ]
                await directory.until(stop)
                for task in working:
                    task.cancel()
            if caught_up.is_set():
                await follower.save()
        finally:
            await replicas.close()
    finally:
        health.not_ready("stopping")
        await directory.close()
        await verifier.close()
        await nc.close()


async def _report(nc: Client, routes: Routes, replicas: Holding, held: asyncio.Event) -> None:
    """For ever, tell the autoscaler what is asked of inferences: every second, and as soon as one waits for a first
    replica. A report that is lost is made up for by the next ones.
    """
    subject = load_subject(uuid4().hex)
    while True:
        held.clear()
        for report in replicas.reports(set(routes.inferences())):
            try:
                await nc.publish(subject, msgspec.json.encode(report))
            except NatsError as error:
                log.info("load_not_sent", error=str(error))
        await asyncio.sleep(SOONEST_REPORT_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS - SOONEST_REPORT_SECONDS):
                await held.wait()


async def _serve(door: Door, settings: Settings, health: Health, caught_up: asyncio.Event) -> None:
    """Until cancelled."""
    await caught_up.wait()
    server = await asyncio.start_server(door.serve, settings.proxy_host, settings.proxy_port, backlog=BACKLOG)
    health.ready()
    try:
        await server.serve_forever()
    finally:
        server.close()
        under_way = tuple(door.open)
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
