"""Two logs in which every public event happens at least once."""

from typing import Any

from events.budgets import NoteBudgetUse, SetBudget, period_of
from events.cluster import RemoveCluster, ReportCluster
from events.commit import About, service_actor
from events.ids import cluster_key, node_key, project_key, workload_key
from events.node import CordonNode, NodeFacts, ReportNode, ReportNodeGone, UncordonNode
from events.project import ChangeProject, DeleteProject
from events.void import Unreadable, VoidMessage
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    EndAtLimit,
    PlacePods,
    PodFact,
    ReportPods,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
    TransferWorkload,
)
from events.workload.fields.inference import Autoscaling, Serving, ServingPort
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, Inference, TrainingSpec
from tests.support.lives import CLUSTER_SYNC, FIRST, SCHEDULER, World

FACTS = NodeFacts(cpu_milli=128_000, memory_bytes=2**40, gpu_count=8, gpu_memory_bytes=80 * 2**30, max_pods=1000)


def run(attempt: int, try_: int) -> PodRef:
    return PodRef(pod_set="main", index=0, attempt=attempt, try_=try_)


class Story:
    """Two projects on one cluster, and all that can happen there."""

    def __init__(self) -> None:
        world = self.world = World()
        self.cluster_id, self.project_id = world.cluster(), world.project()
        self.other = world.project("other")
        self.node = world.node(self.cluster_id, "node-1")
        world.do("cluster", cluster_key("local"), ReportCluster(cluster_id=self.cluster_id, connected=True))

    def do(self, key: str, command: Any, **fields: Any) -> None:
        """Some command on a workload."""
        self.world.later(1)
        workload_id = self.world.state("workload", key).workload_id
        actor = SCHEDULER if command is PlacePods else None
        refused = self.world.do("workload", key, command(workload_id=workload_id, **fields), *filter(None, (actor,)))
        assert refused is None, refused

    def fact(self, key: str, pod: PodRef, kind: Any, **fields: Any) -> None:
        self.world.later(1)
        workload_id = self.world.state("workload", key).workload_id
        fact = PodFact(pod=pod, kind=kind, at=self.world.now, **fields)
        refused = self.world.do("workload", key, ReportPods(workload_id=workload_id, facts=(fact,)), CLUSTER_SYNC)
        assert refused is None, refused

    def on_cluster(self, name: str, command: Any) -> None:
        self.world.later(1)
        assert self.world.do("cluster", cluster_key(name), command, CLUSTER_SYNC) is None

    def on_node(self, command: Any) -> None:
        self.world.later(1)
        assert self.world.do("node", node_key(self.cluster_id, "node-1"), command, CLUSTER_SYNC) is None


def every_event() -> World:
    story = Story()
    _a_long_life(story)
    _a_failure(story)
    _places(story)
    world = story.world
    world.later(1)
    world.do(
        "project", project_key("other"), ChangeProject(project_id=story.other, gpu_quota_milli=4000, node_pools=("a",))
    )
    world.do("project", project_key("other"), DeleteProject(project_id=story.other))
    found = Unreadable(subject="ev.workload.abc", cause="no JSON", about=About(id="w-1", project_id=story.project_id))
    world.do("void", "7", VoidMessage(seq=7, reason="written by a test", found=found))
    _a_budget(story)
    _another_owner(story)
    return world


def _another_owner(story: Story) -> None:
    story.do(workload_key(story.project_id, "beta"), TransferWorkload, subject="bob", actor="bob")


def an_inference() -> World:
    """Another log: the load of an inference asks for more replicas."""
    story = Story()
    world, cluster_id, project_id = story.world, story.cluster_id, story.project_id
    serving = Serving(serving_port=ServingPort(container=8000), autoscaling=Autoscaling(max_replicas=4))
    command = CreateWorkload(
        kind="Inference",
        name="chat",
        requested_name="chat",
        project_id=project_id,
        cluster_id=cluster_id,
        spec=TrainingSpec(image="vllm"),
        inference=Inference(serving=serving, replicas=1),
    )
    key = workload_key(project_id, "chat")
    assert world.do("workload", key, command) is None
    story.do(key, PlacePods, waiting_reason="no_nodes", waiting_message="the cluster has no nodes")
    told = "load 340 requests/s over 1 replica, target 100"
    story.do(key, ScaleInference, replicas=4, was=1, reason="load", message=told)
    ended = world.training("zeta", project_id, cluster_id)
    world.place([(ended, FIRST, story.node, 0)])
    story.fact(ended, FIRST, "running")
    story.do(ended, EndAtLimit, limit="runtime", seconds=60, attempt=1)
    return world


