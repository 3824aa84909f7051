"""Random lives of several workloads on several nodes, as the real deciders take them: a log of raw messages."""

import random
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from development.checker.records import RawMessage
from events.cluster import ReportCluster
from events.codec import encode_commit
from events.commit import Actor, service_actor
from events.ids import cluster_key, node_key, workload_key
from events.node import Node, NodeFacts, ReportNode, ReportNodeGone, Reservation, ReserveOnNode, reservation_id
from events.phases import FINISHED
from events.refusal import Refusal
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    EvictPods,
    LeaveCluster,
    PlacePods,
    PodFact,
    ReportPods,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
)
from events.workload.fields.inference import Autoscaling, Serving, ServingPort
from events.workload.life import UndoableAct, WorkloadCreated, WorkloadResumed, WorkloadSuspended
from events.workload.places import bindable
from events.workload.pod import LIVE_POD_PHASES, DeviceShare, Placement, PodRef
from events.workload.spec import ComputeSpec, Inference, TrainingSpec, pod_request
from events.workload.state import Workload
from tests.support.lives import ALICE, CLUSTER_SYNC, SCHEDULER, World

NAMES: Final = ("alpha", "beta", "gamma", "delta")
NODES: Final = ("n0", "n1", "n2")
OTHER_NODE: Final = "o0"
"""Of another cluster."""
MODELS: Final = {"n0": "H100", "n1": "H100", "n2": "A100", OTHER_NODE: "A100"}
SPECS: Final = (
    ComputeSpec(gpu_devices_request=1, cpu_core_request=1.5),
    ComputeSpec(gpu_devices_request=2),
    ComputeSpec(gpu_request_type="portion", gpu_portion_request=0.3),
    ComputeSpec(gpu_request_type="memory", gpu_memory_request="10Gi"),
    ComputeSpec(cpu_core_request=0.25, cpu_memory_request="1.5Gi"),
    ComputeSpec(),
)
DEVICE_BYTES: Final = 40 * 2**30


