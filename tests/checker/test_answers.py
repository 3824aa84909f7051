"""The checker sees what an answer about a moment says otherwise than its books."""

import copy
from typing import Any

import pytest

from development.checker.answers import differences, items, lists
from development.checker.log import LogChecker
from development.checker.story import ID, Story


def books() -> LogChecker:
    """One workload in one project on one node, running."""
    story = Story()
    story.commit("ev.project.p", ("ProjectCreated", {"project_id": "p1", "name": "vision", "at": story.text()}))
    added = {"cluster_id": "c1", "name": "lab", "kind": "kubernetes", "at": story.text()}
    story.commit("ev.cluster.lab", ("ClusterAdded", added))
    return story.node().created().bound().ran().check()


def told(log: LogChecker) -> dict[str, Any]:
    """Every answer as it must be."""
    return {**dict(lists(log)), **dict(items(log, log))}


def at(answer: Any, *path: str | int) -> tuple[Any, Any]:
    """What holds the value at that place, and the value's name in it."""
    *before, last = path
    for name in before:
        answer = answer[name]
    return answer, last


@pytest.mark.parametrize(
    ("path", "place", "value"),
    [
        ("/workloads?limit=500", ("workloads", 0, "phase"), "Pending"),
        ("/workloads?limit=500", ("workloads",), []),
        ("/workloads/count", ("count",), 2),
        (f"/workloads/{ID}", ("totalPendingTimeSeconds",), 5.0),
        (f"/workloads/{ID}/pods", ("pods", 0, "node"), "another"),
        (f"/workloads/{ID}/history?limit=500", ("records", 0, "type"), "WorkloadQueued"),
        ("/nodes", ("nodes", 0, "reserved", "gpus"), 0.0),
        ("/node-pools", ("nodePools", 0, "nodes"), 0),
        ("/clusters/c1", ("ownershipProtection",), True),
        ("/org-unit/projects", ("projects", 0, "use", "workloads"), {}),
        ("/org-unit/projects/p1", ("use", "gpuAllocated"), 0.0),
    ],
)
def test_an_answer_that_is_wrong_at_one_place_is_told_by_that_place(
    path: str, place: tuple[str | int, ...], value: object
) -> None:
    right = told(books())[path]
    assert list(differences(right, right)) == []
    given = copy.deepcopy(right)
    holder, name = at(given, *place)
    holder[name] = value
    assert any(str(place[-1]) in text for text in differences(right, given))


def test_what_comes_later_is_not_there_before() -> None:
    story = Story()
    story.node()
    before = story.check()
    later = story.created().check()
    there = dict(items(before, later))
    assert (there[f"/workloads/{ID}"], there[f"/workloads/{ID}/pods"]) == (None, None)
