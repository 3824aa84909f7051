"""Sentences of the history, as a researcher reads them."""

import pytest
from msgspec.structs import replace

from events.commit import service_actor
from events.ids import workload_key
from events.phases import ENDS_AT_ONCE
from events.workload.commands import CreateWorkload, PodFact, PodWarning, ReportPods, ScaleInference
from events.workload.fields.distribution import Distribution
from events.workload.fields.inference import Autoscaling, Serving, ServingPort
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, Distributed, Inference, TrainingSpec
from tests.support.lives import FIRST, World
from tests.support.tables import Tables


@pytest.mark.parametrize(
    ("exit_code", "reason", "message", "said"),
    [
        (3, "exit_code", "", "ended with exit code 3 after 2 s;"),
        (
            127,
            "command_not_found",
            "command not found: 'x'",
            "ended with exit code 127 after 2 s: command not found: 'x';",
        ),
        (None, "working_dir", "cannot enter '/x'", "failed after 2 s: cannot enter '/x';"),
        (None, "bad_annotation", "", "failed (bad annotation) after 2 s;"),
    ],
)
def test_a_failed_run_says_once_what_it_failed_of(exit_code: int | None, reason: str, message: str, said: str) -> None:
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    node = world.node(cluster_id, "n1")
    key = world.training("train", project_id, cluster_id, TrainingSpec(image="x", backoff_limit=0))
    world.place([(key, FIRST, node, 0)])
    world.report(key, FIRST, "running")
    world.later(2)
    failed = PodFact(pod=FIRST, kind="failed", at=world.now, exit_code=exit_code, reason=reason, message=message)
    report = ReportPods(workload_id=world.state("workload", key).workload_id, facts=(failed,))
    world.do("workload", key, report, service_actor("cluster_sync"))
    tables = Tables()
    tables.project(world.commits)
    told = [row.message for row in tables.rows["history"].values() if row.type == "PodFailed"]
    assert told == [f"run 1 of pod main-0 {said} no retry is left (failed runs 1, backoff limit 0)"]


@pytest.mark.parametrize("reason", sorted(ENDS_AT_ONCE))
def test_a_run_that_would_fail_the_same_way_again_does_not_speak_of_a_limit(reason: str) -> None:
    """With six retries allowed, "no retry is left" would contradict itself."""
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    node = world.node(cluster_id, "n1")
    key = world.training("train", project_id, cluster_id, TrainingSpec(image="x"))
    world.place([(key, FIRST, node, 0)])
    failed = PodFact(pod=FIRST, kind="failed", at=world.now, reason=reason, message="so it is")
    report = ReportPods(workload_id=world.state("workload", key).workload_id, facts=(failed,))
    world.do("workload", key, report, service_actor("cluster_sync"))
    tables = Tables()
    tables.project(world.commits)
    (told,) = [row.message for row in tables.rows["history"].values() if row.type == "PodFailed"]
    assert told.endswith("so it is; it is not tried again: it would fail the same way")
    assert "retry" not in told