class Lives:
    """A world in which one random thing after the other happens; what deciders refuse does not happen."""

    def __init__(self, chance: random.Random, world: World | None = None) -> None:
        self.chance = chance
        self.world = world or World()
        self.cluster_id, self.project_id = self.world.cluster(), self.world.project()
        self.other_id = self.world.cluster("other")
        self.keys: list[str] = []
        for name in NODES:
            self._report_node(name)
        self._report_node(OTHER_NODE, cluster_id=self.other_id)

    def step(self) -> None:
        acts: tuple[tuple[Callable[[], None], int], ...] = (
            (self._create, 3),
            (self._place, 8),
            (self._fact, 14),
            (self._person, 3),
            (self._release, 4),
            (self._node, 2),
            (self._due, 1),
            (self._scale, 4),
            (self._evict, 2),
            (self._lose_cluster, 3),
        )
        self.world.later(self.chance.choice((0.1, 1, 4, 70)))
        self.chance.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    def nodes(self) -> list[Node]:
        of_both = [*((self.cluster_id, name) for name in NODES), (self.other_id, OTHER_NODE)]
        return [self.world.state("node", node_key(cluster_id, name)) for cluster_id, name in of_both]

    def _do(self, aggregate: str, key: str, command: Any, actor: Actor = ALICE) -> None:
        self.world.do(aggregate, key, command, actor)

    def _some(self) -> tuple[str, Workload] | None:
        if not self.keys:
            return None
        key = self.chance.choice(self.keys)
        return key, self.world.state("workload", key)

    def _create(self) -> None:
        completions = self.chance.randint(1, 3)
        spec = TrainingSpec(
            image="i",
            compute=self.chance.choice(SPECS),
            completions=completions,
            parallelism=self.chance.randint(1, completions),
            backoff_limit=self.chance.randint(0, 2),
            auto_deletion_time_after_completion_seconds=self.chance.choice((0, 60, 3600)),
        )
        name = self.chance.choice(NAMES)
        command = CreateWorkload(
            kind="Training",
            name=name,
            requested_name=name,
            project_id=self.project_id,
            # For one of the names nobody names a cluster.
            cluster_id="" if name == NAMES[-1] else self.cluster_id,
            among=(self.cluster_id, self.other_id) if name == NAMES[-1] else (),
            spec=spec,
        )
        if self.chance.random() < 0.3:
            scaling = Autoscaling(max_replicas=3, scale_to_zero_retention_seconds=60)
            serving = Serving(serving_port=ServingPort(container=8000), autoscaling=scaling)
            command = replace(command, kind="Inference", inference=Inference(serving=serving, replicas=1))
        key = workload_key(self.project_id, name)
        self._do("workload", key, command)
        self.keys = sorted({*self.keys, key})

    def _place(self) -> None:
        """As the scheduler would: the workload's and the node's commit in one batch, or nothing."""
        some = self._some()
        if some is None:
            return
        key, state = some
        cluster_id, node_name = self._where(state)
        at = node_key(cluster_id, node_name)
        pods = bindable(state, self.world.now)[: self.chance.randint(0, 2)]
        placements = tuple(
            Placement(
                pod=pod,
                node_key=at,
                node_name=node_name,
                pool=self.world.state("node", at).facts.pool,
                devices=(devices := self._devices(state, at)),
                gpu_model=MODELS[node_name] if devices else "",
            )
            for pod in pods
        )
        waiting = self.chance.choice(("", "insufficient_gpu"))
        command = PlacePods(
            workload_id=state.workload_id,
            placements=placements,
            cluster_id=cluster_id,
            waiting_reason=waiting,
            waiting_message=waiting,
        )
        drafts = [self.world.decide("workload", key, command, SCHEDULER)]
        if placements:
            reserve = tuple(self._reservation(key, state, placement) for placement in placements)
            drafts.append(self.world.decide("node", at, ReserveOnNode(reserve=reserve), SCHEDULER))
        if not any(draft is None or isinstance(draft, Refusal) for draft in drafts):
            self.world.append(drafts)

    def _where(self, state: Workload) -> tuple[str, str]:
        """Cluster and name of a node for pods of a workload."""
        other = state.cluster_id == self.other_id or (not state.cluster_id and self.chance.random() < 0.5)
        return (self.other_id, OTHER_NODE) if other else (self.cluster_id, self.chance.choice(NODES))

    def _devices(self, state: Workload, at: str) -> tuple[DeviceShare, ...]:
        wants = pod_request(state.spec.compute)
        milli = wants.gpu_milli or -(-1000 * wants.gpu_memory_bytes // DEVICE_BYTES)
        count = self.world.state("node", at).facts.gpu_count
        numbers = self.chance.sample(range(count), min(count, wants.gpu_devices))
        return tuple(DeviceShare(device=number, milli=milli) for number in sorted(numbers))

    def _reservation(self, key: str, state: Workload, placement: Placement) -> Reservation:
        wants, pod = pod_request(state.spec.compute), placement.pod
        return Reservation(
            id=reservation_id(state.workload_id, pod.pod_set, pod.index, pod.attempt, pod.try_),
            workload_id=state.workload_id,
            workload_key=key,
            cpu_milli=wants.cpu_milli,
            memory_bytes=wants.memory_bytes,
            devices=placement.devices,
        )

    def _fact(self) -> None:
        some = self._some()
        if some is not None and some[1].left and self.chance.random() < 0.5:
            self._fact_of_left(*some)
            return
        if some is None or not some[1].pods:
            return
        key, state = some
        live = [item for item in sorted(state.pods.items()) if item[1].phase in LIVE_POD_PHASES]
        (pod_set, index), pod = self.chance.choice(live or sorted(state.pods.items()))
        ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
        usual = self.chance.choice(("starting", "running", "succeeded", "succeeded", "failed", "stopped"))
        kind = self.chance.choice((usual, usual, usual, "unreachable", "interrupted", "refused"))
        now = self.world.now
        facts = [PodFact(pod=ref, kind=kind, at=now, exit_code=3 if kind == "failed" else None)]
        if kind == "succeeded" and pod.phase in {"Bound", "Starting"}:
            facts.insert(0, PodFact(pod=ref, kind="running", at=now))  # as cluster_sync tells a start that nobody saw
        self._do("workload", key, ReportPods(workload_id=state.workload_id, facts=tuple(facts)), CLUSTER_SYNC)

    def _fact_of_left(self, key: str, state: Workload) -> None:
        """Of a run that was left on a lost cluster; also what changes nothing."""
        pods = state.left[self.chance.choice(sorted(state.left))]
        (pod_set, index), pod = self.chance.choice(sorted(pods.items()))
        kind = self.chance.choice(("running", "succeeded", "failed", "stopped", "interrupted", "refused"))
        ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
        fact = PodFact(pod=ref, kind=kind, at=self.world.now, exit_code=3 if kind == "failed" else None)
        self._do("workload", key, ReportPods(workload_id=state.workload_id, facts=(fact,)), CLUSTER_SYNC)

    def _lose_cluster(self) -> None:
        """A cluster was there and is lost, and workloads that may leave it do."""
        name, cluster_id = self.chance.choice((("local", self.cluster_id), ("other", self.other_id)))
        for connected in (True, False):
            command = ReportCluster(cluster_id=cluster_id, connected=connected)
            self._do("cluster", cluster_key(name), command, CLUSTER_SYNC)
        since = self.world.now
        self.world.later(5)
        for key in self.keys:
            state: Workload = self.world.state("workload", key)
            if state.cluster_id == cluster_id:
                leave = LeaveCluster(
                    workload_id=state.workload_id,
                    cluster_id=cluster_id,
                    cluster_name=name,
                    attempt=state.attempt,
                    among=(self.cluster_id, self.other_id),
                    lost_since=since,
                    seconds=5,
                )
                self._do("workload", key, leave, SCHEDULER)

    def _person(self) -> None:
        some = self._some()
        if some is None:
            return
        key, state = some
        id_ = state.workload_id
        command = self.chance.choice(
            (
                SuspendWorkload(workload_id=id_),
                ResumeWorkload(workload_id=id_),
                ResumeWorkload(workload_id=id_),
                DeleteWorkload(workload_id=id_),
                ChangeWorkload(workload_id=id_, auto_deletion_time_after_completion_seconds=self.chance.randint(0, 99)),
                TransferWorkload(workload_id=id_, subject=(heir := self.chance.choice(("alice", "bob"))), actor=heir),
                *self._undoing(key, state),
            )
        )
        self._do("workload", key, command)

    def _undoing(self, key: str, state: Workload) -> tuple[UndoAct, ...]:
        """Of its newest suspension or resumption, where there was one."""
        for commit in reversed(self.world.commits):
            for event in commit.events if commit.key == key else ():
                if isinstance(event, WorkloadSuspended | WorkloadResumed):
                    act: UndoableAct = (
                        "WorkloadSuspended" if isinstance(event, WorkloadSuspended) else "WorkloadResumed"
                    )
                    id_, seq = state.workload_id, commit.seq
                    return (UndoAct(workload_id=id_, sequence=seq, act=act, attempt=state.attempt),)
            if commit.key == key and any(isinstance(event, WorkloadCreated) for event in commit.events):
                break
        return ()

    def _due(self) -> None:
        """Auto-deletion, of what has ended; early, too, which does nothing."""
        some = self._some()
        if some is not None and some[1].phase in FINISHED:
            command = DeleteWorkload(workload_id=some[1].workload_id, generation=some[1].generation)
            self._do("workload", some[0], command, service_actor("auto_deletion"))

    def _scale(self) -> None:
        """Replicas, as the autoscaler would; beyond bounds and on old news, too, which does nothing."""
        some = self._some()
        if some is None:
            return
        key, state = some
        was = self.chance.choice((0, 1, 2, 3)) if state.inference is None else state.inference.replicas
        replicas, reason = self.chance.randint(0, 4), self.chance.choice(("load", "idle", "request"))
        command = ScaleInference(workload_id=state.workload_id, replicas=replicas, was=was, reason=reason, message="m")
        self._do("workload", key, command, service_actor("autoscaler"))

    def _evict(self) -> None:
        """Some or all pods of a workload, as the scheduler would; also where it must not, which does nothing."""
        some = self._some()
        if some is None:
            return
        key, state = some
        refs = [
            PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
            for (name, index), pod in sorted(state.pods.live.items())
        ]
        pods = tuple(refs[: self.chance.randint(0, len(refs))])
        reason = self.chance.choice(("preempted", "reclaimed"))
        command = EvictPods(workload_id=state.workload_id, pods=pods, reason=reason, message="m", beneficiary="b")
        self._do("workload", key, command, service_actor("scheduler"))

    def _release(self) -> None:
        """What no longer lives, as the scheduler does."""
        names = [(self.cluster_id, name) for name in NODES]
        key = node_key(*self.chance.choice([*names, (self.other_id, OTHER_NODE)]))
        held = self.world.state("node", key).reservations.values()
        over = [each.id for each in held if not self._lives(each)]
        if over:
            self._do("node", key, ReserveOnNode(release=tuple(over)), SCHEDULER)

    def _lives(self, reservation: Reservation) -> bool:
        state: Workload = self.world.state("workload", reservation.workload_key)
        runs = {
            reservation_id(state.workload_id, pod_set, index, pod.attempt, pod.try_)
            for (pod_set, index), pod in state.pods.items()
            if pod.phase in LIVE_POD_PHASES
        }
        left = {
            reservation_id(state.workload_id, pod_set, index, pod.attempt, pod.try_)
            for pods in state.left.values()
            for (pod_set, index), pod in pods.items()
        }
        return reservation.id in runs | left

    def _node(self) -> None:
        name = self.chance.choice(NODES)
        if self.chance.random() < 0.2:
            self._do("node", node_key(self.cluster_id, name), ReportNodeGone(), CLUSTER_SYNC)
        else:
            self._report_node(name, gpu_count=self.chance.randint(2, 4), foreign_gpus=self.chance.randint(0, 2))

    def _report_node(self, name: str, *, gpu_count: int = 4, foreign_gpus: int = 0, cluster_id: str = "") -> None:
        cluster_id = cluster_id or self.cluster_id
        facts = NodeFacts(
            cpu_milli=6000,
            memory_bytes=16 * 2**30,
            gpu_count=gpu_count,
            gpu_memory_bytes=DEVICE_BYTES,
            foreign_gpus=foreign_gpus,
            max_pods=6,
            pool="default" if cluster_id == self.cluster_id else "far",
        )
        command = ReportNode(cluster_id=cluster_id, name=name, facts=facts)
        self._do("node", node_key(cluster_id, name), command, CLUSTER_SYNC)


def random_log(chance: random.Random, *, steps: int) -> list[RawMessage]:
    lives = Lives(chance)
    for _ in range(steps):
        lives.step()
    return [
        RawMessage(commit.seq, f"ev.{commit.aggregate}.{commit.key}", encode_commit(commit.record))
        for commit in lives.world.commits
    ]
