"""Commands in tests: carried out on a store directly, and the real gate and commands in the test's event loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from joserfc.jwk import ECKey
from msgspec.structs import replace
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from events.actors import Person, actor_key
from events.aggregate import AGGREGATES, draft
from events.cluster import AddCluster
from events.commands import UserCommand, target
from events.commit import Actor
from events.decision import Context
from events.envelope import Accepted, CommandReply, CommandRequest, Refused
from events.ids import derived_command_id
from events.project import CreateProject, GrantProjectRole, RevokeProjectRole
from events.refusal import Refusal
from events.subjects import actor_subject
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.workload.commands import CreateWorkload
from events.workload.spec import TrainingSpec
from services.commands import service as commands_service
from services.ownership import service as ownership_service
from services.runtime.identity.actors import Actors
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed, EventStore
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health, Run
from services.runtime.process.settings import Settings

NOW = datetime(2027, 1, 1, tzinfo=UTC)
ADMIN = Actor(id="admin")
READY_SECONDS = 60.0
GRANTS = {"ada": "researcher", "bob": "researcher", "eve": "viewer", "pia": "project-admin"}


def naming(command: UserCommand) -> UserCommand:
    """The command with an id for the person whom it names, as the gate fills it in: here the subject itself."""
    if isinstance(command, GrantProjectRole | GrantTenantRole | RevokeProjectRole | RevokeTenantRole):
        return replace(command, actor=command.actor or command.subject)
    return command


async def introduce(nc: Client, subject: str) -> None:
    """Have ACTORS say that the id `subject` means the person with tokens for that subject."""
    person = Person(issuer="muster", subject=subject)
    where = actor_subject(actor_key(person.issuer, person.subject), subject)
    answer = await nc.request(where, msgspec.json.encode(person), timeout=60)
    assert b"error" not in answer.data, answer.data


async def carry_out(store: EventStore, command_id: str, command: UserCommand, *, actor: Actor = ADMIN) -> int:
    """Decide and append without gate or service, as a test's given; its sequence (the newest where all is so)."""
    place = target(command)
    assert place is not None
    aggregate = AGGREGATES[place[0]]
    chain = await store.load(aggregate, place[1])
    events = aggregate.decide(naming(command), chain.state, Context(now=NOW, actor=actor, command_id=command_id))
    assert not isinstance(events, Refusal), events
    if not events:
        return chain.version
    outcome = await store.append(draft(aggregate, place[1], chain, events, command_id=command_id, actor=actor, now=NOW))
    assert isinstance(outcome, Committed)
    return outcome.commits[0].seq


def code(reply: CommandReply) -> str:
    """Why it was refused, `admitted`, or `unknown`."""
    return (
        reply.refusal.code if isinstance(reply, Refused) else "admitted" if isinstance(reply, Accepted) else "unknown"
    )


def training(name: str, project_id: str, cluster_id: str) -> CreateWorkload:
    spec = TrainingSpec(image="busybox", command="sleep 1")
    return CreateWorkload(
        kind="Training", name=name, requested_name=name, project_id=project_id, cluster_id=cluster_id, spec=spec
    )


class RunningService:
    """One replica of a service in this event loop."""

    def __init__(self, run: Run, settings: Settings, name: str) -> None:
        self.health = Health(name)
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(run, settings), name=name)

    async def _run(self, run: Run, settings: Settings) -> None:
        await run(settings, self.health, self._stop)

    @property
    def ended(self) -> bool:
        """By itself; raises what ended it."""
        if self._task.done():
            self._task.result()
        return self._task.done()

    async def ready(self) -> "RunningService":
        async with asyncio.timeout(READY_SECONDS):
            while not self.health.serving:
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.005)
        return self

    async def stop(self) -> None:
        """As SIGTERM does."""
        self._stop.set()
        await self._task

    async def kill(self) -> None:
        """At once, wherever it is; its connection goes with it."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@dataclass
class CommandPath:
    """The path of a command: a client as the api has it, the gate, commands, and the log behind them."""

    server: NatsServer
    store: JetStreamEventStore
    client: CommandClient
    actors: Actors
    key: ECKey
    jwks_file: Path
    services: list[RunningService]

    def token(self, subject: str) -> str:
        return sign_token(self.key, subject=subject, issuer="muster", audience="muster", ttl_seconds=600)

    def request(self, subject: str, command: UserCommand, key: str, **envelope: Any) -> CommandRequest:
        envelope = {"body_hash": "hash of the body"} | envelope
        command_id = derived_command_id("test", subject, key)
        return CommandRequest(command_id=command_id, token=self.token(subject), command=command, **envelope)

    async def send(self, subject: str, command: UserCommand, key: str, **envelope: Any) -> CommandReply:
        return await self.client.send(self.request(subject, command, key, **envelope))

    async def accepted(self, subject: str, command: UserCommand, key: str) -> Accepted:
        reply = await self.send(subject, command, key)
        assert isinstance(reply, Accepted), reply
        return reply

    async def actor(self, subject: str) -> str:
        """The id of somebody who has one."""
        found = await self.actors.find("muster", subject)
        assert found is not None, subject
        return found

    async def administrator(self, subject: str) -> None:
        """Somebody who may do everything, from before the services started."""
        actor = await self.actors.find_or_make("muster", subject)
        await carry_out(self.store, subject, GrantTenantRole(subject=subject, role="administrator", actor=actor))

    async def remembered_keys(self) -> int:
        """How many keys are remembered."""
        nc = await connect(self.server.settings(EVERYTHING), EVERYTHING)
        try:
            return (await nc.jetstream().stream_info("KEYS")).state.messages
        finally:
            await nc.close()

    async def start(self, name: str, **more: Any) -> RunningService:
        run = {"ownership": ownership_service.run, "commands": commands_service.run}[name]
        service = RunningService(run, self.server.settings(name, jwks_file=self.jwks_file, **more), name)
        self.services.append(service)
        return await service.ready()


@asynccontextmanager
async def command_path(server: NatsServer, folder: Path, *, services: tuple[str, ...]) -> AsyncGenerator[CommandPath]:
    """The path on a server whose streams are there; `services` are those that run."""
    key = load_or_create_key(folder / "key")
    write_jwks(key, folder / "jwks.json")
    api = await connect(server.settings("api"), "api")
    commands = await connect(server.settings("commands"), "commands", suffix="test")
    gate = await connect(server.settings("ownership"), "ownership", suffix="test")
    path = CommandPath(
        server=server,
        store=JetStreamEventStore(commands),
        client=CommandClient(Requests(api)),
        actors=Actors(gate, Requests(gate)),
        key=key,
        jwks_file=folder / "jwks.json",
        services=[],
    )
    for name in services:
        await path.start(name)
    try:
        yield path
    finally:
        for service in path.services:
            await service.kill()
        await api.close()
        await gate.close()
        await commands.close()


async def furnish(path: CommandPath) -> tuple[str, str]:
    """A project with people and a cluster: their ids. Starts the services."""
    await path.administrator("root")
    await path.start("ownership")
    await path.start("commands")
    project = (await path.accepted("root", CreateProject(name="vision"), "project")).id
    cluster = (await path.accepted("root", AddCluster(name="lab", kind="kubernetes"), "cluster")).id
    for subject, role in GRANTS.items():
        command = GrantProjectRole(project_id=project, subject=subject, role=role)  # pyright: ignore[reportArgumentType]
        await path.accepted("root", command, f"grant {subject}")
    return project, cluster
