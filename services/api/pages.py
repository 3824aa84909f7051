"""Pages that need no token: what the API says of itself, to programs and to people."""

import asyncio
import html
import threading
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
from starlette.responses import HTMLResponse, Response

from services.api import asyncapi
from services.api.context import Look
from services.api.docs_page import docs_page
from services.api.edge import CONTENT_SECURITY_POLICY
from services.api.openapi import document
from services.api.operations import JSON, Operation, reads

STYLE: Final = Path(__file__).with_name("docs.css")
WITH_STYLE: Final = {"Content-Security-Policy": f"{CONTENT_SECURITY_POLICY}; style-src 'self'"}
"""What a browser may load for `/docs`: nothing but a style sheet of ours."""


def made_once[T](make: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """What takes a second or more to make, and anybody may ask for: made at the first request, beside the event loop,
    which serves all others meanwhile.
    """
    lock, made = threading.Lock(), list[T]()

    def first() -> T:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    async def found() -> T:
        return made[0] if made else await asyncio.to_thread(first)

    return found


def pages_of(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The pages on these operations. Each is made when it is first asked for."""
    described = made_once(lambda: msgspec.json.encode(document(operations)))
    page = made_once(lambda: docs_page(document(operations)))
    told = made_once(lambda: msgspec.json.encode(asyncapi.document()))

    @reads("/openapi.json", tag="System", summary="This description", public=True)
    async def openapi(_: Look) -> Response:
        return Response(await described(), media_type=JSON)

    @reads("/asyncapi.json", tag="System", summary="The public events that other programs subscribe to", public=True)
    async def public_events(_: Look) -> Response:
        return Response(await told(), media_type=JSON)

    @reads(
        "/docs",
        tag="System",
        summary="Every operation, its fields and examples, on one page",
        media=("text/html",),
        public=True,
    )
    async def docs(_: Look) -> Response:
        return HTMLResponse(await page(), headers=WITH_STYLE)

    @reads("/docs.css", tag="System", summary="How that page looks", media=("text/css",), public=True)
    async def style(_: Look) -> Response:
        return Response(STYLE.read_bytes(), media_type="text/css")

    @reads("/", tag="System", summary="What this is, and where to read on", media=("text/html",), public=True)
    async def home(_: Look) -> Response:
        return HTMLResponse(home_page())

    return (openapi, public_events, docs, style, home)


def home_page() -> str:
    """For who opens the address of the API in a browser."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Muster</title></head><body>'
        f"<h1>Muster {html.escape(version('muster'))}</h1>"
        "<p>This is the API of a control plane for GPU workloads.</p>"
        '<ul><li><a href="/docs">/docs</a>: every endpoint, for people</li>'
        '<li><a href="/openapi.json">/openapi.json</a>: the same for programs, such as generators of clients</li>'
        '<li><a href="/asyncapi.json">/asyncapi.json</a>: the public events that programs subscribe to</li>'
        '<li><a href="/healthz">/healthz</a>: whether it is alive</li></ul>'
        "<p>On the command line, <code>muster --help</code> says what can be done.</p></body></html>"
    )
