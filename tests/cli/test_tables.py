"""Tables in terminals of several widths: what a person looks for first stays, and one column takes what is left."""

import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from muster.cli.layout import GAP, Wish, widths
from muster.cli.output import Column, Format, Output, Style
from muster.cli.top import TOP_COLUMNS, What
from muster.cli.workload_columns import HISTORY_COLUMNS, POD_COLUMNS, workload_columns
from tests.support.shapes import use_row, workload_row

GOLDENS = Path(__file__).parent / "tables"
TERMINALS = (60, 80, 100, 120, 160)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


WAITS = (
    "5 nodes of pool default of cluster datacentre-1: 3 with too few free GPUs (at most 1 free, 4 needed), 1 too small "
    "even when empty, 1 taking no new pods"
)
AGO = (datetime.now(UTC) - timedelta(days=12, hours=1)).isoformat()
LIST = [
    workload_row(
        createdAt=AGO, name="resnet50-imagenet-sweep-17", phase="Pending", phaseMessage=WAITS, runningPods=0,
        gpuAllocated=0.0, gpuRequest=4.0, projectName="vision-research", submittedBy="ann.smith@example.org",
    ),
    workload_row(createdAt=AGO),
    workload_row(
        createdAt=AGO, name="eval", phase="Failed",
        phaseMessage="run 3 of pod main-0 ended with exit code 1: 数据集不见了",
    ),
]  # fmt: skip
HISTORY: list[Any] = [
    {"at": AGO, "phase": phase, "message": message, "actor": {"sub": who}}
    for phase, message, who in (
        ("Creating", "submitted by ann: training 'hello', 2 pods, each with 1 GPU; priority low, preemptible", "ann"),
        ("Pending", f"waits: {WAITS}", "scheduler"),
        ("Failed", "run 1 of pod main-0 ended with exit code 1 after 0.2 s: 数据集不见了", "cluster-sync"),
    )
]
PROJECTS = [
    use_row("vision-research", running=41, pending=3, pods=52, gpus=49.5, firm=12.0, quota=16.0, used=True),
    use_row("speech", running=2, pending=0, pods=2, gpus=2.0),
    use_row("sandbox-of-the-new-starters", quota=0.0),
]
PLACES = [
    use_row("h100", clusterName="datacentre-1", running=40, pods=50, gpus=48.0, capacity=64, free=12.0, used=True),
    use_row("default", clusterName="datacentre-1", running=3, pods=4, gpus=3.5, capacity=8, free=0.0),
]
TOP: dict[What, list[Any]] = {
    What.PROJECTS: PROJECTS,
    What.USERS: PROJECTS[:2],
    What.POOLS: PLACES,
    What.WORKLOADS: [
        use_row(
            "resnet50-imagenet-sweep-17", running=1, pods=16, gpus=16.0, used=True, phase="Running",
            projectName="vision-research", submittedBy="ann.smith@example.org", clusterName="datacentre-1",
        ),
        use_row("eval", pending=1, phase="Pending", projectName="speech", submittedBy="ben", clusterName="local"),
    ],
}  # fmt: skip
TABLES = {
    "list": (LIST, workload_columns()),
    "history": (HISTORY, HISTORY_COLUMNS),
    **{f"top-{what}": (TOP[what], TOP_COLUMNS[what]) for what in TOP},
}


def drawn(
    monkeypatch: pytest.MonkeyPatch, rows: Any, declared: Any, terminal: int, style: Style | None = None
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(terminal))
    monkeypatch.setenv("TERM", "xterm")
    stdout = Terminal()
    Output(style or Style(color=False), stdout=stdout).rows(rows, declared)
    return [_plain(line) for line in stdout.getvalue().splitlines()]


def _plain(line: str) -> str:
    """Without the marks of bold headings and colours."""
    return re.sub("\x1b\\[[0-9;]*m", "", line).rstrip()


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_in_a_terminal_of_some_width_looks_as_its_golden(
    monkeypatch: pytest.MonkeyPatch, name: str, terminal: int
) -> None:
    lines = drawn(monkeypatch, *TABLES[name], terminal)
    assert "\n".join(lines) + "\n" == (GOLDENS / f"{name}-{terminal}.txt").read_text()
    assert all(cell_len(line) <= terminal for line in lines)


