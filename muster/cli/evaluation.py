"""What a submission would be, as the server evaluates it: `--dry-run=server`."""

from collections.abc import Iterator
from typing import Any, Final, cast

from muster.cli.client import told_issue
from muster.cli.command import Session
from muster.cli.exits import ExitCode, Problem
from muster.cli.explain import kept_in_words, of_cluster
from muster.cli.output import Column, Format, plain_text
from muster.cli.values import Row, counted, format_number, number_of, row_of, rows_of, text_of

MOST_NODES: Final = 10
"""Each with a line of its own."""
_RANGE: Final = ("min", "max", "step", "options")


def _value(row: Row) -> str:
    return "-" if row.get("value") in (None, "", []) else plain_text(row["value"])


def _may(row: Row) -> str:
    """What a policy, or the field itself, lets it be."""
    if row.get("blocked"):
        return "blocked"
    told: list[str] = ["locked"] if row.get("locked") else []
    told += ["required"] if row.get("required") else []
    told += ["no further items"] if row.get("canAdd") is False else []
    told += [f"{name} {_text(row[name])}" for name in _RANGE if row.get(name) is not None]
    return ", ".join(told)


def _text(value: Any) -> str:
    return "|".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)


EVALUATION_COLUMNS: Final = (
    Column("FIELD", "field"),
    Column("VALUE", "value", show=_value),
    Column("SET BY", "setBy"),
    Column("POSSIBLE", "locked", show=_may, rest=True, wraps=True),
    Column("INSTRUCTIONS", "instructions"),
)


def show_evaluation(session: Session, request: Row, kind: str) -> ExitCode:
    """Shows the fields that somebody set or restricts; all of them in other formats. Raises Problem (6) where a
    submission would be refused.
    """
    from events.workload.kinds import KINDS

    found = session.api.examine(f"/workloads/{KINDS[kind].collection}:evaluate", request, [("placement", "true")])
    fields = rows_of(found, "fields")
    shown = [row for row in fields if row.get("setBy") != "default" or row.get("locked") or row.get("issues")]
    if session.out.style.format in {Format.TABLE, Format.WIDE}:
        session.out.table(shown, _columns(session, shown))
    else:
        session.out.one(found, lambda: None)
    issues = rows_of(found, "issues")
    if issues:
        why = tuple(told_issue(issue, flags=session.api.flags) for issue in issues)
        raise Problem("the request would be refused", why=why, code=ExitCode.REJECTED)
    session.out.talk("dry run: nothing was stored; it would be accepted")
    for line in _outlook(row_of(found, "placement")):
        session.out.talk(line)
    return ExitCode.OK


def _columns(session: Session, fields: list[Row]) -> list[Column]:
    """Instructions stand there only where somebody gave any, or asks for them."""
    wanted = session.out.style.columns or any(row.get("instructions") for row in fields)
    return [column for column in EVALUATION_COLUMNS if wanted or column.key != "instructions"]


def _outlook(outlook: Row) -> Iterator[str]:
    """What the scheduler would do with it now, in sentences."""
    placed = rows_of(outlook, "placed")
    for one in placed[:MOST_NODES]:
        gpus = number_of(one, "gpus")
        held = f", with {format_number(gpus)} GPU" if gpus else ""
        pods = int(number_of(one, "pods"))
        on = f"{text_of(one, 'node')}{of_cluster(one)}"
        yield f"{counted(pods, 'pod')} of {text_of(one, 'podSet')} would run on {on}{held}"
    more = len(placed[MOST_NODES:]) + int(number_of(outlook, "moreNodes"))
    if more:
        yield f"and pods on {counted(more, 'more node')}"
    waiting, message = int(number_of(outlook, "waitingPods")), text_of(outlook, "message")
    match text_of(outlook, "outcome"):
        case "waits":
            yield f"{waiting} pod{'s' if waiting != 1 else ''} would wait: {message}"
            yield from (f"it may not take the place of {kept_in_words(one)}" for one in rows_of(outlook, "kept"))
        case "never":
            yield f"it could never run as it is: {message}"
        case "unknown":
            yield f"where it would run is not known: {message}"
        case _:
            pass
