"""`muster diff`: what differs between two moments."""

from collections.abc import Callable
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.complete import project_names
from muster.cli.names import project_id
from muster.cli.options import NOW, moment_option
from muster.cli.output import Column, Format
from muster.cli.values import Row, format_number, number_of, row_of, rows_of, text_of

_NAME: Final = Column("NAME", "name")
_WHAT: Final = Column("DIFFERENCE", "difference")


def _sides(show: Callable[[Row], str]) -> tuple[Column, Column]:
    """What it was, and what it is."""
    return (
        Column("BEFORE", "before", show=lambda row: show(row_of(row, "before"))),
        Column("AFTER", "after", show=lambda row: show(row_of(row, "after")), rest=True),
    )


def _workload(then: Row) -> str:
    if not then:
        return ""
    gpus = number_of(then, "gpuAllocated")
    held = f", {format_number(gpus)} GPU" if gpus else ""
    return f"{text_of(then, 'phase')}, {text_of(then, 'priorityClassName')}{held}"


def _quota(then: Row) -> str:
    if not then:
        return ""
    quota = "no quota" if then.get("gpuQuota") is None else f"{format_number(number_of(then, 'gpuQuota'))} GPU"
    pools = then.get("nodePools")
    listed = f", pools {','.join(map(str, pools))}" if isinstance(pools, list) and pools else ""
    budget = f", budget {text_of(then, 'budget')}" if text_of(then, "budget") else ""
    return f"{quota}{listed}{budget}"


def _node(then: Row) -> str:
    if not then:
        return ""
    state = "ready" if then.get("schedulable") else "not schedulable" if then.get("ready") else "not ready"
    reserved, gpus = (format_number(number_of(then, key)) for key in ("reservedGpus", "gpus"))
    pods = format_number(number_of(then, "reservedPods"))
    return f"{state}, {reserved}/{gpus} GPU, {pods} pods, pool {text_of(then, 'nodePool')}"


SECTIONS: Final = (
    ("Workloads", "workloads", (_NAME, Column("PROJECT", "projectName"), _WHAT, *_sides(_workload))),
    ("Quotas", "quotas", (_NAME, _WHAT, *_sides(_quota))),
    ("Nodes", "nodes", (_NAME, Column("CLUSTER", "clusterName"), _WHAT, *_sides(_node))),
    (
        "Events",
        "events",
        (Column("AT", "at", time=True), Column("OF", "about"), _NAME, Column("WHAT", "message", rest=True, wraps=True)),
    ),
)


FLAT: Final = tuple(
    Column(key.upper(), key) for key in ("section", "name", "of", "difference", "before", "after", "at", "message")
)
"""In CSV all sections are one table."""
_IN: Final = {"workloads": ("projectName", _workload), "quotas": ("", _quota), "nodes": ("clusterName", _node)}
"""By section: the field with what a thing is in, and how it is told."""


def flat_rows(found: Row) -> list[Row]:
    rows: list[Row] = [
        {
            "section": section,
            "name": text_of(row, "name"),
            "of": text_of(row, within),
            "difference": text_of(row, "difference"),
            "before": told(row_of(row, "before")),
            "after": told(row_of(row, "after")),
        }
        for section, (within, told) in _IN.items()
        for row in rows_of(found, section)
    ]
    for row in rows_of(found, "events"):
        event: Row = {"section": "events", "of": text_of(row, "about")}
        rows.append(event | {key: text_of(row, key) for key in ("name", "at", "message")})
    return rows


def add_diff(root: typer.Typer) -> None:
    @command(
        root,
        "diff",
        examples="""
        muster diff --from 1d
        muster diff --from 2030-01-31T12:00:00Z --to 2030-01-31T13:00:00Z -p vision
        muster diff --from 4711 --to 4811 -o json
        """,
    )
    def diff(
        session: Session,
        *,
        from_: Annotated[
            str,
            typer.Option(
                "--from", metavar="MOMENT", help="Earlier moment: a time, a time ago, or a sequence of the log."
            ),
        ],
        to: Annotated[str | None, typer.Option("--to", metavar="MOMENT", help="Later moment. Default: now.")] = None,
        project: Annotated[
            str | None,
            typer.Option(
                "--project", "-p", help="Only this project (name or id), and no nodes.", autocompletion=project_names
            ),
        ] = None,
    ) -> None:
        """Compare two moments: workloads, quotas and nodes, and what happened between them.

        It lists what is not the same at both moments. A workload that came and went between them is among the events
        only. At most 500 changed workloads and 500 events are shown, the oldest first.
        """
        parameters: list[tuple[str, str | int]] = [("from", moment_option("--from", from_))]
        parameters += [("to", moment_option("--to", to))] if to and to != NOW else []
        parameters += [("projectId", project_id(session.api, project))] if project else []
        found = session.api.get("/diff", parameters)
        if session.out.style.format in {Format.CSV, Format.NAME}:
            session.out.rows(flat_rows(found), FLAT)
            tell_more(session, found)
        else:
            session.out.one(found, lambda: show(session, found))


def show(session: Session, found: Row) -> None:
    """Sections, one below the other."""
    out = session.out
    earlier, later = row_of(found, "earlier"), row_of(found, "later")
    span = [f"{_number(moment)} ({text_of(moment, 'at') or 'before the log'})" for moment in (earlier, later)]
    out.write(f"From {span[0]} to {span[1]}\n")
    shown = False
    for title, key, columns in SECTIONS:
        if rows := rows_of(found, key):
            shown = True
            out.heading(title)
            out.table(rows, columns)
    if not shown:
        out.talk("no difference")
    tell_more(session, found)


def tell_more(session: Session, found: Row) -> None:
    """On stderr, where not all is shown."""
    for key, what in (("moreWorkloads", "workloads changed"), ("moreEvents", "events happened")):
        if found.get(key) is True:
            session.out.talk(f"more {what} than are shown; ask for a shorter time, or for one project")


def _number(moment: Row) -> str:
    return format_number(number_of(moment, "sequence"))
