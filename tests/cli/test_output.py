"""The formats of the data, and that talk never mixes with it."""

import csv
import io
import json
import re
from typing import Any

import pytest
import yaml

from muster.cli.exits import Problem
from muster.cli.output import Output, Style
from projections.row_json import WORKLOAD_COLUMNS as ROW_KEYS
from tests.support.shapes import WORKLOAD_ID, Reply, ShapeServer, workload_row

ROWS = [workload_row(), workload_row(id="0a1b2c3d-0000-8a6b-9c7d-0123456789ab", name="=cmd()", phase="Failed")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def listed(api: ShapeServer) -> ShapeServer:
    api.on("GET", "/workloads", Reply(body={"workloads": ROWS, "next": None}))
    return api


def test_a_table_has_headings_and_ages_and_nothing_is_cut_in_a_pipe(listed: ShapeServer, muster: Any) -> None:
    lines = muster("workload", "list").out.splitlines()
    assert lines[0].split() == ["NAME", "TYPE", "PROJECT", "PHASE", "PODS", "GPU", "OWNER", "CREATED", "WHY"]
    assert lines[1].split()[:7] == ["hello", "Training", "default", "Running", "1/1", "1.5/2", "ann"]
    assert "ago" in lines[1]
    assert "\x1b" not in "".join(lines)


def test_a_table_says_that_what_is_being_deleted_waits_for_its_pods(api: ShapeServer, muster: Any) -> None:
    """Of pods that it left on a lost cluster the table has no node: what explains them is named."""
    ending = workload_row(phase="Deleting", phaseMessage=None, phaseReason=None, currentNodes=["n-1"])
    left = ending | {"id": "0a1b2c3d-0000-8a6b-9c7d-0123456789ab", "name": "left", "currentNodes": []}
    api.on("GET", "/workloads", Reply(body={"workloads": [ending, left], "next": None}))
    _, first, second = muster("workload", "list").out.splitlines()
    assert first.endswith("its pods are ending")
    assert second.endswith("its pods have not ended: see `muster explain`")


def test_utc_shows_exact_times_and_no_headers_leaves_the_heading_out(listed: ShapeServer, muster: Any) -> None:
    lines = muster("workload", "list", "--utc", "--no-headers").out.splitlines()
    assert len(lines) == 2
    assert "2026-01-02T03:04:05Z" in lines[0]


def test_wide_adds_columns_and_columns_chooses_them(listed: ShapeServer, muster: Any) -> None:
    assert WORKLOAD_ID in muster("workload", "list", "-o", "wide").out
    assert muster("workload", "list", "--columns", "phase,NAME", "--no-headers").out.split() == [
        "Running", "hello", "Failed", "=cmd()",
    ]  # fmt: skip
    twice = muster("workload", "list", "--columns", "phase", "--columns", "NAME", "--no-headers")
    assert twice.out.split() == ["Running", "hello", "Failed", "=cmd()"]


def test_an_unknown_column_is_a_usage_error_with_the_nearest_one(listed: ShapeServer, muster: Any) -> None:
    ran = muster("workload", "list", "--columns", "phas")
    assert ran.code == 2
    assert "did you mean 'phase'" in ran.err
    assert ran.out == ""


def test_json_yaml_and_json_lines_hold_the_api_s_own_rows(listed: ShapeServer, muster: Any) -> None:
    assert muster("workload", "list", "-o", "json").json() == ROWS
    assert muster("workload", "list", "--json").json() == ROWS
    assert yaml.safe_load(muster("workload", "list", "--yaml").out) == ROWS
    assert [json.loads(line) for line in muster("workload", "list", "-o", "jsonl").out.splitlines()] == ROWS
    assert muster("workload", "list", "-o", "name").out == "hello\n=cmd()\n"


def test_csv_keeps_numbers_and_defuses_formulas(listed: ShapeServer, muster: Any) -> None:
    text = muster("workload", "list", "-o", "csv", "--columns", "name,gpuAllocated").out
    assert list(csv.reader(io.StringIO(text))) == [["name", "gpuAllocated"], ["hello", "1.5"], ["'=cmd()", "1.5"]]


def test_an_empty_list_teaches_on_stderr_and_stays_data_on_stdout(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
    ran = muster("workload", "list", "-o", "json")
    assert (ran.out, ran.err) == ("[]\n", "")
    ran = muster("workload", "list", "--no-headers")
    assert ran.out == ""
    assert "muster training submit" in ran.err
    assert muster("workload", "list", "--no-headers", "-q").err == ""


def test_control_characters_of_a_message_are_shown_not_obeyed(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [workload_row(phaseMessage="\x1b]0;x\x07")], "next": None}))
    assert "\x1b" not in muster("workload", "list").out


def test_pages_are_followed_to_the_limit_and_what_is_left_is_told(api: ShapeServer, muster: Any) -> None:
    def page(request: Any) -> Reply:
        offset, limit = int(request.query["offset"][0]), int(request.query["limit"][0])
        rows = [workload_row(name=f"w-{number}", id=str(number)) for number in range(offset, min(offset + limit, 1200))]
        return Reply(body={"workloads": rows, "next": offset + limit if offset + limit < 1200 else None})

    api.on("GET", "/workloads", page)
    ran = muster("workload", "list", "-o", "name", "--limit", "700")
    assert len(ran.out.splitlines()) == 700
    assert "--limit 0 shows all" in ran.err
    ran = muster("workload", "list", "-o", "name", "--limit", "0")
    assert len(ran.out.splitlines()) == 1200
    assert ran.err == ""


