"""What commands about the calendar share."""

from typing import Annotated

import typer

from muster.cli.exits import usage
from muster.cli.options import duration_option
from muster.cli.values import Row, format_utc, parse_time, row_of

FromOption = Annotated[str, typer.Option("--from", metavar="TIME", help="When it begins.")]
ToOption = Annotated[str, typer.Option("--to", metavar="TIME", help="When it is over.")]
NewFromOption = Annotated[str | None, typer.Option("--from", metavar="TIME", help="When it begins.")]
NewToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="When it is over.")]
NodeOption = Annotated[
    list[str] | None, typer.Option("--node", metavar="NODE", help="A node that is meant. Repeatable.")
]
PoolOption = Annotated[
    list[str] | None, typer.Option("--pool", metavar="POOL", help="A node pool that is meant. Repeatable.")
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="A label that the nodes must have. Repeatable."),
]
LeadOption = Annotated[
    str | None,
    typer.Option(
        "--lead",
        metavar="DURATION",
        help="For so long before it begins no pod starts there that is non-preemptible and may still run then. "
        "Default: 24h.",
    ),
]


def which_nodes(row: Row) -> str:
    """The nodes that it is about."""
    nodes, pools = (row.get(key) for key in ("nodes", "nodePools"))
    parts = [f"nodes {','.join(map(str, nodes))}" if isinstance(nodes, list) and nodes else ""]
    parts += [f"pools {','.join(map(str, pools))}" if isinstance(pools, list) and pools else ""]
    labels = ",".join(f"{key}={value}" for key, value in row_of(row, "labels").items())
    parts += [f"labels {labels}" if labels else ""]
    return "; ".join(part for part in parts if part)


def given_nodes(node: list[str] | None, pool: list[str] | None, label: list[str] | None, lead: str | None) -> Row:
    given: Row = {}
    if node:
        given["nodes"] = [*node]
    if pool:
        given["nodePools"] = [*pool]
    if label:
        given["labels"] = [_label(each) for each in label]
    if lead is not None:
        given["leadSeconds"] = duration_option("--lead", lead)
    return given


def _label(text: str) -> Row:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise usage(f"--label: {text!r} is not KEY=VALUE", todo="as in --label rack=4")
    return {"name": key, "value": value}


def time_of(flag: str, given: str) -> str:
    """As the API takes it. Raises Problem (usage)."""
    moment = parse_time(given)
    if moment is None:
        todo = "write a time as 2030-01-31T12:00:00Z or 2030-01-31T12:00:00+01:00, or a date as 2030-01-31 (UTC)"
        raise usage(f"{flag}: {given!r} is no time", todo=todo)
    return format_utc(moment)
