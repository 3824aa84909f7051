"""Columns of the tables about workloads and pods, and the words in their cells. No I/O."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Final

from muster.cli.output import Column, plain_text
from muster.cli.values import Row, format_number, format_span, number_of, parse_time, row_of, rows_of, text_of


def _bytes(row: Row, key: str) -> str:
    from events.quantities import format_bytes

    value = int(number_of(row, key))
    return format_bytes(value) if value else ""


def _count(row: Row, key: str) -> str:
    return format_number(number_of(row, key)) if number_of(row, key) else ""


def gpus(row: Row) -> str:
    """Allocated of requested: devices, or memory of them."""
    requested = format_number(number_of(row, "gpuRequest")) if number_of(row, "gpuRequest") else ""
    requested = requested or _bytes(row, "gpuMemoryRequestBytes")
    return f"{format_number(number_of(row, 'gpuAllocated'))}/{requested}" if requested else ""


def told_phase(row: Row) -> str:
    """The phase; what is deleted is in none any more."""
    return "Deleted" if text_of(row, "deletedAt") else text_of(row, "phase")


def shown_phase(row: Row) -> str:
    """The phase; of pods on a lost cluster it is the one that was known last."""
    return f"{told_phase(row)}, lost" if text_of(row, "clusterLostSince") else told_phase(row)


def pods(row: Row) -> str:
    """Those that run of those that may, such as `3/2-6` where it has at least 2 and may grow to 6; of what has ended,
    those that succeeded of those that had to.
    """
    if text_of(row, "phase") in _OUTCOMES:
        return succeeded(row)
    requested, most = number_of(row, "requestedPods"), number_of(row, "mostPods")
    grows = f"-{format_number(most)}" if most > requested else ""
    return f"{format_number(number_of(row, 'runningPods'))}/{format_number(requested)}{grows}"


def succeeded(row: Row) -> str:
    done = number_of(row, "succeededPods")
    # What an elastic training grew by ends with the others.
    return f"{format_number(done)}/{format_number(max(number_of(row, 'completions') or 1, done))}"


def runs(row: Row, word: str = "") -> str:
    failed = number_of(row, "failedRuns")
    text = succeeded(row) + word
    return f"{text} ({format_number(failed)} failed)" if failed else text


def _numbers(row: Row) -> str:
    """The reason; where it says why a workload waits, numbers first."""
    return _numbers_of(why(row)) if told_phase(row) == "Pending" and _for_room(row, "phaseReason") else why(row)


def _numbers_of(reason: str) -> str:
    """What comes after the place that the scheduler's reason speaks of: how many nodes lack what."""
    _, _, counted = reason.partition(": ")
    return counted if any(sign.isdigit() for sign in counted) else reason


def _for_room(row: Row, key: str) -> bool:
    """Whether it waits for a node; of what waits for its next run, how the last one ended comes first."""
    return text_of(row, key) != "backoff"


def why(row: Row) -> str:
    """The reason's sentence, else its code. What is deleted waits for nothing; how it had ended before is told."""
    reason, phase = text_of(row, "phaseMessage") or text_of(row, "phaseReason"), text_of(row, "phase")
    if lost := _lost(row):
        return lost
    if told_phase(row) == "Deleting" and not reason:
        # Pods that it left on a lost cluster stand on no node of its own any more.
        return "its pods are ending" if row.get("currentNodes") else "its pods have not ended: see `muster explain`"
    if told_phase(row) != "Deleted":
        return reason
    return f"was {phase}{': ' + reason if reason else ''}" if phase in _OUTCOMES else ""


def _lost(row: Row) -> str:
    """That nobody knows of its pods, and since when; else empty."""
    since = parse_time(text_of(row, "clusterLostSince"))
    if since is None:
        return ""
    cluster = text_of(row, "clusterName")
    return f"cluster {cluster} is lost since {since:%Y-%m-%d %H:%M:%S} UTC: nobody knows whether its pods still run"


_OUTCOMES: Final = frozenset({"Completed", "Failed"})
_SHOWN: Final = ("always", "wide", "csv")
_YIELDS: Final = {"submittedBy": 5, "projectName": 4, "type": 3, "gpuAllocated": 2, "runningPods": 1}
"""Columns that a narrow terminal does without, the highest first: the name, the phase and the times never."""
_STAY: Final = frozenset({"gpuAllocated", "runningPods"})
_MIDDLE: Final = 100
"""Cells of a terminal in which these are there always."""

_SHOW: Final[dict[str, Callable[[Row], str]]] = {
    "phase": shown_phase,
    "phaseMessage": why,
    "runningPods": pods,
    "gpuAllocated": gpus,
    "succeededPods": runs,
    "cpuRequestCores": lambda row: _count(row, "cpuRequestCores"),
}
"""Cells that say more than one column of the API, or nothing where it is 0."""


