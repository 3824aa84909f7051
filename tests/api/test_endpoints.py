"""What holds for requests as such: tokens, limits, keys, versions, errors; and what reads and lists answer."""

import asyncio
import gzip
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from development.servers import EVERYTHING
from services.runtime.nats.connection import connect
from tests.support.api import Served

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"
NOBODY = "00000000-0000-8000-8000-000000000000"


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture(scope="module")
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


def made(client: httpx.Client, served: Served, **more: Any) -> dict[str, Any]:
    answer = client.post(TRAININGS, json=served.training(**more))
    assert answer.status_code == 202, answer.text
    return answer.json() | {"seq": int(answer.headers["x-log-sequence"])}


# -- repeats and versions --------------------------------------------------------------------------------------------


def test_the_same_key_and_body_make_one_workload_and_another_body_is_a_conflict(
    served: Served, alice: httpx.Client
) -> None:
    body, key = served.training(useGivenNameAsPrefix=True), {"Idempotency-Key": "k-1"}
    first, second = (alice.post(TRAININGS, json=body, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    assert first.headers["x-log-sequence"] == second.headers["x-log-sequence"]
    other = alice.post(TRAININGS, json=served.training(name=body["name"]), headers=key)
    with served.client("bob") as bob:
        assert bob.post(TRAININGS, json=served.training(), headers=key).status_code == 202, (
            "the key is the caller's own"
        )
    assert (other.status_code, other.json()["details"]) == (409, "idempotency_key_reused"), "whatever its name"
    changed = body | {"spec": {"image": "python:3.12"}}
    conflict = alice.post(TRAININGS, json=changed, headers=key)
    assert (conflict.status_code, conflict.json()["details"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ü".encode().decode("latin-1")])
def test_a_key_that_no_header_carries_unharmed_is_refused(served: Served, alice: httpx.Client, key: str) -> None:
    answer = alice.post(TRAININGS, json=served.training(), headers={"Idempotency-Key": key.encode("latin-1")})  # pyright: ignore[reportArgumentType]
    assert answer.status_code == 400
    assert answer.json()["complianceIssues"][0]["field"] == "Idempotency-Key"


def test_if_match_names_the_version_that_must_be_the_newest(served: Served, alice: httpx.Client) -> None:
    workload = made(alice, served)
    path = f"{TRAININGS}/{workload['workloadId']}/suspend"
    stale = alice.post(path, headers={"If-Match": "1"})
    assert (stale.status_code, stale.json()["details"]) == (412, "version_moved")
    assert alice.post(path, headers={"If-Match": "soon"}).status_code == 400
    current = alice.get(f"{TRAININGS}/{workload['workloadId']}").headers["x-version"]
    assert alice.post(path, headers={"If-Match": f'"{current}"'}).status_code == 202


# -- the edge --------------------------------------------------------------------------------------------------------


def test_a_body_larger_than_a_record_is_refused_with_and_without_its_length(alice: httpx.Client) -> None:
    large = b" " * (512 * 1024 + 1)
    headers = {"Content-Type": "application/json"}
    assert alice.post(TRAININGS, content=large, headers=headers).status_code == 413
    pieces = (large[i : i + 65_536] for i in range(0, len(large), 65_536))
    assert alice.post(TRAININGS, content=pieces, headers=headers).status_code == 413


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
)
def test_only_json_is_read(alice: httpx.Client, content_type: str) -> None:
    answer = alice.post(TRAININGS, content=b"{}", headers={"Content-Type": content_type})
    assert answer.status_code == 415
    assert (
        alice.post(TRAININGS, content=b"{}", headers={"Content-Type": "Application/JSON; charset=UTF-8"}).status_code
        == 400
    )


def test_a_compressed_body_is_no_json(alice: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert alice.post(TRAININGS, content=gzip.compress(b"{}"), headers=headers).status_code == 400


def test_headers_have_a_limit(alice: httpx.Client) -> None:
    assert alice.get(f"{V1}/me", headers={"X-Long": "x" * 17_000}).status_code == 431


@pytest.mark.parametrize("path", ["/", "/healthz", f"{V1}/me", "/nothing", "/docs"])
def test_every_answer_carries_a_request_id_and_says_how_browsers_shall_treat_it(alice: httpx.Client, path: str) -> None:
    answer = alice.get(path, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers


def test_a_request_id_that_could_forge_a_log_line_is_replaced(alice: httpx.Client) -> None:
    assert alice.get("/healthz", headers={"X-Request-Id": 'a"b c'}).headers["x-request-id"] != 'a"b c'


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", f"{TRAININGS}/not-a-uuid", 404),
        ("PUT", TRAININGS, 405),
        ("GET", TRAININGS, 405),
        ("DELETE", f"{V1}/workloads", 405),
        ("GET", f"{V1}/workloads/", 404),
        ("TRACE", f"{V1}/workloads", 405),
    ],
)
def test_what_routing_refuses_has_the_form_of_every_error(
    alice: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = alice.request(method, path)
    assert answer.status_code == status
    assert answer.json()["code"] == status
    assert answer.json()["message"]
    if status == 405:
        assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


def test_a_body_where_none_belongs_is_refused(served: Served, alice: httpx.Client) -> None:
    workload = made(alice, served)
    assert alice.post(f"{TRAININGS}/{workload['workloadId']}/suspend", json={"now": True}).status_code == 400
    assert alice.post(f"{TRAININGS}/{workload['workloadId']}/suspend", json={}).status_code == 202


# -- who may ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic YTpi", "Bearer not.a.token", "Bearer " + "x" * 9000])
def test_without_a_token_that_is_trusted_nothing_is_answered(served: Served, header: str | None) -> None:
    with served.client(None) as client:
        answer = client.get(f"{V1}/me", headers={} if header is None else {"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.json()) <= {"code", "message", "details"}


def test_another_projects_workload_is_as_if_it_were_not_there(served: Served, alice: httpx.Client) -> None:
    """log.md section 6.2."""
    workload = made(alice, served)
    with served.client("stranger") as stranger, served.client("nobody") as nobody:
        for client in (stranger, nobody):
            for path in ("", "/history", "/pods", "/logs", "/metrics"):
                answer = client.get(f"{V1}/workloads/{workload['workloadId']}{path}")
                unknown = client.get(f"{V1}/workloads/{NOBODY}{path}")
                assert (answer.status_code, unknown.status_code) == (404, 404), path
                assert answer.json()["message"].replace(workload["workloadId"], NOBODY) == unknown.json()["message"]
            patched = client.patch(f"{V1}/workloads/{workload['workloadId']}", json={"priorityClass": "high"})
            assert patched.status_code == 404
            assert client.get(f"{V1}/workloads").json()["workloads"] == []
        assert [p["name"] for p in stranger.get(f"{V1}/org-unit/projects").json()["projects"]] == ["other"]
        assert stranger.get(f"{V1}/org-unit/projects/{served.project}").status_code == 404


def test_administrators_see_how_full_the_streams_are(admin: httpx.Client) -> None:
    streams = {stream["name"]: stream for stream in admin.get(f"{V1}/streams").json()["streams"]}
    assert set(streams) == {"ACTORS", "CODE", "CREDENTIALS", "EVENTS", "WANTED"}
    assert (streams["WANTED"]["nearlyFull"], streams["WANTED"]["maxBytes"]) == (False, 256 * 1024**2)


@pytest.mark.parametrize("path", ["/events", "/audit", "/streams", "/authorization/access-rules"])
def test_what_is_for_administrators_is_refused_to_others(served: Served, admin: httpx.Client, path: str) -> None:
    with served.client("alice") as alice:
        assert alice.get(f"{V1}{path}").status_code == 403
    assert admin.get(f"{V1}{path}").status_code == 200


def test_who_am_i(served: Served, alice: httpx.Client) -> None:
    assert alice.get(f"{V1}/me").json() == {
        "issuer": "muster",
        "subject": "alice",
        "tenantRoles": [],
        "projectRoles": {served.project: ["researcher"]},
    }


# -- reads -----------------------------------------------------------------------------------------------------------


def test_a_list_that_waited_for_a_sequence_shows_it_filtered_counted_and_exported(
    served: Served, alice: httpx.Client
) -> None:
    with served.client() as admin:
        for name in ("a", "b"):
            pool = {"clusterId": served.cluster, "name": name, "labelKey": "pool", "labelValue": name}
            assert admin.post(f"{V1}/node-pools", json=pool).status_code == 202
    workload = made(alice, served, spec={"category": "=1+1", "nodePools": ["a", "b"]})
    query: dict[str, Any] = {"min_seq": workload["seq"], "filterBy": [f"name=={workload['name']}", "phase==Creating"]}
    page = alice.get(f"{V1}/workloads", params=query)
    assert "x-log-stale" not in page.headers
    assert int(page.headers["x-log-sequence"]) >= workload["seq"]
    (row,) = page.json()["workloads"]
    assert (row["id"], row["phase"], row["submittedBy"]) == (workload["workloadId"], "Creating", "alice")
    assert alice.get(f"{V1}/workloads/count", params=query).json() == {"count": 1}
    csv = alice.get(f"{V1}/workloads/export", params=query | {"columns": "name,category,nodePools,gpuRequest"})
    assert csv.headers["content-disposition"].startswith("attachment")
    assert csv.text == f"name,category,nodePools,gpuRequest\r\n{workload['name']},'=1+1,a;b,0.0\r\n"
    lines = alice.get(f"{V1}/workloads/export", params=query | {"format": "jsonl", "columns": "name"})
    assert lines.text == f'{{"name":"{workload["name"]}"}}\n'
    history = alice.get(f"{V1}/workloads/{workload['workloadId']}/history").json()
    assert [record["type"] for record in history["records"]] == ["WorkloadCreated"]
    assert history["records"][0]["actor"]["sub"] == "alice"
    details = history["records"][0]["details"]
    assert (details["workloadId"], details["projectId"]) == (workload["workloadId"], served.project)


def test_the_audit_names_its_fields_as_the_rest_of_the_api(served: Served, admin: httpx.Client) -> None:
    with served.client("mallory") as mallory:
        refused = mallory.post(TRAININGS, json=served.training())
    assert refused.status_code == 403
    records = admin.get(f"{V1}/audit", params={"limit": 500}).json()["records"]
    record = next(r for r in records if (r.get("actor") or {}).get("sub") == "mallory")
    assert {"sequence", "at", "outcome", "command", "commandId", "projectId", "correlationId"} <= record.keys()
    assert record["correlationId"] == refused.headers["x-request-id"]
    assert not [key for r in records for key in r if "_" in key]
    for outcome in ("admitted", "refused"):
        of_outcome = admin.get(f"{V1}/audit", params={"limit": 500, "outcome": outcome}).json()["records"]
        assert of_outcome == [r for r in records if r["outcome"] == outcome]


async def _store(served: Served, subject: str, data: bytes) -> None:
    everything = await connect(served.settings, EVERYTHING)
    await everything.jetstream().publish(subject, data)
    await everything.close()


@pytest.mark.parametrize("record", [b'{"a":"\xff"}', b"{}", b"[" * 5000, b'{"at":7}'])
def test_an_audit_record_that_nobody_can_read_hides_no_other(
    served: Served, admin: httpx.Client, record: bytes
) -> None:
    before = admin.get(f"{V1}/audit", params={"limit": 500}).json()["records"]
    asyncio.run(_store(served, "refused.x", record))
    records = admin.get(f"{V1}/audit", params={"limit": 500}).json()["records"]
    unreadable = [each for each in records if each["outcome"] == "unreadable"]
    assert unreadable
    assert "no record of the audit" in unreadable[0]["message"]
    assert [each for each in before if each not in records] == []


BAD_QUERIES = [
    ("colour=red", {"colour"}),
    ("limit=0", {"limit"}),
    ("limit=501", {"limit"}),
    ("offset=-1", {"offset"}),
    ("limit=1&limit=2", {"limit"}),
    ("offset=99999999999999999999999", {"offset"}),
    ("sortBy=secret", {"sortBy"}),
    ("sortBy=phase,-secret", {"sortBy"}),
    ("sortBy=id,name,phase,type,image,category", {"sortBy"}),
    ("sortOrder=up", {"sortOrder"}),
    ("deleted=perhaps", {"deleted"}),
    ("min_seq=soon", {"min_seq"}),
    ("filterBy=phase", {"filterBy"}),
    ("filterBy=phase%3D%3DFlying", {"filterBy"}),
    ("filterBy=gpuRequest%3D%40x", {"filterBy"}),
    ("filterBy=completions%3D%3Dmany", {"filterBy"}),
    ("search=%00", {"search"}),
    ("search=%ff", {"query"}),
    ("limit=0&colour=red&sortOrder=up", {"limit", "colour", "sortOrder"}),
]


@pytest.mark.parametrize(("query", "fields"), BAD_QUERIES, ids=[query for query, _ in BAD_QUERIES])
def test_query_parameters_that_mean_nothing_are_refused_by_name(
    alice: httpx.Client, query: str, fields: set[str]
) -> None:
    answer = alice.get(f"{V1}/workloads?{query}")
    assert answer.status_code == 400, answer.text
    issues = answer.json()["complianceIssues"]
    assert {issue["field"] for issue in issues} == fields
    assert not any(issue["details"].startswith(f"{issue['field']}: ") for issue in issues), "a field is named once"


def test_a_workload_of_any_kind_is_read_from_the_log_with_its_status(served: Served, alice: httpx.Client) -> None:
    workload = made(alice, served)
    read = alice.get(f"{V1}/workloads/{workload['workloadId']}")
    body = read.json()
    assert int(read.headers["x-log-sequence"]) == workload["seq"] == body["version"]
    assert {key: body[key] for key in ("type", "phase", "projectName", "clusterName", "attempt", "runningPods")} == {
        "type": "Training",
        "phase": "Creating",
        "projectName": "default",
        "clusterName": "local",
        "attempt": 1,
        "runningPods": 0,
    }


def test_priority_and_auto_deletion_can_be_changed_and_nothing_else(served: Served, alice: httpx.Client) -> None:
    """S045, S072."""
    workload = made(alice, served)
    path = f"{V1}/workloads/{workload['workloadId']}"
    assert alice.patch(path, json={"priorityClass": "high"}).status_code == 202
    assert alice.get(f"{TRAININGS}/{workload['workloadId']}").json()["spec"]["priorityClass"] == "high"
    for body in ({}, {"priorityClass": "urgent"}, {"image": "x"}, {"autoDeletionTimeAfterCompletionSeconds": -1}):
        assert alice.patch(path, json=body).status_code == 400, body


def test_an_older_workload_of_a_reused_name_stays_readable_and_cannot_be_woken(
    served: Served, alice: httpx.Client
) -> None:
    body = served.training()
    old, _ = (alice.post(TRAININGS, json=body).json()["workloadId"], None)
    assert alice.delete(f"{TRAININGS}/{old}").status_code == 202
    new = alice.post(TRAININGS, json=body).json()["workloadId"]
    assert old != new
    assert alice.get(f"{TRAININGS}/{old}").json()["deletedAt"]
    assert alice.get(f"{TRAININGS}/{new}").json()["deletedAt"] is None
    assert alice.delete(f"{TRAININGS}/{old}").status_code == 202, "already so"
    assert alice.post(f"{TRAININGS}/{old}/resume").json()["details"] == "workload_deleted"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 503),
        ("?follow=maybe", 400),
        ("?tail=-1", 400),
        ("?since=yesterday", 400),
        ("?pod=main-1", 400),
        ("?since=10m", 503),
    ],
)
def test_logs_of_pods_that_may_have_run_need_the_clusters_agent(
    served: Served, alice: httpx.Client, query: str, status: int
) -> None:
    workload = made(alice, served)
    pod = "" if status == 400 else ("&" if query else "?") + "pod=main-0"
    assert alice.get(f"{V1}/workloads/{workload['workloadId']}/logs{query}{pod}").status_code == status
    assert alice.get(f"{V1}/workloads/{workload['workloadId']}/logs").text == "", "no pod was ever started"
    if query == "?pod=main-1":
        refused = alice.get(f"{V1}/workloads/{workload['workloadId']}/logs{query}")
        assert refused.json()["message"].endswith("its pods are main-0")


def test_variables_from_the_cluster_are_taken_for_kubernetes_only(
    served: Served, admin: httpx.Client, alice: httpx.Client
) -> None:
    """S020, R8."""
    variables = [
        {"name": "TOKEN", "secret": {"name": "wandb", "key": "token"}},
        {"name": "RATE", "configMap": {"name": "settings", "key": "rate"}},
        {"name": "ADDRESS", "podFieldRef": {"path": "status.podIP"}},
    ]
    refused = alice.post(TRAININGS, json=served.training(spec={"environmentVariables": variables}))
    assert refused.status_code == 400
    fields = {issue["field"] for issue in refused.json()["complianceIssues"]}
    assert fields == {
        f"spec.environmentVariables[{i}].{n}" for i, n in enumerate(("secret", "configMap", "podFieldRef"))
    }
    cluster = admin.post(f"{V1}/clusters", json={"name": "k8s", "kind": "kubernetes"}).json()["id"]
    assert admin.get(f"{V1}/clusters/{cluster}").json()["problem"] is None
    workload = made(alice, served, clusterId=cluster, spec={"environmentVariables": variables})
    assert workload["spec"]["environmentVariables"] == variables
    read = alice.get(f"{TRAININGS}/{workload['workloadId']}").json()
    assert read["spec"]["environmentVariables"] == variables
    assert admin.delete(f"{V1}/clusters/{cluster}", params={"force": True}).status_code == 202


def test_nodes_of_a_simulated_cluster_are_added_changed_and_removed(served: Served, admin: httpx.Client) -> None:
    """Nodes of others are refused by name. S043."""
    nodes = [{"names": ["a", "b"], "cpuCores": 1, "memoryBytes": 1, "nodePool": "fast"}]
    body = {"name": "changing", "kind": "simulated", "simulatedNodes": nodes}
    cluster = admin.post(f"{V1}/clusters", json=body).json()["id"]

    def count() -> int:
        return admin.get(f"{V1}/clusters/{cluster}").json()["nodes"]

    pools = admin.get(f"{V1}/node-pools", params={"clusterId": cluster}).json()["nodePools"]
    assert [(p["name"], p["labelKey"], p["labelValue"]) for p in pools][1:] == [
        ("fast", "muster.dev/node-pool", "fast")
    ]
    more = {"clusterId": cluster, "nodes": [{"names": ["c"], "cpuCores": 0.5, "memoryBytes": 1, "gpus": 1}]}
    assert admin.post(f"{V1}/nodes", json=more).status_code == 202
    assert count() == 3
    again = admin.post(f"{V1}/nodes", json=more)
    assert (again.status_code, again.json()["details"]) == (400, "name_taken")
    assert "already has nodes of these names: c" in again.json()["message"]
    change = {
        "gpus": 2,
        "labels": [{"name": "zone", "value": "b"}],
        "extendedResources": [{"resource": "a/b", "amount": 1}],
    }
    assert admin.patch(f"{V1}/nodes/{cluster}/c", json=change).status_code == 202
    assert "was so already" in admin.patch(f"{V1}/nodes/{cluster}/c", json=change).json()["message"]
    assert admin.delete(f"{V1}/nodes/{cluster}/a").status_code == 202
    assert count() == 2
    assert admin.delete(f"{V1}/nodes/{cluster}/a").status_code == 404
    assert admin.patch(f"{V1}/nodes/{cluster}/a", json=change).status_code == 404
    real = admin.post(f"{V1}/nodes", json=more | {"clusterId": served.cluster})
    assert (real.status_code, real.json()["details"]) == (409, "not_simulated")
    assert "`muster node cordon` and `muster node drain` work on them" in real.json()["message"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"body"}),
        ({"labels": [{"name": "a b"}]}, {"labels[0].name"}),
        ({"labels": [{"name": "a"}] * 2}, {"labels"}),
        ({"taints": [{"key": "-", "effect": "NoSchedule"}]}, {"taints[0].key"}),
        ({"extendedResources": [{"resource": "a/b"}]}, {"extendedResources[0].amount"}),
        ({"gpus": 5000}, {"gpus"}),
        ({"labels": [{"name": 1}]}, {"labels[0].name"}),
        ({"gpus": -1, "cpuCores": 0, "node": 1, "memoryBytes": 1}, {"gpus", "cpuCores", "node"}),
    ],
)
def test_a_change_of_a_node_says_all_that_is_wrong(
    served: Served, admin: httpx.Client, body: dict[str, Any], fields: set[str]
) -> None:
    answer = admin.patch(f"{V1}/nodes/{served.cluster}/n", json=body)
    assert answer.status_code == 400
    assert {issue["field"] for issue in answer.json()["complianceIssues"]} == fields


