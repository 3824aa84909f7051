"""`muster explain`: why a workload waits, why it runs where it does, or why it was evicted."""

import shlex
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem
from muster.cli.explain_field import explained
from muster.cli.names import workload_id
from muster.cli.options import ProjectOption, WorkloadArgument
from muster.cli.output import Column, Output, plain_text
from muster.cli.spec_lines import as_typed
from muster.cli.values import Json, Row, format_number, format_utc, number_of, parse_time, row_of, rows_of, text_of
from muster.cli.workload_columns import told_phase

OUTCOMES: Final = {
    "waits": "it waits",
    "never": "it cannot ever fit as written",
    "starts": "it starts with the next plan",
    "runs": "it runs",
    "ended": "it has ended",
    "unknown": "not known",
}


def _held(row: Row) -> str:
    parts = [f"{format_number(number_of(row, 'gpus'))} GPU" if number_of(row, "gpus") else ""]
    parts += [f"{format_number(number_of(row, 'cpuCores'))} cores" if number_of(row, "cpuCores") else ""]
    parts += [f"{number_of(row, 'memoryBytes') / 1024**3:.3g} GiB" if number_of(row, "memoryBytes") else ""]
    return ", ".join(part for part in parts if part)


_NOT_ENDED: Final[dict[str, str]] = {
    **dict.fromkeys(("Stopping", "Stopped"), "it is suspended, and asks for no place until it is resumed"),
    "Deleting": "it is being deleted",
}
"""By phase, of what has not ended, and yet asks for no place."""


def of_cluster(one: Row) -> str:
    """After the name of a node, where it is said of which cluster it is."""
    cluster = text_of(one, "cluster")
    return f" of {cluster}" if cluster else ""


def done_by(step: Row) -> str:
    """The command or flag that does a step; empty where it needs none, or there is none that does just that."""
    from muster.cli.training_flags import FLAG_OF_FIELD

    act, value, of = text_of(step, "act"), step.get("value"), text_of(step, "of")
    match act:
        case "set_quota" | "set_limit" if not text_of(step, "nodePool"):
            flag = "--gpu-quota" if act == "set_quota" else "--gpu-limit"
            return f"muster {of.partition(' ')[0]} set {of.partition(' ')[2]} {flag} {format_number(float(str(value)))}"
        case "uncordon_node":
            where = f" --cluster {cluster}" if (cluster := text_of(step, "cluster")) else ""
            return f"muster node uncordon {of}{where}"
        case "change_workload" if text_of(step, "field") == "spec.preemptibility":
            return f"--preemptibility {value}; of a workspace --allow-over-quota"
        case "change_workload" if isinstance(value, list) and value:
            return _given(text_of(step, "field"), value)
        case "change_workload" if isinstance(value, str | int | float) and not of:
            flag = FLAG_OF_FIELD.get(text_of(step, "field"), "")
            return f"{flag} {value}" if flag.startswith("--") else ""
        case _:
            return ""


def _given(field: str, value: list[Json]) -> str:
    """The flag of submit that gives a list, and what gives the same to resubmit."""
    from muster.cli.training_flags import FLAG_OF_FIELD

    flag = FLAG_OF_FIELD.get(field, "")
    items = [as_typed(one) for one in value if isinstance(one, dict)] or [",".join(map(plain_text, value))]
    if not flag.startswith("--"):
        return ""
    submit = shlex.join(word for item in items for word in (flag, item))
    again = shlex.join(word for item in items for word in ("--set", f"{field}={item}"))
    return f"{submit}; of resubmit {again}"


NODE_COLUMNS: Final = (
    Column("NODES", "nodes"),
    Column("GROUND", "ground"),
    Column("PODS WITH", "pods", wide=True),
    Column("WHY", "message", rest=True, wraps=True),
)
_BY_CLUSTER: Final = Column("CLUSTER", "cluster")
_OF_PODS: Final = Column("PODS", "pods")
"""Where its pods ask for different things."""
HOLDER_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("HOLDS", "gpus", show=_held),
    Column("PODS", "pods"),
    Column("ID", "workloadId", wide=True),
    Column("PROJECT", "projectId", wide=True),
)


