"""The table of operations, and the application made from it. Nothing is built at import time."""

from collections.abc import Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from events.channels import SUBPROTOCOL
from services.api import (
    acts,
    assets,
    batches,
    budgets,
    clusters,
    code,
    credentials,
    data_sources,
    departments,
    diff,
    distributed,
    event_stream,
    export,
    inferences,
    logs,
    maintenance,
    operation_log,
    organisation,
    policies,
    prices,
    public_events,
    service_accounts,
    simulated_nodes,
    start_windows,
    subscriptions,
    system,
    time_limits,
    trainings,
    undo,
    use_hours,
    use_now,
    webhooks,
    why,
    workload_connections,
    workloads,
    workspaces,
)
from services.api.context import Api
from services.api.edge import Edge
from services.api.endpoint import SocketEndpoint, endpoint
from services.api.errors import ApiError
from services.api.operations import operations_in
from services.api.pages import pages_of
from services.api.ways import WAYS

PREFLIGHT_SECONDS: Final = 600
"""For which a browser remembers what it may send."""
OPERATIONS: Final = operations_in(
    *(
        trainings,
        distributed,
        workspaces,
        inferences,
        assets,
        data_sources,
        credentials,
        policies,
        code,
        batches,
        acts,
        undo,
        workloads,
        why,
        workload_connections,
        export,
        logs,
        clusters,
        departments,
        organisation,
        time_limits,
        start_windows,
        use_now,
        use_hours,
        prices,
        budgets,
        diff,
        service_accounts,
        simulated_nodes,
        maintenance,
        event_stream,
        public_events,
        subscriptions,
        webhooks,
        operation_log,
        system,
    )
)
"""Every endpoint; the order is that of matching, and of the pages made from it."""


class _Routes:
    """Has an operation answer what is asked; where there is none, says so in our form."""

    def __init__(self, routes: Sequence[Route], sockets: Sequence[WebSocketRoute]) -> None:
        self._routes = routes
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        possible: set[str] = set()
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
            if match is Match.PARTIAL:
                possible |= route.methods or set()
        if any(route.path_regex.match(scope["path"]) for route in self._sockets):
            message = f"this path is a WebSocket: ask for it with Upgrade: websocket and the subprotocol {SUBPROTOCOL}"
            headers = {"Upgrade": "websocket", "Connection": "Upgrade"}
            await ApiError(426, message, details="upgrade_required", headers=headers).response()(scope, receive, send)
            return
        await no_operation(scope["method"], sorted(possible - {"HEAD"})).response()(scope, receive, send)


class _Sockets:
    """Has what is asked for as a WebSocket answered. Raises ApiError."""

    def __init__(self, routes: Sequence[WebSocketRoute]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send)
                return
        raise ApiError(404, "no WebSocket stands at this path; docs/concepts/sessions.md lists them")


def build_application(api: Api, *, origins: Sequence[str] = ()) -> ASGIApp:
    """The ASGI application over these connections and folds; pages of `origins` may use it from a browser."""
    routes = [
        Route(operation.path, endpoint(api, operation), methods=[operation.method], name=operation.id)
        for operation in (*OPERATIONS, *pages_of(OPERATIONS))
    ]
    ways = [
        WebSocketRoute(operation.path, SocketEndpoint(api, operation, handler), name=operation.id)
        for operation, handler in WAYS
    ]
    app = Edge(
        _Routes(routes, ways),
        sockets=_Sockets(ways),
        large={operation.path for operation in OPERATIONS if operation.large},
    )
    if not origins:
        return app
    # Around the edge, so that its refusals can be read, too. Tokens travel in a header that pages set themselves.
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_credentials=False,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=[
            "Authorization",
            "Content-Type",
            "Idempotency-Key",
            "If-Match",
            "Last-Event-ID",
            "X-Log-Sequence",
        ],
        expose_headers=["X-As-Of", "X-Log-Sequence", "X-Log-Stale", "X-Version", "X-Request-Id", "Retry-After"],
        max_age=PREFLIGHT_SECONDS,
    )


def no_operation(method: str, possible: Sequence[str]) -> ApiError:
    """Nothing stands at this path, or not with this method."""
    if not possible:
        return ApiError(404, "this path does not exist; /docs lists every path (ids are UUIDs)")
    allowed = ", ".join(possible)
    return ApiError(405, f"this path does not have the method {method}; it has {allowed}", headers={"Allow": allowed})
