"""The gate as a service: its connection and folds, and requests until it is told to stop."""

import asyncio

from services.ownership.gate import Audit, Gate, about_reader
from services.runtime.identity.actors import Actors
from services.runtime.identity.authentication import authenticator
from services.runtime.identity.directory import Directory
from services.runtime.identity.identities import Identities
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.request_server import RequestServer
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Admit and refuse until `stop`. Raises what ends the fold of roles, and JwksError where no keys can be had."""
    connection = await connect(settings, "ownership")
    verifier = authenticator(settings)
    store = JetStreamEventStore(connection)
    directory = Directory(store, health.reader())
    requests = Requests(connection)
    actors = Actors(connection, requests)
    gate = Gate(
        connection=connection,
        identities=Identities(verifier, actors, directory),
        actors=actors,
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
        await actors.start()
        await server.start()
        health.ready()
        await directory.until(stop)
    finally:
        health.not_ready("stopping")
        await server.stop()
        await directory.close()
        await actors.close()
        await verifier.close()
        await connection.close()
