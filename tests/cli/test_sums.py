"""What `muster top` and `muster usage` ask for and print."""

import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from muster.cli.exits import ExitCode
from tests.support.shapes import Reply, Request, ShapeServer, use_row


def used(*rows: dict[str, Any], more: int | None = None) -> Reply:
    total = use_row("all", running=3, pending=4, gpus=2.5, capacity=16, free=8.0)
    return Reply(body={"rows": list(rows), "total": total, "next": more})


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("top", {"by": ["project"], "sortBy": ["allocated.gpus"], "sortOrder": ["desc"], "limit": ["100"]}),
        ("top users --sort-by gpu-util", {"by": ["user"], "sortBy": ["used.gpuUtilizationPercent"]}),
        ("top pools --sort-by name", {"by": ["nodePool"], "sortBy": ["name"], "sortOrder": ["asc"]}),
        ("top nodes --cluster local", {"by": ["node"], "clusterId": ["c-1"]}),
        ("top workloads -p default", {"by": ["workload"], "projectId": ["p-1"]}),
    ],
)
def test_top_asks_for_sums_of_what_was_named(api: ShapeServer, muster: Any, typed: str, asked: dict[str, Any]) -> None:
    api.on("GET", "/org-unit/projects", Reply(body={"projects": [{"id": "p-1", "name": "default"}]}))
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "local"}]}))
    api.on("GET", "/usage", used(use_row("a", gpus=2.5)))
    ran = muster(*typed.split())
    assert ran.code == 0, ran.err
    (request,) = api.asked("GET", "/usage")
    assert asked.items() <= request.query.items()
    assert ran.out.splitlines()[0].startswith("NAME")
    assert ran.err == (
        "in all: 2.5 of 16 GPUs allocated, 8 free, 5.5 held by others or on nodes that take no new pods; "
        "3 workloads running, 4 pending\n"
    )


def test_the_sum_under_top_says_nothing_of_others_where_there_are_none(api: ShapeServer, muster: Any) -> None:
    total = use_row("all", running=1, gpus=1.896, capacity=2, free=0.104)
    api.on("GET", "/usage", Reply(body={"rows": [use_row("a", gpus=1.896)], "total": total, "next": None}))
    assert muster("top").err == "in all: 1.896 of 2 GPUs allocated, 0.104 free; 1 workload running, 0 pending\n"


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (use_row("idle"), "idle,0,0,0,,,"),
        (use_row("used", used=True), "used,0,0,0,12.345,77Gi,0"),
        (use_row("odd", gpus=2) | {"allocated": {"gpus": 2, "gpuMemoryBytes": 0, "memoryBytes": 0}}, "odd,,,0,,,"),
    ],
)
def test_an_empty_cell_of_top_means_not_known_and_nothing_is_a_zero(
    api: ShapeServer, muster: Any, row: dict[str, Any], shown: str
) -> None:
    api.on("GET", "/usage", used(row))
    ran = muster("top", "--columns", "name,GPU-MEM,CPU,MEM,CPU-USED,MEM-USED,GPU-MEM-USED")
    heading, cells = ran.out.splitlines()
    starts = [word.start() for word in re.finditer(r"\S+", heading)]
    ends = [*starts[1:], None]
    assert [cells[start:end].strip() for start, end in zip(starts, ends, strict=True)] == shown.split(",")


def test_a_mistyped_heading_of_top_is_answered_with_the_nearest_one(api: ShapeServer, muster: Any) -> None:
    assert "→ did you mean 'GPU-UTIL'" in muster("top", "--sort-by", "gpu-utl").err


