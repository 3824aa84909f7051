"""`muster limit`, against an API that only answers."""

from typing import Any

import pytest

from tests.support.shapes import Reply, ShapeServer

PROJECT = {"id": "p-1", "name": "vision"}
PATH = "/org-unit/projects/p-1/time-limits"
LIMITS = {"projectId": "p-1", "projectName": "vision", "timeLimits": [{"kind": "Training", "runtimeSeconds": 1123200}]}


@pytest.fixture(autouse=True)
def limits(api: ShapeServer) -> None:
    api.on("GET", "/org-unit/projects", Reply(body={"projects": [PROJECT], "next": None}))
    api.on("GET", PATH, Reply(body=LIMITS, headers={"X-Version": "7"}))
    api.on("PUT", PATH, Reply(202, {"code": 202, "message": "project p-1 has now these limits"}))


def test_limits_are_told_as_they_were_set_and_set_for_a_kind_however_it_is_written(
    api: ShapeServer, muster: Any
) -> None:
    assert "13d" in muster("limit", "show", "vision").out
    ran = muster("limit", "set", "vision", "training", "--pending", "1h30m")
    assert (ran.code, ran.err.strip()) == (0, "project vision has now these limits")
    (asked,) = api.asked("PUT", PATH)
    assert asked.body == {"timeLimits": [{"kind": "Training", "runtimeSeconds": 1123200, "pendingSeconds": 5400}]}


def test_a_kind_that_is_none_is_refused_with_what_was_probably_meant(muster: Any) -> None:
    ran = muster("limit", "set", "vision", "Trainig", "--runtime", "1h")
    assert (ran.code, "KIND: 'Trainig'" in ran.err, "did you mean 'Training'?" in ran.err) == (2, True, True)


def test_a_limit_that_is_refused_is_named_by_its_flag(api: ShapeServer, muster: Any) -> None:
    issue = {"field": "timeLimits[0].idleGpuSeconds", "details": "must be at least 300, got 60"}
    api.on("PUT", PATH, Reply(400, {"code": 400, "message": "no", "complianceIssues": [issue]}))
    ran = muster("limit", "set", "vision", "Training", "--idle-gpu", "1m")
    assert "timeLimits[0].idleGpuSeconds (--idle-gpu): must be at least 300" in ran.err