@pytest.mark.parametrize("terminal", TERMINALS)
def test_names_and_times_are_whole_and_pods_and_gpus_stay_from_100_columns_on(
    monkeypatch: pytest.MonkeyPatch, terminal: int
) -> None:
    long = workload_row(createdAt=AGO, name="n" * 63, phase="Pending", phaseMessage=WAITS)
    for rows in ([long], LIST):
        heading, *lines = drawn(monkeypatch, rows, workload_columns(), terminal)
        for line, row in zip(lines, rows, strict=True):
            assert line.split()[0] == row["name"]
            assert "12d ago" in line
        assert terminal < 100 or {"PODS", "GPU"} <= set(heading.split())
        assert {"NAME", "PHASE", "CREATED", "WHY"} <= set(heading.split())


def test_a_reason_that_is_cut_begins_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (80, 100):
        narrow = drawn(monkeypatch, LIST[:1], workload_columns(), terminal)[1]
        assert "  3 with too few free" in narrow
        assert narrow.endswith("…")
    assert WAITS in drawn(monkeypatch, LIST[:1], workload_columns(), 300)[1]


@pytest.mark.parametrize("terminal", TERMINALS)
def test_sentences_of_a_history_go_on_in_further_lines(monkeypatch: pytest.MonkeyPatch, terminal: int) -> None:
    drawn_whole = " ".join(drawn(monkeypatch, [{**HISTORY[1], "at": None}], (HISTORY_COLUMNS[2],), terminal))
    assert f"waits: {WAITS}" in re.sub(r"\s+", " ", drawn_whole)
    lines = drawn(monkeypatch, HISTORY, HISTORY_COLUMNS, terminal)
    assert "…" not in "".join(lines)
    (start,) = {
        lines[0].index("WHAT"),
        *(line.index(word) for line in lines for word in ("submitted", "waits:") if word in line),
    }
    further = [line for line in lines if line.startswith(" ")]
    assert all(line[start] != " " for line in further)


def test_columns_stand_under_their_headings_where_signs_are_two_cells_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = [{"name": "数据", "phase": "Running", "at": "x"}, {"name": "data", "phase": "Pending", "at": "y"}]
    columns = [Column("NAME", "name"), Column("PHASE", "phase"), Column("AT", "at")]
    for terminal in (16, 80):
        places = {
            cell_len(line.partition(word)[0])
            for line, word in zip(
                drawn(monkeypatch, rows, columns, terminal), ("PHASE", "Running", "Pending"), strict=True
            )
        }
        assert places == {len("NAME") + GAP}


def test_what_was_asked_for_by_name_and_what_is_wide_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = drawn(monkeypatch, LIST, workload_columns(), 40, Style(columns=("name", "submittedBy", "projectName")))
    assert asked[0].split() == ["NAME", "OWNER", "PROJECT"]
    assert asked[1].split() == ["resnet50-imagenet-sweep-17", "ann.smith@example.org", "vision-research"]
    assert WAITS in drawn(monkeypatch, LIST, workload_columns(), 40, Style(format=Format.WIDE))[1]


def test_two_tables_of_one_command_do_not_share_their_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stdout = Terminal()
    out = Output(Style(color=False), stdout=stdout)
    out.table([{"name": "main-0", "phase": "Initializing", "message": "x" * 70}], POD_COLUMNS)
    out.table([{"at": AGO, "phase": "Running", "message": "short", "actor": {"sub": "ann"}}], HISTORY_COLUMNS)
    assert stdout.getvalue().splitlines()[-1] == "12d ago  Running  short  ann"


wishes = st.builds(
    Wish,
    width=st.integers(1, 90),
    heading=st.just(1),
    rest=st.just(False),
    yields=st.integers(0, 3),
    stays_from=st.sampled_from((0, 100)),
)


@given(st.lists(wishes, min_size=1, max_size=6), st.integers(0, 200), st.integers(20, 200))
def test_no_column_that_yields_nothing_is_left_out_or_cut_and_a_line_is_no_longer_than_it_must(
    fixed: list[Wish], rest: int, terminal: int
) -> None:
    asked = [*fixed, Wish(width=max(rest, 3), heading=3, rest=True)]
    shown = widths(asked, terminal)
    for place, wish in enumerate(asked):
        if not wish.yields or 0 < wish.stays_from <= terminal:
            assert place in shown
        if place in shown and not wish.rest:
            assert shown[place] == wish.width
    total = sum(shown.values()) + GAP * (len(shown) - 1)
    assert total <= terminal or shown[len(asked) - 1] == 3
    assert widths(asked, None) == {place: wish.width for place, wish in enumerate(asked)}