# -- administration --------------------------------------------------------------------------------------------------


def test_clusters_pools_projects_and_roles_are_made_seen_and_taken_away(served: Served, admin: httpx.Client) -> None:
    nodes: list[dict[str, Any]] = [
        {"count": 32, "prefix": "gpu", "cpuCores": 64, "memoryBytes": 2**38, "gpus": 8, "gpuModel": "H100"}
    ]
    nodes[0] |= {
        "labels": [{"name": "zone", "value": "a"}],
        "taints": [{"key": "t", "effect": "NoSchedule"}],
        "extendedResources": [{"resource": "rdma/hca", "amount": 2}],
    }
    cluster = admin.post(f"{V1}/clusters", json={"name": "sim", "kind": "simulated", "simulatedNodes": nodes})
    assert cluster.status_code == 202, cluster.text
    path = f"{V1}/clusters/{cluster.json()['id']}"
    assert admin.get(path).json()["nodes"] == 32
    others = [c for c in admin.get(f"{V1}/clusters").json()["clusters"] if c["kind"] != "simulated"]
    assert others
    assert all(c["nodes"] is None for c in others), "nodes that nobody declared are not told as none"
    assert admin.patch(path, json={"ownershipProtection": True}).status_code == 202
    assert admin.get(path).json()["ownershipProtection"] is True
    pool = {"clusterId": cluster.json()["id"], "name": "fast", "labelKey": "gpu", "labelValue": "h100"}
    assert admin.post(f"{V1}/node-pools", json=pool).status_code == 202
    listed = admin.get(f"{V1}/node-pools", params={"clusterId": pool["clusterId"]}).json()["nodePools"]
    assert [(p["name"], p["labelKey"], p["labelValue"]) for p in listed] == [
        ("default", None, None),
        ("fast", "gpu", "h100"),
    ]
    assert admin.delete(f"{V1}/node-pools/{pool['clusterId']}/fast").status_code == 202
    assert admin.delete(path).status_code == 202
    assert admin.get(path).status_code == 404
    project = admin.post(f"{V1}/org-unit/projects", json={"name": "third", "gpuQuota": 1.5}).json()["id"]
    assert (
        admin.put(f"{V1}/org-unit/projects/{project}", json={"gpuQuota": 2, "nodePools": ["default"]}).status_code
        == 202
    )
    assert admin.get(f"{V1}/org-unit/projects/{project}").json()["gpuQuota"] == 2
    for text, found in (("HIR", ["third"]), ("hird%", [])):  # S013
        listed = admin.get(f"{V1}/org-unit/projects", params={"search": text}).json()["projects"]
        assert [one["name"] for one in listed] == found
    looser = admin.put(f"{V1}/org-unit/projects/{project}", json={"podSecurity": "privileged"})
    assert looser.status_code == 400
    assert "podSecurity" in looser.text
    assert admin.put(f"{V1}/org-unit/projects/{project}", json={"podSecurity": "restricted"}).status_code == 202
    assert admin.get(f"{V1}/org-unit/projects/{project}").json()["podSecurity"] == "restricted"
    rule = {"subjectId": "carol", "roleName": "researcher", "scopeType": "project", "scopeId": project}
    rules = f"{V1}/authorization/access-rules"
    assert admin.post(rules, json=rule).status_code == 202
    assert rule in admin.get(rules).json()["accessRules"]
    assert admin.delete(rules, params=rule).status_code == 202
    assert rule not in admin.get(rules).json()["accessRules"]


