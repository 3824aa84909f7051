"""Who uses what now, and used what in a span of time, over HTTP: everybody sees sums of what they may read, and what is
free for all.
"""

import asyncio
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from development.servers import EVERYTHING
from events.aggregate import HOURS as MEASURED_HOURS
from events.aggregate import NODE, WORKLOAD, Aggregate, draft
from events.commit import service_actor
from events.decision import Context
from events.department import DEFAULT_DEPARTMENT_ID
from events.hours import Measured, NoteHours, hours_key
from events.ids import key_of_id, node_key
from events.node import Reservation, ReserveOnNode, reservation_id
from events.prices import full_hour
from events.workload.commands import PlacePods
from events.workload.pod import DeviceShare, Placement, PodRef
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.connection import connect
from services.runtime.process.settings import Settings
from tests.support.api import Served, report_node

V1 = "/api/v1"
USAGE = f"{V1}/usage"
HOURS = f"{USAGE}/hours"
BY = ("project", "user", "nodePool", "node", "workload")


async def placed(settings: Settings, workload_id: str, node: str, *, gpus: int, model: str = "") -> int:
    """As the scheduler places the first pod of a workload; the sequence of the last commit."""
    nc = await connect(settings, EVERYTHING)
    try:
        store = JetStreamEventStore(nc)
        key, pod = key_of_id(workload_id) or "", PodRef(pod_set="main", index=0, attempt=1, try_=0)
        devices = tuple(DeviceShare(device=number, milli=1000) for number in range(gpus))
        place = Placement(pod=pod, node_key=node, node_name="n1", pool="default", devices=devices, gpu_model=model)
        hold = Reservation(
            id=reservation_id(workload_id, "main", 0, 1, 0), workload_id=workload_id, workload_key=key,
            cpu_milli=500, memory_bytes=2**20, devices=devices,
        )  # fmt: skip
        await _appended(store, WORKLOAD, key, PlacePods(workload_id=workload_id, placements=(place,)))
        await _appended(store, NODE, node, ReserveOnNode(reserve=(hold,)))
        return await store.last_seq()
    finally:
        await nc.close()


async def _appended(store: JetStreamEventStore, aggregate: Aggregate[Any], key: str, command: Any) -> None:
    actor, now, chain = service_actor("scheduler"), datetime.now(UTC), await store.load(aggregate, key)
    context = Context(now=now, actor=actor, command_id=secrets.token_hex(8))
    events = aggregate.decide(command, chain.state, context)
    assert isinstance(events, tuple), events
    assert events
    made = draft(aggregate, key, chain, events, command_id=context.command_id, actor=actor, now=now)
    assert isinstance(await store.append(made), Committed)


@pytest.fixture(scope="module")
def seq(served: Served) -> int:
    """Alice's `holds` has two GPUs, `waits` none; the stranger's `theirs` of another project waits."""
    report_node(served, served.cluster, "n1", gpus=8)
    ids: dict[str, str] = {}
    for who, name, project in (
        ("alice", "holds", "project"), ("alice", "waits", "project"), ("bob", "idle", "project"),
        ("stranger", "theirs", "other"),
    ):  # fmt: skip
        with served.client(who) as client:
            asked = served.training(name=name, projectId=served.made[project])
            asked["spec"]["priorityClass"] = "high"
            made = client.post(f"{V1}/workloads/trainings", json=asked)
            assert made.status_code == 202, made.text
            ids[name] = made.json()["workloadId"]
    with served.client("bob") as bob:
        assert bob.post(f"{V1}/workloads/trainings/{ids['idle']}/suspend").status_code == 202
    return asyncio.run(placed(served.settings, ids["holds"], node_key(served.cluster, "n1"), gpus=2, model="H100"))


def used(client: httpx.Client, by: str, seq: int, **more: Any) -> dict[str, Any]:
    answer = client.get(USAGE, params={"by": by, "min_seq": seq, **more})
    assert answer.status_code == 200, answer.text
    assert "x-log-stale" not in answer.headers
    assert int(answer.headers["x-log-sequence"]) >= seq
    return answer.json()