def a_lame_one() -> World:
    """Another log: of two pods one fails, and the other runs on."""
    story = Story()
    world = story.world
    key = world.training(
        "lame", story.project_id, story.cluster_id, TrainingSpec(image="i", completions=2, parallelism=2)
    )
    second = PodRef(pod_set="main", index=1, attempt=1, try_=0)
    world.place([(key, FIRST, story.node, 0), (key, second, story.node, 1)])
    story.fact(key, FIRST, "running")
    story.fact(key, second, "running")
    story.fact(key, second, "failed", exit_code=1, reason="exit_code")
    return world


def _a_budget(story: Story) -> None:
    world, key = story.world, project_key("default")
    period = period_of(world.now)
    world.later(1)
    budget = SetBudget(project_id=story.project_id, micros=5_000_000_000, currency="EUR", warn_percent=90)
    assert world.do("project", key, budget) is None
    for used in (4_500_000_000, 5_012_500_000, 100):
        world.later(1)
        note = NoteBudgetUse(project_id=story.project_id, period=period, until=world.now, in_money=True, used=used)
        assert world.do("project", key, note, service_actor("auto_deletion")) is None


def _a_long_life(story: Story) -> None:
    """Waits, runs, is out of sight, loses its node, is suspended, resumed, changed, completes and is deleted."""
    spec = TrainingSpec(image="pytorch:2", compute=ComputeSpec(gpu_devices_request=1, cpu_core_request=2))
    key = story.world.training("alpha", story.project_id, story.cluster_id, spec)
    story.do(key, PlacePods, waiting_reason="insufficient_gpu", waiting_message="needs 1 GPU, and 0 are free")
    story.world.place([(key, FIRST, story.node, 0)])
    story.fact(key, FIRST, "starting")
    story.fact(key, FIRST, "running")
    story.fact(key, FIRST, "unreachable", reason="node_unreachable", message="node-1 does not answer")
    story.fact(key, FIRST, "interrupted", reason="node_lost", message="node-1 is gone")
    story.world.later(60)
    story.world.place([(key, run(1, 1), story.node, 1)])
    story.fact(key, run(1, 1), "running")
    story.do(key, SuspendWorkload)
    story.fact(key, run(1, 1), "stopped", exit_code=143)
    story.do(key, ResumeWorkload)
    story.do(key, ChangeWorkload, priority_class="high")
    story.world.place([(key, run(2, 0), story.node, 2)])
    story.fact(key, run(2, 0), "running")
    story.fact(key, run(2, 0), "succeeded", exit_code=0)
    story.do(key, DeleteWorkload)


def _a_failure(story: Story) -> None:
    """Fails for good, and another is deleted while it runs."""
    spec = TrainingSpec(image="pytorch:2", backoff_limit=0)
    key = story.world.training("beta", story.project_id, story.cluster_id, spec)
    story.world.place([(key, FIRST, story.node, 3)])
    story.fact(key, FIRST, "running")
    story.fact(key, FIRST, "failed", exit_code=1, reason="exit_code")
    key = story.world.training("gamma", story.other, story.cluster_id)
    story.world.place([(key, FIRST, story.node, 4)])
    story.do(key, DeleteWorkload)


def _places(story: Story) -> None:
    """What becomes of node and cluster, with both projects on them."""
    world = story.world
    key = world.training("delta", story.project_id, story.cluster_id)
    world.place([(key, FIRST, story.node, 5)])
    world.training("epsilon", story.other, story.cluster_id)
    story.on_node(CordonNode(cluster_id=story.cluster_id, name="node-1"))
    story.on_node(UncordonNode(cluster_id=story.cluster_id, name="node-1"))
    for ready in (False, True):
        facts = NodeFacts(cpu_milli=128_000, memory_bytes=2**40, gpu_count=8, ready=ready)
        story.on_node(ReportNode(cluster_id=story.cluster_id, name="node-1", facts=facts))
    story.on_node(ReportNodeGone())
    story.on_cluster("local", ReportCluster(cluster_id=story.cluster_id, connected=False, silent_seconds=30))
    story.on_cluster("local", ReportCluster(cluster_id=story.cluster_id, connected=True))
    story.on_cluster("local", RemoveCluster(cluster_id=story.cluster_id))
