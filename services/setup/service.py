"""The one-shot: run before the services of every new version; run again, it changes nothing.

Only it may create streams and tables. What is there already it leaves as it is, and the services check it themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import structlog
from asyncpg.exceptions import CannotConnectNowError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from events.aggregate import TENANT, draft
from events.commit import service_actor
from events.decision import Context
from events.ids import TENANT_KEY, derived_command_id
from events.refusal import Refusal
from events.tenant import GrantTenantRole
from projections.migrate import prepare
from services.runtime.connection import connect
from services.runtime.jetstream import JetStreamEventStore
from services.runtime.local_keys import load_or_create_key, write_jwks
from services.runtime.requests import UnansweredError
from services.runtime.settings import Settings
from services.runtime.store import Committed, EventStore
from services.runtime.streams import assert_streams, create_streams, raise_log_limit

WAIT_SECONDS: Final = 60.0
"""Servers that are started at the same moment: a cluster elects its leaders, a new database is initialised."""
PAUSE_SECONDS: Final = 0.5
GRANT_TRIES: Final = 5
"""Each lost only to another setup that runs at the same time, and then there is nothing left to grant."""

log = structlog.get_logger(__name__)


class SetupError(Exception):
    """Something could not be made; the message says what."""


async def set_up(settings: Settings) -> None:
    """Make everything that is missing. Raises where it cannot; nothing is half done then that a second run minds."""
    if settings.key_file is not None and settings.jwks_file is not None and not settings.jwks_url:
        write_jwks(load_or_create_key(settings.key_file), settings.jwks_file)
    connection = await connect(settings, "setup")
    try:
        await _patiently(
            "JetStream",
            lambda: create_streams(connection, settings.replicas),
            (NoRespondersError, NatsTimeoutError),
        )
        if await raise_log_limit(connection, settings.log_max_bytes):
            log.info("log_limit_raised", max_bytes=settings.log_max_bytes)
        await assert_streams(connection, replicas=settings.replicas)
        if settings.postgres_url:
            await _patiently("Postgres", lambda: prepare(settings.postgres_url), (OSError, CannotConnectNowError))
        store = JetStreamEventStore(connection)
        await _patiently(
            "the log", lambda: grant_first_administrator(store, settings.admin_subject), (UnansweredError,)
        )
    finally:
        await connection.close()
    log.info("setup_done", streams=True, tables=bool(settings.postgres_url))


async def grant_first_administrator(store: EventStore, subject: str) -> bool:
    """Make `subject` the tenant's administrator where it has none; whether that was so. Raises SetupError."""
    for _ in range(GRANT_TRIES):
        chain = await store.load(TENANT, TENANT_KEY)
        if any("administrator" in roles for roles in chain.state.roles.values()):
            return False
        actor, now = service_actor("setup"), datetime.now(UTC)
        command_id = derived_command_id("setup", "first administrator", subject)
        context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
        events = TENANT.decide(GrantTenantRole(subject=subject, role="administrator"), chain.state, context)
        if isinstance(events, Refusal):
            raise SetupError(f"{subject!r} was not made administrator: {events.message}")
        made = draft(TENANT, TENANT_KEY, chain, events, command_id=command_id, actor=actor, now=now)
        if isinstance(await store.append(made), Committed):
            log.info("administrator_granted", subject=subject)
            return True
    raise SetupError(f"{subject!r} could not be made administrator; run setup again")


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
