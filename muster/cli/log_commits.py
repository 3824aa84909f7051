"""`muster log list` and `tail`: the log itself, commit by commit, for administrators."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import workload_id
from muster.cli.options import FollowTimeoutOption, duration_option
from muster.cli.output import Column
from muster.cli.values import Json, Row, number_of, rows_of, text_of

if TYPE_CHECKING:
    from muster.cli.outage import Patience

_PAGE_COMMITS: Final = 1000
"""The most that the API gives in one answer."""
_STALLED: Final = "stalled"
"""Why a tail whose output stood still was cut: it may go on."""
_NEWEST: Final = 10
"""Commits before the present that a tail begins with."""


def event_names(incomplete: str) -> list[str]:
    # Only the table that shells complete from is made of it.
    from events.codec import REGISTRY

    return sorted({name for name, _ in REGISTRY if name.startswith(incomplete)})


def _types(row: Row) -> str:
    """What was decided; of a message that was declared void there is nothing to tell."""
    return ", ".join(text_of(event, "type") for event in rows_of(row, "events")) or "(void)"


def _about(row: Row) -> str:
    """Its name, or the id where the name is not known."""
    return text_of(row, "node") or text_of(row, "name") or text_of(row, "id")


COMMIT_COLUMNS: Final = (
    Column("SEQUENCE", "sequence"),
    Column("WHEN", "at", time=True),
    Column("AGGREGATE", "aggregate"),
    Column("ABOUT", "id", show=_about, yields=1),
    Column("EVENTS", "events", show=_types, rest=True),
    Column("WHO", "actor.sub"),
    Column("COMMAND", "commandId", wide=True),
    Column("CORRELATION", "correlationId", wide=True),
    Column("BATCH", "batch", wide=True),
)


def add_commits(app: typer.Typer) -> None:
    """To the group `log`."""
    _add_list(app)
    _add_tail(app)


def _add_list(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="""
        muster log list
        muster log list --type PodFailed --since 2h
        muster log list --actor ann --workload train
        muster log list --after 1200 --limit 50 -o jsonl   # oldest first
        """,
        columns=COMMIT_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        type_: Annotated[
            str | None,
            typer.Option(
                "--type",
                metavar="EVENT",
                help="Only commits with an event of this type, such as PodFailed.",
                autocompletion=event_names,
            ),
        ] = None,
        actor: Annotated[
            str | None,
            typer.Option("--actor", metavar="USER", help="Only commits by this user, service account or service."),
        ] = None,
        since: Annotated[
            str | None, typer.Option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
        ] = None,
        workload: Annotated[
            str | None, typer.Option("--workload", metavar="WORKLOAD", help="Only commits that concern this workload.")
        ] = None,
        before: Annotated[
            int | None,
            typer.Option("--before", metavar="SEQUENCE", help="Begin with the commit before this sequence.", min=1),
        ] = None,
        after: Annotated[
            int | None,
            typer.Option(
                "--after",
                metavar="SEQUENCE",
                help="Begin with the commit after this sequence, and show the oldest first.",
                min=0,
            ),
        ] = None,
        limit: Annotated[
            int, typer.Option("--limit", metavar="N", help="Maximum number of commits; 0 shows all.", min=0)
        ] = 100,
    ) -> None:
        """List commits of the log, newest first."""
        filters: list[tuple[str, str | int]] = [("type", type_)] if type_ else []
        filters += [("actor", actor)] if actor else []
        filters += [("since", f"{duration_option('--since', since)}s")] if since else []
        if after is None:
            filters += [("workloadId", workload_id(session, workload, None, deleted=True))] if workload else []
            _list_newest(session, filters, before, limit)
            return
        if filters or before is not None or workload:
            raise usage(
                "--after cannot be used with other filters: it lists everything after that sequence",
                todo="leave the other options out",
            )
        rows, more = _commits(session, after, limit)
        session.out.rows(rows, COMMIT_COLUMNS, name="sequence", empty="no events after that")
        if more and rows:
            session.out.talk(f"there are more: --after {plain_sequence(rows[-1])}, or --limit 0")


def _add_tail(app: typer.Typer) -> None:
    @command(
        app,
        "tail",
        examples="""
        muster log tail
        muster log tail -n 0 -o jsonl
        muster log tail --after 0                          # the whole log, and then what comes
        """,
        columns=COMMIT_COLUMNS,
    )
    def tail(
        session: Session,
        *,
        newest: Annotated[
            int | None,
            typer.Option(
                "--newest", "-n", metavar="N", help=f"Begin with this many past commits. Default: {_NEWEST}.", min=0
            ),
        ] = None,
        after: Annotated[
            int | None,
            typer.Option(
                "--after", metavar="SEQUENCE", help="Begin with the commit after this sequence instead.", min=0
            ),
        ] = None,
        timeout: FollowTimeoutOption = None,
    ) -> None:
        """Follow the log until Ctrl-C. If the server restarts, it goes on after the last commit that it printed."""
        patience = session.patience(timeout)
        if newest is not None and after is not None:
            raise usage("--newest and --after cannot be used together", todo="leave one of them out")
        begin = after
        if begin is None:
            last = session.api.read("/events", [("limit", 1)]).sequence or 0
            begin = max(last - (_NEWEST if newest is None else newest), 0)
        first = True
        for row in _followed(session, patience, begin):
            session.out.each([row], COMMIT_COLUMNS, name="sequence", headers=first)
            first = False


def _list_newest(session: Session, filters: list[tuple[str, str | int]], before: int | None, limit: int) -> None:
    rows: list[Row] = []
    position = before
    while True:
        size = min(_PAGE_COMMITS, limit - len(rows)) if limit else _PAGE_COMMITS
        begin: list[tuple[str, str | int]] = [] if position is None else [("before", position)]
        page = session.api.get("/events", [("order", "desc"), ("limit", size), *filters, *begin])
        rows += rows_of(page, "events")
        following = page.get("next")
        position = following if isinstance(following, int) else None
        if position is None or (limit and len(rows) >= limit):
            break
    session.out.rows(rows, COMMIT_COLUMNS, name="sequence", empty="no such events")
    if position is not None:
        session.out.talk(f"there are more: --before {position}, or --limit 0")


def plain_sequence(row: Row) -> int:
    return int(number_of(row, "sequence"))


def _commits(session: Session, after: int, limit: int) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    position: int | None = after
    while position is not None:
        size = min(_PAGE_COMMITS, limit - len(rows)) if limit else _PAGE_COMMITS
        page = session.api.get("/events", [("after", position), ("limit", size)])
        rows += rows_of(page, "events")
        following = page.get("next")
        position = following if isinstance(following, int) else None
        if limit and len(rows) >= limit:
            return rows[:limit], position is not None
    return rows, False


def _followed(session: Session, patience: "Patience", after: int) -> Iterator[Row]:
    """Commits after a sequence, for ever. Raises Problem where the server stays away, and when the time is over."""
    while True:
        try:
            with session.api.stream("/events", [("after", after), ("follow", "true")]) as response:
                response.end_after(patience.remaining())
                for line in response.lines():
                    row: Json = json.loads(line)
                    if isinstance(row, dict) and not _is_end(row):
                        after = plain_sequence(row)
                        yield row
                    patience.check("followed")
                    response.end_after(patience.remaining())
        except Problem as problem:
            patience.check("followed")
            patience.lost(problem)
        # A server that stops ends it in good order.
        patience.ask(lambda: session.api.read("/events", [("limit", 1)]))


def _is_end(row: Row) -> bool:
    """Whether the server ended the tail, and a new one may go on. Raises Problem where none may."""
    if "end" not in row:
        return False
    if row["end"] != _STALLED:
        raise Problem(text_of(row, "message"), why=(text_of(row, "end"),), code=ExitCode.DENIED)
    return True
