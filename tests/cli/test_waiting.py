"""Waiting for what a person names, logs that are bounded or waited for, and parts of a description."""

from itertools import chain, repeat
from typing import Any

import pytest

from tests.support.shapes import WORKLOAD_ID, Reply, Request, ShapeServer, workload_row

GONE = "2026-01-03T00:00:00Z"
SUBMIT = ("training", "submit", "hello", "-i", "x")


def goes_through(api: ShapeServer, *rows: dict[str, Any]) -> None:
    """The workload is so at each look, and stays as it is last."""
    states = chain(rows, repeat(rows[-1]))

    def look(_request: Request) -> Reply:
        return Reply(body=workload_row(**next(states)))

    api.on("GET", f"/workloads/{WORKLOAD_ID}", look)
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [], "next": None}))


@pytest.mark.parametrize(
    ("condition", "row", "code"),
    [
        ("running", {"phase": "Running"}, 0),
        ("Running", {"phase": "Completed"}, 8),
        ("condition=Running", {"phase": "Running"}, 0),
        ("completed", {"phase": "Completed"}, 0),
        ("complete", {"phase": "Failed"}, 8),
        ("completed", {"phase": "Stopped"}, 8),
        ("started", {"phase": "Completed", "startedAt": GONE}, 0),
        ("started", {"phase": "Failed", "startedAt": None}, 8),
        ("ended", {"phase": "Failed"}, 0),
        ("ended", {"phase": "Running", "deletedAt": GONE}, 0),
        ("failed", {"phase": "Failed"}, 0),
        ("failed", {"phase": "Completed"}, 8),
        ("stopped", {"phase": "Stopped"}, 0),
        ("suspended", {"phase": "Deleting"}, 8),
        ("deleting", {"phase": "Deleting"}, 0),
        ("deleted", {"phase": "Completed", "deletedAt": GONE}, 0),
        ("delete", {"phase": "Deleting", "deletedAt": GONE}, 0),
        ("jsonpath={.phase}=Running", {"phase": "Running"}, 0),
        ("jsonpath={.runningPods}=2", {"runningPods": 2}, 0),
        ("jsonpath={.runningPods}=2", {"runningPods": 1, "deletedAt": GONE}, 8),
    ],
)
def test_a_wait_ends_when_it_is_so_or_can_be_so_no_more(
    api: ShapeServer, muster: Any, condition: str, row: dict[str, Any], code: int
) -> None:
    goes_through(api, row)
    assert muster("workload", "wait", "hello", "--for", condition).code == code


@pytest.mark.parametrize(
    ("row", "code"),
    [({"phase": "Running"}, 0), ({"phase": "Stopped"}, 8), ({"phase": "Running", "deletedAt": GONE}, 8)],
)
def test_an_inference_is_waited_for_until_it_runs_since_it_never_completes(
    api: ShapeServer, muster: Any, row: dict[str, Any], code: int
) -> None:
    goes_through(api, {"type": "Inference", "phase": "Pending"}, {"type": "Inference", **row})
    assert muster("workload", "wait", "hello", "--timeout", "20s").code == code
    refused = muster("workload", "wait", "hello", "--for", "completed", "--timeout", "20s")
    assert (refused.code, "hello is an inference, which never completes" in refused.err) == (2, True)


@pytest.mark.parametrize("condition", ["running", "completed", "ended", "deleted", "stopped", "jsonpath={.phase}=x"])
def test_a_wait_goes_on_while_it_may_become_so_and_ends_in_time(api: ShapeServer, muster: Any, condition: str) -> None:
    goes_through(api, {"phase": "Pending", "phaseMessage": "needs 8 GPUs"})
    ran = muster("workload", "wait", "hello", "--for", condition, "--timeout", "0s")
    assert ran.code == 7
    assert "hello is still Pending after 0s" in ran.err


def test_a_wait_sees_what_comes_and_several_are_all_waited_for(api: ShapeServer, muster: Any) -> None:
    goes_through(api, {"phase": "Pending"}, {"phase": "Running"})
    ran = muster("workload", "wait", "hello", WORKLOAD_ID, "--for", "running")
    assert (ran.code, ran.out) == (0, "")
    assert "hello: Pending\nhello: Running\n" in ran.err
    goes_through(api, {"phase": "Failed"}, {"phase": "Completed"})
    assert muster("workload", "wait", "hello", WORKLOAD_ID).code == 8


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["hello", "--for", "runing"], "did you mean 'running'"),
        (["hello", "--for", "updating"], "no workload enters Updating yet"),
        (["hello", "--for", "ready"], "conditions: started, ended, deleted"),
        (["hello", "--for", "jsonpath={.phase}"], "compares nothing"),
        (["hello", "--for", "jsonpath={phase}=Running"], "at character 2"),
        (["hello", "--timeout", "soon"], "'soon' is not a duration"),
        ([], "which workloads to wait for?"),
    ],
)
def test_a_condition_that_there_is_not_is_refused(
    api: ShapeServer, muster: Any, arguments: list[str], told: str
) -> None:
    ran = muster("workload", "wait", *arguments)
    assert (ran.code, api.requests) == (2, [])
    assert told in ran.err


