"""Maintenance and reservations as the api takes and shows them (issue 14 section 2; ADR 0133)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from development.stack import until
from tests.support.api import Served, report_node

MAINTENANCE, RESERVATIONS = "/api/v1/calendar/maintenance", "/api/v1/calendar/reservations"
PROJECTS = "/api/v1/org-unit/projects"
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)


def times(after: int = 0, hours: int = 1) -> dict[str, str]:
    begin = SOON + timedelta(hours=after)
    return {"startsAt": begin.isoformat(), "endsAt": (begin + timedelta(hours=hours)).isoformat()}


@pytest.fixture
def lab(served: Served) -> str:
    """A cluster with one node of 8 GPUs."""
    with served.client() as admin:
        name = f"lab-{datetime.now(UTC).timestamp():.6f}".replace(".", "-")
        made = admin.post("/api/v1/clusters", json={"name": name, "kind": "kubernetes"}).json()["id"]
        report_node(served, made, "gpu-1", gpus=8)
        until(lambda: admin.get(f"/api/v1/nodes?clusterId={made}").json()["nodes"] or None, 60)
    return made


def project(admin: httpx.Client, name: str) -> str:
    return admin.post(PROJECTS, json={"name": name}).json()["id"]


def details(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    return answer.json()["complianceIssues"][0]["details"]


@pytest.mark.parametrize("path", [MAINTENANCE, RESERVATIONS])
@pytest.mark.parametrize("given", ["2027-01-01T10:00:00", "2027-01-01T10:00", "2027-01-01 10:00:00"])
def test_a_time_without_a_zone_is_refused_and_told_what_would_do(
    served: Served, lab: str, path: str, given: str
) -> None:
    body: dict[str, Any] = {
        "clusterId": lab,
        "name": "x",
        "nodes": ["gpu-1"],
        "endsAt": "2027-01-02",
        "startsAt": given,
    }
    if path == RESERVATIONS:
        body["projectId"] = served.project
    with served.client() as admin:
        told = details(admin.post(path, json=body))
    assert "no zone" in told
    assert "2027-01-01T10:00:00+01:00" in told


def test_a_project_is_not_given_nodes_that_another_one_has_then(served: Served, lab: str) -> None:
    body = {"clusterId": lab, "nodes": ["gpu-1"], **times()}
    with served.client() as admin:
        other = project(admin, "rival")
        first = admin.post(RESERVATIONS, json=body | {"name": "first", "projectId": served.project, "weekly": True})
        assert first.status_code == 202
        told = details(admin.post(RESERVATIONS, json=body | {"name": "second", "projectId": other}))
        assert "'first'" in told
        assert "'default'" in told
        later = body | times(after=1) | {"name": "second", "projectId": other}
        assert admin.post(RESERVATIONS, json=later).status_code == 202


def test_what_is_reserved_for_a_project_ends_with_it(served: Served, lab: str) -> None:
    """Given a reservation, when its project is deleted, then it is named, is over, and stands in nobody's way."""
    body = {"clusterId": lab, "nodes": ["gpu-1"], "weekly": True, **times()}
    with served.client() as admin:
        gone = project(admin, "passing")
        assert admin.post(RESERVATIONS, json=body | {"name": "theirs", "projectId": gone}).status_code == 202
        before = admin.get(f"{RESERVATIONS}/{lab}/theirs")
        assert before.json()["state"] == "Planned"
        told = admin.delete(f"{PROJECTS}/{gone}").json()["message"]
        assert "theirs" in told
        assert admin.get(f"{RESERVATIONS}/{lab}/theirs").json()["state"] == "Over"
        then = before.headers["X-Log-Sequence"]
        assert admin.get(f"{RESERVATIONS}/{lab}/theirs?as_of={then}").json()["state"] == "Planned"
        again = admin.post(RESERVATIONS, json=body | {"name": "ours", "projectId": served.project})
        assert again.status_code == 202


def test_who_reserves_for_a_department_and_labels_reads_that_and_ends_it_with_the_department(
    served: Served, lab: str
) -> None:
    labels = [{"name": "course", "value": "ml"}]
    body = {"clusterId": lab, "name": "course", "nodes": ["gpu-1"], "gpus": 4, "exact": True, **times()}
    with served.client() as admin, served.client("alice") as alice:
        made = admin.post("/api/v1/org-unit/departments", json={"name": f"d-{lab[:8]}"})
        department = made.json()["id"]
        theirs = body | {"departmentId": department, "workloadLabels": labels}
        assert admin.post(RESERVATIONS, json=theirs).status_code == 202
        row = admin.get(f"{RESERVATIONS}/{lab}/course").json()
        assert (row["departmentName"], row["workloadLabels"]) == (f"d-{lab[:8]}", {"course": "ml"})
        assert (row["gpus"], row["exact"], row["projectName"]) == (4, True, "")
        hidden = alice.get(f"{RESERVATIONS}/{lab}/course").json()
        assert (hidden["departmentId"], hidden["departmentName"]) == (None, "another department")
        told = admin.delete(f"/api/v1/org-unit/departments/{department}").json()["message"]
        assert "course" in told
        assert admin.get(f"{RESERVATIONS}/{lab}/course").json()["state"] == "Over"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "of nobody"),
        ({"projectId": "x", "departmentId": "y"}, "one department"),
        ({"projectId": "x", "gpus": 1, "nodeCount": 1}, "beside gpus"),
        ({"projectId": "x", "exact": True}, "with gpus only"),
        ({"departmentId": "y"}, "no department"),
        ({"projectId": "x"}, "no project"),
    ],
)
def test_what_cannot_be_reserved_so_is_refused_by_name(
    served: Served, lab: str, given: dict[str, Any], word: str
) -> None:
    with served.client() as admin:
        answer = admin.post(RESERVATIONS, json={"clusterId": lab, "name": "x", "nodes": ["gpu-1"], **times(), **given})
    assert answer.status_code == 400
    assert word in answer.text


