"""The one-shot: run before the services of every new version; run again, it changes nothing.

Only it may create streams and tables. What is there already it leaves as it is, and the services check it themselves;
settings of a stream are changed by a migration alone.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from asyncpg.exceptions import CannotConnectNowError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from events.aggregate import CLUSTER, PROJECT, TENANT, Aggregate, draft
from events.cluster import AddCluster
from events.commit import service_actor
from events.decision import Context
from events.ids import TENANT_KEY, cluster_key, derived_command_id, project_key
from events.project import CreateProject
from events.refusal import Refusal
from events.simulated import SimulatedNodes
from events.tenant import GrantTenantRole
from projections.migrate import newest_row_seq, prepare
from services.runtime.identity.actors import Actors, ActorsAwayError
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed, EventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import StreamError, assert_streams, create_streams
from services.runtime.process.settings import Settings
from services.setup.migrate import USER, migrate, told, wanted_changes, wanted_streams

WAIT_SECONDS: Final = 60.0
"""Servers that are started at the same moment: a cluster elects its leaders, a new database is initialised."""
PAUSE_SECONDS: Final = 0.5
GRANT_TRIES: Final = 5
"""Each lost only to another setup that runs at the same time, and then there is nothing left to grant."""

FIRST_CLUSTER: Final = "simulated"
FIRST_PROJECT: Final = "default"

log = structlog.get_logger(__name__)


class SetupError(Exception):
    """Something could not be made; the message says what."""


async def set_up(settings: Settings) -> None:
    """Make everything that is missing. Raises where it cannot; nothing is half done then that a second run minds."""
    if settings.key_file is not None and settings.jwks_file is not None and not settings.jwks_url:
        from services.runtime.identity.local_keys import load_or_create_key, write_jwks

        write_jwks(load_or_create_key(settings.key_file), settings.jwks_file)
    connection = await connect(settings, "setup")
    try:
        await _patiently(
            "JetStream",
            lambda: create_streams(connection, settings.replicas, wanted_streams(settings)),
            (NoRespondersError, NatsTimeoutError),
        )
        if found := await wanted_changes(connection, settings):
            await _migrate(settings, told(found))
        await assert_streams(connection, replicas=settings.replicas)
        if settings.postgres_url:
            await _patiently(
                "Postgres",
                lambda: prepare(settings.database_url, settings.reader_url),
                (OSError, CannotConnectNowError),
            )
        store = JetStreamEventStore(connection)
        if settings.postgres_url:
            await _patiently("the log", lambda: refuse_lost_log(store, settings.database_url), (UnansweredError,))
        actors = Actors(connection, Requests(connection))
        await _patiently(
            "the log",
            lambda: grant_first_administrator(store, actors, settings.issuer, settings.admin_subject),
            (UnansweredError, ActorsAwayError),
        )
        if settings.first_cluster:
            await _patiently("the log", lambda: make_first_places(store, settings.first_cluster), (UnansweredError,))
    finally:
        await connection.close()
    log.info("setup_done", streams=True, tables=bool(settings.postgres_url))


async def refuse_lost_log(store: EventStore, postgres_url: str) -> None:
    """Raises SetupError where the tables are of a log that is gone: with an empty one begun beside them, everything
    would seem well, and nobody would look for the other.
    """
    shown = await newest_row_seq(postgres_url)
    if shown and not await store.last_seq():
        raise SetupError(
            f"the event log is empty, and the tables in Postgres show one that went up to {shown:,}. Give NATS its "
            "data back (docker-compose: the volume nats-data; log and tables are backed up together). To begin anew "
            "with an empty log, remove the tables, too (docker-compose: the volume postgres-data)"
        )


async def _migrate(settings: Settings, wanted: list[str]) -> None:
    """Where this process has all passwords, as in `muster up`. Elsewhere an operator does it, who has that one."""
    if settings.nats_password_dir is None or not os.access(settings.nats_password_dir / USER, os.R_OK):
        raise StreamError(
            "\n".join(wanted)
            + f"\nThat is a migration: run `python -m services.setup migrate` with the password of the "
            f"NATS user {USER!r}, and setup again."
        )
    await migrate(settings)


async def grant_first_administrator(store: EventStore, actors: Actors, issuer: str, subject: str) -> bool:
    """Make the holder of the issuer's tokens for `subject` the tenant's administrator, where it has none who could have
    such a token; whether that was so. Raises SetupError, ActorsAwayError.

    So somebody can mend a log whose ACTORS were lost, or whose issuer is another one now.
    """
    for _ in range(GRANT_TRIES):
        chain = await store.load(TENANT, TENANT_KEY)
        administrators = [actor for actor, roles in chain.state.roles.items() if "administrator" in roles]
        await actors.learn(administrators)
        if any(actors.person(actor).issuer == issuer for actor in administrators):
            return False
        administrator = await actors.find_or_make(issuer, subject)
        actor, now = service_actor("setup"), datetime.now(UTC)
        command_id = derived_command_id("setup", "first administrator", administrator)
        command = GrantTenantRole(subject=subject, role="administrator", actor=administrator)
        context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
        events = TENANT.decide(command, chain.state, context)
        if isinstance(events, Refusal):
            raise SetupError(f"{subject!r} could not be made administrator: {events.message}")
        made = draft(TENANT, TENANT_KEY, chain, events, command_id=command_id, actor=actor, now=now)
        if isinstance(await store.append(made), Committed):
            log.info("administrator_granted", actor=administrator)
            return True
    raise SetupError(f"{subject!r} could not be made administrator; run setup again")


async def make_first_places(store: EventStore, size: str) -> None:
    """Make the project `default` and the simulated cluster `simulated`, NODESxGPUS large, where there never were any.

    Raises SetupError.
    """
    nodes, gpus = (int(number) for number in size.split("x"))
    simulated = SimulatedNodes(
        names=tuple(f"simulated-{number}" for number in range(nodes)),
        cpu_milli=64_000,
        memory_bytes=512 * 1024**3,
        gpu_count=gpus,
        gpu_model="simulated",
        gpu_memory_bytes=80 * 1024**3 if gpus else 0,
    )
    cluster = AddCluster(name=FIRST_CLUSTER, kind="simulated", simulated_nodes=(simulated,))
    await _make_first(store, CLUSTER, cluster_key(FIRST_CLUSTER), cluster)
    await _make_first(store, PROJECT, project_key(FIRST_PROJECT), CreateProject(name=FIRST_PROJECT))


async def _make_first(
    store: EventStore, aggregate: Aggregate[Any], key: str, command: AddCluster | CreateProject
) -> None:
    chain = await store.load(aggregate, key)
    if chain.version:
        return  # also what was removed stays so
    actor, now = service_actor("setup"), datetime.now(UTC)
    command_id = derived_command_id("setup", aggregate.name, command.name)
    context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
    events = aggregate.decide(command, chain.state, context)
    if isinstance(events, Refusal):
        raise SetupError(f"{aggregate.name} {command.name!r} was not made: {events.message}")
    made = draft(aggregate, key, chain, events, command_id=command_id, actor=actor, now=now)
    if isinstance(await store.append(made), Committed):
        log.info("first_made", kind=aggregate.name, name=command.name)
        return
    if not (await store.load(aggregate, key)).version:
        raise SetupError(f"{aggregate.name} {command.name!r} could not be made; run setup again")


async def _patiently(what: str, act: Callable[[], Awaitable[object]], passing: tuple[type[Exception], ...]) -> None:
    """Do it; while it fails with an error that passes by itself, try again until WAIT_SECONDS are over."""
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + WAIT_SECONDS
    while True:
        try:
            await act()
        except passing as error:
            if clock() > give_up_at:
                raise SetupError(f"{what} did not answer for {WAIT_SECONDS:.0f} s: {error}") from error
            log.info("setup_waits", waiting_for=what, reason=str(error) or type(error).__name__)
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return
