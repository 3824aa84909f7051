"""A change that comes again with its Idempotency-Key is answered as the first time, to the letter, whatever has
happened since; and what a key has stood for, nothing else gets.

Requirement rows: C21; docs/adr/0028.
"""

from typing import Any

import httpx
import pytest

from tests.support.api import Served

TRAININGS = "/api/v1/workloads/trainings"
RULES = "/api/v1/authorization/access-rules"
MANY = 70
"""More commits than a chain itself remembers commands."""


def send(client: httpx.Client, method: str, path: str, key: str, body: Any = None, **options: Any) -> httpx.Response:
    return client.request(method, path, json=body, headers={"Idempotency-Key": key}, **options)


def told(answer: httpx.Response) -> tuple[int, str, str | None, str | None]:
    return answer.status_code, answer.text, answer.headers.get("X-Version"), answer.headers.get("X-Log-Sequence")


@pytest.mark.parametrize("times", [0, MANY], ids=["soon", "after more commits than the chain remembers"])
def test_every_change_of_a_workload_that_comes_again_is_answered_to_the_letter(served: Served, times: int) -> None:
    """Suspended twice, deleted twice, its name made again: the second of each changed nothing, and says so again."""
    key = f"life-{times}"
    body = served.training()
    with served.client("alice") as alice, served.client("bob") as bob:
        workload = f"{TRAININGS}/{alice.post(TRAININGS, json=body).json()['workloadId']}"
        assert alice.delete(workload).status_code == 202
        made = send(alice, "POST", TRAININGS, f"{key}-make", body)
        newer = f"{TRAININGS}/{made.json()['workloadId']}"
        changes: list[tuple[str, str, str, Any]] = [("POST", TRAININGS, f"{key}-make", body)]
        for number, (method, path) in enumerate(
            [
                ("POST", f"{newer}/suspend"),
                ("POST", f"{newer}/suspend"),
                ("POST", f"{newer}/resume"),
                ("POST", f"{newer}/resume"),
                ("DELETE", workload),
                ("DELETE", newer),
                ("DELETE", newer),
            ]
        ):
            changes.append((method, path, f"{key}-{number}", None))
        first = [made, *(send(alice, *change) for change in changes[1:])]
        assert [answer.status_code for answer in first] == [202] * len(changes)
        assert [("already" in answer.text or "not suspended" in answer.text) for answer in first[1:]] == [
            *[False, True] * 2,
            True,
            False,
            True,
        ]
        latest = bob.post(TRAININGS, json=body).json()["workloadId"]
        for number in range(times):
            change = {"priorityClass": ("low", "high")[number % 2]}
            assert bob.patch(f"/api/v1/workloads/{latest}", json=change).status_code == 202

        for _ in range(2):
            again = [send(alice, *change) for change in changes]
            assert [told(answer) for answer in again] == [told(answer) for answer in first]
        now = bob.get(f"{TRAININGS}/{latest}")
        assert now.headers["X-Version"] == str(int(now.headers["X-Version"]))
        assert now.json()["deletedAt"] is None


def test_another_body_or_name_with_the_same_key_is_refused_by_name(served: Served) -> None:
    body = served.training()
    with served.client("alice") as alice:
        made = send(alice, "POST", TRAININGS, "once", body)
        assert made.status_code == 202
        for other in (served.training(), {**body, "spec": {"image": "busybox"}}):
            answer = send(alice, "POST", TRAININGS, "once", other)
            assert (answer.status_code, answer.json()["details"]) == (409, "idempotency_key_reused")
        assert told(send(alice, "POST", TRAININGS, "once", body)) == told(made)


def test_a_query_is_part_of_what_a_key_stands_for(served: Served) -> None:
    def rule(subject: str) -> dict[str, str]:
        return {
            "subjectId": subject,
            "roleName": "viewer",
            "scopeType": "project",
            "scopeId": served.project,
        }

    with served.client() as admin:
        for subject in ("one", "two"):
            assert admin.post(RULES, json=rule(subject)).status_code == 202
        first = send(admin, "DELETE", RULES, "revoke", params=rule("one"))
        assert first.status_code == 202
        assert told(send(admin, "DELETE", RULES, "revoke", params=rule("one"))) == told(first)
        other = send(admin, "DELETE", RULES, "revoke", params=rule("two"))
        assert (other.status_code, other.json()["details"]) == (409, "idempotency_key_reused")


def test_a_refusal_is_not_remembered(served: Served) -> None:
    body = served.training()
    with served.client("alice") as alice, served.client("bob") as bob:
        taken = bob.post(TRAININGS, json=body).json()["workloadId"]
        assert send(alice, "POST", TRAININGS, "later", body).status_code == 400
        assert bob.delete(f"{TRAININGS}/{taken}").status_code == 202
        assert send(alice, "POST", TRAININGS, "later", body).status_code == 202


def test_a_creation_that_comes_again_is_answered_though_its_cluster_is_gone(served: Served) -> None:
    with served.client() as admin:
        cluster = admin.post("/api/v1/clusters", json={"name": "passing", "kind": "kubernetes"}).json()["id"]
        body = served.training(clusterId=cluster)
        made = send(admin, "POST", TRAININGS, "gone", body)
        assert made.status_code == 202
        refused = admin.delete(f"/api/v1/clusters/{cluster}")
        assert (refused.status_code, refused.json()["details"]) == (409, "cluster_not_empty")
        assert admin.delete(f"/api/v1/clusters/{cluster}", params={"force": True}).status_code == 202

        assert told(send(admin, "POST", TRAININGS, "gone", body)) == told(made)
        late = send(admin, "POST", TRAININGS, "late", {**body, "name": "late"})
        assert late.status_code == 400
        assert [issue["field"] for issue in late.json()["complianceIssues"]] == ["clusterId"]


def test_an_older_life_of_a_name_is_not_for_viewers_to_delete(served: Served) -> None:
    """Also where the name lives on in another workload; and If-Match counts there as anywhere."""
    body = served.training()
    with served.client("alice") as alice, served.client("vic") as viewer:
        first = alice.post(TRAININGS, json=body).json()["workloadId"]
        gone = alice.delete(f"{TRAININGS}/{first}").headers["X-Version"]
        second = alice.post(TRAININGS, json=body).headers["X-Version"]
        for headers in ({}, {"If-Match": gone}, {"If-Match": second}, {"If-Match": "*"}):
            answer = viewer.delete(f"{TRAININGS}/{first}", headers=headers)
            assert (answer.status_code, answer.json()["details"]) == (403, "not_permitted")
            answer = viewer.post(f"{TRAININGS}/{first}/suspend", headers=headers)
            assert answer.status_code == 403
        assert alice.delete(f"{TRAININGS}/{first}", headers={"If-Match": gone}).status_code == 202
        assert alice.delete(f"{TRAININGS}/{first}", headers={"If-Match": second}).status_code == 412
        assert alice.post(f"{TRAININGS}/{first}/suspend").status_code == 409