def test_warnings_and_what_is_out_of_sight_are_told_with_their_node() -> None:
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    node = world.node(cluster_id, "n1")
    key = world.training("train", project_id, cluster_id, TrainingSpec(image="x"))
    world.place([(key, FIRST, node, 0)])
    pull = PodWarning(reason="image_pull", message="image cannot be pulled: not found", at=world.now)
    lost = "node n1 has not answered for 1 h"
    for fact in (
        PodFact(pod=FIRST, kind="starting", at=world.now, warnings=(pull,)),
        PodFact(pod=FIRST, kind="unreachable", at=world.now, reason="node_unreachable", message=lost),
        PodFact(pod=FIRST, kind="running", at=world.now),
    ):
        report = ReportPods(workload_id=world.state("workload", key).workload_id, facts=(fact,))
        world.do("workload", key, report, service_actor("cluster_sync"))
    tables = Tables()
    tables.project(world.commits)
    told = {row.type: (row.phase, row.message) for row in tables.rows["history"].values()}
    assert told["PodWarned"] == ("Initializing", "pod main-0 on node n1: image cannot be pulled: not found")
    assert told["PodUnreachable"] == (
        "Unknown",
        f"run 1 of pod main-0 on node n1 is out of sight: {lost}; what it holds stays reserved until it is known",
    )
    assert told["PodRunning"] == ("Running", "run 1 of pod main-0 is in sight again, running on node n1")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("shutdown", "it runs again at once and spends no retry"),
        ("cluster_removed", "it runs nowhere again: delete the workload and submit it to another cluster"),
    ],
)
def test_an_interrupted_run_says_what_becomes_of_it(reason: str, said: str) -> None:
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    key = world.training("train", project_id, cluster_id, TrainingSpec(image="x"))
    world.place([(key, FIRST, world.node(cluster_id, "n1"), 0)])
    world.report(key, FIRST, "running")
    gone = PodFact(pod=FIRST, kind="interrupted", at=world.now, reason=reason)
    report = ReportPods(workload_id=world.state("workload", key).workload_id, facts=(gone,))
    world.do("workload", key, report, service_actor("cluster_sync"))
    tables = Tables()
    tables.project(world.commits)
    (told,) = [row.message for row in tables.rows["history"].values() if row.type == "PodInterrupted"]
    assert told == f"run 1 of pod main-0 was interrupted on node n1 ({reason.replace('_', ' ')}); {said}"


def test_a_distributed_training_is_told_by_its_master_and_its_workers() -> None:
    world = World()
    spec = TrainingSpec(image="x", compute=ComputeSpec(gpu_devices_request=1))
    master = replace(spec, compute=ComputeSpec())
    project_id = world.project()
    key = workload_key(project_id, "bert")
    distribution = Distribution(distributed_framework="PyTorch", num_workers=3)
    command = CreateWorkload(
        kind="Distributed",
        name="bert",
        requested_name="bert",
        project_id=project_id,
        cluster_id=world.cluster(),
        spec=spec,
        distributed=Distributed(distribution=distribution, master=master),
    )
    assert world.do("workload", key, command) is None
    tables = Tables()
    tables.project(world.commits)
    (told,) = [row.message for row in tables.rows["history"].values() if row.type == "WorkloadCreated"]
    assert told == (
        "submitted by alice: distributed training 'bert', 1 master with no resource requests; 3 workers, each with "
        "1 GPU; priority low, preemptible"
    )


def test_a_change_of_replicas_says_by_which_load_and_a_replica_that_ended_when_it_runs_again() -> None:
    world = World()
    project_id, cluster_id = world.project(), world.cluster()
    node, key = world.node(cluster_id, "n1"), workload_key(project_id, "chat")
    serving = Serving(serving_port=ServingPort(container=8000), autoscaling=Autoscaling(max_replicas=4))
    command = CreateWorkload(
        kind="Inference",
        name="chat",
        requested_name="chat",
        project_id=project_id,
        cluster_id=cluster_id,
        spec=TrainingSpec(image="x"),
        inference=Inference(serving=serving, replicas=1),
    )
    assert world.do("workload", key, command) is None
    replica = PodRef(pod_set="replica", index=0, attempt=1, try_=0)
    world.place([(key, replica, node, 0)])
    world.report(key, replica, "running")
    world.later(2)
    world.report(key, replica, "succeeded")
    told = "load 340 requests/s over 1 replica, target 100"
    id_ = world.state("workload", key).workload_id
    scale = ScaleInference(workload_id=id_, replicas=4, was=1, reason="load", message=told)
    assert world.do("workload", key, scale, service_actor("autoscaler")) is None
    tables = Tables()
    tables.project(world.commits)
    history = {row.type: row.message for row in tables.rows["history"].values()}
    assert history["WorkloadScaled"] == f"scaled: {told}: 4 replicas (was 1)"
    assert history["WorkloadCreated"].startswith("submitted by alice: inference 'chat', 1 replica with ")
    assert history["PodFailed"] == (
        "run 1 of pod replica-0 ended with exit code 0 after 2 s: a replica is to run until it is told to end; "
        "next run in 1 s"
    )
    (row,) = tables.rows["workloads"].values()
    assert (row.requested_pods, row.type) == (4, "Inference")
