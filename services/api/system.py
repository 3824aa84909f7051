"""What needs no token: health, the OpenAPI document and a plain page on it."""

import html
from collections.abc import Sequence

from starlette.responses import Response

from services.api.context import Call, Operation, json_response
from services.runtime.log.log_state import log_trouble


async def alive(_: Call) -> Response:
    return json_response({"status": "alive"})


async def ready(call: Call) -> Response:
    """Whether what is sent here can be carried out: also the log must be one that can be written."""
    away = "not serving yet" if not call.api.ready() else await log_trouble(call.api.requests)
    if not away:
        alarm = call.api.alarm()
        return json_response({"status": "alarm", "alarms": {"api": alarm}} if alarm else {"status": "ready"})
    return json_response({"code": 503, "message": away}, status=503, headers={"Retry-After": "1"})


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
            path = html.escape(op.path.replace(":uuid}", "}"))
            rows.append(f"<tr><td><code>{op.method}</code></td><td><code>{path}</code></td><td>{told}</td></tr>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Muster API</title></head><body>'
        "<h1>Muster API</h1><p>Send a token with every request: <code>Authorization: Bearer …</code>. "
        'The whole description, for programs: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"<table>{''.join(rows)}</table></body></html>"
    )