def test_a_workload_that_is_not_there_is_not_waited_for(api: ShapeServer, muster: Any) -> None:
    api.on("GET", "/workloads", Reply(body={"workloads": [], "next": None}))
    assert muster("workload", "wait", "nobody").code == 3


def test_a_submission_is_waited_for_as_far_as_is_asked(api: ShapeServer, muster: Any) -> None:
    goes_through(api, {"phase": "Pending"}, {"phase": "Running"})
    for flag in ("--wait=running", "--wait-for=running"):
        assert muster(*SUBMIT, flag, "--", "x", "--wait=running").code == 0
    sent = api.asked("POST", "/workloads/trainings")[-1].body
    assert sent["spec"]["args"].split() == ["x", "--wait=running"]
    goes_through(api, {"phase": "Failed"})
    assert muster(*SUBMIT, "--wait=running", "--", "x").code == 8
    assert muster(*SUBMIT, "--wait=ended", "--", "x").code == 0
    before = len(api.requests)
    assert muster(*SUBMIT, "--wait=done", "--", "x").code == 2
    assert len(api.requests) == before


@pytest.mark.parametrize(
    ("limit", "printed", "is_more"),
    [(1, "o", True), (4, "one\n", True), (9, "one\ntwo ", True), (10, "one\ntwo ", True), (12, "one\ntwo ✓\n", False)],
)
def test_logs_end_after_as_many_bytes_as_are_asked_for(
    api: ShapeServer, muster: Any, limit: int, printed: str, is_more: bool
) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\ntwo ✓\n"))
    for follow in ((), ("-f",)):
        ran = muster("training", "logs", "hello", "--limit-bytes", str(limit), *follow)
        assert (ran.code, ran.out) == (0, printed)
        assert (f"only {limit} bytes were asked for" in ran.err) is is_more


def test_logs_wait_for_pods_that_have_not_started(api: ShapeServer, muster: Any) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\n"))
    pending = {"phase": "Pending", "startedAt": None}
    goes_through(api, pending, {"phase": "Running", "startedAt": GONE})
    assert muster("training", "logs", "hello", "--wait-timeout", "1m").out == "one\n"
    goes_through(api, pending)
    ran = muster("training", "logs", "hello", "--wait-timeout", "0s")
    assert (ran.code, ran.out) == (7, "")
    goes_through(api, {"phase": "Failed", "startedAt": None})
    assert muster("training", "logs", "hello", "--wait-timeout", "1m").code == 8


def test_pods_have_one_container(api: ShapeServer, muster: Any) -> None:
    api.on("GET", f"/workloads/{WORKLOAD_ID}/logs", Reply(text="one\n"))
    assert muster("training", "logs", "hello", "--container", "main").out == "one\n"
    ran = muster("training", "logs", "hello", "--container", "sidecar")
    assert ran.code == 2
    assert "pods have no container 'sidecar'" in ran.err


@pytest.mark.parametrize(
    ("sections", "has", "has_not"),
    [
        ("general", ["Phase:"], ["image:", "main-0", "step 1"]),
        ("spec", ["image:", "compute.gpuDevicesRequest:", "storage.hostPath[0]:"], ["Phase:", "main-0"]),
        ("compute", ["compute.gpuDevicesRequest:"], ["image:", "storage.hostPath[0]:"]),
        ("storage,pods", ["storage.hostPath[0]:", "main-0"], ["image:", "compute.gpu", "step 1"]),
        ("History", ["step 1"], ["Phase:", "main-0"]),
    ],
)
def test_a_description_shows_the_parts_that_are_asked_for(
    api: ShapeServer, muster: Any, sections: str, has: list[str], has_not: list[str]
) -> None:
    spec = {"image": "a", "compute": {"gpuDevicesRequest": 1}, "storage": {"hostPath": [{"name": "n", "path": "/d"}]}}
    record = {"sequence": 1, "index": 0, "at": GONE, "message": "step 1", "actor": {"sub": "ann"}}
    api.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=workload_row(spec=spec)))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/pods", Reply(body={"pods": [{"name": "main-0", "phase": "Running"}]}))
    api.on("GET", f"/workloads/{WORKLOAD_ID}/history", Reply(body={"records": [record], "next": None}))
    shown = muster("workload", "describe", "hello", "--section", sections).out
    assert [part for part in has if part not in shown] == []
    assert [part for part in has_not if part in shown] == []


def test_parts_that_there_are_not_are_refused(api: ShapeServer, muster: Any) -> None:
    ran = muster("workload", "describe", "hello", "--section", "pod")
    assert (ran.code, "did you mean 'pods'" in ran.err) == (2, True)
    ran = muster("workload", "describe", "hello", "--section", "pods", "-o", "json")
    assert (ran.code, "-o jsonpath" in ran.err) == (2, True)
    assert api.requests == []
