"""People are named by subject wherever the API answers, though the log and the tables hold ids."""

import re

import pytest

from tests.support.api import Served

ID = re.compile(r"\ba_[a-z2-7]{26}\b")


@pytest.fixture(scope="module")
def workload(served: Served) -> str:
    with served.client("alice") as alice:
        answer = alice.post("/api/v1/workloads/trainings", json=served.training())
        assert answer.status_code == 202, answer.text
        id_: str = answer.json()["workloadId"]
        assert alice.post(f"/api/v1/workloads/trainings/{id_}/suspend").status_code == 202
        # Until the tables have both.
        seq = alice.get(f"/api/v1/workloads/{id_}").headers["X-Log-Sequence"]
        assert "X-Log-Stale" not in alice.get("/api/v1/workloads", params={"min_seq": seq}).headers
    return id_


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/workloads",
        "/api/v1/workloads?filterBy=submittedBy%3D%3Dalice",
        "/api/v1/workloads?filterBy=submittedBy%3D@LIC&sortBy=submittedBy",
        "/api/v1/workloads?search=alice",
        "/api/v1/workloads/export",
        "/api/v1/workloads/export?format=jsonl",
        "/api/v1/workloads/{id}",
        "/api/v1/workloads/trainings/{id}",
        "/api/v1/workloads/{id}/history",
        "/api/v1/authorization/access-rules",
        "/api/v1/audit",
        "/api/v1/me",
    ],
)
def test_no_answer_shows_an_id_in_the_place_of_a_person(served: Served, workload: str, path: str) -> None:
    with served.client("alice" if path.endswith("/me") else "admin") as client:
        answer = client.get(path.format(id=workload))
    assert answer.status_code == 200, answer.text
    assert "alice" in answer.text or path.endswith("/audit")
    assert ID.findall(answer.text) == []


def test_the_log_is_shown_as_it_is_but_for_who_acted(served: Served, workload: str) -> None:
    with served.client() as admin:
        events = admin.get("/api/v1/events", params={"limit": 1000}).json()["events"]
    created = next(commit for commit in events if commit["id"] == workload)
    assert created["events"][0]["data"]["workloadId"] == workload
    assert created["actor"] == {"iss": "muster", "sub": "alice", "kind": "user"}
    assert ID.match(created["events"][0]["data"]["owner"])
    assert ("muster", "setup", "service") in {tuple(commit["actor"].values()) for commit in events}


def test_a_name_that_nobody_has_is_found_nowhere(served: Served, workload: str) -> None:
    with served.client() as admin:
        for value in ("nobody", "alic"):
            found = admin.get("/api/v1/workloads", params={"filterBy": f"submittedBy=={value}"}).json()["workloads"]
            assert found == []