def test_the_windows_of_those_projects_are_listed_that_have_any_and_that_one_may_read(served: Served) -> None:
    with served.client() as admin, served.client("alice") as alice:
        night = project(admin, "night")
        path, body = f"{PROJECTS}/{night}/start-windows", {"windows": ["20:00-06:00"], "overQuotaOnly": True}
        assert "go over its quota" in admin.put(path, json=body).json()["message"]
        listed = admin.get("/api/v1/calendar/windows").json()["windows"]
        assert [(row["projectName"], row["overQuotaOnly"]) for row in listed] == [("night", True)]
        assert alice.get("/api/v1/calendar/windows").json()["windows"] == []
        wrong = admin.put(path, json=body | {"endsRunning": True})
        assert "endsRunning" in wrong.text
        assert wrong.status_code == 400
        assert admin.put(path, json={"overQuotaOnly": True}).status_code == 400
        assert admin.put(path, json={}).status_code == 202
        assert admin.get("/api/v1/calendar/windows").json()["windows"] == []


def test_who_may_not_see_a_project_is_told_of_another_one(served: Served, lab: str) -> None:
    body = {"clusterId": lab, "name": "secret", "nodes": ["gpu-1"], **times()}
    with served.client() as admin, served.client("alice") as alice:
        hidden = project(admin, "hidden")
        assert admin.post(RESERVATIONS, json=body | {"projectId": hidden}).status_code == 202
        row = alice.get(f"{RESERVATIONS}/{lab}/secret").json()
    assert (row["projectId"], row["projectName"]) == (None, "another project")


@pytest.mark.parametrize(
    ("meant", "word"),
    [
        ({"labels": [{"name": "rack", "value": "4"}]}, "no node of the cluster is meant now"),
        ({"nodes": ["gpu-1"], "gpus": 9}, "keeps 8 of 9 GPUs now: 8 are there"),
    ],
)
def test_who_reserves_what_is_not_there_is_told(served: Served, lab: str, meant: dict[str, Any], word: str) -> None:
    """Given nodes that may come later, when they are reserved, then it is done, and said that they are not there."""
    body = {"clusterId": lab, "name": "later", "projectId": served.project, **times(), **meant}
    with served.client() as admin:
        assert word in admin.post(RESERVATIONS, json=body).json()["message"]


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({"gpus": 8}, {"gpus": 4}, "it keeps none of 4 GPUs now: others have theirs then (one)"),
        ({"nodeCount": 1}, {"nodeCount": 1}, "it keeps none of 1 node now: others have theirs"),
        ({"gpus": 6, "exact": True}, {"gpus": 4, "exact": True}, "it keeps 2 of 4 GPUs now: others"),
        ({"gpus": 6, "exact": True}, {"gpus": 9, "exact": True}, "it keeps 2 of 9 GPUs now: 8 are there, and others"),
        ({"gpus": 6, "exact": True}, {"gpus": 2, "exact": True}, None),
    ],
)
def test_who_reserves_what_others_have_is_told_how_much_it_keeps(
    served: Served, lab: str, first: dict[str, Any], second: dict[str, Any], told: str | None
) -> None:
    """Given one node of 8 GPUs, when two reserve of it, then the second is told what it keeps; and so once it is moved
    to another time, where nobody is in its way.
    """
    body = {"clusterId": lab, "nodes": ["gpu-1"], "projectId": served.project, **times()}
    with served.client() as admin:
        made = admin.post(RESERVATIONS, json=body | first | {"name": "one"}).json()["message"]
        assert made == "reservation one is made"
        made = admin.post(RESERVATIONS, json=body | second | {"name": "two"}).json()["message"]
        assert made == "reservation two is made" if told is None else told in made
        if told is not None and "there" not in told:
            later = {key: of for key, of in (body | second | times(after=5)).items() if key != "clusterId"}
            changed = admin.put(f"{RESERVATIONS}/{lab}/two", json=later).json()["message"]
            assert changed == "reservation two is changed"


@pytest.mark.parametrize("path", [MAINTENANCE, RESERVATIONS])
@pytest.mark.parametrize("meant", [{"nodes": ["gpu-9"]}, {"nodePools": ["h100"]}])
def test_a_refusal_of_nodes_names_the_cluster(served: Served, lab: str, path: str, meant: dict[str, Any]) -> None:
    """Nobody may have named it."""
    body = {"clusterId": lab, "name": "x", **times(), **meant}
    with served.client() as admin:
        name = admin.get(f"/api/v1/clusters/{lab}").json()["name"]
        told = details(admin.post(path, json=body | ({"projectId": served.project} if path == RESERVATIONS else {})))
    assert name in told
    assert "has no node" in told