def told(answer: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Of each row: running, pending, pods and GPUs."""
    return {
        row["name"]: (row["running"], row["pending"], row["pods"], row["allocated"]["gpus"]) for row in answer["rows"]
    }


def test_who_may_read_everything_sees_everybodys_sums(served: Served, seq: int) -> None:
    with served.client() as admin:
        answers = {by: used(admin, by, seq) for by in BY}
    assert told(answers["project"]) == {"default": (1, 1, 1, 2.0), "other": (0, 1, 0, 0.0)}
    # A suspended workload is nowhere.
    assert told(answers["user"]) == {"alice": (1, 1, 1, 2.0), "stranger": (0, 1, 0, 0.0)}
    assert told(answers["workload"]) == {
        "holds": (1, 0, 1, 2.0), "theirs": (0, 1, 0, 0.0), "waits": (0, 1, 0, 0.0)
    }  # fmt: skip
    assert told(answers["nodePool"]) == {"default": (1, None, 1, 2.0)}
    assert told(answers["node"]) == {"n1": (1, None, 1, 2.0)}
    for answer in answers.values():
        total = answer["total"]
        assert (total["running"], total["pending"], total["pods"]) == (1, 2, 1)
        assert total["allocated"]["gpus"] == 2
        assert total["capacity"]["gpus"] == 8
        assert total["used"] is None
    (holds, *_) = answers["workload"]["rows"]
    assert (holds["submittedBy"], holds["projectName"], holds["clusterName"], holds["phase"]) == (
        "alice", "default", "local", "Initializing"
    )  # fmt: skip
    assert holds["allocated"] == {
        "gpus": 2, "nonPreemptibleGpus": 2, "gpuMemoryBytes": 0, "cpuCores": 0.5, "memoryBytes": 2**20
    }  # fmt: skip


@pytest.mark.parametrize(
    ("who", "project", "names"),
    [("vic", (1, 1, 1, 2.0), {"holds", "waits"}), ("stranger", (0, 1, 0, 0.0), {"theirs"})],
)
def test_others_see_sums_of_their_own_projects_and_what_is_free_for_all(
    served: Served, seq: int, who: str, project: tuple[Any, ...], names: set[str]
) -> None:
    with served.client(who) as client:
        assert list(told(used(client, "project", seq)).values()) == [project]
        assert set(told(used(client, "workload", seq))) == names
        nodes = used(client, "node", seq)
        assert told(nodes) == {"n1": (project[0], None, project[2], project[3])}
        assert nodes["rows"][0]["capacity"]["gpus"] == nodes["total"]["capacity"]["gpus"] == 8
        people = set(told(used(client, "user", seq)))
        assert people == ({"alice"} if who == "vic" else {"stranger"})


def test_who_has_no_role_is_told_nothing(served: Served, seq: int) -> None:
    with served.client("nobody") as nobody:
        for by in BY:
            assert nobody.get(USAGE, params={"by": by, "min_seq": seq}).status_code == 403


def test_filters_order_and_pages(served: Served, seq: int) -> None:
    with served.client() as admin:
        other = used(admin, "workload", seq, projectId=served.made["other"])
        assert list(told(other)) == ["theirs"]
        assert other["total"]["pending"] == 1
        assert set(told(used(admin, "project", seq, clusterId=served.cluster))) == {"default", "other"}
        by_name = used(admin, "workload", seq, sortBy="name", sortOrder="asc", limit=2)
        assert (list(told(by_name)), by_name["next"]) == (["holds", "theirs"], 2)
        rest = used(admin, "workload", seq, sortBy="name", sortOrder="asc", limit=2, offset=2)
        assert (list(told(rest)), rest["next"]) == (["waits"], None)
        assert rest["total"] == by_name["total"]


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("by=team", {"by"}),
        ("sortBy=colour&sortOrder=up", {"sortBy", "sortOrder"}),
        ("limit=501&offset=-1", {"limit", "offset"}),
        ("projectId=vision&clusterId=nowhere", {"projectId", "clusterId"}),
        ("project=vision", {"project"}),
    ],
)
def test_parameters_that_mean_nothing_are_refused_by_name(served: Served, query: str, fields: set[str]) -> None:
    with served.client() as admin:
        answer = admin.get(f"{USAGE}?{query}")
    assert answer.status_code == 400, answer.text
    assert {issue["field"] for issue in answer.json()["complianceIssues"]} == fields


def test_a_project_that_the_caller_may_not_read_is_as_one_that_is_not_there(served: Served) -> None:
    with served.client("vic") as vic:
        theirs, unknown = (
            vic.get(USAGE, params={"projectId": project}) for project in (served.made["other"], "0" * 36)
        )
    for answer in (theirs, unknown):
        assert answer.status_code == 400
        (issue,) = answer.json()["complianceIssues"]
        assert issue["field"] == "projectId"
        assert "that you may read" in issue["details"]


# -- hours -----------------------------------------------------------------------------------------------------------


def asked_hours(client: httpx.Client, seq: int, **more: Any) -> dict[str, Any]:
    answer = client.get(HOURS, params={"min_seq": seq, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def hour_names(answer: dict[str, Any]) -> set[str]:
    return {row["name"] for row in answer["rows"]}


def test_sums_are_of_what_runs_and_waits_up_to_now(served: Served, seq: int) -> None:
    with served.client() as admin:
        answers = {by: asked_hours(admin, seq, by=by) for by in ("project", "user", "nodePool", "priority", "gpuModel")}
    assert hour_names(answers["project"]) == {"default", "other"}
    assert hour_names(answers["user"]) == {"alice", "bob", "stranger"}
    assert [(row["name"], row["clusterName"]) for row in answers["nodePool"]["rows"]] == [("default", "local")]
    assert hour_names(answers["gpuModel"]) == {"H100"}
    for answer in answers.values():
        begins, ends = (datetime.fromisoformat(answer[key]) for key in ("begins", "ends"))
        assert (begins.day, begins.hour) == (1, 0)
        assert abs(ends - datetime.now(UTC)) < timedelta(minutes=1)
        assert answer["total"]["runs"] == 1
        assert answer["total"]["waitingHours"] > 0
        assert answer["rows"][0]["reservedGpuHours"] > 0
        assert answer["rows"][0]["periods"] == []
        # This hour is measured when it is over.
        assert (answer["total"]["usedGpuHours"], answer["total"]["measuredGpuHours"]) == (None, 0)
    assert {row["waitingHours"] for by in ("nodePool", "gpuModel") for row in answers[by]["rows"]} == {None}
    assert answers["project"]["rows"][0]["id"] == served.made["project"]


def test_a_department_has_what_the_projects_used_that_stand_in_it_now(served: Served, seq: int) -> None:
    with served.client() as admin, served.client("alice") as alice:
        by_project = {row["name"]: row for row in asked_hours(admin, seq, by="project")["rows"]}
        made = admin.post("/api/v1/org-unit/departments", json={"name": f"d-{secrets.token_hex(4)}"})
        assert made.status_code == 202, made.text
        project = f"/api/v1/org-unit/projects/{served.made['other']}"
        moved = admin.put(project, json={"departmentId": made.json()["id"]})
        assert moved.status_code == 202, moved.text
        after = int(moved.headers["x-log-sequence"])
        found = {row["id"]: row for row in asked_hours(admin, after, by="department")["rows"]}
        assert {row["name"] for row in found.values()} == {"default", made.json()["name"]}
        assert found[made.json()["id"]]["runs"] == by_project["other"]["runs"]
        assert hour_names(asked_hours(alice, after, by="department")) == {"default"}, "of what she may read"
        assert admin.put(project, json={"departmentId": DEFAULT_DEPARTMENT_ID}).status_code == 202


def test_everybody_sees_sums_of_what_they_may_read_and_filters_narrow_them(served: Served, seq: int) -> None:
    with served.client("alice") as alice, served.client("stranger") as stranger, served.client("admin") as admin:
        assert hour_names(asked_hours(alice, seq, by="user")) == {"alice", "bob"}
        assert hour_names(asked_hours(stranger, seq)) == {"other"}
        assert hour_names(asked_hours(admin, seq, by="user", projectId=served.made["other"])) == {"stranger"}
        assert hour_names(asked_hours(admin, seq, by="user", owner="bob")) == {"bob"}
        assert hour_names(asked_hours(admin, seq, by="user", owner="nobody")) == set()
        refused = alice.get(HOURS, params={"projectId": served.made["other"]})
        assert refused.status_code == 400, refused.text
        assert "projectId" in refused.text


def test_periods_add_up_to_the_whole_and_pages_to_all(served: Served, seq: int) -> None:
    with served.client() as admin:
        begin = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
        answer = asked_hours(admin, seq, by="user", per="hour", **{"from": begin})
        for row in answer["rows"]:
            assert row["periods"]
            for field in ("reservedGpuHours", "waitingHours", "runs"):
                assert sum(period[field] for period in row["periods"]) == pytest.approx(row[field], abs=1e-5)
        pages = [asked_hours(admin, seq, by="user", limit=1, offset=offset) for offset in range(3)]
        assert [page["next"] for page in pages] == [1, 2, None]
        assert set().union(*map(hour_names, pages)) == {"alice", "bob", "stranger"}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"from": "soon"}, "is not a time"),
        ({"from": "2030-01-01T00:00:00Z"}, "must be a time before the end of the span"),
        ({"to": "0001-01-01T00:00:00Z"}, "must be a time before the end of the span"),
        ({"from": "2020-02-01T00:00:00Z", "to": "2020-01-01T00:00:00Z"}, "must be before `to`"),
        ({"from": "2020-01-01T00:00:00Z", "per": "hour"}, "makes more than 1,000 periods of this span"),
        ({"by": "nobody"}, "by"),
    ],
)
def test_a_span_that_cannot_be_is_refused(served: Served, query: dict[str, str], says: str) -> None:
    with served.client() as admin:
        refused = admin.get(HOURS, params=query)
    assert refused.status_code == 400, refused.text
    assert says in refused.text


def test_a_span_of_long_ago_is_empty(served: Served, seq: int) -> None:
    with served.client() as admin:
        answer = asked_hours(admin, seq, **{"from": "0001-01-02T00:30:00Z", "to": "2020-01-01T00:10:00Z"})
    assert (answer["begins"], answer["ends"]) == ("0001-01-02T00:00:00Z", "2020-01-01T01:00:00Z")
    assert answer["rows"] == []


async def measured(settings: Settings, command: NoteHours) -> int:
    """As `auto_deletion` tells it; the sequence of the commit."""
    nc = await connect(settings, EVERYTHING)
    try:
        store = JetStreamEventStore(nc)
        key = hours_key(command.project_id, command.hour) or ""
        await _appended(store, MEASURED_HOURS, key, command)
        return await store.last_seq()
    finally:
        await nc.close()


def test_used_hours_are_those_that_were_measured_and_only_readers_see_them(served: Served, seq: int) -> None:
    hour = full_hour(datetime.now(UTC)) - timedelta(hours=1)
    row = Measured(owner="o", cluster_id=served.cluster, pool="default", measured=7_200_000, used=1_800_000)
    newest = asyncio.run(measured(served.settings, NoteHours(project_id=served.made["other"], hour=hour, rows=(row,))))
    span = {"from": hour.isoformat(), "to": (hour + timedelta(hours=1)).isoformat(), "per": "hour"}
    with served.client("stranger") as stranger, served.client("vic") as vic:
        for by in ("project", "priority", "cluster"):
            answer = asked_hours(stranger, newest, by=by, **span)
            (period,) = answer["rows"][0]["periods"]
            for sums in (answer["total"], answer["rows"][0], period):
                assert (sums["usedGpuHours"], sums["measuredGpuHours"]) == (0.5, 2), by
        assert asked_hours(vic, newest, **span)["total"]["measuredGpuHours"] == 0


def test_what_is_reserved_on_a_node_and_what_a_drain_leaves_there(served: Served, seq: int) -> None:
    """The last of this module: the node is drained. Who may not read a project sees the number of its pods."""
    path = f"{V1}/nodes/{served.cluster}/n1"
    with served.client("stranger") as stranger:
        seen = stranger.get(f"{path}/pods", params={"min_seq": seq}).json()
        assert (seen["reserved"], seen["pods"], seen["drain"]) == (1, [], None)
        assert stranger.post(f"{path}/drain", json={}).status_code == 403
    with served.client() as admin:
        (pod,) = admin.get(f"{path}/pods", params={"min_seq": seq}).json()["pods"]
        assert (pod["workloadName"], pod["projectName"], pod["pod"], pod["preemptible"]) == (
            "holds", "default", "main-0", False
        )  # fmt: skip
        assert "until the node is drained with force" in pod["stays"]
        begun = admin.post(f"{path}/drain", json={})
        assert begun.status_code == 202
        assert "already" in admin.post(f"{path}/drain", json={}).json()["message"]
        forced = admin.post(f"{path}/drain", json={"force": True})
        found = admin.get(f"{path}/pods", params={"min_seq": forced.headers["x-log-sequence"]}).json()
        assert [pod["stays"] for pod in found["pods"]] == [None]
        assert (found["drain"]["startedBy"], found["drain"]["force"], found["drain"]["endedAt"]) == (
            "admin",
            True,
            None,
        )
        (node,) = admin.get(f"{V1}/nodes", params={"clusterId": served.cluster}).json()["nodes"]
        assert node["drain"] == found["drain"]
        assert node["schedulable"] is False
        assert admin.post(f"{V1}/nodes/{served.cluster}/none/drain", json={}).status_code == 404
        assert admin.get(f"{V1}/nodes/{served.cluster}/none/pods").status_code == 404
