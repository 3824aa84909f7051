"""The workloads table as a file: CSV that no spreadsheet runs as a formula, or one JSON object a line. Streamed."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from starlette.responses import Response

from projections.found import RowStream
from projections.queries import POOL_SIZE
from projections.row_json import WORKLOAD_COLUMNS
from services.api.context import MIN_SEQ, Look
from services.api.issues import BadValueError, shown
from services.api.moments import AS_OF, MOMENT_HEADERS, reading
from services.api.operations import Query, reads
from services.api.paths import WORKLOADS
from services.api.streamed import Streamed
from services.api.workloads import ORDER, SELECTION, named_rows, selection_rules, workload_query
from services.runtime.identity.actors import ActorNames

EXPORTS: Final = POOL_SIZE // 2
"""At once in one process; each holds a connection of the pool while it goes on."""
EXPORTS_EACH: Final = 2
"""Of one user."""
MAX_TOLD_COLUMNS: Final = 10
"""Of those that are unknown."""
CHUNK_BYTES: Final = 64 * 1024
"""Lines are sent in pieces of about this size."""


def _columns(given: str) -> tuple[str, ...]:
    names = [*dict.fromkeys(name.strip() for name in given.split(","))]
    if unknown := [name for name in names if name not in WORKLOAD_COLUMNS]:
        told = ", ".join(shown(name) for name in unknown[:MAX_TOLD_COLUMNS])
        raise BadValueError(f"there is no column {told}; columns are {', '.join(WORKLOAD_COLUMNS)}", "options")
    return tuple(names)


EXPORT: Final = (
    Query(name="format", type="choice", options=("csv", "jsonl"), default="csv", help="Format of the file."),
    Query(name="columns", read=_columns, help="Names of columns, with commas. Default: all."),
)
_FORMULA_STARTS: Final = frozenset("=+-@\t\r\x00")
"""What makes a spreadsheet take a cell for a formula (OWASP ASVS 1.2.10)."""


@reads(
    f"{WORKLOADS}/export",
    tag="Workloads",
    summary="Export workloads as a file",
    media=("text/csv", "application/jsonl"),
    query=(*EXPORT, *ORDER, *SELECTION, AS_OF, MIN_SEQ),
    rules=selection_rules,
    headers=MOMENT_HEADERS,
)
async def export_workloads(call: Look) -> Response:
    async with AsyncExitStack() as held:
        held.callback(call.take_slot(call.api.exports, "exports"))
        tables = await reading(call)
        columns, query, kind = call.values["columns"] or WORKLOAD_COLUMNS, workload_query(call), call.values["format"]
        # Opened here, so that whatever is wrong is still answered as an error; closed when the last line is out.
        found = await held.enter_async_context(tables.queries.stream(query))
        headers = tables.headers | {
            "X-Log-Sequence": str(found.seq),
            "Content-Disposition": f'attachment; filename="workloads.{kind}"',
        }
        media = "text/csv; charset=utf-8; header=present" if kind == "csv" else "application/jsonl; charset=utf-8"
        content = _chunks(found, columns, kind, call.api.actors)
        return Streamed(content, media_type=media, held=held.pop_all(), headers=headers)


async def _chunks(found: RowStream, columns: Sequence[str], kind: str, actors: ActorNames) -> AsyncGenerator[bytes]:
    pending = bytearray(csv_line(columns) if kind == "csv" else b"")
    async for row in found.rows:
        (values,) = await named_rows(actors, (row,))
        if kind == "csv":
            pending += csv_line([values[name] for name in columns])
        else:
            pending += msgspec.json.encode({name: values[name] for name in columns}) + b"\n"
        if len(pending) >= CHUNK_BYTES:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending)


def csv_line(cells: Sequence[Any]) -> bytes:
    """One record of RFC 4180."""
    return (",".join(csv_cell(cell) for cell in cells) + "\r\n").encode("utf-8", "replace")


def csv_cell(value: Any) -> str:
    """A cell. Numbers stay numbers, also negative ones; a text never begins a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = ";".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if text[:1] in _FORMULA_STARTS and text:
        text = f"'{text}"
    if any(character in text for character in ',"\r\n'):
        text = '"' + text.replace('"', '""') + '"'
    return text
