"""Traces that `muster simulate` plays: in the form of the published openb lists, or in a plain form of our own."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from events.nearest import did_you_mean
from events.quantities import QuantityError, parse_bytes
from events.workload.fields.scheduling import PriorityClass
from muster.cli.exits import usage
from muster.cli.simulate_change import nodes_of, problems_of
from muster.cli.unreadable import unreadable
from muster.cli.values import Json, ValueProblem, parse_duration, parse_switch, parse_time
from services.scheduler.simulation.change import NewNode
from services.scheduler.simulation.trace import EPOCH, MOST_WORKERS, TraceWorkload

OPENB: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time")
"""Mandatory columns of that form; it may have gpu_spec, scheduled_time and deletion_time, and others that say nothing.
"""
FIELDS: Final = (
    "name",
    "project",
    "arrival",
    "runtime",
    "gpus",
    "portion",
    "cpu",
    "memory",
    "gang",
    "priority",
    "preemptible",
    "models",
    "pools",
)
MOST_SECONDS: Final = 100 * 365 * 86_400
MOST_WORKLOADS: Final = 200_000
"""Of one trace: some gigabyte of memory."""
MOST_GPUS: Final = 1_024
MOST_CORES: Final = 1_000_000
_MEBIBYTE: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    workloads: tuple[TraceWorkload, ...]
    nodes: tuple[NewNode, ...]


class _Wrong(Exception):
    """One value breaks a rule."""


def read_trace(file: Path, nodes: Path | None) -> Trace:
    """Raises Problem (usage), which tells all that is wrong."""
    beside: Json = None
    if file.suffix.lower() == ".csv":
        rows = _csv_rows(file)
    else:
        rows, beside = _yaml_rows(file)
    workloads: dict[str, TraceWorkload] = {}
    problems: list[str] = []
    for where, row in rows:
        try:
            found = _openb(row) if "num_gpu" in row else _own(row)
            if found.name in workloads:
                problems.append(f"{where}, name: must be unique; {found.name!r} stands there twice")
            workloads[found.name] = found
        except _Wrong as wrong:
            problems.append(f"{where}, {wrong}")
    if not rows:
        problems.append("it holds no workload; each needs name, arrival and runtime")
    if len(rows) > MOST_WORKLOADS:
        problems.append(f"it holds {len(rows):,} workloads, and at most {MOST_WORKLOADS:,} are played")
    if problems:
        raise problems_of(f"--trace: {file}", problems)
    return Trace(workloads=tuple(workloads.values()), nodes=_nodes(file, beside, nodes))


def _nodes(file: Path, beside: Json, nodes: Path | None) -> tuple[NewNode, ...]:
    if nodes is not None:
        return nodes_of("--trace-nodes", nodes)
    if beside is None:
        raise usage(f"--trace: {file} says nothing of nodes", todo="give them with --trace-nodes FILE (YAML or CSV)")
    if not isinstance(beside, str):
        raise usage(f"--trace: {file}: nodes must be the path of a file of nodes, from that file; given {beside!r}")
    return nodes_of(f"--trace: {file}: nodes", file.parent / beside)


def _csv_rows(file: Path) -> list[tuple[str, Mapping[str, Json]]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text, strict=True)
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            _check_columns(file, columns)
            return [(f"line {reader.line_num}", {k: v for k, v in row.items() if k is not None}) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(f"--trace: {file}", error, todo="give a trace as CSV or YAML") from error


def _check_columns(file: Path, columns: Sequence[str]) -> None:
    """Raises Problem (usage)."""
    mandatory = OPENB if "num_gpu" in columns else ("name", "arrival")
    missing = [column for column in mandatory if column not in columns]
    if missing:
        todo = "a list without times cannot be played" if "num_gpu" in columns else f"columns: {', '.join(FIELDS)}"
        raise usage(f"--trace: {file} has no column {missing[0]!r}", todo=todo)
    unknown = [] if "num_gpu" in columns else [column for column in columns if column not in FIELDS]
    if unknown:
        todo = did_you_mean(unknown[0], FIELDS) or f"columns: {', '.join(FIELDS)}"
        raise usage(f"--trace: {file}: workloads have no column {unknown[0]!r}", todo=todo)


def _yaml_rows(file: Path) -> tuple[list[tuple[str, Mapping[str, Json]]], Json]:
    from muster.cli.request_file import read_document

    document = read_document(str(file), ("workloads", "nodes"), what="a trace", flag="--trace")
    given = document.get("workloads")
    if not isinstance(given, list):
        raise usage(f"--trace: {file}: workloads must be a list; given {given!r}", todo=f"fields: {', '.join(FIELDS)}")
    rows: list[tuple[str, Mapping[str, Json]]] = []
    for number, each in enumerate(given):
        if not isinstance(each, dict):
            raise usage(f"--trace: {file}: workloads[{number}] must have fields; given {each!r}")
        rows.append((f"workloads[{number}]", each))
    return rows, document.get("nodes")


# -- one workload ------------------------------------------------------------------------------------------------------


def _openb(row: Mapping[str, Json]) -> TraceWorkload:
    gpus = int(_number(row, "num_gpu", 0, MOST_GPUS))
    milli = int(_number(row, "gpu_milli", 0, 1000))
    created = _number(row, "creation_time", 0, MOST_SECONDS)
    began, ended = _optional(row, "scheduled_time"), _optional(row, "deletion_time")
    if began is not None and ended is not None and ended < began:
        raise _Wrong(f"deletion_time: must not be before scheduled_time ({began:g}); given {ended:g}")
    return TraceWorkload(
        name=_word(row, "name"),
        arrival=created,
        runtime=None if began is None or ended is None else ended - began,
        gpus=gpus,
        portion=milli / 1000 if gpus and 0 < milli < 1000 else None,  # noqa: PLR2004 (thousandths)
        cpu=_number(row, "cpu_milli", 0, 1000 * MOST_CORES) / 1000,
        memory_bytes=int(_number(row, "memory_mib", 0, 2**40)) * _MEBIBYTE,
        models=tuple(filter(None, _text(row, "gpu_spec").split("|"))),
    )


def _optional(row: Mapping[str, Json], name: str) -> float | None:
    return _number(row, name, 0, MOST_SECONDS) if _text(row, name) else None


def _own(row: Mapping[str, Json]) -> TraceWorkload:
    unknown = [name for name in row if name not in FIELDS]
    if unknown:
        raise _Wrong(
            f"{unknown[0]}: workloads have no such field; {did_you_mean(unknown[0], FIELDS) or ''}".rstrip("; ")
        )
    gpus = int(_number(row, "gpus", 0, MOST_GPUS, whole=True, default=0))
    portion = _number(row, "portion", 0.001, 1) if _text(row, "portion") else None
    if portion is not None and not gpus:
        raise _Wrong(f"portion: needs gpus of at least 1, of which each gives so much; given {portion:g}")
    return TraceWorkload(
        name=_word(row, "name"),
        project=_text(row, "project") or "default",
        arrival=_arrival(row),
        runtime=_seconds(row, "runtime") if _text(row, "runtime") else None,
        gpus=gpus,
        portion=None if portion == 1 else portion,
        cpu=_number(row, "cpu", 0, MOST_CORES, default=0),
        memory_bytes=_memory(row),
        gang=int(_number(row, "gang", 1, MOST_WORKERS, whole=True, default=1)),
        priority=_priority(row),
        preemptible=_switch(row) if _text(row, "preemptible") else None,
        models=_list(row, "models"),
        pools=_list(row, "pools"),
    )


def _text(row: Mapping[str, Json], name: str) -> str:
    given: Any = row.get(name)
    if given is None:
        return ""
    if isinstance(given, bool):
        return "on" if given else "off"
    if hasattr(given, "isoformat"):  # YAML makes times of texts that look like some
        return str(given.isoformat())
    if isinstance(given, str | int | float):
        return str(given).strip()
    raise _Wrong(f"{name}: must be one value; given {given!r}")


def _word(row: Mapping[str, Json], name: str) -> str:
    text = _text(row, name)
    if not text or not text.isprintable():
        raise _Wrong(f"{name}: must be a name; given {text!r}")
    return text


def _number(
    row: Mapping[str, Json], name: str, least: float, most: float, *, whole: bool = False, default: float | None = None
) -> float:
    text = _text(row, name)
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise _Wrong(f"{name}: must be {kind} of {least:g} to {most:,.15g}; given {text!r}")
    return number


def _seconds(row: Mapping[str, Json], name: str) -> float:
    text = _text(row, name)
    try:
        return float(text) if _is_number(text) else float(parse_duration(text))
    except ValueProblem:
        raise _Wrong(f"{name}: must be seconds, or a time such as 90s, 30m or 2h; given {text!r}") from None


def _is_number(text: str) -> bool:
    try:
        return 0 <= float(text) <= MOST_SECONDS
    except ValueError:
        return False


def _arrival(row: Mapping[str, Json]) -> float:
    text = _text(row, "arrival")
    moment = parse_time(text)
    if moment is not None and not _is_number(text):
        return (moment - EPOCH).total_seconds()
    try:
        return _seconds(row, "arrival")
    except _Wrong:
        rule = "must be seconds or a time such as 90s or 2h since the beginning, or a time as 2030-01-31T12:00:00Z"
        raise _Wrong(f"arrival: {rule}; given {text!r}") from None


def _memory(row: Mapping[str, Json]) -> int:
    text = _text(row, "memory")
    try:
        return parse_bytes(text) if text else 0
    except QuantityError:
        raise _Wrong(f"memory: must be a size, such as 16Gi; given {text!r}") from None


def _priority(row: Mapping[str, Json]) -> PriorityClass:
    text, known = _text(row, "priority") or "low", get_args(PriorityClass)
    if text not in known:
        raise _Wrong(f"priority: must be one of {', '.join(known)}; given {text!r}")
    return cast("PriorityClass", text)


def _switch(row: Mapping[str, Json]) -> bool:
    text = _text(row, "preemptible")
    try:
        return parse_switch(text)
    except ValueProblem:
        raise _Wrong(f"preemptible: must be on or off; given {text!r}") from None


def _list(row: Mapping[str, Json], name: str) -> tuple[str, ...]:
    given = row.get(name)
    parts: Iterable[Any] = given if isinstance(given, list) else _text(row, name).split("|")
    return tuple(text for each in parts if (text := str(each).strip()))
