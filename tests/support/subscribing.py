"""Subscriptions in tests: their projects and events, the service that lets their readers in, and readers.

Readers are plain clients of NATS, as other people write them: nothing of ours is in them.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Container
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext

from development.commands import RunningService, carry_out
from development.servers import EVERYTHING, NatsServer
from events.aggregate import PROJECT
from events.ids import incarnation_id, project_key
from events.project import CreateProject, DeleteProject
from events.subscriptions import DOMAIN, CreateSubscription, DeleteSubscription, inbox_of
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import ServiceClient, connect
from services.runtime.nats.nkeys import KeyPair, new_seed
from services.subscriptions.service import run

SECONDS: Final = 60.0
"""Everything here takes well under a second where nothing else runs."""
_NUMBERS: Final = itertools.count(1)


async def until(probe: Callable[[], Any], what: str) -> None:
    """Waits until the probe, which may be async, is true."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = probe()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)
    raise AssertionError(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What the answer to a creation holds."""

    id: str
    project_id: str
    seed: str


class Given:
    """The log and FEED, as user `everything`."""

    def __init__(self, server: NatsServer, nc: ServiceClient) -> None:
        self.server = server
        self.nc = nc
        self.store = JetStreamEventStore(nc)
        self._sequence = 0

    async def project(self, name: str) -> str:
        command_id = f"project-{next(_NUMBERS)}"
        await carry_out(self.store, command_id, CreateProject(name=name))
        return incarnation_id(project_key(name), command_id)

    async def delete_project(self, project_id: str) -> None:
        await carry_out(self.store, f"end-{next(_NUMBERS)}", DeleteProject(project_id=project_id))

    async def subscription(self, project: str, *, from_seq: int = 1, name: str = "") -> Credential:
        """In the project of that name, which exists."""
        command_id, seed = f"subscription-{next(_NUMBERS)}", new_seed("user")
        chain = await self.store.load(PROJECT, project_key(project))
        project_id = chain.state.project_id
        command = CreateSubscription(
            project_id=project_id, public_key=KeyPair(seed).public, from_seq=from_seq, name=name
        )
        await carry_out(self.store, command_id, command)
        return Credential(id=incarnation_id(project_key(project), command_id), project_id=project_id, seed=seed)

    async def delete(self, credential: Credential) -> None:
        command = DeleteSubscription(project_id=credential.project_id, subscription_id=credential.id)
        await carry_out(self.store, f"deletion-{next(_NUMBERS)}", command)

    async def publish(self, project_id: str, *bodies: str, seq: int | None = None) -> None:
        """Public events of one workload, each of a commit of its own."""
        for body in bodies:
            self._sequence = self._sequence + 1 if seq is None else seq
            headers = {"ce-sequence": f"{self._sequence}.0", "ce-id": f"{project_id}/{body}"}
            subject = f"feed.{project_id}.w.WorkloadSubmitted"
            await self.nc.jetstream().publish(subject, body.encode(), headers=headers)

    async def consumers(self) -> set[str]:
        answer = await self.nc.jetstream().consumers_info("FEED")
        return {info.name for info in answer}

    async def ready(self, *credentials: Credential) -> None:
        async def made() -> bool:
            return {credential.id for credential in credentials} <= await self.consumers()

        await until(made, "each subscription has its consumer")


@contextlib.asynccontextmanager
async def given_on(server: NatsServer) -> AsyncGenerator[Given]:
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        yield Given(server, nc)
    finally:
        await nc.close()


@contextlib.asynccontextmanager
async def serving(server: NatsServer, instances: int = 1) -> AsyncGenerator[list[RunningService]]:
    """The service, as often as wanted."""
    settings = server.settings("subscriptions", callout_key_dir=server.callout_key_dir())
    services = [RunningService(run, settings, f"subscriptions-{number}") for number in range(instances)]
    try:
        for service in services:
            await service.ready()
        yield services
    finally:
        for service in services:
            await service.stop()


class Reader:
    """Somebody's program."""

    def __init__(self, credential: Credential, nc: Client, closed: asyncio.Event, refusals: list[str]) -> None:
        self.credential = credential
        self.nc = nc
        self.closed = closed
        """Set when its connection ends."""
        self.refusals = refusals

    @property
    def jetstream(self) -> JetStreamContext:
        return self.nc.jetstream(domain=DOMAIN)

    async def read(self, count: int, known: Container[str] = ()) -> list[str]:
        """So many events that are not known, or as many as come. Delivery is at least once."""
        subscription = await self.jetstream.pull_subscribe_bind(self.credential.id, stream="FEED")
        bodies: list[str] = []
        try:
            while len(bodies) < count:
                for message in await subscription.fetch(min(count - len(bodies), 100), timeout=SECONDS):
                    if (body := message.data.decode()) not in known:
                        bodies.append(body)
                    await message.ack()
        finally:
            await subscription.unsubscribe()
        return bodies

    async def reads_nothing_more(self) -> bool:
        subscription = await self.jetstream.pull_subscribe_bind(self.credential.id, stream="FEED")
        try:
            return not await subscription.fetch(1, timeout=0.5)
        except NatsTimeoutError:
            return True
        finally:
            await subscription.unsubscribe()


@contextlib.asynccontextmanager
async def reader(server: NatsServer, credential: Credential, **options: Any) -> AsyncGenerator[Reader]:
    """Raises what the client raises where it is not let in."""
    closed = asyncio.Event()
    refusals: list[str] = []

    async def on_disconnect() -> None:
        closed.set()

    async def on_error(error: Exception) -> None:
        refusals.append(str(error).lower())

    given: dict[str, Any] = {
        "nkeys_seed_str": credential.seed,
        "inbox_prefix": inbox_of(credential.id),
        "disconnected_cb": on_disconnect,
        "error_cb": on_error,
        "allow_reconnect": False,
        **options,
    }
    nc = Client()
    try:
        await nc.connect(server.url, **given)
        yield Reader(credential, nc, closed, refusals)
    finally:
        await nc.close()
        # The library forgets one that broke before the server let it in.
        if nc._transport is not None:
            nc._transport.close()


async def is_let_in(server: NatsServer, credential: Credential) -> bool:
    try:
        async with reader(server, credential):
            return True
    except (NatsError, NatsTimeoutError, OSError):
        return False
