"""The api as a service: its connections and folds, and an HTTP server in this event loop until it is told to stop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from typing import Final, cast

import uvicorn
from starlette.types import ASGIApp

from events.channels import FRAME_BYTES
from events.workload.exposure import proxy_address
from projections.queries import Queries
from services.api.account_use import AccountUse
from services.api.application import build_application
from services.api.asking import QUESTIONS, QUESTIONS_EACH
from services.api.batches import BATCHES, BATCHES_EACH
from services.api.code import tidy
from services.api.connections import ConnectionLimits, bounded
from services.api.context import Api, CodeLimits
from services.api.credentials import tidy_credentials
from services.api.export import EXPORTS, EXPORTS_EACH
from services.api.feed_tail import FeedTail
from services.api.first import make_first
from services.api.follows import FOLLOWS
from services.api.limits import RateLimiter, Slots
from services.api.node_names import NodeNames
from services.api.rows import LoggedRows
from services.api.session_ends import MOST_SESSIONS, SessionLimits, Sessions
from services.api.tickets import Tickets
from services.api.tls import Certificate, certificate_of, over_tls
from services.runtime.identity.actors import Actors
from services.runtime.identity.authentication import authenticator
from services.runtime.identity.directory import Directory
from services.runtime.identity.identities import Identities
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.bus import CommandClient
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from services.runtime.webhooks.addresses import networks_of

PING_SECONDS: Final = 20
"""Between signs of life on a WebSocket: below the 60 s after which common balancers cut what is silent."""
STOP_SECONDS: Final = 3
"""Requests under way get this long at the end; followers of logs are cut off."""
HOUR_SECONDS: Final = 3600.0
KEEP_ALIVE_SECONDS: Final = 65
"""Longer than the 60 s of common load balancers, so that they never write into a connection that we close."""


class Server(uvicorn.Server):
    """Without signal handlers: the host has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises what ends the fold of roles and projects, OSError where the port is taken, and
    CertificateError where https is wanted and cannot be served.
    """
    certificate = certificate_of(settings)
    connection = await connect(settings, "api")
    queries = Queries(settings.reader_url or settings.database_url)
    verifier = authenticator(settings)
    store = JetStreamEventStore(connection)
    directory = Directory(store, health.reader())
    requests = Requests(connection)
    actors = Actors(connection, requests)
    commands = CommandClient(requests)
    feed = FeedTail(requests)
    account_use = AccountUse(commands, clock=time.monotonic)
    sessions = _sessions(commands, settings)
    try:
        await assert_streams(connection)
        await verifier.start()
        await directory.start()
        await actors.start()
        api = Api(
            identities=Identities(verifier, actors, directory),
            account_use=account_use,
            actors=actors,
            roles=directory,
            directory=directory,
            store=store,
            commands=commands,
            queries=queries,
            rows=LoggedRows(store, directory),
            node_names=NodeNames(store),
            nats=connection,
            requests=requests,
            limiter=RateLimiter(rate=settings.requests_per_second, burst=settings.requests_burst, clock=time.monotonic),
            exports=Slots(most=EXPORTS, each=EXPORTS_EACH),
            follows=Slots(most=FOLLOWS, each=settings.follows_per_user),
            sessions=sessions,
            batches=Slots(most=BATCHES, each=BATCHES_EACH),
            questions=Slots(most=QUESTIONS, each=QUESTIONS_EACH),
            streams=Slots(most=settings.event_streams, each=settings.event_streams_per_user),
            heartbeat_seconds=settings.event_stream_heartbeat_seconds,
            feed=feed,
            tickets=Tickets(settings.password_of("api")),
            code=CodeLimits(
                max_bytes=settings.code_max_bytes,
                project_max_bytes=settings.code_project_max_bytes,
                retention_hours=settings.code_retention_hours,
            ),
            subscriber_url=settings.subscriber_address,
            credential_public_key_file=settings.credential_public_key_file,
            webhook_networks=networks_of(settings.webhook_allow_networks),
            proxy=proxy_address(settings.proxy_url),
            ready=lambda: health.serving and connection.is_connected,
            alarm=lambda: ". ".join(filter(None, (health.alarm, *store.voids.doubted(actors.subject)))),
        )
        async with _tidying(api):
            await _serve(api, settings, certificate, health, stop)
    finally:
        await sessions.close()
        await feed.close()
        await account_use.close()
        await directory.close()
        await actors.close()
        await verifier.close()
        await queries.close()
        await connection.close()


def _sessions(commands: CommandClient, settings: Settings) -> Sessions:
    limits = SessionLimits(
        longest_seconds=settings.session_hours * HOUR_SECONDS,
        idle_seconds=settings.session_idle_minutes * 60,
        stalled_seconds=settings.http_max_stalled_seconds,
    )
    return Sessions(commands, slots=Slots(most=MOST_SESSIONS, each=settings.sessions_per_user), limits=limits)


@contextlib.asynccontextmanager
async def _tidying(api: Api) -> AsyncGenerator[None]:
    tasks = (
        asyncio.create_task(tidy(api), name="tidy-code"),
        asyncio.create_task(tidy_credentials(api), name="tidy-credentials"),
    )
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _serve(
    api: Api, settings: Settings, certificate: Certificate | None, health: Health, stop: asyncio.Event
) -> None:
    application = build_application(api, origins=[*filter(None, map(str.strip, settings.cors_origins.split(",")))])
    server = Server(configuration(application, settings, certificate))
    serving = asyncio.create_task(server.serve(), name="http")
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            health.ready()
            await make_first()
            await _until_any_ends(asyncio.create_task(api.directory.until(stop)), serving)
    finally:
        health.not_ready("stopping")
        api.feed.stop()
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def _until_any_ends(watching: asyncio.Task[None], serving: asyncio.Task[None]) -> None:
    """Until the service shall stop, or one of its halves fails. Raises what failed."""
    await asyncio.wait((watching, serving), return_when=asyncio.FIRST_COMPLETED)
    if watching.done():
        watching.result()
        return
    watching.cancel()
    serving.result()
    raise RuntimeError("the HTTP server ended by itself")


def configuration(application: ASGIApp, settings: Settings, certificate: Certificate | None = None) -> uvicorn.Config:
    """How uvicorn serves it: bounded, and without what it would do of its own accord."""
    limits = ConnectionLimits(
        connections=settings.http_max_connections,
        per_address=settings.http_max_connections_per_address,
        head_seconds=settings.http_max_head_seconds,
        stalled_seconds=settings.http_max_stalled_seconds,
    )
    protocol = bounded(limits) if certificate is None else over_tls(bounded(limits), limits, certificate)
    return uvicorn.Config(
        application,
        host=settings.http_host,
        port=settings.http_port,
        loop="none",
        http=cast("type[asyncio.Protocol]", protocol),
        ws="websockets-sansio",
        ws_max_size=FRAME_BYTES,
        ws_ping_interval=PING_SECONDS,
        # Whoever waits for the other side reads no answer to a ping meanwhile; a client that is gone is noticed all the
        # same, since its machine refuses the ping, or nothing arrives.
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