def add_explain(root: typer.Typer) -> None:
    """Declares `muster explain`."""

    @command(
        root,
        "explain",
        examples="""
        muster explain hello
        muster explain @latest
        muster explain hello -o json
        muster explain hello -o jsonpath='{.changes[0].message}'
        """,
    )
    def explain(session: Session, workload: WorkloadArgument, *, project: ProjectOption = None) -> None:
        """Show why a workload waits and what would let it start, why it runs where it does, or was evicted.

        Reasons, numbers and changes are those of now; the scheduler has planned with each change that is named, and the
        workload started. Workloads of projects that you may not read are counted, not named.
        """
        try:
            identifier = workload_id(session, workload, project, deleted=True)
        except Problem as problem:
            if problem.code is ExitCode.NOT_FOUND and _is_field(workload):
                problem.todo = f"muster explain-field {workload}"
            raise
        found = session.api.get(f"/workloads/{identifier}/explain")
        session.out.one(found, lambda: show(session.out, found))


def _is_field(given: str) -> bool:
    """Other tools explain the fields of a request by this word."""
    try:
        explained(given)
    except Problem:
        return False
    return True


def show(out: Output, found: Row) -> None:
    reason = text_of(found, "reason") or text_of(found, "phaseReason")
    outcome, ahead = text_of(found, "outcome"), int(number_of(found, "ahead"))
    told = OUTCOMES.get(outcome, outcome)
    why = text_of(found, "message") or text_of(found, "phaseMessage")
    if outcome == "ended":  # why it ended is more than that it has
        why = deletion_waits_for(found) or text_of(found, "phaseMessage")
        told = _NOT_ENDED.get(text_of(found, "phase"), told)
    if waiting := int(number_of(found, "waitingPods")):
        told += f" ({waiting} pod{'s' if waiting != 1 else ''})"
    out.pairs(
        [
            ("Name", text_of(found, "name")),
            ("Phase", told_phase(found | {"actualPhase": found.get("phase")})),
            ("Now", told),
            ("Reason", reason),
            ("Why", why),
            ("Ahead of it", f"{ahead} workload{'s' if ahead != 1 else ''}" if ahead and outcome != "never" else ""),
            ("Expected to start", expected_start(out, found)),
            ("Keeps its place", kept_until(row_of(found, "keepsItsPlace"), out.moment)),
            ("Work at risk", work_at_risk(out, found)),
        ]
    )
    counts = rows_of(found, "nodes")
    for title, rows, columns in (
        ("Nodes", counts, _node_columns(counts)),
        ("Who holds it", rows_of(found, "holders"), HOLDER_COLUMNS),
    ):
        if rows:
            out.heading(title)
            out.table(rows, columns)
    others = row_of(found, "otherHolders")
    if count := int(number_of(others, "workloads")):
        out.write(f"and {count} more workload{'s' if count != 1 else ''}, with {_held(others) or 'no GPU'}\n")
    if kept := rows_of(found, "kept"):
        out.heading("Whose place it may not take")
        for one in kept:
            out.write(f"  {kept_in_words(one, out.moment)}\n")
    if changes := rows_of(found, "changes"):
        out.heading("What would let it start, the smallest change first")
        for change in changes:
            out.write(f"  {text_of(change, 'message')}\n")
            for step in rows_of(change, "steps"):
                if by := done_by(step):
                    out.write(f"    {by}\n")
    elif outcome in {"waits", "never"}:
        out.heading("What would let it start")
        out.write("  no small change that the scheduler knows of\n")
    _show_places(out, rows_of(found, "places"))
    if eviction := row_of(found, "eviction"):
        out.heading("Evicted")
        for line in _eviction(out, eviction):
            out.write(f"  {line}\n")


def _node_columns(counts: list[Row]) -> tuple[Column, ...]:
    columns = NODE_COLUMNS
    if len({text_of(each, "pods") for each in counts}) > 1:
        columns = (_OF_PODS, *(each for each in columns if each.key != _OF_PODS.key))
    return (_BY_CLUSTER, *columns) if any(text_of(each, "cluster") for each in counts) else columns


def deletion_waits_for(found: Row) -> str:
    """Of what is being deleted, by the scheduler's account of it; empty of all else."""
    told = text_of(found, "phase") == "Deleting" and text_of(found, "outcome") == "ended"
    return text_of(found, "message") if told else ""


