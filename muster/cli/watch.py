"""Looking again and again: tables that follow their data, and waiting for a workload to get somewhere.

Every wait here ends: by its condition, its timeout, or Ctrl-C (exit 130). A server that is away meanwhile is waited for
(muster.cli.outage).
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from muster.cli.exits import ExitCode, Problem
from muster.cli.outage import Patience
from muster.cli.output import Column, Format, Output
from muster.cli.values import Row, format_span, number_of, text_of

if TYPE_CHECKING:
    from muster.cli.client import Api

REFRESH_SECONDS: Final = 2.0
"""Of a watched table: quick enough to follow, slow enough not to be load."""
POLL_SECONDS: Final = 0.3
"""Of one workload that is waited for; reading one is cheap."""
SLOW_POLL_SECONDS: Final = 1.0
"""After the first half minute nobody notices a second."""
_QUICK_FOR_SECONDS: Final = 30.0

type Fetch = Callable[[], list[Row]]
type Key = Callable[[Row], str]


def row_id(row: Row) -> str:
    return text_of(row, "id")


def watch_rows(
    patience: Patience,
    out: Output,
    fetch: Fetch,
    columns: Sequence[Column],
    *,
    key: Key = row_id,
    name: str = "name",
    deleted: Callable[[Row], Row | None] = lambda _row: None,
) -> None:
    """Shows a list and what changes in it, until Ctrl-C or the timeout (Problem, 7).

    On a terminal the table is redrawn. Elsewhere a row is printed when something but a clock has changed in it.

    Args:
        key: what tells one row from the others.
        deleted: asked of a row that is in the list no more: the same, where it was deleted.
    """
    if out.style.format in {Format.TABLE, Format.WIDE} and out.stdout.isatty():
        _redraw(patience, out, fetch, columns)
    seen: dict[str, tuple[str, Row]] = {}
    first = True
    while True:
        now = {key(row): row for row in patience.ask(fetch)}
        news = [row for identity, row in now.items() if seen.get(identity, ("",))[0] != _print(out, row, columns)]
        gone = [patience.ask(partial(deleted, row)) for identity, (_, row) in seen.items() if identity not in now]
        seen = {identity: (_print(out, row, columns), row) for identity, row in now.items()}
        news += [row for row in gone if row is not None]
        if news or first:
            out.each(news, columns, name=name, headers=first)
        first = False
        patience.check("watched")
        patience.sleep(REFRESH_SECONDS)


def ended(api: "Api", row: Row) -> ExitCode | None:
    """0 where the workload has completed, 8 where it has ended otherwise or is suspended, None while it goes on."""
    phase = phase_of(row)
    if phase == "Completed":
        return ExitCode.OK
    if text_of(row, "deletedAt") or phase == "Deleting":
        # What became of it before it was deleted stands in its history: auto-deletion may be immediate.
        known: list[tuple[str, str | int]] = [("min_seq", int(number_of(row, "version")))]
        records, _ = api.pages(f"/workloads/{text_of(row, 'id')}/history", "records", known)
        completed = any(text_of(record, "type") == "WorkloadCompleted" for record in records)
        return ExitCode.OK if completed else ExitCode.WORKLOAD_FAILED
    return ExitCode.WORKLOAD_FAILED if phase in {"Failed", "Stopped"} else None


def wait_for_phase(
    api: "Api", identifier: str, out: Output, phases: frozenset[str], *, timeout_seconds: float | None
) -> ExitCode:
    """Waits until the workload is in one of the phases ("Deleted": is gone). 8 where it ended otherwise."""

    def there(row: Row) -> ExitCode | None:
        phase = "Deleted" if text_of(row, "deletedAt") else phase_of(row)
        if phase in phases:
            return ExitCode.OK
        gone_astray = phase == "Deleted" or (phase in {"Completed", "Failed"} and "Deleted" not in phases)
        return ExitCode.WORKLOAD_FAILED if gone_astray else None

    return wait_until(api, identifier, out, there, timeout_seconds=timeout_seconds)


def wait_until(
    api: "Api",
    identifier: str,
    out: Output,
    reached: Callable[[Row], ExitCode | None],
    *,
    timeout_seconds: float | None,
) -> ExitCode:
    """Reads the workload until `reached` answers. Raises Problem: 7 on timeout, 9 where the server stays away."""
    try:
        return _wait_until(api, identifier, out, reached, timeout_seconds)
    except KeyboardInterrupt:
        # Elsewhere Ctrl-C ends what runs; here it ends the waiting alone.
        out.talk(f"the workload goes on; `muster workload describe {identifier}` shows how")
        raise


def _wait_until(
    api: "Api",
    identifier: str,
    out: Output,
    reached: Callable[[Row], ExitCode | None],
    timeout_seconds: float | None,
) -> ExitCode:
    patience = Patience(api, out, timeout_seconds=timeout_seconds)
    told = ""
    while True:
        row = patience.ask(lambda: api.get(f"/workloads/{identifier}"))
        told = _tell(out, row, told)
        if (code := patience.ask(partial(reached, row))) is not None:
            return code
        if timeout_seconds is not None and patience.remaining() == 0:
            raise Problem(
                f"{text_of(row, 'name')} is still {phase_of(row)} after {format_span(timeout_seconds)}",
                why=(text_of(row, "phaseMessage"),) if text_of(row, "phaseMessage") else (),
                todo=f"it goes on; `muster workload describe {identifier}` shows how",
                code=ExitCode.TIMED_OUT,
            )
        patience.sleep(POLL_SECONDS if patience.spent_seconds < _QUICK_FOR_SECONDS else SLOW_POLL_SECONDS)


def phase_of(row: Row) -> str:
    """The phase, whichever endpoint the row came from."""
    return text_of(row, "phase") or text_of(row, "actualPhase")


def _tell(out: Output, row: Row, told: str) -> str:
    """A line on stderr where something is new; answers what was last told.

    Of what is deleted: only that. How it had ended before is no news.
    """
    deleted = text_of(row, "deletedAt")
    message = "" if deleted else text_of(row, "phaseMessage")
    state = f"{text_of(row, 'name')}: {'Deleted' if deleted else phase_of(row)}" + (f": {message}" if message else "")
    if state != told:
        out.talk(state)
    return state


def _redraw(patience: Patience, out: Output, fetch: Fetch, columns: Sequence[Column]) -> None:
    from rich.live import Live
    from rich.text import Text

    from muster.cli.table import table_of

    with Live(Text(), console=out.console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(
                table_of(out, out.sorted(patience.ask(fetch), columns), columns, live.console.width), refresh=True
            )
            patience.check("watched")
            patience.sleep(REFRESH_SECONDS)


def _print(out: Output, row: Row, columns: Sequence[Column]) -> str:
    """What must change for a row to be printed again: what a table shows of it, or all that programs get; no clock."""
    clocks = {column.key for column in columns if column.clock}
    if out.style.format in {Format.TABLE, Format.WIDE}:
        shown = [column for column in out.chosen(columns) if not column.clock]
        return json.dumps([row.get(column.key) if column.time else out.cell(row, column) for column in shown])
    return json.dumps({key: value for key, value in row.items() if key not in clocks}, sort_keys=True)
