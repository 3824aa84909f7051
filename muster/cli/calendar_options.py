"""What commands about the calendar share."""

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

import typer

from muster.cli.command import Session
from muster.cli.exits import usage
from muster.cli.names import find_cluster, refuse_name
from muster.cli.options import duration_option
from muster.cli.output import Column
from muster.cli.values import Row, format_utc, parse_time, row_of, rows_of, text_of

MOST_LEAD_SECONDS: Final = 60 * 86400

_FORMS: Final = "2027-01-31T20:00:00+01:00, ...Z for UTC, a date alone (its midnight UTC), now, or as now+2h."
_BEGINS: Final = f"When it begins: as {_FORMS}"
_ENDS: Final = f"When it is over: as {_FORMS}"
FromOption = Annotated[str, typer.Option("--from", metavar="TIME", help=_BEGINS)]
ToOption = Annotated[str, typer.Option("--to", metavar="TIME", help=_ENDS)]
NewFromOption = Annotated[str | None, typer.Option("--from", metavar="TIME", help=_BEGINS)]
NewToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help=_ENDS)]
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


EXACTLY_COLUMNS: Final = (
    Column("NODE-POOLS", "nodePools", rare=True),
    Column("LABELS", "labels", rare=True),
)
"""For programs: what the column NODES tells people, too."""


def which_nodes(row: Row) -> str:
    """The nodes that it is about."""
    nodes, pools = (row.get(key) for key in ("nodes", "nodePools"))
    labels = [f"{key}={value}" for key, value in row_of(row, "labels").items()]
    parts: list[str] = []
    for noun, given in (("node", nodes), ("pool", pools), ("label", labels)):
        if isinstance(given, list) and given:
            parts.append(f"{noun}{'s' if len(given) > 1 else ''} {','.join(map(str, given))}")
    return "; ".join(parts)


def given_nodes(node: list[str] | None, pool: list[str] | None, label: list[str] | None, lead: str | None) -> Row:
    given: Row = {}
    if node:
        given["nodes"] = [*node]
    if pool:
        given["nodePools"] = [*pool]
    if label:
        given["labels"] = [label_of("--label", each) for each in label]
    if lead is not None:
        given["leadSeconds"] = seconds = duration_option("--lead", lead)
        if seconds > MOST_LEAD_SECONDS:
            raise usage(f"--lead: {lead!r} is longer than 60 days", todo="write 60d or less")
    return given


def label_of(flag: str, text: str) -> Row:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise usage(f"{flag}: {text!r} is not KEY=VALUE", todo=f"as in {flag} rack=4")
    return {"name": key, "value": value}


def time_of(flag: str, given: str) -> str:
    """As the API takes it. Raises Problem (usage)."""
    if given == "now" or given.startswith("now+"):
        seconds = duration_option(flag, given.removeprefix("now+")) if given != "now" else 0
        return format_utc(datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds))
    moment = parse_time(given)
    if moment is None:
        todo = (
            "write a time as 2030-01-31T12:00:00Z or 2030-01-31T12:00:00+01:00, a date as 2030-01-31 (UTC), now, or as "
            "now+2h"
        )
        raise usage(f"{flag}: {given!r} is no time", todo=todo)
    if datetime.fromisoformat(given).tzinfo is None and not _is_date(given):
        todo = f"write {given}Z for UTC, or the time with its offset, as 2027-01-01T10:00:00+01:00"
        raise usage(f"{flag}: {given!r} has no zone", todo=todo)
    return format_utc(moment)


def _is_date(given: str) -> bool:
    try:
        date.fromisoformat(given)
    except ValueError:
        return False
    return True


class Entries(NamedTuple):
    """Those of one kind, as the API has them."""

    key: str
    """In paths and answers."""
    one: str
    """What one of them is called."""

    @property
    def path(self) -> str:
        return f"/calendar/{self.key}"

    def path_of(self, row: Row) -> str:
        return f"{self.path}/{text_of(row, 'clusterId')}/{quote(text_of(row, 'name'), safe='')}"

    def rows(self, session: Session, cluster: str | None) -> list[Row]:
        """Of one cluster, or of all."""
        scope = [("clusterId", text_of(find_cluster(session.api, cluster), "id"))] if cluster else []
        return rows_of(session.api.get(self.path, scope), self.key)

    def find(self, session: Session, name: str, cluster: str | None) -> Row:
        """The last one of this name: of the cluster that is given, else of the only one that has it, else of the
        default one. Raises Problem.
        """
        rows = self.rows(session, None)
        if cluster:
            of = text_of(find_cluster(session.api, cluster), "id")
            rows = [row for row in rows if text_of(row, "clusterId") == of]
        named = [row for row in rows if text_of(row, "name") == name]
        found = [row for row in named if text_of(row, "state") != "Over"] or named
        clusters = dict.fromkeys(text_of(row, "clusterName") for row in found)
        if len(clusters) > 1 and session.target.cluster:
            of = text_of(find_cluster(session.api, session.target.cluster), "id")
            found = [row for row in found if text_of(row, "clusterId") == of] or found
            clusters = dict.fromkeys(text_of(row, "clusterName") for row in found)
        if len(clusters) > 1:
            told = f"several clusters have {self.one} {name!r}: {', '.join(clusters)}"
            raise usage(told, todo="choose one with --cluster")
        return found[-1] if found else refuse_name(rows, name, what=self.one, as_of=session.as_of)


def made_there(message: str, cluster: Row) -> str:
    """What was made, and on which cluster: nobody may have named it."""
    return f"{message} (cluster {text_of(cluster, 'name')})"


def done_there(message: str, row: Row) -> str:
    """What was done, and on which cluster: nobody may have named it."""
    return f"{message} (cluster {text_of(row, 'clusterName')})"
