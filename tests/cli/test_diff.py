"""What differs between two moments, as people read it."""

import csv
import io
from pathlib import Path
from typing import Any

from muster.cli.command import Session
from muster.cli.diff import FLAT, flat_rows, show
from muster.cli.output import Format, Output, Style
from muster.cli.style import in_utc
from tests.support.shapes import Reply, ShapeServer

GOLDEN = Path(__file__).parent / "tables" / "diff.txt"

WAS = {"phase": "Pending", "priorityClassName": "low", "gpuAllocated": 0.0, "runningPods": 0, "nodes": []}
IS = {"phase": "Running", "priorityClassName": "high", "gpuAllocated": 2.5, "runningPods": 2, "nodes": ["n1"]}
READY = {"nodePool": "h100", "ready": True, "schedulable": True, "gpus": 8, "reservedGpus": 2.5, "reservedPods": 2}
FOUND: dict[str, Any] = {
    "earlier": {"sequence": 4711, "at": "2030-01-31T12:00:00Z"},
    "later": {"sequence": 4811, "at": "2030-01-31T13:00:00Z"},
    "workloads": [
        {"name": "hello", "projectName": "vision", "difference": "changed", "before": WAS, "after": IS},
        {"name": "old", "projectName": "vision", "difference": "gone", "before": IS, "after": None},
        {"name": "new", "projectName": "speech", "difference": "appeared", "before": None, "after": WAS},
    ],
    "quotas": [
        {
            "name": "vision",
            "difference": "changed",
            "before": {"gpuQuota": None, "nodePools": []},
            "after": {"gpuQuota": 16.0, "nodePools": ["h100", "default"]},
        }
    ],
    "nodes": [
        {
            "name": "n1",
            "clusterName": "lab",
            "difference": "changed",
            "before": READY | {"schedulable": False},
            "after": READY,
        },
        {
            "name": "n2",
            "clusterName": "lab",
            "difference": "gone",
            "before": READY | {"ready": False, "schedulable": False},
            "after": None,
        },
    ],
    "events": [
        {
            "at": "2030-01-31T12:30:00Z",
            "about": "workload",
            "name": "hello",
            "message": "placed on n1 of pool h100 with 2.5 GPU",
        },
        {"at": "2030-01-31T12:31:00Z", "about": "project", "name": "vision", "message": "set with no quota by ada"},
    ],
    "moreWorkloads": False,
    "moreEvents": True,
}


def shown(found: dict[str, Any]) -> tuple[str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    show(Session(out=Output(Style(clock=in_utc), stdout=stdout, stderr=stderr)), found)
    return stdout.getvalue(), stderr.getvalue()


def test_sections_stand_below_one_another() -> None:
    text, said = shown(FOUND)
    assert text == GOLDEN.read_text()
    assert said == "more events happened than are shown; ask for a shorter time, or for one project\n"


def test_now_is_a_moment(api: ShapeServer, muster: Any) -> None:
    moment = {"sequence": 0, "at": None}
    body = {"earlier": moment, "later": moment, "moreWorkloads": False, "moreEvents": False}
    api.on("GET", "/diff", Reply(body=body))
    for end in ((), ("--to", "now")):
        assert muster("diff", "--from", "4711", *end).code == 0
    assert [asked.query for asked in api.asked("GET", "/diff")] == [{"from": ["4711"]}] * 2
    assert muster("diff", "--from", "now").code == 0


def test_where_nothing_differs_it_says_so() -> None:
    moment = {"sequence": 0, "at": None}
    nothing = {"earlier": moment, "later": moment, "moreWorkloads": False, "moreEvents": False}
    assert shown(nothing) == ("From 0 (before the log) to 0 (before the log)\n", "no difference\n")


def test_in_csv_all_sections_are_one_table_and_names_are_one_a_line() -> None:
    flat = flat_rows(FOUND)
    stdout = io.StringIO()
    Output(Style(format=Format.CSV), stdout=stdout, stderr=io.StringIO()).rows(flat, FLAT)
    lines = list(csv.DictReader(io.StringIO(stdout.getvalue())))
    assert [(line["section"], line["name"]) for line in lines] == [
        *(("workloads", name) for name in ("hello", "old", "new")),
        ("quotas", "vision"),
        *(("nodes", name) for name in ("n1", "n2")),
        *(("events", name) for name in ("hello", "vision")),
    ]
    assert (lines[1]["of"], lines[1]["difference"], lines[1]["before"], lines[1]["after"]) == (
        "vision",
        "gone",
        "Running, high, 2.5 GPU",
        "",
    )
    assert lines[-1]["message"] == "set with no quota by ada"