def test_the_default_project_does_not_limit_top(api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_PROJECT", "default")
    api.on("GET", "/usage", used())
    ran = muster("top", "users")
    assert "projectId" not in api.asked("GET", "/usage")[0].query
    assert "nobody has anything that runs or waits" in ran.err


def test_top_reads_further_pages_up_to_its_limit_and_says_that_there_are_more(api: ShapeServer, muster: Any) -> None:
    def page(request: Request) -> Reply:
        offset, limit = (int(request.query[name][0]) for name in ("offset", "limit"))
        return used(*(use_row(f"n{number}") for number in range(offset, min(offset + limit, 900))), more=offset + limit)

    api.on("GET", "/usage", page)
    ran = muster("top", "nodes", "--limit", "600", "-o", "name")
    assert ran.out.split() == [f"n{number}" for number in range(600)]
    assert [request.query["limit"] for request in api.asked("GET", "/usage")] == [["500"], ["100"]]
    assert ran.err == "there are more than 600; --limit 0 shows all\n"


def test_programs_get_the_rows_of_top_as_the_api_gives_them(api: ShapeServer, muster: Any) -> None:
    row = use_row("a", gpus=2.5, used=True)
    api.on("GET", "/usage", used(row))
    ran = muster("top", "-o", "json")
    assert (ran.json(), ran.err) == ([row], "")
    heading, values = muster("top", "-o", "csv", "--columns", "name,GPU,used.cpuCores").out.splitlines()
    assert (heading, values) == ("name,allocated.gpus,used.cpuCores", "a,2.5,12.345")


# -- usage -----------------------------------------------------------------------------------------------------------


def hours_row(name: str, reserved: float, *periods: tuple[str, float], **more: Any) -> dict[str, Any]:
    sums = {"waitingHours": 1.5, "runs": 2}
    shown = [{"begins": begins, "ends": begins, "reservedGpuHours": part, **sums} for begins, part in periods]
    return {
        "name": name,
        "id": None,
        "clusterName": None,
        "periods": shown,
        "reservedGpuHours": reserved,
        **sums,
        **more,
    }


def hours(*rows: dict[str, Any], following: int | None = None) -> Reply:
    total = {"reservedGpuHours": 12.3456, "waitingHours": 3, "runs": 1234}
    span = {"begins": "2026-10-01T00:00:00Z", "ends": "2026-11-01T00:00:00Z"}
    return Reply(body={**span, "rows": list(rows), "total": total, "next": following})


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("usage", {"by": ["project"], "from": ["2026-03-01T00:00:00Z"], "limit": ["100"]}),
        ("usage --by pool --from 7d", {"by": ["nodePool"], "from": ["2026-03-08T10:30:00Z"]}),
        ("usage --by model --from 2026-01-05", {"by": ["gpuModel"], "from": ["2026-01-05T00:00:00Z"]}),
        ("usage --from last-month", {"from": ["2026-02-01T00:00:00Z"], "to": ["2026-03-01T00:00:00Z"]}),
        ("usage --from last-month --to 1h", {"from": ["2026-02-01T00:00:00Z"], "to": ["2026-03-15T09:30:00Z"]}),
        ("usage --by user --owner ann -p default", {"by": ["user"], "owner": ["ann"], "projectId": ["p-1"]}),
        ("usage --per day --cluster local", {"per": ["day"], "clusterId": ["c-1"]}),
    ],
)
def test_usage_asks_for_the_span_and_sums_that_were_named(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch, typed: str, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr("muster.cli.usage.now", lambda: datetime(2026, 3, 15, 10, 30, tzinfo=UTC))
    api.on("GET", "/org-unit/projects", Reply(body={"projects": [{"id": "p-1", "name": "default"}]}))
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "local"}]}))
    api.on("GET", "/usage/hours", hours(hours_row("vision", 12.3456, ("2026-10-01T00:00:00Z", 12.3456))))
    ran = muster(*typed.split())
    assert ran.code == 0, ran.err
    (request,) = api.asked("GET", "/usage/hours")
    assert asked.items() <= request.query.items()
    assert ("to" in request.query) == ("to" in asked)
    assert ran.err == (
        "from 2026-10-01T00:00:00Z to 2026-11-01T00:00:00Z: 12.346 GPU hours reserved, 3 hours waited, 1,234 runs\n"
    )


def test_usage_per_day_is_a_row_for_each_day_and_name_in_order_of_time(api: ShapeServer, muster: Any) -> None:
    first, second = "2026-10-01T00:00:00Z", "2026-10-02T00:00:00Z"
    api.on("GET", "/usage/hours", hours(hours_row("a", 3, (first, 1), (second, 2)), hours_row("b", 4, (first, 4))))
    ran = muster("usage", "--per", "day", "--columns", "PERIOD,name,GPU-HOURS")
    assert [line.split() for line in ran.out.splitlines()] == [
        ["PERIOD", "NAME", "GPU-HOURS"], ["2026-10-01", "a", "1"], ["2026-10-01", "b", "4"], ["2026-10-02", "a", "2"]
    ]  # fmt: skip
    heading, *values = muster("usage", "--per", "day", "-o", "csv").out.splitlines()
    assert (
        heading
        == "begins,ends,name,reservedGpuHours,usedGpuHours,measuredGpuHours,waitingHours,runs,cost,unpricedGpuHours,id"
    )
    assert values[0] == f"{first},{first},a,1,,,1.5,2,,,"


