"""The API of a sandbox: what reads workloads, nodes, clusters, projects and the log, over a log that is played.

It is composed of readers alone. There is no way to the gate, to NATS or to a stream among them (`Readers`), so no
handler here could change anything; whoever asks to is told that this is a sandbox. Places are those of the moment that
was played to, roles are those of now.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from projections.queries import Queries
from services.api.application import OPERATIONS, no_operation
from services.api.context import Readers
from services.api.edge import Edge
from services.api.endpoint import sandbox_endpoint
from services.api.errors import ApiError
from services.api.export import EXPORTS, EXPORTS_EACH
from services.api.follows import FOLLOWS
from services.api.limits import RateLimiter, Slots
from services.api.node_names import NodeNames
from services.api.operations import Operation
from services.api.pages import pages_of
from services.api.rows import LoggedRows
from services.api.service import Server, configuration
from services.runtime.identity.actors import Actors
from services.runtime.identity.authentication import authenticator
from services.runtime.identity.directory import Directory
from services.runtime.identity.identities import Identities
from services.runtime.log.played import PlayedLog
from services.runtime.log.store import EventReader
from services.runtime.process.settings import Settings

CONNECTIONS: Final = 2
"""To Postgres: those of the api itself must not run short."""

LOOKING: Final = tuple(operation for operation in OPERATIONS if operation.look is not None)
"""What a sandbox answers: operations whose handlers take a `Look`."""


def build_sandbox(readers: Readers, name: str) -> ASGIApp:
    """The ASGI application over these readers."""
    shown = (*LOOKING, *pages_of(LOOKING))
    routes = [
        Route(one.path, sandbox_endpoint(readers, one, one.look), methods=["GET"], name=one.id)
        for one in shown
        if one.look is not None
    ]
    return Edge(_Routes(name, routes, OPERATIONS))


class _Routes:
    """Has an operation answer what is asked; for all else it says that this is a sandbox, or that nothing is there."""

    def __init__(self, name: str, routes: list[Route], everything: tuple[Operation, ...]) -> None:
        self._name = name
        self._routes = routes
        self._everything = [(one, Route(one.path, no_operation, methods=[one.method])) for one in everything]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
        await self._refusal(scope).response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError:
        matches = [(one, route.matches(scope)[0]) for one, route in self._everything]
        if all(match is Match.NONE for _, match in matches):
            return ApiError(404, "this path does not exist; /docs lists every path of this sandbox")
        asked = next((one for one, match in matches if match is Match.FULL), None)
        if scope["method"] not in {"GET", "HEAD"} and (asked is None or asked.mutates):
            message = f"this is the sandbox {self._name}, a replay of the log: nothing can be changed in it"
            return ApiError(403, message, details="read_only")
        there = "workloads, nodes, clusters, projects and the log (`muster log list`) are there"
        message = f"the sandbox {self._name} does not show this: {there}"
        return ApiError(404, message, details="not_in_sandbox")


@asynccontextmanager
async def serving(
    settings: Settings,
    log: EventReader,
    people: Actors,
    played: PlayedLog,
    *,
    name: str,
    schema: str,
    at: socket.socket,
) -> AsyncGenerator[None]:
    """The API of one sandbox, on a socket that listens, as long as the block runs. Raises JwksError, TimeoutError, and
    what ends the fold of roles or of places.

    Args:
        log: the whole log: roles are those of its end.
        played: what the sandbox shows of it.
    """
    async with AsyncExitStack() as held:
        url = settings.reader_url or settings.database_url
        queries = Queries(url, connections=CONNECTIONS, schema=schema, now=lambda: played.at)
        held.push_async_callback(queries.close)
        verifier = authenticator(settings)
        await verifier.start()
        held.push_async_callback(verifier.close)
        roles, places = Directory(log), Directory(played)
        for directory in (roles, places):
            held.push_async_callback(directory.close)
            await directory.start()
        readers = Readers(
            identities=Identities(verifier, people, roles),
            actors=people,
            roles=roles,
            directory=places,
            store=played,
            queries=queries,
            rows=LoggedRows(played, places, now=lambda: played.at),
            node_names=NodeNames(played),
            limiter=RateLimiter(rate=settings.requests_per_second, burst=settings.requests_burst, clock=time.monotonic),
            exports=Slots(most=EXPORTS, each=EXPORTS_EACH),
            follows=Slots(most=FOLLOWS, each=settings.follows_per_user),
        )
        server = Server(configuration(build_sandbox(readers, name), settings))
        serve = asyncio.create_task(server.serve(sockets=[at]), name="sandbox")
        try:
            while not server.started and not serve.done():
                await asyncio.sleep(0.01)
            yield
        finally:
            server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await serve


def listening(host: str, port: int) -> socket.socket:
    """A socket for the API; port 0: any that is free. Raises OSError."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found
