"""Columns, order, pages and time zones of tables, as they are asked for and kept."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.shapes import Reply, ShapeServer, workload_row


@pytest.fixture
def listed(api: ShapeServer) -> ShapeServer:
    rows = [workload_row(), workload_row(id="w-2", name="other", phase="Failed")]
    api.on("GET", "/workloads", Reply(body={"workloads": rows, "next": None}))
    return api


def headings(ran: Any) -> list[str]:
    return ran.out.splitlines()[0].split()


def test_columns_that_are_kept_are_those_of_that_command_s_table_until_they_are_forgotten(
    listed: ShapeServer, muster: Any, home: Path
) -> None:
    usual, of_trainings = headings(muster("workload", "list")), headings(muster("training", "list"))
    ran = muster("workload", "list", "--columns", "PHASE,name", "--set-default-columns")
    assert headings(ran) == ["PHASE", "NAME"]
    assert headings(muster("workload", "list")) == ["PHASE", "NAME"]
    assert headings(muster("workload", "list", "--columns", "id")) == ["ID"]
    assert headings(muster("training", "list")) == of_trainings
    assert len(headings(muster("workload", "list", "-o", "wide"))) > len(usual)
    assert "submittedBy" in muster("workload", "list", "-o", "csv").out
    assert (home / "config/muster/preferences.toml").read_text().endswith('"workload list" = ["phase", "name"]\n')
    muster("training", "standard", "list", "--columns", "id", "--set-default-columns")
    assert headings(muster("training", "list")) == ["ID"]
    assert headings(muster("workload", "list", "--set-default-columns")) == usual
    assert headings(muster("workload", "list")) == usual
    assert headings(muster("training", "list")) == ["ID"]


def test_only_columns_that_there_are_can_be_kept_and_what_went_with_a_version_is_passed_over(
    listed: ShapeServer, muster: Any, home: Path
) -> None:
    ran = muster("workload", "list", "--columns", "phas", "--set-default-columns")
    assert (ran.code, listed.requests) == (2, [])
    assert "did you mean 'phase'" in ran.err
    file = home / "config/muster/preferences.toml"
    assert not file.exists()
    file.parent.mkdir(parents=True)
    file.write_text('[columns]\n"workload list" = ["gone", "name"]\n"training list" = ["gone"]\n')
    assert headings(muster("workload", "list")) == ["NAME"]
    assert headings(muster("training", "list"))[0] == "NAME"
    file.write_text("[columns\n")
    ran = muster("workload", "list")
    assert ran.code == 2
    assert "preferences.toml cannot be read" in ran.err
    assert muster("workload", "list", "-o", "json").code == 0


def test_workloads_are_sorted_by_the_server_by_several_columns(listed: ShapeServer, muster: Any) -> None:
    for flags, by, order in (
        (["--sort", "phase,-created"], "phase,-createdAt", "asc"),
        (["--sort", "PHASE, NAME", "--desc"], "phase,name", "desc"),
        (["--sort-by", "priority"], "priority", "asc"),
        ([], "createdAt", "desc"),
    ):
        muster("workload", "list", *flags)
        query = listed.asked("GET", "/workloads")[-1].query
        assert (query["sortBy"], query["sortOrder"]) == ([by], [order])


def test_every_other_list_is_sorted_here_and_what_has_no_value_comes_last(api: ShapeServer, muster: Any) -> None:
    projects = [
        {"id": str(number), "name": name, "gpuQuota": quota}
        for number, (name, quota) in enumerate([("b", 10.0), ("a", 2.0), ("c", None), ("d", 10.0)])
    ]
    api.on("GET", "/org-unit/projects", Reply(body={"projects": projects}))

    def names(*flags: str) -> str:
        return "".join(muster("project", "list", "-o", "name", *flags).out.split())

    assert names() == "bacd"
    assert names("--sort", "gpuQuota") == "abdc"
    assert names("--sort", "-gpuQuota,-name") == "dbac"
    assert names("--sort", "-name") == "dcba"
    ran = muster("project", "list", "--sort", "nose")
    assert (ran.code, "there is no column 'nose'" in ran.err) == (2, True)
    assert muster("project", "create", "x", "--sort", "name").code == 2


def test_pages_begin_where_they_are_asked_for_and_are_as_large(api: ShapeServer, muster: Any) -> None:
    def page(request: Any) -> Reply:
        offset, limit = int(request.query["offset"][0]), int(request.query["limit"][0])
        rows = [workload_row(name=f"w-{number}", id=str(number)) for number in range(offset, min(offset + limit, 90))]
        return Reply(body={"workloads": rows, "next": offset + limit if offset + limit < 90 else None})

    api.on("GET", "/workloads", page)
    ran = muster("workload", "list", "-o", "name", "--offset", "20", "--limit", "30", "--page-size", "25")
    assert ran.out.split() == [f"w-{number}" for number in range(20, 50)]
    assert "there are more: --offset 50 shows the next, --limit 0 shows all" in ran.err
    assert [(r.query["offset"], r.query["limit"]) for r in api.asked("GET", "/workloads")] == [
        (["20"], ["25"]), (["45"], ["5"]),
    ]  # fmt: skip
    assert muster("workload", "list", "-o", "name", "--offset", "90").out == ""
    assert muster("workload", "list", "--page-size", "501").code == 2


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--utc"], "2026-01-02T03:04:05Z"),
        (["--tz", "Europe/Paris"], "2026-01-02T04:04:05+01:00"),
        (["--tz", "Asia/Kolkata"], "2026-01-02T08:34:05+05:30"),
        (["--tz", "UTC"], "2026-01-02T03:04:05Z"),
        (["--local"], "2026-01-02"),
    ],
)
def test_exact_times_are_shown_in_the_zone_that_is_asked_for(
    listed: ShapeServer, muster: Any, flags: list[str], shown: str
) -> None:
    assert shown in muster("workload", "list", "--no-headers", "--columns", "createdAt", *flags).out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tz", "Europe/Pari"], "did you mean 'Europe/Paris'"),
        (["--tz", "../etc/passwd"], "there is no time zone '../etc/passwd'"),
        (["--tz", "Europe"], "there is no time zone 'Europe'"),
        (["--utc", "--tz", "UTC"], "--utc and --tz cannot be used together"),
        (["--local", "--utc"], "--utc and --local cannot be used together"),
    ],
)
def test_a_zone_that_there_is_not_is_refused(listed: ShapeServer, muster: Any, flags: list[str], told: str) -> None:
    ran = muster("workload", "list", *flags)
    assert (ran.code, listed.requests) == (2, [])
    assert told in ran.err