def expected_start(out: Output, found: Row) -> str:
    """A range, or why there is none; empty where it does not wait."""
    estimate = row_of(found, "estimate")
    if text_of(found, "outcome") == "never":
        return ""
    if not estimate:
        return f"no estimate: {text_of(found, 'noEstimate')}" if text_of(found, "noEstimate") else ""
    known = bool(estimate.get("latestKnown"))
    measured, error = int(number_of(estimate, "measured")), format_number(number_of(estimate, "typicalErrorPercent"))
    # `in 5m` and `in 9m` are one span.
    earliest, latest = (out.time(estimate.get(name)) for name in ("earliest", "latest"))
    span = f"{earliest} to {latest.removeprefix('in ')}" if earliest.startswith("in ") else f"{earliest} to {latest}"
    grounds = [f"4 of 5 past estimates held; of {measured}, half were less than {error} % off"] if measured else []
    grounds += ["no later: what it waits for has ended by then, as far as it is known"] if known else []
    return f"{span} ({'; '.join(grounds)})"


def kept_in_words(kept: Row, moment: Callable[[datetime], str] = format_utc) -> str:
    """Whose place may not be taken, until when and why."""
    count = int(number_of(kept, "workloads"))
    who = text_of(kept, "name") or f"{count} workload{'s' if count != 1 else ''} that you may not see"
    return f"{who}, {kept_until(kept, moment)}"


def kept_until(kept: Row, moment: Callable[[datetime], str] = format_utc) -> str:
    """Until when, and why; empty where nothing is kept."""
    if not kept:
        return ""
    at = parse_time(text_of(kept, "until"))
    return f"{'for good' if at is None else f'until {moment(at)}'}: {text_of(kept, 'message')}"


LEAST_HOURS: Final = 0.001
"""Of work at risk; less is not shown."""


def work_at_risk(out: Output, found: Row) -> str:
    """What an eviction would lose now; empty where that is nothing."""
    hours = number_of(found, "workAtRisk")
    if hours < LEAST_HOURS:
        return ""
    saved = found.get("checkpointAt")
    since = f"its newest checkpoint is of {out.time(saved)}" if saved else "it has no checkpoint"
    return f"{format_number(round(hours, 3))} GPU-hours ({since})"


def _show_places(out: Output, places: list[Row]) -> None:
    for place in places:
        out.heading(f"Why {text_of(place, 'node')} (pool {text_of(place, 'nodePool')})")
        chosen, others = row_of(place, "chosen"), rows_of(place, "others")
        options = [chosen, *others] if chosen else others
        names = [text_of(score, "name") for option in options[:1] for score in rows_of(option, "scores")]
        rows = [_scored(option) for option in options]
        if rows:
            columns = [Column("NODE", "node"), *(Column(name.replace("_", " ").upper(), name) for name in names)]
            out.table(rows, columns)
        rank = place.get("rank")
        if rank is None:
            out.write("  it would take no such pod now\n")
        elif rank == 1:
            out.write("  no other node would be better now; the first score that differs decides, the least is best\n")
        else:
            better = int(number_of(place, "rank")) - 1
            told = (
                "1 node would be better now: it was"
                if better == 1
                else f"{better} nodes would be better now: they were"
            )
            out.write(f"  {told} not free then\n")
        for count in rows_of(place, "refused"):
            nodes = int(number_of(count, "nodes"))
            out.write(f"  {nodes} node{'s' if nodes != 1 else ''}: {text_of(count, 'message')}\n")


def _scored(option: Row) -> Row:
    scores = {
        name: format_number(number_of(score, "value") / ONE_OF[name]) if name in ONE_OF else score.get("value")
        for score in rows_of(option, "scores")
        for name in (text_of(score, "name"),)
    }
    return {"node": text_of(option, "node"), **scores}


ONE_OF: Final = {
    "soft_taints": 1,
    "gpu_price": 1_000,
    "node_value": 1_000_000,
    "gpu_left_over": 1_000,
    "free_gpus": 1_000,
    "free_cpu": 1_000,
}
"""By score: how much of it is one GPU, core or taint."""


def _eviction(out: Output, eviction: Row) -> Iterator[str]:
    pods = int(number_of(eviction, "pods"))
    yield (
        f"{out.time(eviction.get('at'))} by {text_of(eviction, 'by')}, rule {text_of(eviction, 'rule')}: "
        f"{pods} pod{'s' if pods != 1 else ''}"
    )
    yield text_of(eviction, "message")
    if (hours := number_of(eviction, "gpuHoursAtRisk")) >= LEAST_HOURS:
        yield f"{format_number(round(hours, 3))} GPU-hours of its work were not saved when its pods were told to end"
