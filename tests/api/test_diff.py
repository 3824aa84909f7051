"""Two moments are compared: what appeared, changed and went, and what happened in between."""

from typing import Any

import pytest

from services.api import happenings
from tests.support.api import Served, report_node

V1 = "/api/v1"


@pytest.fixture(scope="module")
def story(served: Served) -> dict[str, Any]:
    """`stays` changes, `goes` is deleted, `comes` is submitted, `flies` comes and goes; a quota and a node, too."""
    with served.client() as admin:
        told: dict[str, Any] = {}

        def change(method: str, path: str, **options: Any) -> Any:
            answer = admin.request(method, V1 + path, **options)
            assert answer.status_code == 202, answer.text
            told["seq"] = int(answer.headers["X-Log-Sequence"])
            return answer.json()

        def submit(name: str) -> str:
            body = served.training(name=name)
            return change("POST", "/workloads/trainings", json=body)["workloadId"]

        told["before"] = int(admin.get(f"{V1}/workloads").headers["X-Log-Sequence"])
        stays, goes = submit("stays"), submit("goes")
        told["start"] = told["seq"]
        change("PATCH", f"/workloads/{stays}", json={"priorityClass": "high"})
        change("DELETE", f"/workloads/trainings/{goes}")
        submit("comes")
        change("DELETE", f"/workloads/trainings/{submit('flies')}")
        report_node(served, served.cluster, "a-node", gpus=2)
        change("PUT", f"/org-unit/projects/{served.project}", json={"gpuQuota": 3})
        told["end"] = told["seq"]
        change("PATCH", f"/workloads/{stays}", json={"priorityClass": "low"})
        return told


def ask(served: Served, query: str, who: str = "admin") -> Any:
    with served.client(who) as client:
        return client.get(f"{V1}/diff?{query}")


def test_what_differs_is_shown_as_it_was_and_as_it_is(served: Served, story: dict[str, Any]) -> None:
    answer = ask(served, f"from={story['start']}&to={story['end']}")
    assert answer.status_code == 200, answer.text
    diff = answer.json()
    assert (diff["earlier"]["sequence"], diff["later"]["sequence"]) == (story["start"], story["end"])
    found = {row["name"]: row for row in diff["workloads"]}
    assert {name: row["difference"] for name, row in found.items()} == {
        "stays": "changed",
        "goes": "gone",
        "comes": "appeared",
    }
    priorities = [found["stays"][side]["priorityClassName"] for side in ("before", "after")]
    assert priorities[1] == "high" != priorities[0]
    assert (found["goes"]["after"], found["comes"]["before"]) == (None, None)
    (quota,) = diff["quotas"]
    assert (quota["name"], quota["before"]["gpuQuota"], quota["after"]["gpuQuota"]) == ("default", None, 3)
    (node,) = diff["nodes"]
    assert (node["name"], node["difference"], node["after"]["gpus"]) == ("a-node", "appeared", 2)
    told = {(event["about"], event["name"], event["type"]): event["message"] for event in diff["events"]}
    assert ("workload", "flies", "WorkloadCreated") in told
    assert told["project", "default", "ProjectChanged"] == "set with a quota of 3 GPU by admin"
    assert told["node", "a-node", "NodeRegistered"] == "registered: 4 cores, 2 GPU, pool default, ready"
    assert [event["sequence"] for event in diff["events"]] == sorted(event["sequence"] for event in diff["events"])
    assert all(story["start"] < event["sequence"] <= story["end"] for event in diff["events"])
    assert any("admin" in event["message"] for event in diff["events"])
    assert not diff["moreWorkloads"]
    assert not diff["moreEvents"]


def test_a_moment_differs_in_nothing_from_itself(served: Served, story: dict[str, Any]) -> None:
    diff = ask(served, f"from={story['end']}&to={story['end']}").json()
    assert [diff[key] for key in ("workloads", "quotas", "nodes", "events")] == [[], [], [], []]


def test_without_a_later_moment_it_is_now(served: Served, story: dict[str, Any]) -> None:
    diff = ask(served, f"from={story['end']}").json()
    assert [row["name"] for row in diff["workloads"]] == ["stays"]


def test_a_project_is_told_of_alone_and_only_to_who_may_read_it(served: Served, story: dict[str, Any]) -> None:
    of = f"from={story['before']}&to={story['end']}"
    diff = ask(served, f"{of}&projectId={served.made['other']}").json()
    assert [diff[key] for key in ("workloads", "quotas", "nodes", "events")] == [[], [], [], []]
    theirs = ask(served, of, "stranger").json()
    assert (theirs["workloads"], theirs["quotas"]) == ([], [])
    assert {event["about"] for event in theirs["events"]} == {"node"}
    own = ask(served, f"{of}&projectId={served.project}").json()
    assert {event["about"] for event in own["events"]} == {"workload", "project"}
    assert ask(served, f"{of}&projectId={served.project}", "stranger").status_code == 400
    assert ask(served, of, "nobody").status_code == 403


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("", "from", "is required"),
        ("from=2&to=1", "from", "must be the earlier moment"),
        ("from=1&to=999999999", "to", "must be a moment of the past"),
        ("from=then", "from", "is not a time"),
        ("from=1&projectId=nowhere", "projectId", "there is no project"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(served: Served, query: str, field: str, said: str) -> None:
    answer = ask(served, query)
    assert answer.status_code == 400, answer.text
    assert [(i["field"], said in i["details"]) for i in answer.json()["complianceIssues"]] == [(field, True)]


def test_where_much_happened_to_nodes_the_rest_is_left_out_and_the_answer_says_so(
    served: Served, story: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(happenings, "MOST_SEARCHED", 1)
    diff = ask(served, f"from={story['start']}&to={story['end']}").json()
    others = [event for event in diff["events"] if event["about"] != "workload"]
    assert [event["name"] for event in others] == ["a-node"]
    assert diff["events"][-1] == others[0], "nothing is told of what came after it"
    assert diff["moreEvents"]
