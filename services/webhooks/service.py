"""Posts public events to webhooks: takes them in from FEED, posts what is due, and answers what the api asks.

What is to be delivered stands in Postgres, so a killed service only delays, and several share the work. A request whose
outcome nobody learnt is made again: a receiver drops an id that it has seen.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final
from uuid import uuid4

import structlog

from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand
from events.subjects import WEBHOOKS_ASKED
from events.webhooks import DisabledBecause, DisableWebhook
from projections.postgres import create_pool
from services.runtime.identity.directory import Directory, KnownWebhook
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.bus import CommandClient, GateAwayError
from services.runtime.nats.connection import connect
from services.runtime.nats.request_server import RequestServer
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from services.runtime.webhooks.addresses import networks_of
from services.webhooks.answers import Desk
from services.webhooks.dispatch import Dispatcher
from services.webhooks.feed import Reader, catch_up
from services.webhooks.keys import WebhookKeys
from services.webhooks.post import Poster
from services.webhooks.table import Table

SERVICE: Final = "webhooks"
COMMAND_SECONDS: Final = 5.0
QUERY_SECONDS: Final = 5.0
CONNECTIONS: Final = 4
"""To Postgres."""
LAST_STANDING_SECONDS: Final = 2.0
"""That a stop waits for it."""
QUESTIONS: Final = 64
"""Of the api at once."""

log = structlog.get_logger(__name__)


class Disabling:
    """Has webhooks disabled that cannot be delivered to. What fails is tried again with the next delivery."""

    def __init__(self, commands: CommandClient) -> None:
        self._commands = commands

    async def __call__(self, known: KnownWebhook, reason: DisabledBecause) -> None:
        webhook = known.webhook
        admitted = AdmittedCommand(
            # Done twice it changes nothing, and it may have to be done again once the webhook was enabled again.
            command_id=str(uuid4()),
            actor=service_actor(SERVICE),
            command=DisableWebhook(project_id=known.project_id, webhook_id=webhook.id, reason=reason),
        )
        try:
            reply = await self._commands.send_system(SERVICE, admitted, timeout_seconds=COMMAND_SECONDS)
        except GateAwayError as error:
            log.warning("webhook_not_disabled", webhook_id=webhook.id, error=str(error))
            return
        if isinstance(reply, Accepted):
            log.info("webhook_disabled", webhook_id=webhook.id, reason=reason)
        else:
            log.warning("webhook_not_disabled", webhook_id=webhook.id, reply=type(reply).__name__)


def read_key(file: Path | None) -> bytes:
    if file is None:
        raise ValueError("MUSTER_WEBHOOK_KEY_FILE is not set: without that key nothing can be signed")
    return file.read_bytes().strip()


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """The service."""
    keys = WebhookKeys(read_key(settings.webhook_key_file))
    nc = await connect(settings, SERVICE)
    requests = Requests(nc)
    store = JetStreamEventStore(nc, requests=requests)
    directory = Directory(store, health.reader())
    poster = Poster(networks_of(settings.webhook_allow_networks), settings.own_ports)
    # No connection is opened yet: Postgres may be away.
    pool = await create_pool(
        settings.database_url,
        min_size=0,
        max_size=CONNECTIONS,
        timeout_seconds=QUERY_SECONDS,
        command_timeout_seconds=QUERY_SECONDS,
        server_settings={"application_name": "muster-webhooks"},
    )
    table = Table(pool)
    dispatcher = Dispatcher(
        table,
        poster,
        keys,
        directory,
        catch_up=lambda: catch_up(store, directory),
        disable=Disabling(CommandClient(requests)),
    )
    desk = Desk(nc, table, keys, directory, dispatcher)
    server = RequestServer(nc, desk.handle, subjects=[f"{WEBHOOKS_ASKED}.*"], queue=SERVICE, max_in_flight=QUESTIONS)
    try:
        await assert_streams(nc)
        await directory.start()
        await server.start()
        reader = Reader(table, requests, store, directory, dispatcher.wake)
        async with asyncio.TaskGroup() as tasks:
            working = [
                tasks.create_task(reader.run(health, stop), name="webhook events"),
                tasks.create_task(reader.keep(stop), name="webhook standing"),
                tasks.create_task(dispatcher.run(health, stop), name="webhook deliveries"),
                tasks.create_task(dispatcher.tidy(stop), name="webhook tidying"),
            ]
            await directory.until(stop)
            for task in working:
                task.cancel()
        # For a backup of what is stopped. Without it, the one before has some events posted again.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STANDING_SECONDS):
                await reader.write_standing()
    finally:
        health.not_ready("stopping")
        await server.stop()
        await poster.close()
        pool.terminate()
        await directory.close()
        await nc.close()
