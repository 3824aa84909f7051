"""What `muster simulate` prints: outcomes side by side, one row for each measure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from muster.cli.output import Column
from muster.cli.values import Row, format_number, format_span

if TYPE_CHECKING:
    from services.scheduler.simulation.figures import Figures, Off, Wait

ALL: Final = "all"
MOST_PROJECTS: Final = 20
"""That have rows of their own: those that held the most."""
PERCENTS: Final = (50, 99)


@dataclass(frozen=True, slots=True)
class Shown:
    """One outcome."""

    key: str
    """Of its column: `log`, `unchanged` or `changed`."""
    figures: "Figures"


def _cell(key: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        value = row.get(key)
        if not isinstance(value, int | float):
            return "-"
        match row.get("unit"):
            case "s":
                return span(value)
            case "%":
                return f"{value:.1f} %"
            case "GPU h":
                return f"{value:,.1f}"
            case _:
                return format_number(value)

    return show


def _difference(row: Row) -> str:
    value = row.get("difference")
    if not isinstance(value, int | float):
        return ""
    if value == 0:
        return "="
    sign, size = "+" if value > 0 else "-", abs(value)
    return sign + _cell("size")({"unit": row.get("unit"), "size": size})


def span(seconds: float) -> str:
    """Also of less than a second."""
    return f"{seconds:.1f}s" if seconds < 10 else format_span(seconds)  # noqa: PLR2004 (tenths say nothing from here)


def columns_of(shown: Sequence[Shown]) -> tuple[Column, ...]:
    outcomes = tuple(Column(each.key.upper(), each.key, show=_cell(each.key)) for each in shown)
    difference = (Column("DIFFERENCE", "difference", show=_difference),) if shown[-1].key == "changed" else ()
    return (Column("MEASURE", "measure"), Column("OF", "of"), *outcomes, *difference, Column("UNIT", "unit", rare=True))


ALL_COLUMNS: Final = (
    Column("MEASURE", "measure"),
    Column("OF", "of"),
    Column("LOG", "log"),
    Column("UNCHANGED", "unchanged"),
    Column("CHANGED", "changed"),
    Column("DIFFERENCE", "difference"),
    Column("UNIT", "unit", rare=True),
)
"""For completion."""


def rows_of(shown: Sequence[Shown]) -> list[Row]:
    rows = [*_counts(shown), *_waits(shown), *_use(shown)]
    fidelity = _fidelity(shown)
    return [*rows, *fidelity]


def _counts(shown: Sequence[Shown]) -> Iterator[Row]:
    yield _row(shown, "workloads", ALL, "", lambda figures: len(figures.waits))
    yield _row(shown, "started", ALL, "", lambda figures: figures.count("started"))
    yield _row(shown, "still waiting", ALL, "", lambda figures: figures.count("waits"))
    if any(each.figures.count("gave up") for each in shown):
        yield _row(shown, "ended before it started", ALL, "", lambda figures: figures.count("gave up"))


def _waits(shown: Sequence[Shown]) -> Iterator[Row]:
    from services.scheduler.simulation.figures import SIZES

    yield from _waits_of(shown, ALL, lambda _: True)
    for size in SIZES:
        yield from _waits_of(shown, size, lambda wait, size=size: wait.size == size)
    names = _projects(shown)
    for name in names if len(names) > 1 else ():
        yield from _waits_of(shown, f"project {name}", lambda wait, name=name: wait.project == name)


def _waits_of(shown: Sequence[Shown], of: str, chosen: "Callable[[Wait], bool]") -> Iterator[Row]:
    from services.scheduler.simulation.figures import percentile

    waits = {each.key: each.figures.waits_of(chosen) for each in shown}
    if not any(waits.values()):
        return
    for percent in PERCENTS:
        row: Row = {"measure": f"waiting p{percent}", "of": of, "unit": "s"}
        for each in shown:
            found = waits[each.key]
            row[each.key] = round(percentile(found, percent), 3) if found else None
        yield _with_difference(row)


def _use(shown: Sequence[Shown]) -> Iterator[Row]:
    yield _row(shown, "GPUs in use", ALL, "%", lambda figures: _percent(figures.gpu_use))
    yield _row(shown, "CPU in use", ALL, "%", lambda figures: _percent(figures.cpu_use))
    yield _row(shown, "share error", ALL, "%", lambda figures: _percent(figures.share_error))
    yield _row(shown, "evictions", ALL, "", lambda figures: figures.evictions)
    yield _row(shown, "GPU hours lost", ALL, "GPU h", lambda figures: round(figures.lost_gpu_hours, 3))
    yield _row(shown, "GPU hours", ALL, "GPU h", lambda figures: round(figures.gpu_hours, 3))
    names = _projects(shown)
    for name in names if len(names) > 1 else ():
        yield _row(
            shown,
            "GPU hours",
            f"project {name}",
            "GPU h",
            lambda figures, name=name: round(figures.hours_by_project.get(name, 0.0), 3),
        )
    yield _row(shown, "time", ALL, "s", lambda figures: round(figures.seconds, 3))


def _projects(shown: Sequence[Shown]) -> list[str]:
    hours: dict[str, float] = {}
    for each in shown:
        for name, amount in each.figures.hours_by_project.items():
            hours[name] = hours.get(name, 0.0) + amount
        for wait in each.figures.waits:
            hours.setdefault(wait.project, 0.0)
    most = sorted(hours, key=lambda name: (-hours[name], name))[:MOST_PROJECTS]
    return sorted(most)


def _percent(part: float | None) -> float | None:
    return None if part is None else round(100 * part, 3)


def _row(shown: Sequence[Shown], measure: str, of: str, unit: str, value: "Callable[[Figures], float | None]") -> Row:
    row: Row = {"measure": measure, "of": of, "unit": unit}
    for each in shown:
        row[each.key] = value(each.figures)
    return _with_difference(row)


def _with_difference(row: Row) -> Row:
    if "changed" in row:
        one, other = row.get("unchanged"), row["changed"]
        row["difference"] = (
            round(other - one, 3) if isinstance(one, int | float) and isinstance(other, int | float) else None
        )
    return row


def _fidelity(shown: Sequence[Shown]) -> Iterator[Row]:
    found = replay_error(shown)
    if found is None:
        return
    for measure, value in (
        ("replay error p50", found.median),
        ("replay error p95", found.p95),
        ("replay error max", found.most),
    ):
        row: Row = {"measure": measure, "of": "starts", "unit": "s", "log": None, "unchanged": round(value, 3)}
        yield row | ({"changed": None, "difference": None} if shown[-1].key == "changed" else {})


def replay_error(shown: Sequence[Shown]) -> "Off | None":
    """How far the starts of the unchanged replay are from those of the log; None where there is no log."""
    from services.scheduler.simulation.figures import off

    by_key = {each.key: each.figures for each in shown}
    return off(by_key["log"], by_key["unchanged"]) if "log" in by_key else None
