"""Commands as a service: its connection and folds, a watch over the log, and requests until it is told to stop."""

import asyncio
import time

from services.commands import batches
from services.commands.counts import Counts
from services.commands.handle import Commands, serve
from services.commands.keys import JetStreamKeys
from services.commands.limits import CreationLimits
from services.commands.watch import LogWatch
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.request_server import RequestServer
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Carry out commands until `stop`. Raises what ends the fold of projects and clusters."""
    connection = await connect(settings, "commands")
    store = JetStreamEventStore(connection)
    directory = Directory(store, health.reader())
    limits = CreationLimits(
        living=settings.project_max_living_workloads,
        creations_per_hour=settings.project_max_creations_per_hour,
        project_bytes_per_hour=settings.project_max_bytes_per_hour,
        user_bytes_per_hour=settings.user_max_bytes_per_hour,
    )
    counts = Counts(store, limits, store.snapshots, health.reader())
    keys = JetStreamKeys(Requests(connection))
    commands = Commands(store=store, keys=keys, directory=directory, counts=counts)
    many = batches.Batches(commands, store=store, keys=keys, counts=counts)
    handle = batches.serve(connection, many, serve(connection, commands))
    server = RequestServer(connection, handle, subjects=["cmd.admitted.>", "cmd.system.*.>"], queue="commands")
    watch = LogWatch(connection, store, commands, health, clock=time.monotonic)
    try:
        await assert_streams(connection)
        await directory.start()
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            # From here on the watch says whether this is ready.
            working = [tasks.create_task(counts.run(), name="counts"), tasks.create_task(watch.run(), name="log watch")]
            await directory.until(stop)
            for task in working:
                task.cancel()
    finally:
        health.not_ready("stopping")
        await server.stop()
        await directory.close()
        await connection.close()
