"""Pages that need no token: what the API says of itself, to programs and to people."""

import html
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version

import msgspec
from starlette.responses import HTMLResponse, Response

from services.api.context import Call
from services.api.openapi import document
from services.api.operations import JSON, Operation, reads


def pages_of(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The pages on these operations. Each is made when it is first asked for."""

    @cache
    def described() -> bytes:
        return msgspec.json.encode(document(operations))

    @cache
    def page() -> str:
        return docs_page(operations)

    @reads("/openapi.json", tag="System", summary="This description", public=True)
    async def openapi(_: Call) -> Response:
        return Response(described(), media_type=JSON)

    @reads("/docs", tag="System", summary="Every endpoint on one page", media=("text/html",), public=True)
    async def docs(_: Call) -> Response:
        return HTMLResponse(page())

    @reads("/", tag="System", summary="What this is, and where to read on", media=("text/html",), public=True)
    async def home(_: Call) -> Response:
        return HTMLResponse(home_page())

    return (openapi, docs, home)


def home_page() -> str:
    """For who opens the address of the API in a browser."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Muster</title></head><body>'
        f"<h1>Muster {html.escape(version('muster'))}</h1>"
        "<p>This is the API of a control plane for GPU workloads.</p>"
        '<ul><li><a href="/docs">/docs</a>: every endpoint, for people</li>'
        '<li><a href="/openapi.json">/openapi.json</a>: the same for programs, such as generators of clients</li>'
        '<li><a href="/healthz">/healthz</a>: whether it is alive</li></ul>'
        "<p>On the command line, <code>muster --help</code> says what can be done.</p></body></html>"
    )


def docs_page(operations: Sequence[Operation]) -> str:
    """Every endpoint in one table. No script and nothing from elsewhere, so that it works offline and under the CSP."""
    rows: list[str] = []
    for tag in dict.fromkeys(op.tag for op in operations):
        rows.append(f'<tr><th colspan="3" align="left">{html.escape(tag)}</th></tr>')
        for op in (op for op in operations if op.tag == tag):
            parameters = ", ".join(query.name for query in op.query)
            told = html.escape(op.summary) + (
                f"<br><small>query: {html.escape(parameters)}</small>" if parameters else ""
            )
            path = html.escape(op.shown_path)
            rows.append(f"<tr><td><code>{op.method}</code></td><td><code>{path}</code></td><td>{told}</td></tr>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Muster API</title></head><body>'
        "<h1>Muster API</h1><p>Send a token with every request: <code>Authorization: Bearer …</code>. "
        'The whole description, for programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"<table>{''.join(rows)}</table></body></html>"
    )
