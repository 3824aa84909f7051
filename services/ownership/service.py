"""The gate as a service: its connection and folds, and requests until it is told to stop."""

import asyncio

from services.ownership.gate import Audit, Gate, about_reader
from services.runtime.authentication import authenticator
from services.runtime.connection import connect
from services.runtime.directory import Directory
from services.runtime.host import Health
from services.runtime.jetstream import JetStreamEventStore
from services.runtime.request_server import RequestServer
from services.runtime.requests import Requests
from services.runtime.settings import Settings
from services.runtime.streams import assert_streams


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Admit and refuse until `stop`. Raises what ends the fold of roles, and JwksError where no keys can be had."""
    connection = await connect(settings, "ownership")
    verifier = authenticator(settings)
    store = JetStreamEventStore(connection)
    directory = Directory(store, health.reader())
    requests = Requests(connection)
    gate = Gate(
        connection=connection,
        authenticator=verifier,
        directory=directory,
        store=store,
        read_about=about_reader(store),
        audit=Audit(requests),
        refuse_roles_while_local=settings.local_pods == "shared",
    )
    server = RequestServer(connection, gate.handle, subjects=["cmd.request.>"], queue="ownership")
    try:
        await assert_streams(connection)
        await verifier.start()
        await directory.start()
        await server.start()
        health.ready()
        await directory.until(stop)
    finally:
        health.not_ready("stopping")
        await server.stop()
        await directory.close()
        await verifier.close()
        await connection.close()