@cache
def workload_columns() -> tuple[Column, ...]:
    """As they are declared with the rows of the API."""
    from projections.columns import public_columns
    from projections.workloads.rows import WorkloadRow

    declared = sorted(public_columns(WorkloadRow), key=lambda pair: (_SHOWN.index(pair[1].shown), pair[1].place))
    return tuple(
        Column(
            public.heading,
            public.name,
            show=_SHOW.get(public.name) or _show(column.name, public.name),
            wide=public.shown == "wide",
            rare=public.shown == "csv",
            time=column.type == "time",
            clock=not column.stored and column.name.endswith("_seconds"),
            rest=public.name == "phaseMessage",
            short=_numbers if public.name == "phaseMessage" else None,
            yields=_YIELDS.get(public.name, 0),
            stays_from=_MIDDLE if public.name in _STAY else 0,
        )
        for column, public in declared
    )


@cache
def sortable() -> dict[str, str]:
    """Fields that the API sorts by, by what people call them in small letters: headings, and before them fields."""
    from projections.columns import columns_of
    from projections.workloads.rows import WorkloadRow

    declared = [column.public for column in columns_of(WorkloadRow) if column.public is not None]
    headings = {public.heading.lower(): public.name for public in declared}
    return headings | {name.lower(): name for public in declared for name in (public.name, *public.aliases)}


def columns_of_one_kind() -> tuple[Column, ...]:
    """The same, where all rows are of one kind anyway."""
    return tuple(replace(column, wide=True) if column.key == "type" else column for column in workload_columns())


def _show(column: str, key: str) -> Callable[[Row], str] | None:
    """By the unit that ends the column's name."""
    if column.endswith("_bytes"):
        return lambda row: _bytes(row, key)
    if column.endswith("_seconds"):
        return lambda row: _span(row, key)
    return None


def _span(row: Row, key: str) -> str:
    return format_span(number_of(row, key)) if number_of(row, key) else ""


def _devices(row: Row) -> str:
    """Devices by number, each with its share where it is not a whole one."""
    shown: list[str] = []
    for device in rows_of(row, "devices"):
        share = number_of(device, "milli")
        part = f":{format_number(share / 1000)}" if share and share != 1000 else ""  # noqa: PLR2004 - a whole device
        shown.append(f"{format_number(number_of(device, 'device'))}{part}")
    return ",".join(shown)


def _why_of_pod(row: Row) -> str:
    """The sentence, else the reason in words; of an exit code the column EXIT says all."""
    reason = text_of(row, "reason")
    return text_of(row, "message") or ("" if reason == "exit_code" else reason.replace("_", " "))


def values_told(pod: Row) -> str:
    """Of a sweep: the values of a pod's runs."""
    return ",".join(f"{name}={plain_text(value)}" for name, value in row_of(pod, "values").items())


POD_COLUMNS: Final[tuple[Column, ...]] = (
    Column("POD", "name"),
    Column("VALUES", "values", show=values_told, wide=True),
    Column("PHASE", "phase"),
    Column("NODE", "node"),
    Column("GPUS", "devices", show=_devices),
    Column("ATTEMPT", "attempt"),
    Column("RUN", "run"),
    Column("STARTED", "startedAt", time=True),
    Column("ENDED", "finishedAt", time=True),
    Column("EXIT", "exitCode"),
    Column("WHY", "message", show=_why_of_pod, rest=True, wraps=True),
    Column("SET", "podSet", wide=True),
    Column("INDEX", "index", wide=True),
    Column("POOL", "nodePool", wide=True),
)


def pod_columns(pods: list[Row]) -> tuple[Column, ...]:
    """Those of a list of pods: with their values, where they have some."""
    if not any("values" in pod for pod in pods):
        return POD_COLUMNS
    return tuple(replace(column, wide=False) if column.key == "values" else column for column in POD_COLUMNS)


def results_by_run(pods: list[Row]) -> list[Row]:
    """Of a sweep: the newest run of each pod, in their order."""
    newest: dict[str, Row] = {}
    for pod in pods:
        if "values" in pod:
            newest[text_of(pod, "name")] = pod  # in order of attempt and run
    return list(newest.values())


def _took(pod: Row) -> str:
    begin, end = parse_time(text_of(pod, "startedAt")), parse_time(text_of(pod, "finishedAt"))
    return "" if begin is None or end is None else f"{max((end - begin).total_seconds(), 0):.1f} s"


RESULT_COLUMNS: Final[tuple[Column, ...]] = (
    Column("VALUES", "values", show=values_told),
    Column("PHASE", "phase"),
    Column("EXIT", "exitCode"),
    Column("TOOK", "finishedAt", show=_took),
    Column("POD", "name"),
    Column("WHY", "message", show=_why_of_pod, rest=True),
)

HISTORY_COLUMNS: Final[tuple[Column, ...]] = (
    Column("WHEN", "at", time=True),
    Column("PHASE", "phase", yields=1),
    Column("WHAT", "message", rest=True, wraps=True),
    Column("WHO", "actor.sub"),
    Column("EVENT", "type", wide=True),
    Column("REASON", "reason", wide=True),
    Column("SEQUENCE", "sequence", wide=True),
)

METRIC_COLUMNS: Final[tuple[Column, ...]] = (
    Column("METRIC", "type"),
    Column("POD", "pod"),
    Column("LAST", "last"),
    Column("LEAST", "least"),
    Column("MEAN", "mean"),
    Column("MOST", "most"),
    Column("SAMPLES", "samples"),
)