def test_list_flags_become_the_api_s_parameters(listed: ShapeServer, muster: Any) -> None:
    muster(
        "training", "list", "-p", "vision", "--status", "Pending", "--filter", "gpuAllocated>=1",
        "--search", "x", "--deleted", "--sort-by", "name",
    )  # fmt: skip
    query = listed.asked("GET", "/workloads")[-1].query
    assert query["filterBy"] == ["projectName==vision", "type==Training", "phase==Pending", "gpuAllocated>=1"]
    assert (query["search"], query["deleted"]) == (["x"], ["true"])
    assert (query["sortBy"], query["sortOrder"]) == (["name"], ["asc"])
    muster("workload", "list", "-A")
    assert "filterBy" not in listed.asked("GET", "/workloads")[-1].query


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        ({"gpuRequest": 2.0, "gpuAllocated": 1.5}, "1.5/2"),
        ({"gpuRequest": 0.0, "gpuAllocated": 0.25, "gpuMemoryRequestBytes": 20 * 1024**3}, "0.25/20Gi"),
        ({"gpuRequest": 0.0, "gpuAllocated": 0.0, "gpuMemoryRequestBytes": 20 * 1024**3}, "0/20Gi"),
        ({"gpuRequest": 0.0, "gpuAllocated": 0.0, "gpuMemoryRequestBytes": 0}, ""),
    ],
)
def test_gpus_are_told_of_what_was_asked_for_be_it_devices_or_memory(
    api: ShapeServer, muster: Any, row: dict[str, Any], cell: str
) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [workload_row(**row)], "next": None}))
    assert muster("workload", "list", "--columns", "gpuAllocated", "--no-headers").out.strip() == cell


@pytest.mark.parametrize(
    ("phase", "message", "cells"),
    [
        ("Pending", "its cluster was removed; delete the workload", "Deleted"),
        ("Deleting", "", "Deleted"),
        ("Running", "", "Deleted"),
        ("Completed", "", "Deleted was Completed"),
        ("Failed", "run 7 ended with exit code 1", "Deleted was Failed: run 7 ended with exit code 1"),
    ],
)
def test_what_is_deleted_is_in_no_phase_that_goes_on_and_needs_nobody_to_act(
    api: ShapeServer, muster: Any, phase: str, message: str, cells: str
) -> None:
    gone = workload_row(phase=phase, phaseMessage=message, deletedAt="2026-01-03T00:00:00Z", desiredPhase="Deleted")
    api.on("GET", "/workloads", Reply(body={"workloads": [gone], "next": None}))
    listed = muster("workload", "list", "--deleted", "--columns", "phase,phaseMessage", "--no-headers").out
    assert listed.split() == cells.split()
    asked = {"sequence": 1, "index": 0, "type": "WorkloadDeletionRequested", "actor": {"sub": "ben"}}
    for path, body in (("", gone), ("/pods", {"pods": []}), ("/history", {"records": [asked], "next": None})):
        api.on("GET", f"/workloads/{WORKLOAD_ID}{path}", Reply(body=body))
    described = muster("workload", "describe", "hello").out
    assert f"{cells.split(maxsplit=1)[0]}\n" in described
    assert "wanted" not in described
    assert re.search(r"(?m)^Deleted: .* ago by ben$", described)
    assert "delete the workload" not in described


def test_every_field_of_a_workload_s_row_is_a_column_and_wide_has_not_all(listed: ShapeServer, muster: Any) -> None:
    """What can be filtered by can be looked at."""
    for key in ROW_KEYS:
        assert muster("workload", "list", "--columns", key).code == 0, key
    headings = muster("workload", "list", "-o", "csv").out.splitlines()[0].split(",")
    assert set(ROW_KEYS) <= set(headings)
    assert "CPU-ALLOCATED" not in muster("workload", "list", "-o", "wide").out


@pytest.mark.parametrize(
    ("row", "phase", "pods"),
    [
        ({"phase": "Running", "desiredPhase": "Running"}, "Running", "1/2"),
        ({"phase": "Pending", "desiredPhase": "Running"}, "Pending (wanted: Running)", "1/2"),
        ({"phase": "Stopping", "desiredPhase": "Stopped"}, "Stopping (wanted: Stopped)", "1/2"),
        (
            {
                "phase": "Completed",
                "desiredPhase": "Running",
                "completedAt": "2026-01-03T00:00:00Z",
                "succeededPods": 4,
            },
            "Completed",
            "4/4",
        ),
        (
            {"phase": "Failed", "desiredPhase": "Running", "completedAt": "2026-01-03T00:00:00Z", "succeededPods": 3},
            "Failed",
            "3/4",
        ),
    ],
)
def test_what_has_ended_is_wanted_no_more_and_counts_what_succeeded(
    api: ShapeServer, muster: Any, row: dict[str, Any], phase: str, pods: str
) -> None:
    row = workload_row(**row, requestedPods=2, completions=4)
    api.on("GET", "/workloads", Reply(body={"workloads": [row], "next": None}))
    assert muster("workload", "list", "--columns", "runningPods", "--no-headers").out.strip() == pods
    for path, body in (("", row), ("/pods", {"pods": []}), ("/history", {"records": [], "next": None})):
        api.on("GET", f"/workloads/{WORKLOAD_ID}{path}", Reply(body=body))
    described = muster("workload", "describe", "hello").out
    assert re.findall(r"(?m)^Phase: +(.*)$", described) == [phase]


def test_a_picture_goes_to_a_file_as_it_is_and_never_to_a_terminal() -> None:
    file = io.BytesIO()
    out = Output(Style(), stdout=io.TextIOWrapper(file))
    out.picture(b"\x89PNG")
    assert file.getvalue() == b"\x89PNG"
    with pytest.raises(Problem, match="cannot be shown in a terminal"):
        Output(Style(), stdout=Terminal()).picture(b"\x89PNG")
