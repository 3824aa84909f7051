"""The table of operations, and the application made from it. Nothing is built at import time."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route

from services.api import (
    clusters,
    code,
    export,
    logs,
    operation_log,
    organisation,
    service_accounts,
    system,
    trainings,
    workloads,
)
from services.api.context import Api
from services.api.edge import Edge
from services.api.endpoint import endpoint
from services.api.errors import ApiError
from services.api.openapi import document
from services.api.operations import operations_in
from services.api.pages import pages_of

PREFLIGHT_SECONDS: Final = 600
"""For which a browser remembers what it may send."""
OPERATIONS: Final = operations_in(
    *(trainings, code, workloads, export, logs, clusters, organisation, service_accounts, operation_log, system)
)
"""Every endpoint; the order is that of matching, and of the pages made from it."""


def build_application(api: Api, *, origins: Sequence[str] = ()) -> FastAPI:
    """The ASGI application over these connections and folds; pages of `origins` may use it from a browser."""
    app = FastAPI(title="Muster", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.openapi = lambda: document(OPERATIONS)
    for operation in (*OPERATIONS, *pages_of(OPERATIONS)):
        app.router.routes.append(
            Route(operation.path, endpoint(api, operation), methods=[operation.method], name=operation.id)
        )
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(Edge)
    if origins:
        # Around the edge, so that its refusals can be read, too. Tokens travel in a header that pages set themselves.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_credentials=False,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match", "X-Log-Sequence"],
            expose_headers=["X-Log-Sequence", "X-Log-Stale", "X-Version", "X-Request-Id", "Retry-After"],
            max_age=PREFLIGHT_SECONDS,
        )
    return app


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What routing itself refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = sorted(_methods_of(request, path))
        return ApiError(
            405,
            f"{request.method} is not possible here; possible: {', '.join(allowed)}",
            headers={"Allow": ", ".join(allowed)},
        ).response()
    if error.status_code == HTTPStatus.NOT_FOUND:
        return ApiError(404, "there is nothing at this path; /docs lists what there is (ids are UUIDs)").response()
    return ApiError(error.status_code, str(error.detail), headers=_text_headers(error.headers)).response()


def _methods_of(request: Request, path: str) -> set[str]:
    methods: set[str] = set()
    for route in request.app.router.routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            methods |= (route.methods or set()) - {"HEAD"}
    return methods


def _text_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})
