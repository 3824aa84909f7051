"""A creation that names no cluster: among which the scheduler chooses, and what is refused (issue 14, S007)."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from development.servers import EVERYTHING
from events.aggregate import WORKLOAD, draft
from events.decision import Context
from events.ids import ANY_CLUSTER, key_of_id
from events.refusal import Refusal
from events.workload.commands import LeaveCluster, PlacePods
from events.workload.pod import Placement, PodRef
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.process.settings import Settings
from services.scheduler.batches import ACTOR
from tests.api.test_assets import fresh, id_of, made
from tests.support.api import Served

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture(scope="module")
def demo(admin: httpx.Client) -> str:
    """Id of a simulated cluster beside that of this machine."""
    nodes = [{"names": ["demo-0"], "cpuCores": 8, "memoryBytes": 2**33, "gpus": 4}]
    answer = admin.post(f"{V1}/clusters", json={"name": "demo", "kind": "simulated", "simulatedNodes": nodes})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def anywhere(served: Served, **spec: Any) -> dict[str, Any]:
    return served.training(spec=spec) | {"clusterId": ANY_CLUSTER}


def among(served: Served, workload_id: str) -> tuple[str, tuple[str, ...]]:
    """The cluster of a workload as the log has it, and those among which the scheduler chooses."""
    return asyncio.run(_among(served, workload_id))


async def _among(served: Served, workload_id: str) -> tuple[str, tuple[str, ...]]:
    nc = await connect(served.settings, EVERYTHING)
    try:
        state = (await JetStreamEventStore(nc).load(WORKLOAD, key_of_id(workload_id) or "")).state
        return state.cluster_id, state.among
    finally:
        await nc.close()


def test_it_may_go_to_each_cluster_that_could_run_it(served: Served, admin: httpx.Client, demo: str) -> None:
    made = admin.post(TRAININGS, json=anywhere(served))
    assert made.status_code == 202, made.text
    assert made.json()["clusterId"] == ANY_CLUSTER
    id_ = made.json()["workloadId"]
    assert among(served, id_) == ("", tuple(sorted([served.cluster, demo])))
    assert admin.get(f"{V1}/workloads/{id_}").json()["clusterId"] == ANY_CLUSTER


def test_the_list_shows_it_without_a_cluster(served: Served, admin: httpx.Client, demo: str) -> None:
    answer = admin.post(TRAININGS, json=anywhere(served))
    seq = answer.headers["x-log-sequence"]
    query = {"filterBy": f"clusterId=={ANY_CLUSTER}", "search": answer.json()["name"], "min_seq": seq}
    (row,) = admin.get(f"{V1}/workloads", params=query).json()["workloads"]
    assert (row["clusterId"], row["clusterName"]) == (ANY_CLUSTER, None)


def test_a_cluster_that_could_not_run_it_is_none_of_them(served: Served, admin: httpx.Client, demo: str) -> None:
    pool = {"clusterId": demo, "name": "fast", "labelKey": "pool", "labelValue": "fast"}
    assert admin.post(f"{V1}/node-pools", json=pool).status_code == 202
    answer = admin.post(TRAININGS, json=anywhere(served, nodePools=["fast"]))
    assert answer.status_code == 202, answer.text
    assert among(served, answer.json()["workloadId"]) == ("", (demo,))


def test_where_no_cluster_could_run_it_each_says_why(served: Served, admin: httpx.Client, demo: str) -> None:
    answer = admin.post(TRAININGS, json=anywhere(served, nodePools=["nowhere"]))
    assert answer.status_code == 400
    (issue,) = answer.json()["complianceIssues"]
    assert issue["field"] == "clusterId"
    assert "no cluster can run it as it is: demo: spec.nodePools[0] " in issue["details"]


@pytest.mark.parametrize(
    "storage",
    [
        {"pvc": [{"path": "/data", "existingPvc": True, "claimName": "corpus"}]},
        {"secretVolume": [{"secret": "s", "mountPath": "/s"}]},
        {"configMapVolume": [{"configMap": "s", "mountPath": "/s"}]},
    ],
)
def test_what_is_found_on_one_cluster_alone_is_meant_on_this_machine(
    served: Served, admin: httpx.Client, demo: str, storage: dict[str, Any]
) -> None:
    answer = admin.post(TRAININGS, json=anywhere(served, storage=storage))
    assert answer.status_code == 202, answer.text
    assert among(served, answer.json()["workloadId"]) == ("", (served.cluster,))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            {"environmentVariables": [{"name": "A", "secret": {"name": "s", "key": "k"}}]},
            "environmentVariables[0].secret",
        ),
        ({"imagePullSecrets": [{"name": "s"}]}, "imagePullSecrets[0]"),
        (
            {"storage": {"s3": [{"bucket": "sets", "path": "/s", "accessKeySecret": "keys"}]}},
            "storage.s3[0].accessKeySecret",
        ),
    ],
)
def test_what_is_found_on_one_cluster_alone_needs_a_name_elsewhere(
    served: Served, admin: httpx.Client, demo: str, spec: dict[str, Any], field: str
) -> None:
    """None of these is possible on this machine."""
    answer = admin.post(TRAININGS, json=anywhere(served, **spec))
    assert answer.status_code == 400, answer.text
    (issue,) = answer.json()["complianceIssues"]
    assert issue["field"] == f"spec.{field}"
    assert "found on one cluster alone, and that is not " in issue["details"]
    assert f", which cannot run it (spec.{field.split('[', maxsplit=1)[0]}" in issue["details"], (
        "why the one where it would be meant is not"
    )
    assert issue["details"].endswith("; name that cluster (clusterId, --cluster)")


def test_an_asset_of_one_cluster_needs_that_cluster_named(served: Served, admin: httpx.Client, demo: str) -> None:
    spec = {"image": "python:3.13"}
    environment = made(admin, f"{V1}/asset/environment", spec, name=fresh("env"), scope="cluster", clusterId=demo)
    body = anywhere(served) | {"assets": {"environmentId": id_of(environment)}}
    answer = admin.post(TRAININGS, json=body)
    assert answer.status_code == 400
    (issue,) = answer.json()["complianceIssues"]
    assert (issue["field"], "name that cluster" in issue["details"]) == ("assets.environmentId", True)
    assert admin.post(TRAININGS, json=body | {"clusterId": demo}).status_code == 202


def test_a_cluster_where_policies_impose_a_data_source_of_its_own_is_none_of_them(
    served: Served, admin: httpx.Client, demo: str
) -> None:
    git = {"repository": "https://git.example.com/code", "path": "/code"}
    source = made(admin, f"{V1}/asset/datasource/git", git, name=fresh("git"), scope="cluster", clusterId=demo)
    query = {"scope": "project", "projectId": served.project}
    policy = f"{V1}/policies/trainings"
    assert admin.put(policy, params=query, json={"imposedAssets": [id_of(source)]}).status_code == 202
    try:
        answer = admin.post(TRAININGS, json=anywhere(served))
        assert among(served, answer.json()["workloadId"]) == ("", (served.cluster,))
    finally:
        assert admin.delete(policy, params=query).status_code == 202


def test_a_batch_may_name_no_cluster(served: Served, admin: httpx.Client, demo: str) -> None:
    items = [anywhere(served) | {"kind": "Training"} for _ in range(2)]
    answer = admin.post(f"{V1}/workloads:batch", json={"items": items})
    assert answer.status_code in {200, 202}, answer.text
    for one in answer.json()["items"]:
        assert among(served, one["id"]) == ("", tuple(sorted([served.cluster, demo])))


def test_the_same_key_gives_the_same_answer_though_there_are_other_clusters_by_then(
    served: Served, admin: httpx.Client, demo: str
) -> None:
    body, key = anywhere(served), {"Idempotency-Key": fresh("key")}
    first = admin.post(TRAININGS, json=body, headers=key)
    added = admin.post(f"{V1}/clusters", json={"name": fresh("c"), "kind": "kubernetes"})
    assert added.status_code == 202, added.text
    again = admin.post(TRAININGS, json=body, headers=key)
    assert (again.status_code, again.json()["workloadId"]) == (202, first.json()["workloadId"])
    assert admin.delete(f"{V1}/clusters/{added.json()['id']}").status_code == 202


def test_until_it_has_a_cluster_it_counts_as_protected(served: Served, admin: httpx.Client, demo: str) -> None:
    id_ = admin.post(TRAININGS, json=anywhere(served)).json()["workloadId"]
    with served.client("alice") as alice:
        answer = alice.post(f"{TRAININGS}/{id_}/suspend")
    assert answer.status_code == 403, answer.text
    assert "until then it counts as protected" in answer.text


async def _lost(settings: Settings, key: str, cluster_ids: tuple[str, ...]) -> None:
    """Its pod is bound on the first of these clusters, and it leaves that one, as the scheduler decides it."""
    nc = await connect(settings, "scheduler")
    store = JetStreamEventStore(nc)
    id_, now = (await store.load(WORKLOAD, key)).state.workload_id, datetime.now(UTC)
    pod = PodRef(pod_set="main", index=0, attempt=1, try_=0)
    at = Placement(pod=pod, node_key="n", node_name="n1", pool="default")
    leave = LeaveCluster(
        workload_id=id_,
        cluster_id=cluster_ids[0],
        cluster_name="lab",
        attempt=1,
        among=cluster_ids,
        lost_since=datetime(2026, 3, 1, 12, tzinfo=UTC),
        seconds=600,
    )
    for command in (PlacePods(workload_id=id_, placements=(at,), cluster_id=cluster_ids[0], cluster_name="lab"), leave):
        chain = await store.load(WORKLOAD, key)
        context = Context(now=now, actor=ACTOR, command_id=str(uuid4()), version=chain.version)
        events = WORKLOAD.decide(command, chain.state, context)
        assert not isinstance(events, Refusal), events
        await store.append(draft(WORKLOAD, key, chain, events, command_id=str(uuid4()), actor=ACTOR, now=now))
    await nc.close()


def test_one_that_left_a_lost_cluster_says_so_in_the_table_the_history_and_what_explains_it(
    served: Served, admin: httpx.Client, demo: str
) -> None:
    id_ = admin.post(TRAININGS, json=anywhere(served)).json()["workloadId"]
    asyncio.run(_lost(served.settings, key_of_id(id_) or "", (demo, served.cluster)))
    why = "cluster lab has not reported since 2026-03-01 12:00:00 UTC, which is longer than its project waits (600 s)"

    found = admin.get(f"{V1}/workloads/{id_}/explain").json()
    assert (found["phase"], found["phaseReason"], found["phaseMessage"]) == ("Pending", "cluster_lost", why)
    eviction = found["eviction"]
    assert (eviction["rule"], eviction["message"], eviction["pods"]) == ("cluster_lost", why, 1)
    assert (eviction["by"], eviction["forWorkload"]) == ("scheduler", None)

    shown = admin.get(f"{V1}/workloads/{id_}").json()
    assert (shown["clusterId"], shown["attempt"], shown["phaseReason"]) == (ANY_CLUSTER, 2, "cluster_lost")
    told = admin.get(f"{V1}/workloads/{id_}/history").json()["records"]
    then = "its pod there is told to end once that cluster can be reached; attempt 2 waits for another cluster"
    assert [each["message"] for each in told if each["type"] == "ClusterLeft"] == [f"cluster_lost: {why}; {then}"]
    pods = {(each["attempt"], each["phase"]) for each in admin.get(f"{V1}/workloads/{id_}/pods").json()["pods"]}
    assert pods == {(1, "Stopping"), (2, "Pending")}
