"""Commands as a service: its connection and folds, a look at the log's size, and requests until it is told to stop."""

import asyncio
from typing import Final

import structlog

from services.commands.handle import Commands, serve
from services.runtime.bus import RequestServer
from services.runtime.connection import connect
from services.runtime.directory import Directory
from services.runtime.host import Health
from services.runtime.jetstream import JetStreamEventStore
from services.runtime.jetstream_api import JetStreamError
from services.runtime.requests import UnansweredError
from services.runtime.settings import Settings
from services.runtime.streams import assert_streams

FULL_SHARE: Final = 0.9
"""Of the stream's limit: above it creations are refused, so that facts, releases and deletions still fit."""
LOOK_SECONDS: Final = 5.0
"""At 5,000 commits of 1 KB per second the log grows by 25 MB between two looks; the last tenth holds 800 MB."""

log = structlog.get_logger(__name__)


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Carry out commands until `stop`. Raises what ends the fold of projects and clusters."""
    connection = await connect(settings, "commands")
    store = JetStreamEventStore(connection)
    directory = Directory(store)
    commands = Commands(store=store, directory=directory)
    handle = serve(connection, commands)
    server = RequestServer(connection, handle, subjects=["cmd.admitted.>", "cmd.system.*.>"], queue="commands")
    watcher = asyncio.create_task(_watch_size(store, commands), name="log size")
    try:
        await assert_streams(connection)
        await directory.start()
        await server.start()
        health.ready()
        await directory.until(stop)
    finally:
        health.not_ready("stopping")
        watcher.cancel()
        await server.stop()
        await directory.close()
        await connection.close()


async def _watch_size(store: JetStreamEventStore, commands: Commands) -> None:
    while True:
        try:
            full = await store.fullness() >= FULL_SHARE
        except (UnansweredError, JetStreamError) as error:
            log.warning("log_size_unknown", error=str(error))
        else:
            if full != commands.log_full:
                log.warning("log_nearly_full" if full else "log_has_room_again")
            commands.log_full = full
        await asyncio.sleep(LOOK_SECONDS)
