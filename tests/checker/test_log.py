"""The checker of the log finds what is seeded, one broken invariant at a time, and passes whatever deciders do."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from development.checker.log import check, check_log
from development.checker.records import RawMessage, asked, quantity
from development.checker.story import BEGIN, GPU_SPEC, ID, KEY, NODE, Story, pod
from events.codec import encode_commit
from events.phases import ENDS_AT_ONCE
from tests.support.draws import draws
from tests.support.lives import busy_world
from tests.support.random_lives import random_log

FOLDER = Path(__file__).parents[2] / "development" / "checker"
DELETE = ("WorkloadDeletionRequested", {"reason": "user"})
SUSPEND = ("WorkloadSuspended", {})
PART = {"compute": {"gpuRequestType": "portion", "gpuPortionRequest": 0.6, "gpuDevicesRequest": 1}}


def test_every_invariant_of_the_log_is_seeded() -> None:
    """The names that the checker can give, in its own words, against those that are seeded below."""
    texts = [(FOLDER / name).read_text() for name in ("log.py", "workloads.py", "nodes.py")]
    names = {name for text in texts for name in re.findall(r'(?:yield \(?|_wrong\()\s*"([a-z]+)", f"', text)}
    assert names - {"gap", "chain", "once", "batch", "acknowledged", "void", "restore"} <= {
        expected for expected, _ in SEEDED.values()
    }


def test_a_life_as_it_should_be_is_passed() -> None:
    report = Story().done().check().report
    assert report.violations == []
    assert (report.completed, report.left_reserved, report.left_live) == ({ID}, 0, 0)
    assert (report.bindings, report.reservations, report.releases) == (1, 1, 1)


def test_what_a_deleted_project_leaves_is_deleted_with_it_and_its_name_begins_anew() -> None:
    story = _project(GONE).created()
    story.says(LEFT_OVER, ("WorkloadDeleted", {"at": story.text()}), by="auto_deletion")
    story.commit("ev.project.vision", ("ProjectCreated", {"project_id": "p2", "name": "vision", "at": story.text()}))
    assert story.wrong() == set()


def test_a_launcher_starts_once_its_worker_has_run_whatever_becomes_of_that() -> None:
    story = _launcher().ran(WORKER)
    story.says(story.told("PodUnreachable", WORKER)).ran(LAUNCHER)
    assert story.wrong() == set()


def test_a_node_that_was_uncordoned_takes_pods() -> None:
    assert _marked(CORDON, ("NodeUncordoned", {})).created().bound().wrong() == set()


def test_whatever_deciders_answer_is_passed() -> None:
    world = busy_world(200)
    found = check(RawMessage(c.seq, f"ev.{c.aggregate}.{c.key}", encode_commit(c.record)) for c in world.commits)
    assert found.violations == []
    assert len(found.completed) == 200


@settings(max_examples=draws(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_long_random_lives_of_many_workloads_are_passed(chance: random.Random) -> None:
    """Everything people, schedulers and clusters may do, in any order, as the deciders take it."""
    checker = check_log(random_log(chance, steps=150))
    assert checker.report.violations == []


# -- what is seeded ----------------------------------------------------------------------------------------------------


def _telling_the_subject(story: Story) -> Story:
    granted = ("TenantRoleGranted", {"actor": "a", "role": "viewer"})
    story.commit("ev.tenant.default", granted, actor={"id": "a", "iss": "i", "sub": "ann"})
    return story


AUTOSCALER = "autoscaler"
EVICTED = ("PodsEvicted", {"pods": [pod()], "attempt": 2, "reason": "preempted", "message": "m", "beneficiary": "b"})
SAVED = ("CheckpointSaved", {"pod": pod(), "at": "2026-01-01T00:00:00Z"})
OPENED = ("SessionOpened", {"session_id": "s", "kind": "exec", "pod": pod(), "ends_at": "2999-01-01T00:00:00Z"})
REPLICA = pod(0) | {"pod_set": "replica"}


def _inference() -> Story:
    """Of one replica, which may have none and three at most."""
    scaling = {"minReplicas": 0, "maxReplicas": 3}
    story = Story().node().created(inference={"serving": {"autoscaling": scaling}, "replicas": 1})
    return story.says(("WorkloadQueued", {}), by="scheduler")


LAUNCHER, WORKER = (pod(0) | {"pod_set": name} for name in ("master", "worker"))


def _launcher() -> Story:
    """Of an MPI training: it waits for its worker."""
    waits = {"numWorkers": 1, "minReplicas": None, "mpiLauncherCreationPolicy": "WaitForWorkersReady"}
    return Story().node().created(distributed={"distribution": waits, "master": GPU_SPEC}).bound(LAUNCHER, WORKER)


@pytest.mark.parametrize("reason", sorted(ENDS_AT_ONCE))
def test_a_replica_is_tried_again_whatever_it_failed_of(reason: str) -> None:
    """R26: given what fails every other kind of workload at once."""
    story = _inference().bound(REPLICA, queued=True)
    failed = {"pod": REPLICA, "at": story.text(), "reason": reason, "message": "m", "retry_at": story.text(60)}
    assert story.says(("PodFailed", failed)).wrong() == set()


def test_a_cluster_that_is_chosen_with_the_first_pods_is_as_it_should_be() -> None:
    story = Story().node().created(among=("c1", "c2")).bound(chosen="c1")
    assert story.wrong() == set()


def _lost(
    spec: Mapping[str, object] | None = None,
    *,
    among: tuple[str, ...] = ("c1", "c2"),
    to: Sequence[str] = (),
    by: str = "scheduler",
    **more: object,
) -> Story:
    """What was left on a lost cluster; `more`: fields of the event that are otherwise than they should be."""
    story = Story()
    for id_, name, kind in (("c1", "lab", "kubernetes"), ("c2", "other", "kubernetes"), ("c3", "demo", "simulated")):
        made = {"cluster_id": id_, "name": name, "kind": kind, "at": story.text()}
        story.commit(f"ev.cluster.{name}", ("ClusterAdded", made), ("ClusterConnected", {"at": story.text()}))
    story.node().created(spec, among=among).bound(chosen="c1").ran()
    since = story.text()
    lost = ("ClusterDisconnected", {"at": since, "silent_seconds": 30})
    story.commit("ev.cluster.lab", lost, by="cluster_sync")
    story.later(60)
    left = {"cluster_id": "c1", "name": "lab", "at": story.text(), "lost_since": since, "seconds": 60, "pods": 1}
    left |= {"attempt": 2, "among": [*(to or among)]}
    return story.says(("ClusterLeft", left | more), by=by)


def _old_ends(story: Story, how: str = "succeeded", cluster_id: str = "c1") -> Story:
    return story.fact("LeftPodEnded", cluster_id=cluster_id, how=how)


def test_what_is_left_on_a_lost_cluster_holds_its_node_until_it_ends_and_then_nothing() -> None:
    story = _lost()
    assert (story.check().report.left_live, story.wrong()) == (1, set())
    assert "released" in _lost().released().wrong()
    story = _old_ends(_lost()).released()
    assert (story.check().report.left_live, story.check().report.left_reserved, story.wrong()) == (0, 0, set())
    story.bound(pod(attempt=2), queued=True, chosen="c1")
    assert story.wrong() == set(), "nothing of it is there any more"


def test_it_is_deleted_once_all_of_it_is_gone() -> None:
    story = _lost().says(DELETE, by="ann")
    assert story.wrong() == set()
    story.says(story.told("LeftPodEnded", cluster_id="c1", how="stopped"), ("WorkloadDeleted", {"at": story.text()}))
    assert story.wrong() == set()


def _scaled(replicas: int) -> dict[str, object]:
    return {"replicas": replicas, "was": 1, "reason": "load"}


def _project(*events: tuple[str, Mapping[str, object]]) -> Story:
    story = Story()
    created = ("ProjectCreated", {"project_id": "p1", "name": "vision", "at": story.text()})
    for event in (created, *events):
        story.commit("ev.project.vision", event)
    return story


GONE = ("ProjectDeleted", {"at": "2026-03-02T09:00:00Z"})
ADDED = ("ClusterAdded", {"cluster_id": "c1", "name": "lab", "kind": "simulated", "at": BEGIN.isoformat()})


def _cluster(*events: tuple[str, Mapping[str, object]]) -> Story:
    story = Story()
    for event in (ADDED, *events):
        story.commit("ev.cluster.lab", event)
    return story


ASSET_MADE: tuple[str, dict[str, object]] = (
    "AssetCreated",
    {"asset_id": "a1", "kind": "compute", "name": "small", "scope": "tenant", "spec": {}, "at": BEGIN.isoformat()},
)


def _asset(*events: tuple[str, Mapping[str, object]]) -> Story:
    story = Story()
    for event in (ASSET_MADE, *events):
        story.commit("ev.asset.small", event)
    return story


DEPARTMENT_MADE: tuple[str, dict[str, object]] = (
    "DepartmentCreated",
    {"department_id": "g1", "name": "research", "at": BEGIN.isoformat()},
)


def _department(*events: tuple[str, Mapping[str, object]]) -> Story:
    story = Story()
    for event in (DEPARTMENT_MADE, *events):
        story.commit("ev.department.research", event)
    return story


POLICY_SET: tuple[str, dict[str, object]] = (
    "PolicySet",
    {"policy_id": "y1", "workload_type": "Training", "defaults": {}, "rules": {}, "at": BEGIN.isoformat()},
)
POLICY_GONE = ("PolicyDeleted", {"workload_type": "Training"})


def _policy(*events: tuple[str, Mapping[str, object]]) -> Story:
    story = Story()
    for event in (POLICY_SET, *events):
        story.commit("ev.policy.trainings", event)
    return story


LEFT_OVER = ("WorkloadDeletionRequested", {"reason": "project_deleted"})
CORDON = ("NodeCordoned", {"actor": "root", "at": "2026-03-02T09:00:00Z"})
DRAIN = ("NodeDrainStarted", {"actor": "root", "at": "2026-03-02T09:00:00Z"})
NO_LIMIT = ("WorkloadLimitReached", {"at": "2026-03-02T09:00:00Z", "reason": "mood", "message": "m"})
DRAINED = ("NodeDrained", {"at": "2026-03-02T09:00:00Z"})


def _marked(*events: tuple[str, Mapping[str, object]]) -> Story:
    story = Story().node()
    for event in events:
        story.commit(f"ev.node.{NODE}", event)
    return story


def _drained(story: Story) -> Story:
    story.commit(f"ev.node.{NODE}", CORDON, DRAIN, DRAINED)
    return story


SEEDED: dict[str, tuple[str, Callable[[], Story]]] = {
    "completed with 1 of 3": (
        "completed",
        lambda: (s := Story().node().created({"completions": 3}).bound().ran()).says(
            s.told("PodSucceeded"), s.completed(succeeded=1)
        ),
    ),
    "completed, and says another number": (
        "completed",
        lambda: (s := Story().node().created().bound().ran()).says(s.told("PodSucceeded"), s.completed(succeeded=2)),
    ),
    "all succeeded, and not completed": (
        "completed",
        lambda: (s := Story().node().created().bound().ran()).says(s.told("PodSucceeded")),
    ),
    "success of a run that was never bound": (
        "fact",
        lambda: (s := Story().node().created()).says(s.told("PodSucceeded"), s.completed()),
    ),
    "success of a run that never ran": (
        "ran",
        lambda: (s := Story().node().created().bound()).says(s.told("PodSucceeded"), s.completed()),
    ),
    "given to who has it": (
        "owner",
        lambda: Story().created().says(("WorkloadTransferred", {"owner": "alice"}), by="bob"),
    ),
    "undone, and nothing follows": (
        "undone",
        lambda: (
            (s := Story().created())
            .says(("WorkloadSuspended", {}), ("WorkloadStopped", {"at": s.text()}), by="alice")
            .says(("ActUndone", {"sequence": 2, "act": "WorkloadSuspended"}), by="alice")
        ),
    ),
    "undone, what never was": (
        "undone",
        lambda: (
            (s := Story().created())
            .says(("WorkloadSuspended", {}), ("WorkloadStopped", {"at": s.text()}), by="alice")
            .says(
                ("ActUndone", {"sequence": 1, "act": "WorkloadSuspended"}),
                ("WorkloadResumed", {"attempt": 2}),
                by="alice",
            )
        ),
    ),
    "success of an older run": (
        "fact",
        lambda: (
            (s := Story().node().created({"backoffLimit": 2}).bound().ran())
            .fact("PodFailed", exit_code=1, retry_at=s.text(5))
            .says(s.told("PodSucceeded"), s.completed())
        ),
    ),
    "a project that is there is made again": (
        "project",
        lambda: _project(("ProjectCreated", {"project_id": "p2", "name": "vision", "at": BEGIN.isoformat()})),
    ),
    "a cluster that is there is added again": ("cluster", lambda: _cluster(ADDED)),
    "something after a cluster was removed": (
        "cluster",
        lambda: _cluster(("ClusterRemoved", {}), ("NodePoolRemoved", {})),
    ),
    "a pool that was not there is removed": ("cluster", lambda: _cluster(("NodePoolRemoved", {"name": "fast"}))),
    "something after a project was deleted": ("project", lambda: _project(GONE, ("ProjectChanged", {}))),
    "a department that is there is made again": ("department", lambda: _department(DEPARTMENT_MADE)),
    "something after a department was deleted": (
        "department",
        lambda: _department(("DepartmentDeleted", {}), ("DepartmentChanged", {})),
    ),
    "the default department is deleted": (
        "department",
        lambda: _department(
            ("DepartmentDeleted", {}),
            ("DepartmentCreated", DEPARTMENT_MADE[1] | {"name": "default"}),
            ("DepartmentDeleted", {}),
        ),
    ),
    "a project in the default department is moved there": (
        "project",
        lambda: _project(("ProjectMoved", {"department_id": "g0", "department_name": "default"})),
    ),
    "an asset that is there is made again": ("asset", lambda: _asset(ASSET_MADE)),
    "something after an asset was deleted": ("asset", lambda: _asset(("AssetDeleted", {}), ("AssetDeleted", {}))),
    "an asset changed into what it was": ("asset", lambda: _asset(("AssetChanged", {"spec": {}}))),
    "a data volume of no claim": (
        "asset",
        lambda: _asset(
            ("AssetDeleted", {}), ("AssetCreated", ASSET_MADE[1] | {"asset_id": "a2", "kind": "data-volume"})
        ),
    ),
    "a data volume that becomes another claim": (
        "asset",
        lambda: _asset(
            ("AssetDeleted", {}),
            (
                "AssetCreated",
                ASSET_MADE[1] | {"asset_id": "a2", "kind": "data-volume", "spec": {"offeredClaim": {"claimName": "a"}}},
            ),
            ("AssetChanged", {"spec": {"offeredClaim": {"claimName": "b"}}}),
        ),
    ),
    "a data source marked as it was": (
        "asset",
        lambda: _asset(*[("DataSourceMarked", {"cluster_id": "c1", "issue": "gone", "at": BEGIN.isoformat()})] * 2),
    ),
    "an asset of a project that it does not name": (
        "asset",
        lambda: _asset(("AssetDeleted", {}), ("AssetCreated", ASSET_MADE[1] | {"asset_id": "a2", "scope": "project"})),
    ),
    "a policy set to what it was": ("policy", lambda: _policy(POLICY_SET)),
    "a policy in the place of another": (
        "policy",
        lambda: _policy(("PolicySet", POLICY_SET[1] | {"policy_id": "y2", "rules": {"image": {}}})),
    ),
    "a policy of another kind": (
        "policy",
        lambda: _policy(("PolicySet", POLICY_SET[1] | {"workload_type": "Workspace", "rules": {"image": {}}})),
    ),
    "a policy deleted twice": ("policy", lambda: _policy(POLICY_GONE, POLICY_GONE)),
    "deleted with its project, which is there": (
        "project",
        lambda: (s := _project().created()).says(LEFT_OVER, ("WorkloadDeleted", {"at": s.text()}), by="auto_deletion"),
    ),
    "deleted with its cluster, which is there": (
        "cluster",
        lambda: (s := _cluster().created()).says(
            ("WorkloadDeletionRequested", {"reason": "cluster_removed"}),
            ("WorkloadDeleted", {"at": s.text()}),
            by="auto_deletion",
        ),
    ),
    "cordoned twice": ("cordon", lambda: _marked(CORDON, CORDON)),
    "a limit that is none": ("limit", lambda: Story().node().created().bound().says(NO_LIMIT)),
    "drained, and not cordoned": ("drain", lambda: _marked(DRAIN)),
    "empty, and not drained": ("drain", lambda: _marked(CORDON, DRAINED)),
    "drained, and not empty": ("drain", lambda: _drained(Story().node().created().bound())),
    "uncordoned, and was not cordoned": ("cordon", lambda: _marked(("NodeUncordoned", {}))),
    "bound to a node that is cordoned": ("room", lambda: _marked(CORDON).created().bound()),
    "cordoned by a service": (
        "author",
        lambda: (
            (s := Story().node()),
            s.commit(f"ev.node.{NODE}", CORDON, by="cluster_sync"),
        )[0],
    ),
    "bound again after Completed": ("ended", lambda: Story().done().bound(pod(try_=1), queued=True)),
    "bound while its pod lives": ("bound", lambda: Story().node().created().bound().bound(device=1, queued=True)),
    "bound again after it succeeded": (
        "bound",
        lambda: (
            (s := Story().node().created({"completions": 2}).bound().ran())
            .says(s.told("PodSucceeded"))
            .released()
            .bound(pod(0, try_=1), queued=True)
        ),
    ),
    "bound beyond its completions": ("bound", lambda: Story().node().created().bound(pod(5))),
    "bound more than may live at once": (
        "parallel",
        lambda: Story().node().created({"completions": 3}).bound(pod(0), pod(1)),
    ),
    "bound without the rest of its gang": (
        "gang",
        lambda: (
            Story()
            .node()
            .created(distributed={"distribution": {"numWorkers": 2, "minReplicas": None}, "master": None})
            .bound(pod(0) | {"pod_set": "worker"})
        ),
    ),
    "evicted though it is non-preemptible": (
        "evicted",
        lambda: Story().node().created({"preemptibility": "non-preemptible"}).bound().says(EVICTED, by="scheduler"),
    ),
    "evicted without a node": (
        "evicted",
        lambda: Story().node().created().says(("WorkloadQueued", {}), EVICTED, by="scheduler"),
    ),
    "evicted without another attempt": (
        "token",
        lambda: Story().node().created().bound().says((EVICTED[0], EVICTED[1] | {"attempt": 1}), by="scheduler"),
    ),
    "evicted, to end then, and not ended": (
        "failed",
        lambda: Story().node().created({"terminateAfterPreemption": True}).bound().says(EVICTED, by="scheduler"),
    ),
    "let into a pod that does not run": ("session", lambda: Story().node().created().bound().says(OPENED, by="ann")),
    "a session that was closed twice": (
        "session",
        lambda: (
            Story()
            .node()
            .created()
            .bound()
            .ran()
            .says(OPENED, by="ann")
            .says(("SessionClosed", {"session_id": "s"}))
            .says(("SessionClosed", {"session_id": "s"}))
        ),
    ),
    "a launcher before its workers": ("launcher", lambda: _launcher().ran(LAUNCHER)),
    "saved without a folder": ("saved", lambda: Story().node().created().bound().ran().says(SAVED, by="cluster_sync")),
    "saved again at the same time": (
        "saved",
        lambda: (
            Story()
            .node()
            .created({"checkpoint": {"path": "/a", "size": "1Gi", "storageClass": None}})
            .bound()
            .ran()
            .says(SAVED, SAVED, by="cluster_sync")
        ),
    ),
    "a cluster that was not to choose from": (
        "cluster",
        lambda: Story().node().created(among=("c2", "c3")).bound(chosen="c1"),
    ),
    "a cluster chosen where one was named": ("cluster", lambda: Story().node().created().bound(chosen="c1")),
    "a cluster chosen, and nothing bound there": (
        "cluster",
        lambda: (
            Story()
            .node()
            .created(among=("c1",))
            .says(("WorkloadQueued", {}), ("ClusterChosen", {"cluster_id": "c1", "name": "lab"}), by="scheduler")
        ),
    ),
    "left before its time": ("cluster", lambda: _lost(seconds=61)),
    "left a cluster that was not lost then": ("cluster", lambda: _lost(lost_since="2026-03-02T09:00:00Z")),
    "left another cluster": ("cluster", lambda: _lost(cluster_id="c2", name="other")),
    "left with more pods than it had": ("cluster", lambda: _lost(pods=2)),
    "left for no other cluster": ("cluster", lambda: _lost(among=("c1",))),
    "left for a simulated cluster": ("cluster", lambda: _lost(among=("c1", "c3"), to=["c1", "c3"])),
    "left, and non-preemptible": ("cluster", lambda: _lost({"preemptibility": "non-preemptible"})),
    "left in the same attempt": ("token", lambda: _lost(attempt=1)),
    "left by somebody else": ("author", lambda: _lost(by="ann")),
    "back where its old pods may be": ("cluster", lambda: _lost().bound(pod(attempt=2), queued=True, chosen="c1")),
    "an old pod that was not left": ("fact", lambda: _old_ends(_old_ends(_lost()))),
    "deleted while old pods may live": (
        "deleted",
        lambda: _lost().says(DELETE, ("WorkloadDeleted", {"at": BEGIN.isoformat()}), by="ann"),
    ),
    "bound on no cluster": ("cluster", lambda: Story().node().created(among=("c1",)).bound()),
    "scaled beyond its bounds": ("scaled", lambda: _inference().says(("WorkloadScaled", _scaled(4)), by=AUTOSCALER)),
    "scaled from another number": (
        "scaled",
        lambda: _inference().says(("WorkloadScaled", _scaled(2) | {"was": 2}), by=AUTOSCALER),
    ),
    "scaled by somebody else": ("author", lambda: _inference().says(("WorkloadScaled", _scaled(2)), by="scheduler")),
    "scaled without replicas": (
        "scaled",
        lambda: (Story().node().created().says(("WorkloadQueued", {}), by="scheduler")).says(
            ("WorkloadScaled", _scaled(2)), by=AUTOSCALER
        ),
    ),
    "more replicas than are wanted": (
        "parallel",
        lambda: _inference().bound(REPLICA, REPLICA | {"index": 1}, queued=True),
    ),
    "the place of a replica that was removed": (
        "bound",
        lambda: (
            _inference()
            .bound(REPLICA, queued=True)
            .says(("WorkloadScaled", _scaled(0)), by=AUTOSCALER)
            .says(("PodStopped", {"pod": REPLICA, "at": "2026-01-01T00:00:00Z"}))
            .released()
            .says(("WorkloadScaled", _scaled(1) | {"was": 0}), by=AUTOSCALER)
            .bound(REPLICA, device=1, queued=True)
        ),
    ),
    "an inference that is not run again": (
        "failed",
        lambda: (
            _inference()
            .bound(REPLICA, queued=True)
            .says(("PodRunning", {"pod": REPLICA, "at": "2026-01-01T00:00:00Z"}))
            .says(("PodFailed", {"pod": REPLICA, "at": "2026-01-01T00:00:00Z", "exit_code": 1}))
        ),
    ),
    "bound as a later run than the next": ("bound", lambda: Story().node().created().bound(pod(try_=3))),
    "bound before its time": (
        "backoff",
        lambda: (
            (s := Story().node().created({"backoffLimit": 2}).bound().ran())
            .fact("PodFailed", exit_code=1, retry_at=s.text(60))
            .bound(pod(try_=1), device=1, queued=True)
        ),
    ),
    "bound while it should stop": ("desired", lambda: Story().node().created().says(SUSPEND, by="user").bound()),
    "a token that is no newer": (
        "token",
        lambda: (
            Story()
            .node()
            .created()
            .says(("PodsBound", {"placements": [], "token": 1}), by="scheduler")
            .says(("PodsBound", {"placements": [], "token": 1}), by="scheduler")
        ),
    ),
    "deleted while a pod lives": (
        "deleted",
        lambda: (s := Story().node().created().bound().ran()).says(
            DELETE, ("WorkloadDeleted", {"at": s.text()}), by="user"
        ),
    ),
    "something after it was deleted": (
        "deleted",
        lambda: (
            (s := Story().node().created())
            .says(DELETE, ("WorkloadDeleted", {"at": s.text()}), by="user")
            .says(("WorkloadQueued", {}), by="scheduler")
        ),
    ),
    "nothing lives, and it is not deleted": ("deleted", lambda: Story().node().created().says(DELETE, by="user")),
    "a name that two have": ("name", lambda: Story().node().created().created(id_="0190-workload-2")),
    "stopped while a pod lives": (
        "stopped",
        lambda: (s := Story().node().created().bound()).says(SUSPEND, ("WorkloadStopped", {"at": s.text()}), by="user"),
    ),
    "nothing lives, and it is not stopped": ("stopped", lambda: Story().node().created().says(SUSPEND, by="user")),
    "failed with tries left": (
        "failed",
        lambda: (s := Story().node().created({"backoffLimit": 2}).bound().ran()).says(
            s.told("PodFailed", exit_code=3, retry_at=s.text(5)), s.failed()
        ),
    ),
    "tried again beyond its limit": (
        "failed",
        lambda: (s := Story().node().created().bound().ran()).says(
            s.told("PodFailed", exit_code=3, retry_at=s.text(5))
        ),
    ),
    "failed for good, and goes on": (
        "failed",
        lambda: (s := Story().node().created().bound().ran()).says(s.told("PodFailed", exit_code=3)),
    ),
    "deleted by itself before it is due": (
        "due",
        lambda: (
            (s := Story().done())
            .later(60)
            .says(
                ("WorkloadDeletionRequested", {"reason": "auto_deletion"}),
                ("WorkloadDeleted", {"at": s.text()}),
                by="auto_deletion",
            )
        ),
    ),
    "due at another time than was asked for": (
        "due",
        lambda: (s := Story().node().created().bound().ran()).says(s.told("PodSucceeded"), s.completed(seconds=5)),
    ),
    "a person who speaks for a cluster": (
        "author",
        lambda: Story().node().created().bound().says(("PodStarting", {"pod": pod(), "at": ""}), by="user"),
    ),
    "a commit that says more of a person than an id": ("person", lambda: _telling_the_subject(Story())),
    "a service that suspends": ("author", lambda: Story().node().created().bound().says(SUSPEND, by="scheduler")),
    "queued twice": (
        "queue",
        lambda: (
            Story().created().says(("WorkloadQueued", {}), by="scheduler").says(("WorkloadQueued", {}), by="scheduler")
        ),
    ),
    "an event that nobody knows": ("unknown", lambda: Story().created().says(("PodWished", {}), by="user")),
    # Nodes.
    "a device that two have": (
        "devices",
        lambda: Story().node().created().bound().created(id_="w2", key="bbb").bound(id_="w2", key="bbb"),
    ),
    "more of a device than there is": (
        "devices",
        lambda: (
            Story()
            .node()
            .created(PART)
            .bound(milli=600)
            .created(PART, id_="w2", key="bbb")
            .bound(id_="w2", key="bbb", milli=600)
        ),
    ),
    "ours and others' devices exceed the node's": (
        "devices",
        lambda: (
            Story()
            .node()
            .created()
            .bound(device=7)
            .node_says(foreign_gpus=4)
            .created({"completions": 4, "parallelism": 4}, id_="w2", key="bbb")
            .bound(*(pod(n) for n in range(4)), id_="w2", key="bbb")
        ),
    ),
    "ours exceed what dead devices leave": (
        "devices",
        lambda: (
            Story()
            .node()
            .created()
            .bound(device=7)
            .node_says(gpu_count=2)
            .created({"completions": 2, "parallelism": 2}, id_="w2", key="bbb")
            .bound(pod(0), pod(1), id_="w2", key="bbb")
        ),
    ),
    "a device that is dead": (
        "devices",
        lambda: Story().node().created().node_says(gpu_count=2).bound(device=2),
    ),
    "more CPU than there is": (
        "room",
        lambda: (
            Story()
            .node(cpu_milli=1500)
            .created({"compute": {"cpuCoreRequest": 2}})
            .bound(milli=0, held={"cpu_milli": 2000})
        ),
    ),
    "more memory than others leave": (
        "room",
        lambda: (
            Story()
            .node(foreign_memory_bytes=2**36 - 2**29)
            .created({"compute": {"cpuMemoryRequest": "1Gi"}})
            .bound(milli=0, held={"memory_bytes": 2**30})
        ),
    ),
    "more pods than a node takes": (
        "room",
        lambda: Story().node(max_pods=1).created({"completions": 2, "parallelism": 2}).bound(pod(0), pod(1)),
    ),
    "a node that takes no pods": ("room", lambda: Story().node(unschedulable=True).created().bound()),
    "a node that is gone": (
        "room",
        lambda: (
            (s := Story().node()).commit(f"ev.node.{NODE}", ("NodeRemoved", {}), by="cluster_sync")
            and s.created().bound()
        ),
    ),
    "less than was asked for": ("asked", lambda: Story().node().created().bound(milli=500)),
    "less CPU than was asked for": (
        "asked",
        lambda: Story().node().created({"compute": {"cpuCoreRequest": 2}}).bound(milli=0, held={"cpu_milli": 1}),
    ),
    "less GPU memory than was asked for": (
        "asked",
        lambda: (
            Story()
            .node()
            .created({"compute": {"gpuRequestType": "memory", "gpuMemoryRequest": "32Gi"}})
            .bound(milli=499)
        ),
    ),
    "released while its pod lives": ("released", lambda: Story().node().created().bound().released()),
    "released twice": ("released", lambda: Story().done().released()),
    "reserved twice under one id": (
        "reserved",
        lambda: (
            (s := Story().node().created({"backoffLimit": 2}).bound().ran())
            .fact("PodFailed", exit_code=1, retry_at=s.text(1))
            .released()
            .later(5)
            .bound(pod(), queued=True)
        ),
    ),
    "in another cluster": (
        "step",
        lambda: (
            (s := Story()).commit(
                f"ev.node.{NODE}",
                ("NodeRegistered", {"cluster_id": "c2", "name": "n", "facts": {"cpu_milli": 1, "gpu_count": 1}}),
                by="cluster_sync",
            )
            and s.created().bound()
        ),
    ),
    "bound and not reserved": (
        "step",
        lambda: (
            Story()
            .node()
            .created()
            .says(
                (
                    "PodsBound",
                    {"placements": [{"pod": pod(), "node_key": NODE, "node_name": NODE, "pool": ""}], "token": 2},
                ),
                by="scheduler",
            )
        ),
    ),
}


@pytest.mark.parametrize("seeded", SEEDED)
def test_what_is_seeded_is_found(seeded: str) -> None:
    expected, story = SEEDED[seeded]
    assert expected in story().wrong()


def tampered(index: int, **fields: object) -> list[RawMessage]:
    """A good log with one message changed."""
    messages = Story().done().messages
    record = json.loads(messages[index].payload) | fields
    messages[index] = RawMessage(messages[index].seq, messages[index].subject, json.dumps(record).encode())
    return messages


@pytest.mark.parametrize(
    ("expected", "messages"),
    [
        pytest.param("gap", Story().done().messages[1:], id="the first message is gone"),
        pytest.param("gap", [m for m in Story().done().messages if m.seq != 5], id="one in the middle is gone"),
        pytest.param("chain", tampered(4, parent_seq=1), id="a parent that is not the last"),
        pytest.param("chain", tampered(1, parent_seq=1), id="a parent on a new chain"),
        pytest.param("once", tampered(5, command_id="command-5"), id="a command that is carried out twice"),
        pytest.param("batch", tampered(2, batch={"id": "b", "index": 2, "count": 2}), id="a batch without its begin"),
        pytest.param("batch", tampered(3, batch=None), id="a batch that is cut"),
        pytest.param("batch", Story().done().messages[:3], id="a log that ends inside a batch"),
        pytest.param("form", [RawMessage(1, "ev.workload.x", b"\xff{")], id="no commit"),
    ],
)
def test_a_log_that_is_not_whole_is_found(expected: str, messages: list[RawMessage]) -> None:
    found = check(messages)
    assert any(f": {expected}: " in text for text in found.violations), found.violations


def test_what_cannot_be_read_is_passed_once_somebody_has_voided_it() -> None:
    story = Story().created()
    story.messages.append(RawMessage(2, f"ev.workload.{KEY}", b"\xff{"))
    story.last[f"ev.workload.{KEY}"] = 2
    assert story.wrong() == {"form"}
    story.commit("ev.void.2", ("MessageVoided", {"seq": 2}))
    story.says(("WorkloadQueued", {}), by="scheduler")
    assert story.wrong() == set()
    story.commit("ev.void.1", ("MessageVoided", {"seq": 1}))
    assert story.wrong() == {"void"}


@pytest.mark.parametrize(
    ("incarnation", "back", "expected"),
    [(1, 0, set[str]()), (2, 0, {"restore"}), (0, 0, {"restore"}), (1, 1, {"restore"})],
)
def test_a_restore_follows_the_one_before_and_what_the_backup_had(
    incarnation: int, back: int, expected: set[str]
) -> None:
    story = Story().node().created()
    fields = {"incarnation": incarnation, "seq": len(story.messages) - back, "chain": "", "backed_up_at": story.text()}
    story.commit("ev.log.log", ("LogRestored", fields), by="restore")
    assert story.wrong() == expected


def test_a_run_that_is_bound_after_a_restore_has_a_token_above_all_before() -> None:
    story = Story().node().created()
    fields = {"incarnation": 1, "seq": len(story.messages), "chain": "", "backed_up_at": story.text()}
    story.commit("ev.log.log", ("LogRestored", fields), by="restore")
    assert story.bound().wrong() == {"token"}


def test_what_was_acknowledged_and_is_not_there_is_found() -> None:
    good = Story().done().messages
    assert check(good, {f"name-of-{KEY}": ID}).violations == []
    assert check(good, {f"name-of-{KEY}": "another"}).violations
    assert check(good, {"another": ID}).violations


def test_a_node_that_shrinks_keeps_what_it_gave_and_takes_what_it_has_room_for() -> None:
    """A dead device or a foreign pod is a fact; only what is reserved after it must fit."""
    story = Story().node(gpu_count=4).created().bound(device=3).node_says(gpu_count=2, foreign_gpus=2)
    assert story.wrong() == set()
    story.node_says(gpu_count=3, foreign_gpus=1).created(id_="w2", key="bbb").bound(id_="w2", key="bbb", device=0)
    assert story.wrong() == set()


def test_the_same_events_without_stand_ins_say_who_spoke() -> None:
    story = Story().node().created().bound()
    story.says(story.told("PodSucceeded"), story.completed(), by="user")
    assert story.wrong() == {"author", "ran"}
    assert story.check(stand_ins=True).report.violations == []


def test_phases_are_remembered_by_version() -> None:
    checker = Story().done().check()
    workload = checker.workloads[ID]
    assert [each.phase for each in workload.moments] == [
        "Creating",
        "Initializing",
        "Initializing",
        "Running",
        "Completed",
    ]
    assert workload.moments[0].at == BEGIN
    assert workload.moments[-1].at - BEGIN == timedelta(seconds=2)


@pytest.mark.parametrize(
    ("text", "value"), [("1Ki", 1024), ("1.5Gi", 1.5 * 2**30), ("2M", 2_000_000), ("2e3", 2000), ("512", 512)]
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, value: float) -> None:
    assert quantity(text) == value


def test_shares_by_memory_are_rounded_up() -> None:
    wants = asked({"compute": {"gpuRequestType": "memory", "gpuMemoryRequest": "1Gi"}})
    assert wants.shares(3 * 2**30) == [334]
    assert wants.shares(0) == []