NODES = {"count": 1, "cpuCores": 1, "memoryBytes": 1}
MANY_NODES = {"names": [f"n-{number}" for number in range(10_001)], "cpuCores": 1, "memoryBytes": 1}
ODD_NODES = NODES | {
    "labels": [{"name": "a b"}, {"name": "z", "value": "no value!"}],
    "taints": [{"key": "-", "effect": "NoSchedule"}, {"key": "t", "effect": "Any"}],
    "extendedResources": [{"resource": "memory", "amount": 1}, {"resource": "a/b", "amount": 0}],
}
TWICE = NODES | {"labels": [{"name": "a"}] * 2, "extendedResources": [{"resource": "a/b", "amount": 1}] * 2}
COUNTLESS = NODES | {"count": None}
RULE = {"subjectId": "x", "roleName": "viewer", "scopeType": "tenant"}


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/clusters", {"name": "x", "kind": "cloud"}, {"kind"}),
        ("/clusters", {"name": "x", "kind": "kubernetes", "simulatedNodes": [NODES]}, {"simulatedNodes"}),
        ("/clusters", {"name": "x", "kind": "simulated", "simulatedNodes": [COUNTLESS]}, {"simulatedNodes[0]"}),
        (
            "/clusters",
            {"name": "x", "kind": "simulated", "simulatedNodes": [ODD_NODES]},
            {
                "simulatedNodes[0].labels[0].name",
                "simulatedNodes[0].labels[1].value",
                "simulatedNodes[0].taints[0].key",
                "simulatedNodes[0].taints[1].effect",
                "simulatedNodes[0].extendedResources[0].resource",
                "simulatedNodes[0].extendedResources[1].amount",
            },
        ),
        (
            "/clusters",
            {"name": "x", "kind": "simulated", "simulatedNodes": [TWICE]},
            {"simulatedNodes[0].labels", "simulatedNodes[0].extendedResources"},
        ),
        (
            "/clusters",
            {"name": "x", "kind": "simulated", "simulatedNodes": [MANY_NODES]},
            {"simulatedNodes[0].names"},
        ),
        (
            "/clusters",
            {"name": "x", "kind": "simulated", "simulatedNodes": [{**MANY_NODES, "names": ["a", "b"]}] * 2},
            {"simulatedNodes[1].names"},
        ),
        ("/org-unit/projects", {"name": "", "gpuQuota": -1}, {"name", "gpuQuota"}),
        ("/authorization/access-rules", RULE | {"roleName": "project-admin"}, {"roleName"}),
        ("/authorization/access-rules", RULE | {"scopeType": "project"}, {"scopeId"}),
        ("/authorization/access-rules", RULE | {"scopeType": "project", "scopeId": "vision"}, {"scopeId"}),
        (
            "/node-pools",
            {"clusterId": "x", "name": "default", "labelKey": "a", "labelValue": "b"},
            {"name", "clusterId"},
        ),
        (
            "/node-pools",
            {"clusterId": "x", "name": "p", "labelKey": "a b\n", "labelValue": "\u202e"},
            {"clusterId", "labelKey", "labelValue"},
        ),
    ],
)  # fmt: skip
def test_administrative_bodies_are_checked_field_by_field(
    admin: httpx.Client, path: str, body: dict[str, Any], fields: set[str]
) -> None:
    answer = admin.post(f"{V1}{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert {issue["field"] for issue in answer.json()["complianceIssues"]} == fields


def test_the_log_itself_is_listed_page_by_page(served: Served, admin: httpx.Client) -> None:
    made(admin, served)
    first = admin.get(f"{V1}/events", params={"limit": 2}).json()
    second = admin.get(f"{V1}/events", params={"limit": 2, "after": first["next"]}).json()
    sequences = [event["sequence"] for page in (first, second) for event in page["events"]]
    assert sequences == sorted(set(sequences))
    assert all(set(event) >= {"aggregate", "id", "at", "actor", "commandId", "events"} for event in first["events"])


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/openapi.json", "/docs", "/docs.css"])
def test_what_needs_no_token_is_served_without_one(served: Served, path: str) -> None:
    with served.client(None) as client:
        assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Authorization", ("Bearer {alice}", "Bearer {mallory}")),
        ("If-Match", ("1", "2")),
        ("Idempotency-Key", ("a", "b")),
        ("X-Log-Sequence", ("1", "2")),
    ],
)
def test_a_header_that_says_one_thing_is_not_given_twice(served: Served, name: str, values: tuple[str, str]) -> None:
    """What stands before us may have looked at the other one."""
    tokens = {subject: served.token(subject) for subject in ("alice", "mallory")}
    headers = [(name, value.format(**tokens)) for value in values]
    if name != "Authorization":
        headers.append(("Authorization", f"Bearer {tokens['alice']}"))
    with served.client(None) as client:
        answer = client.get(f"{V1}/workloads", headers=headers)
    assert (answer.status_code, answer.json()["details"]) == (400, "header_given_twice")
    assert name.lower() in answer.json()["message"]


