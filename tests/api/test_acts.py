"""One act on many workloads: each id with its own answer, and what would become of it."""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import Served

PATH = "/api/v1/workloads/batch"
NOWHERE = "7d1c2b3a-0000-8000-8000-000000000000"


@pytest.fixture(scope="module")
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


def made(served: Served, client: httpx.Client, kind: str = "trainings", **more: Any) -> str:
    answer = client.post(f"/api/v1/workloads/{kind}", json=served.training(**more))
    assert answer.status_code == 202, answer.text
    return answer.json()["workloadId"]


def act(client: httpx.Client, action: str, *ids: str, key: str | None = None, **more: Any) -> dict[str, Any]:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = client.post(PATH, json={"action": action, "ids": [*ids], **more}, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.json()


def phase(client: httpx.Client, workload_id: str) -> str:
    return client.get(f"/api/v1/workloads/{workload_id}").json()["desiredPhase"]


def test_each_id_has_its_own_answer(served: Served, alice: httpx.Client) -> None:
    one, other, stopped = made(served, alice), made(served, alice, "workspaces"), made(served, alice)
    act(alice, "suspend", stopped)

    told = act(alice, "suspend", one, NOWHERE, stopped, other)

    assert [item["code"] for item in told["items"]] == [202, 404, 202, 202]
    assert [item["changed"] for item in told["items"]] == [True, False, False, True]
    assert (told["changed"], told["refused"], told["dryRun"]) == (2, 1, False)
    assert [phase(alice, workload) for workload in (one, stopped, other)] == ["Stopped"] * 3
    assert act(alice, "resume", one, stopped)["changed"] == 2
    assert act(alice, "delete", one, stopped, other)["changed"] == 3
    refused = act(alice, "resume", one)["items"][0]
    assert (refused["code"], refused["details"]) == (409, "workload_deleted")


def test_a_dry_run_tells_the_same_and_does_nothing(served: Served, alice: httpx.Client) -> None:
    one, stopped = made(served, alice), made(served, alice)
    act(alice, "suspend", stopped)
    with served.client("vic") as viewer, served.client("stranger") as stranger:
        for client, expected in ((alice, [202, 202, 404]), (viewer, [403, 403, 404]), (stranger, [404, 404, 404])):
            would = act(client, "suspend", one, stopped, NOWHERE, dryRun=True)
            assert [item["code"] for item in would["items"]] == expected
        assert phase(alice, one) == "Running"
        for client in (viewer, stranger, alice):
            would = act(client, "suspend", one, stopped, NOWHERE, dryRun=True)
            done = act(client, "suspend", one, stopped, NOWHERE)
            told = [
                [(item["code"], item["changed"], item.get("details")) for item in each["items"]]
                for each in (would, done)
            ]
            assert told[0] == told[1]
            assert would["dryRun"]


def test_a_dry_run_knows_ownership_protection(served: Served, alice: httpx.Client) -> None:
    with served.client() as admin, served.client("bob") as bob:
        body = {"name": f"safe-{secrets.token_hex(4)}", "kind": "kubernetes"}
        cluster = admin.post("/api/v1/clusters", json=body).json()["id"]
        assert admin.patch(f"/api/v1/clusters/{cluster}", json={"ownershipProtection": True}).status_code == 202
        one = made(served, alice, clusterId=cluster)
        assert act(bob, "delete", one, dryRun=True)["items"][0]["details"] == "not_owner"
        assert act(bob, "delete", one)["items"][0]["details"] == "not_owner"
        assert act(alice, "delete", one, dryRun=True)["changed"] == 1
        assert act(admin, "delete", one, dryRun=True)["changed"] == 1


def test_the_same_request_again_does_nothing_more(served: Served, alice: httpx.Client) -> None:
    key, one = secrets.token_hex(8), made(served, alice)
    first = act(alice, "suspend", one, key=key)
    act(alice, "resume", one)

    assert act(alice, "suspend", one, key=key) == first
    assert phase(alice, one) == "Running"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"action": "stop", "ids": [NOWHERE]}, "action", id="no act"),
        pytest.param({"action": "delete", "ids": []}, "ids", id="none"),
        pytest.param({"action": "delete", "ids": [NOWHERE] * 2}, "ids[1]", id="twice"),
        pytest.param({"action": "delete", "ids": [NOWHERE, "g" + NOWHERE[1:]]}, "ids[1]", id="no id"),
        pytest.param({"action": "delete", "ids": [f"{n:08x}-0000-8000-8000-000000000000" for n in range(101)]}, "ids",
                     id="too many"),
        pytest.param({"action": "delete", "ids": [NOWHERE], "all": True}, "all", id="unknown"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_name(alice: httpx.Client, body: dict[str, Any], field: str) -> None:
    answer = alice.post(PATH, json=body)
    assert answer.status_code == 400
    assert field in {issue["field"] for issue in answer.json()["complianceIssues"]}


def test_labels_and_annotations_change_and_what_may_not_change_is_refused_by_name(
    served: Served, alice: httpx.Client
) -> None:
    one = made(served, alice, spec={"labels": [{"name": "stage", "value": "dev"}]})
    path = f"/api/v1/workloads/{one}"
    labels = [{"name": "team", "value": "vision"}]
    answer = alice.patch(path, json={"labels": labels, "annotations": [{"name": "note", "value": "a b"}]})
    assert answer.status_code == 202, answer.text

    found = alice.get(path).json()
    assert found["spec"]["labels"] == labels
    assert found["spec"]["annotations"] == [{"name": "note", "value": "a b"}]
    seen = {"min_seq": answer.headers["X-Log-Sequence"], "labelSelector": "team=vision,!stage", "search": one}
    assert alice.get("/api/v1/workloads/count", params=seen).json()["count"] == 1
    history = alice.get(f"{path}/history", params={"min_seq": seen["min_seq"]}).json()["records"]
    assert any("labels team=vision" in record["message"] for record in history)
    assert "already" in alice.patch(path, json={"labels": labels}).json()["message"]
    assert alice.patch(path, json={"labels": []}).status_code == 202
    assert alice.get(path).json()["spec"]["labels"] == []
    for body, field in (
        ({"labels": [{"name": "a b"}]}, "labels[0].name"),
        ({"labels": [{"name": "a"}, {"name": "a"}]}, "labels[1].name"),
        ({"image": "python:3.14", "labels": labels}, "image"),
        ({"completions": 5}, "completions"),
        ({"nothing": 5}, "nothing"),
    ):
        answer = alice.patch(path, json=body)
        assert answer.status_code == 400, answer.text
        assert [issue["field"] for issue in answer.json()["complianceIssues"]] == [field]


def test_r30_later_runs_find_claims_and_secrets_elsewhere_and_all_else_of_a_volume_stays(
    served: Served, alice: httpx.Client
) -> None:
    claim = {"path": "/data", "existingPvc": True, "claimName": "sets", "readOnly": True}
    secret = {"secret": "certificates", "mountPath": "/etc/certificates"}
    storage = {"pvc": [claim], "secretVolume": [secret], "emptyDirVolume": [{"path": "/scratch"}]}
    with served.client() as admin:
        body = {"name": f"volumes-{secrets.token_hex(4)}", "kind": "kubernetes"}
        cluster = admin.post("/api/v1/clusters", json=body).json()["id"]
    one = made(served, alice, clusterId=cluster, spec={"image": "i", "storage": storage})
    path = f"/api/v1/workloads/{one}"

    def places() -> tuple[str, str, str | None]:
        found = alice.get(path).json()["spec"]["storage"]
        (pvc,), (files,) = found["pvc"], found["secretVolume"]
        assert (pvc["claimName"], pvc["readOnly"], files["secret"]) == ("sets", True, "certificates")
        return pvc["path"], files["mountPath"], files.get("defaultMode")

    change = {
        "storage": {
            "pvc": [{"mountedAt": "/data", "path": "/sets"}],
            "secretVolume": [{"mountedAt": "/etc/certificates", "mountPath": "/certificates", "defaultMode": "0400"}],
        }
    }
    answer = alice.patch(path, json=change)
    assert answer.status_code == 202, answer.text
    assert "runs that are there keep what they have" in answer.json()["message"]
    assert places() == ("/sets", "/certificates", "0400")
    assert "already" in alice.patch(path, json=change).json()["message"]
    history = alice.get(f"{path}/history", params={"min_seq": answer.headers["X-Log-Sequence"]}).json()["records"]
    assert any("/data->/sets" in record["message"] for record in history)
    for storage, field in (
        ({"pvc": [{"mountedAt": "/nowhere", "path": "/x"}]}, "storage.pvc[0].mountedAt"),
        ({"pvc": [{"mountedAt": "/sets", "path": "/scratch"}]}, "storage.pvc"),
        ({"pvc": [{"mountedAt": "/sets", "path": "relative"}]}, "storage.pvc"),
        ({"secretVolume": [{"mountedAt": "/certificates", "defaultMode": "9999"}]}, "storage.secretVolume"),
        ({"pvc": [{"mountedAt": "/sets", "path": "/x", "readOnly": False}]}, "storage.pvc[0].readOnly"),
        ({"nfs": [{"path": "/a"}]}, "storage.nfs"),
    ):
        refused = alice.patch(path, json={"storage": storage})
        assert refused.status_code == 400, refused.text
        assert [issue["field"] for issue in refused.json()["complianceIssues"]] == [field]

    undone = alice.post(f"{path}/undo", json={"sequence": int(answer.headers["X-Log-Sequence"])})
    assert undone.status_code == 202, undone.text
    assert undone.json()["then"]["storage"] == {"pvc": ["/data"], "secretVolume": ["/etc/certificates"]}
    assert places() == ("/data", "/etc/certificates", None)


def test_r30_a_policy_that_locks_claims_holds_them_where_they_are(served: Served, alice: httpx.Client) -> None:
    with served.client() as admin:
        project = admin.post("/api/v1/org-unit/projects", json={"name": f"locked-{secrets.token_hex(4)}"}).json()["id"]
        body = {"name": f"locked-{secrets.token_hex(4)}", "kind": "kubernetes"}
        cluster = admin.post("/api/v1/clusters", json=body).json()["id"]
        claim = {"path": "/data", "existingPvc": True, "claimName": "sets"}
        asked = served.training(projectId=project, clusterId=cluster, spec={"image": "i", "storage": {"pvc": [claim]}})
        one = admin.post("/api/v1/workloads/trainings", json=asked).json()["workloadId"]
        policy = {"defaults": {}, "rules": {"storage": {"pvc": {"canAdd": False}}}}
        put = admin.put(f"/api/v1/policies/trainings?scope=project&projectId={project}", json=policy)
        assert put.status_code in {200, 202}, put.text
        change = {"storage": {"pvc": [{"mountedAt": "/data", "path": "/x"}]}}
        refused = admin.patch(f"/api/v1/workloads/{one}", json=change)
    assert refused.status_code == 400, refused.text
    assert [(issue["field"], issue["rule"]) for issue in refused.json()["complianceIssues"]] == [
        ("storage.pvc", "canAdd")
    ]


def transfer(client: httpx.Client, workload_id: str, owner: str) -> httpx.Response:
    return client.post(f"/api/v1/workloads/{workload_id}/transfer", json={"owner": owner})


def test_a_workload_is_given_to_another_owner_and_protection_the_lists_and_the_history_follow(
    served: Served, alice: httpx.Client
) -> None:
    with served.client() as admin, served.client("bob") as bob:
        body = {"name": f"given-{secrets.token_hex(4)}", "kind": "kubernetes"}
        cluster = admin.post("/api/v1/clusters", json=body).json()["id"]
        assert admin.patch(f"/api/v1/clusters/{cluster}", json={"ownershipProtection": True}).status_code == 202
        one = made(served, alice, clusterId=cluster)
        path = f"/api/v1/workloads/{one}"
        assert transfer(bob, one, "bob").json()["details"] == "not_owner"

        answer = transfer(alice, one, "bob")

        assert answer.status_code == 202, answer.text
        found = alice.get(path).json()
        assert (found["submittedBy"], found["createdBy"]) == ("bob", "alice")
        seen = {"min_seq": answer.headers["X-Log-Sequence"]}
        mine = {**seen, "filterBy": "submittedBy==bob", "search": one}
        assert alice.get("/api/v1/workloads/count", params=mine).json()["count"] == 1
        *_, told = alice.get(f"{path}/history", params=seen).json()["records"]
        assert told["message"] == "given by alice to bob; it was their own before"
        assert told["details"] == {"owner": "bob"}
        assert transfer(alice, one, "bob").json()["message"] == f"workload {one} has that owner already"
        assert alice.post(f"/api/v1/workloads/trainings/{one}/suspend").json()["details"] == "not_owner"
        assert bob.post(f"/api/v1/workloads/trainings/{one}/suspend").status_code == 202
        assert transfer(admin, one, "alice").status_code == 202


def test_a_workload_is_given_only_to_who_may_submit_in_its_project(served: Served, alice: httpx.Client) -> None:
    one, other = made(served, alice), made(served, alice)
    for heir in ("vic", "stranger", "nobody-at-all", "service-account:none/there"):
        answer = transfer(alice, one, heir)
        assert (answer.status_code, answer.json()["details"]) == (409, "heir_not_permitted")
        would = act(alice, "transfer", one, owner=heir, dryRun=True)["items"][0]
        assert (would["code"], would["details"]) == (409, "heir_not_permitted")
    with served.client("bob") as bob, served.client("stranger") as stranger:
        assert transfer(bob, one, "bob").json()["details"] == "not_owner"
        assert transfer(stranger, one, "stranger").status_code == 404
    would = act(alice, "transfer", one, other, NOWHERE, owner="bob", dryRun=True)
    done = act(alice, "transfer", one, other, NOWHERE, owner="bob")
    assert [(item["code"], item["changed"]) for item in would["items"]] == [
        (item["code"], item["changed"]) for item in done["items"]
    ]
    assert (done["changed"], done["refused"]) == (2, 1)
    for body, field in (({}, "owner"), ({"owner": ""}, "owner"), ({"owner": "a\nb"}, "owner"), ({"to": "bob"}, "to")):
        answer = alice.post(f"/api/v1/workloads/{one}/transfer", json=body)
        assert answer.status_code == 400, body
        assert field in {issue["field"] for issue in answer.json()["complianceIssues"]}
    for body in ({"action": "transfer"}, {"action": "delete", "owner": "bob"}):
        answer = alice.post(PATH, json=body | {"ids": [one]})
        assert [issue["field"] for issue in answer.json()["complianceIssues"]] == ["owner"]


def undo(client: httpx.Client, workload_id: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/v1/workloads/{workload_id}/undo", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


def refused_undo(client: httpx.Client, workload_id: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/v1/workloads/{workload_id}/undo", json=body)
    assert answer.status_code == 409, answer.text
    return answer.json()


def test_acts_are_undone_one_after_the_other_and_the_history_tells_it(served: Served, alice: httpx.Client) -> None:
    one = made(served, alice, spec={"priorityClass": "low"})
    path = f"/api/v1/workloads/{one}"
    assert refused_undo(alice, one, dryRun=True)["details"] == "nothing_to_undo"
    assert alice.patch(path, json={"priorityClass": "high"}).status_code == 202
    act(alice, "suspend", one)

    plan = undo(alice, one, dryRun=True)
    assert (plan["action"], plan["changed"], plan["undoes"]["type"]) == ("resume", True, "WorkloadSuspended")
    assert "suspended by alice" in plan["undoes"]["message"]
    assert phase(alice, one) == "Stopped"
    suspension = plan["undoes"]["sequence"]
    assert undo(alice, one, sequence=suspension)["changed"]
    assert phase(alice, one) == "Running"
    again = undo(alice, one, sequence=suspension)
    assert (again["changed"], phase(alice, one)) == (False, "Running")

    plan = undo(alice, one, dryRun=True)
    assert (plan["action"], plan["now"], plan["then"]) == (
        "change",
        {"priorityClass": "high"},
        {"priorityClass": "low"},
    )
    done = alice.post(f"{path}/undo", json={"sequence": plan["undoes"]["sequence"]})
    assert alice.get(path).json()["spec"]["priorityClass"] == "low"
    assert refused_undo(alice, one, dryRun=True)["details"] == "nothing_to_undo"
    seen = {"min_seq": done.headers["X-Log-Sequence"]}
    records = alice.get(f"{path}/history", params=seen).json()["records"]
    assert [record["type"] for record in records[-4:]] == [
        "ActUndone", "WorkloadResumed", "ActUndone", "WorkloadChanged",
    ]  # fmt: skip
    assert records[-2]["message"] == f"alice undid a change (sequence {plan['undoes']['sequence']})"

    # What was undone is an act, too: undone itself, the workload is suspended again, and that can be undone once more.
    assert undo(alice, one, sequence=records[-4]["sequence"])["action"] == "suspend"
    assert phase(alice, one) == "Stopped"
    assert undo(alice, one, dryRun=True)["undoes"]["sequence"] == suspension
    assert undo(alice, one, sequence=suspension)["changed"]
    assert phase(alice, one) == "Running"


def test_what_a_later_act_changed_is_not_undone_alone_and_the_refusal_says_which(
    served: Served, alice: httpx.Client
) -> None:
    one = made(served, alice)
    path = f"/api/v1/workloads/{one}"
    sequences = [
        int(alice.patch(path, json=body).headers["X-Log-Sequence"])
        for body in ({"priorityClass": "high"}, {"labels": [{"name": "a", "value": "b"}]}, {"priorityClass": "low"})
    ]
    told = refused_undo(alice, one, sequence=sequences[0])
    assert told["details"] == "act_overtaken"
    assert f"sequence {sequences[2]}" in told["message"]
    assert undo(alice, one, sequence=sequences[1])["then"] == {"labels": []}
    assert undo(alice, one, sequence=sequences[2])["changed"]
    assert undo(alice, one, sequence=sequences[0])["changed"]
    for body in ({"sequence": sequences[0] - 1}, {"sequence": 2**62}):
        assert refused_undo(alice, one, **body)["details"] == "nothing_to_undo"
    for body, field in (({}, "sequence"), ({"sequence": 0}, "sequence"), ({"dryRun": True, "all": True}, "all")):
        answer = alice.post(f"{path}/undo", json=body)
        assert answer.status_code == 400
        assert [issue["field"] for issue in answer.json()["complianceIssues"]] == [field]
    with served.client("vic") as viewer, served.client("stranger") as stranger:
        assert viewer.post(f"{path}/undo", json={"dryRun": True}).status_code == 403
        assert viewer.post(f"{path}/undo", json={"sequence": sequences[0]}).status_code == 403
        assert stranger.post(f"{path}/undo", json={"sequence": sequences[0]}).status_code == 404


def test_of_a_deleted_workload_only_the_deletion_is_undone_by_submitting_it_again(
    served: Served, alice: httpx.Client
) -> None:
    one = made(served, alice)
    act(alice, "suspend", one)
    suspension = undo(alice, one, dryRun=True)["undoes"]["sequence"]
    act(alice, "delete", one)
    plan = undo(alice, one, dryRun=True)
    assert (plan["action"], plan["undoes"]["type"]) == ("resubmit", "WorkloadDeletionRequested")
    assert refused_undo(alice, one, sequence=plan["undoes"]["sequence"])["details"] == "workload_deleted"
    assert refused_undo(alice, one, sequence=suspension)["details"] == "workload_deleted"