def test_usage_tells_how_busy_gpus_were_and_of_how_much_that_is_known(api: ShapeServer, muster: Any) -> None:
    """Of what nobody measured it says nothing, and not zero."""
    measured = hours_row("a", 20, usedGpuHours=5, measuredGpuHours=12.5)
    unknown = hours_row("b", 8, usedGpuHours=None, measuredGpuHours=0)
    found = hours(measured, unknown)
    found.body["total"] |= {"usedGpuHours": 5, "measuredGpuHours": 12.5}
    api.on("GET", "/usage/hours", found)
    ran = muster("usage", "--columns", "NAME,GPU-HOURS,USED-HOURS,MEASURED-HOURS")
    assert [line.split() for line in ran.out.splitlines()[1:]] == [["a", "20", "5", "12.5"], ["b", "8", "-", "0"]]
    assert "12.346 GPU hours reserved (5 used of 12.5 measured), 3 hours waited" in ran.err


def test_usage_reads_further_pages(api: ShapeServer, muster: Any) -> None:
    def page(request: Request) -> Reply:
        offset, limit = (int(request.query[name][0]) for name in ("offset", "limit"))
        rows = [hours_row(f"n{number}", 1) for number in range(offset, offset + limit)]
        return hours(*rows, following=offset + limit)

    api.on("GET", "/usage/hours", page)
    ran = muster("usage", "--limit", "600", "-o", "name")
    assert ran.out.split() == [f"n{number}" for number in range(600)]
    assert ran.err == "there are more than 600 names; --limit 0 shows all\n"


def test_a_time_that_is_none_is_told_with_the_forms_that_there_are(api: ShapeServer, muster: Any) -> None:
    ran = muster("usage", "--from", "yesterday")
    assert (ran.code, api.requests) == (ExitCode.USAGE, [])
    assert "--from: 'yesterday' is no time" in ran.err
    assert "a time ago as 7d, this-month or last-month" in ran.err


def test_usage_takes_no_bare_number_which_is_a_sequence_elsewhere(api: ShapeServer, muster: Any) -> None:
    ran = muster("usage", "--from", "4711")
    assert (ran.code, api.requests) == (ExitCode.USAGE, [])
    assert "--from: '4711' is no time" in ran.err


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The pictures that were drawn: stdout of a test takes no bytes."""
    pictures: list[bytes] = []
    monkeypatch.setattr("muster.cli.output.Output.picture", lambda _, data: pictures.append(data))
    return pictures


@pytest.mark.parametrize("typed", ["usage -o png", "usage --per day -o png"])
def test_usage_draws_a_picture(api: ShapeServer, muster: Any, drawn: list[bytes], typed: str) -> None:
    days = [(f"2026-10-{day:02}T00:00:00Z", 1.5) for day in range(1, 20)]
    rows = [hours_row(f"_project $x^{number}", 30 - number, *days) for number in range(25)]
    api.on("GET", "/usage/hours", hours(*rows))
    ran = muster(*typed.split())
    assert (ran.code, ran.err) == (0, "")
    (picture,) = drawn
    assert picture.startswith(PNG)
    assert len(picture) > 5_000


def test_a_picture_of_nothing_is_a_picture(api: ShapeServer, muster: Any, drawn: list[bytes]) -> None:
    api.on("GET", "/usage/hours", hours())
    assert [muster(*typed.split()).code for typed in ("usage -o png", "usage --per month -o png")] == [0, 0]
    assert [picture.startswith(PNG) for picture in drawn] == [True, True]


def test_what_has_no_picture_says_so(api: ShapeServer, muster: Any) -> None:
    ran = muster("top", "-o", "png")
    assert (ran.code, ran.out, api.requests) == (ExitCode.USAGE, "", [])
    assert "`muster top` draws no picture" in ran.err


def test_a_picture_without_the_library_names_what_to_install(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    api.on("GET", "/usage/hours", hours(hours_row("a", 1)))
    ran = muster("usage", "-o", "png")
    assert (ran.code, ran.out) == (ExitCode.FAILURE, "")
    assert "pip install 'muster[charts]'" in ran.err
