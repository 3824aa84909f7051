"""Random commands to a small world, by the real deciders."""

import random
from typing import get_args

from events.cluster import NodePool, RemoveNodePool, ReportCluster, SetNodePool, SetOwnershipProtection
from events.ids import cluster_key, node_key, project_key, workload_key
from events.node import NodeFacts, ReportNode, ReportNodeGone, Reservation, ReserveOnNode, reservation_id
from events.project import ChangeProject, GrantProjectRole, RevokeProjectRole
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    PlacePods,
    PodFact,
    PodFactKind,
    PodWarning,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
    TransferWorkload,
)
from events.workload.places import bindable
from events.workload.pod import DeviceShare, Placement, PodRef
from events.workload.spec import ComputeSpec, TrainingSpec
from events.workload.state import Workload
from tests.support.lives import CLUSTER_SYNC, SCHEDULER, World

KINDS = get_args(PodFactKind)
NAMES = ("a", "b")
NODES = ("n1", "n2")


class Happenings:
    """Random commands to a small world."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.cluster_id = self.world.cluster()
        self.project_id = self.world.project()
        for name in NODES:
            self.world.node(self.cluster_id, name)

    def step(self) -> None:
        self.world.later(self.random.choice((0, 0.1, 3, 400)))
        choices = [self.workload] * 10 + [self.node, self.cluster, self.project]
        self.random.choice(choices)()

    def workload(self) -> None:
        key = workload_key(self.project_id, self.random.choice(NAMES))
        state: Workload = self.world.state("workload", key)
        if not state.exists or (not state.living and self.random.random() < 0.8):
            self.create(key)
            return
        id_ = state.workload_id
        what = self.random.choice(
            ("place",) * 5 + ("report",) * 9 + ("suspend", "resume", "delete", "due", "change", "transfer")
        )
        match what:
            case "place":
                self.place(key, state)
            case "report":
                self.report(key, state)
            case "suspend":
                self.world.do("workload", key, SuspendWorkload(workload_id=id_))
            case "resume":
                self.world.do("workload", key, ResumeWorkload(workload_id=id_))
            case "transfer":
                owner = self.random.choice(("alice", "bob"))
                self.world.do("workload", key, TransferWorkload(workload_id=id_, subject=owner, actor=owner))
            case "delete":
                self.world.do("workload", key, DeleteWorkload(workload_id=id_))
            case "due":
                self.world.do("workload", key, DeleteWorkload(workload_id=id_, generation=state.generation))
            case _:
                seconds = self.random.choice((None, 0, 100))
                priority = self.random.choice((None, "high", "low"))
                self.world.do(
                    "workload",
                    key,
                    ChangeWorkload(
                        workload_id=id_,
                        priority_class=priority,
                        auto_deletion_time_after_completion_seconds=seconds,
                    ),
                )

    def create(self, key: str) -> None:
        name = next(name for name in NAMES if workload_key(self.project_id, name) == key)
        spec = TrainingSpec(
            image=self.random.choice(("", "image\x00with nul")),
            completions=self.random.choice((1, 3)),
            parallelism=self.random.choice((1, 2)),
            backoff_limit=self.random.choice((0, 1, 3)),
            preemptibility=self.random.choice((None, "non-preemptible")),
            auto_deletion_time_after_completion_seconds=self.random.choice((30 * 24 * 3600, 0, 60)),
            compute=ComputeSpec(gpu_devices_request=1, cpu_core_request=0.5, cpu_memory_request="1Gi"),
        )
        command = CreateWorkload(
            kind="Training",
            name=name,
            requested_name=name,
            project_id=self.project_id,
            cluster_id=self.cluster_id,
            spec=spec,
        )
        self.world.do("workload", key, command)

    def place(self, key: str, state: Workload) -> None:
        """Bind some pods in one batch with their node, or tell why they wait."""
        pods = bindable(state, self.world.now)[: self.random.randint(0, 2)]
        name = self.random.choice(NODES)
        node = node_key(self.cluster_id, name)
        shares = (DeviceShare(device=self.random.randrange(8), milli=self.random.choice((250, 1000))),)
        placements = tuple(
            Placement(pod=pod, node_key=node, node_name=name, pool="default", devices=shares) for pod in pods
        )
        reserved = tuple(
            Reservation(
                id=reservation_id(state.workload_id, pod.pod_set, pod.index, pod.attempt, pod.try_),
                workload_id=state.workload_id,
                workload_key=key,
                cpu_milli=500,
                memory_bytes=2**30,
                devices=shares,
            )
            for pod in pods
        )
        waits = self.random.random() < 0.3
        place = PlacePods(
            workload_id=state.workload_id,
            placements=placements,
            waiting_reason="insufficient_gpu" if waits else "",
            waiting_message=f"needs {self.random.randint(1, 3)} GPUs" if waits else "",
        )
        held = list(self.world.state("node", node).reservations)
        release = tuple(id_ for id_ in held if self.random.random() < 0.3)
        bound = self.world.decide("workload", key, place, SCHEDULER)
        kept = self.world.decide("node", node, ReserveOnNode(release=release, reserve=reserved), SCHEDULER)
        if (placements and type(bound) is type(kept)) or not placements:
            self.world.append([bound, kept])

    def report(self, key: str, state: Workload) -> None:
        facts: list[PodFact] = []
        for (pod_set, index), pod in state.pods.items():
            ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
            warning = PodWarning(reason=self.random.choice("xy"), message="low\x00disk", at=self.world.now)
            facts.append(
                PodFact(
                    pod=ref,
                    kind=self.random.choice(KINDS),
                    at=self.world.now,
                    exit_code=self.random.choice((None, 1)),
                    message=self.random.choice(("", "out\x00of luck")),
                    warnings=self.random.choice(((), (warning,))),
                )
            )
        self.world.do("workload", key, ReportPods(workload_id=state.workload_id, facts=tuple(facts)), CLUSTER_SYNC)

    def node(self) -> None:
        name = self.random.choice(NODES)
        key = node_key(self.cluster_id, name)
        facts = NodeFacts(
            cpu_milli=self.random.choice((1000, 64_000)),
            memory_bytes=2**40,
            gpu_count=8,
            labels={"zone": self.random.choice("ab"), "a": "b"},
        )
        report = ReportNode(cluster_id=self.cluster_id, name=name, facts=facts)
        self.world.do("node", key, self.random.choice((report, report, ReportNodeGone())), CLUSTER_SYNC)

    def cluster(self) -> None:
        pool = NodePool(name=self.random.choice("xy"), label_key="zone", label_value="a")
        there = self.world.chain("cluster", cluster_key("local")).state.node_pools
        command = self.random.choice(
            (
                SetNodePool(cluster_id=self.cluster_id, pool=pool),
                *(RemoveNodePool(cluster_id=self.cluster_id, name=name) for name in there),
                SetOwnershipProtection(cluster_id=self.cluster_id, enabled=self.random.random() < 0.5),
                ReportCluster(cluster_id=self.cluster_id, connected=True, ownership_protection=True),
                ReportCluster(cluster_id=self.cluster_id, connected=self.random.random() < 0.5, silent_seconds=9),
                ReportCluster(cluster_id=self.cluster_id, connected=False, problem="no\x00answer"),
            )
        )
        self.world.do("cluster", cluster_key("local"), command)

    def project(self) -> None:
        who = self.random.choice(("bob", "carol"))
        command = self.random.choice(
            (
                ChangeProject(project_id=self.project_id, gpu_quota_milli=self.random.choice((None, 1, 2**70))),
                GrantProjectRole(project_id=self.project_id, subject=who, actor=who, role="viewer"),
                RevokeProjectRole(project_id=self.project_id, subject=who, actor=who, role="viewer"),
            )
        )
        self.world.do("project", project_key("default"), command)