def test_the_address_itself_says_what_this_is_and_where_to_read_on(served: Served) -> None:
    with served.client(None) as client:
        answer = client.get("/")
        assert answer.headers["Content-Type"].startswith("text/html")
        assert f"Muster {version('muster')}" in answer.text
        links = re.findall(r'href="([^"]+)"', answer.text)
        assert {"/docs", "/openapi.json"} <= set(links)
        assert [client.get(link).status_code for link in links] == [200] * len(links)
        assert "<script" not in answer.text
        assert "//" not in answer.text.removeprefix("<!doctype html>")
        assert client.get("/index.html").status_code == 404


def test_docs_has_bodies_and_examples_of_every_operation_and_a_browser_may_load_its_style_alone(served: Served) -> None:
    with served.client(None) as client:
        page, described = served.page("/docs"), served.page("/openapi.json").json()
        style = client.get("/docs.css")
    operations = [one for path in described["paths"].values() for one in path.values()]
    assert len(operations) > 40
    for operation in operations:
        assert f'<details id="{operation["operationId"]}">' in page.text
    assert page.text.count("<pre>curl") == len(operations)
    assert page.text.count("<h4>Body") == sum("requestBody" in operation for operation in operations)
    assert style.headers["content-type"].startswith("text/css")
    assert "url(" not in style.text
    policy = dict(rule.strip().split(" ", 1) for rule in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["style-src"]) == ("'none'", "'self'")
    assert "script-src" not in policy
