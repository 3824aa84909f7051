"""`muster limit`: how long workloads of a project may run, wait, or keep GPUs that do nothing."""

from typing import Annotated, Final

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command, group
from muster.cli.exits import usage
from muster.cli.names import find_project
from muster.cli.options import IdempotencyOption, ProjectArgument, duration_option
from muster.cli.output import Column
from muster.cli.values import Row, exact_span, number_of, rows_of, text_of

_FLAGS: Final = {"runtimeSeconds": "--runtime", "idleGpuSeconds": "--idle-gpu", "pendingSeconds": "--pending"}


def _span(key: str) -> Column:
    flag = _FLAGS[key].removeprefix("--").upper()
    return Column(flag, key, show=lambda row: "none" if row.get(key) is None else exact_span(int(number_of(row, key))))


LIMIT_COLUMNS: Final = (Column("KIND", "kind"), *map(_span, _FLAGS))

KindArgument = Annotated[
    str, typer.Argument(metavar="KIND", help="Kind of the workloads: Training, Distributed, Workspace or Inference.")
]


def _option(flag: str, told: str) -> typer.models.OptionInfo:
    return typer.Option(flag, metavar="DURATION|none", help=f"{told}, such as 12h. none: no limit.")


def add_limits(root: typer.Typer) -> None:
    app = group("limit")

    @command(app, "show", examples="muster limit show vision", columns=LIMIT_COLUMNS)
    def show(session: Session, project: ProjectArgument) -> None:
        """Show the limits of a project on the time of its workloads."""
        rows = rows_of(session.api.get(_path(find_project(session.api, project))), "timeLimits")
        session.out.rows(rows, LIMIT_COLUMNS, name="kind", empty="no limits")

    @command(
        app,
        "set",
        output=False,
        examples="""
        muster limit set vision Training --runtime 7d --pending 2d
        muster limit set vision Workspace --idle-gpu 1h
        muster limit set vision Training --runtime none
        """,
    )
    def set_(
        session: Session,
        project: ProjectArgument,
        kind: KindArgument,
        *,
        runtime: Annotated[str | None, _option("--runtime", "How long one may run, in all its attempts")] = None,
        idle_gpu: Annotated[
            str | None, _option("--idle-gpu", "For how long all its GPUs may do nothing, as measured")
        ] = None,
        pending: Annotated[str | None, _option("--pending", "How long one may wait at a time")] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Set limits on the time of one kind of workloads. What reaches one is ended, also if it runs already.

        A limit that is not given stays as it is.
        """
        given = {"runtimeSeconds": runtime, "idleGpuSeconds": idle_gpu, "pendingSeconds": pending}
        changes = {key: _seconds(_FLAGS[key], text) for key, text in given.items() if text is not None}
        if not changes:
            raise usage("give at least one of --runtime, --idle-gpu and --pending")
        kind, found = _kind(kind), find_project(session.api, project)
        path = _path(found)
        now = session.api.read(path)
        rows = rows_of(now.body, "timeLimits")
        mine: Row = next((row for row in rows if text_of(row, "kind") == kind), {"kind": kind})
        others = [row for row in rows if text_of(row, "kind") != kind]
        body: Row = {"timeLimits": [*others, mine | changes]}
        done = session.api.mutate("PUT", path, body, idempotency_key=idempotency_key, if_match=now.version)
        session.out.talk(text_of(done.body, "message").replace(text_of(found, "id"), text_of(found, "name")))

    root.add_typer(app, name="limit")


def _seconds(flag: str, text: str) -> int | None:
    return None if text.lower() == "none" else duration_option(flag, text)


def _kind(given: str) -> str:
    """As the API writes it. Raises Problem (usage)."""
    from events.workload.kinds import KINDS

    kind = next((kind for kind in KINDS if kind.lower() == given.lower()), None)
    if kind is None:
        hint = did_you_mean(given, KINDS) or f"kinds: {', '.join(KINDS)}"
        raise usage(f"KIND: {given!r} is no kind of workloads", todo=hint)
    return kind


def _path(project: Row) -> str:
    return f"/org-unit/projects/{text_of(project, 'id')}/time-limits"
