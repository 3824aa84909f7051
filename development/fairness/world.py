"""A small log in memory: commands in, commits out, folds kept up to date."""

from datetime import UTC, datetime, timedelta
from typing import Any

from development.checker.log import Report, check
from development.checker.records import RawMessage
from events.aggregate import AGGREGATES, Chain, apply
from events.cluster import AddCluster, NodePool, ReportCluster, SetNodePool
from events.codec import encode_commit
from events.commit import Actor, Commit
from events.ids import cluster_key, node_key, project_key, workload_key
from events.node import CordonNode, NodeFacts, ReportNode
from events.project import CreateProject
from events.workload.commands import CreateWorkload, PodFact, PodFactKind, ReportPods
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, TrainingSpec
from events.workload.state import Workload
from services.scheduler.batches import seen_by
from services.scheduler.plan import plan
from services.scheduler.planning import Policy
from services.scheduler.policy.registry import POLICY
from services.scheduler.simulation.ledger import BATCH_MESSAGES, Ledger
from services.scheduler.snapshot import Growth, Plan, Queue, Snapshot

GIB = 1024**3
ACTOR = Actor(id="ann")
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


class World(Ledger):
    """One log, one scheduler's fold; all of the log is kept."""

    def __init__(self, policy: Policy = POLICY) -> None:
        super().__init__(BEGIN, policy=policy, actor=ACTOR)
        self.commits: list[Commit] = []
        self.chains: dict[tuple[str, str], Chain[Any]] = {}
        self.cluster_id = ""
        self.project_id = ""
        self.seen_snapshot: Snapshot | None = None
        """That the last plan was made by which was carried out."""
        self.seen_queues: tuple[Queue, ...] = ()
        """Likewise."""
        self.seen_growth: tuple[Growth, ...] = ()
        """Likewise."""

    # -- the log -----------------------------------------------------------------------------------------------------

    def apply(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.chains[commit.aggregate, commit.key] = apply(
            AGGREGATES[commit.aggregate], self.chain(commit.aggregate, commit.key), commit
        )
        super().apply(commit)

    def chain(self, aggregate: str, key: str) -> Chain[Any]:
        return self.chains.get((aggregate, key), Chain(state=AGGREGATES[aggregate].initial))

    def check(self) -> Report:
        """The independent checker over everything so far."""
        messages = (RawMessage(c.seq, f"ev.{c.aggregate}.{c.key}", encode_commit(c.record)) for c in self.commits)
        return check(messages, stand_ins=True)

    # -- what tests say ----------------------------------------------------------------------------------------------

    def cluster(
        self, name: str = "local", *, connected: bool = True, pools: tuple[str, ...] = (), simulated: bool = False
    ) -> str:
        key, kind = cluster_key(name), "local" if name == "local" else "kubernetes"
        self.do("cluster", key, AddCluster(name=name, kind="simulated" if simulated else kind))
        cluster_id: str = self.chain("cluster", key).state.cluster_id
        self.cluster_id = self.cluster_id or cluster_id
        for pool in pools:
            command = SetNodePool(cluster_id=cluster_id, pool=NodePool(name=pool, label_key="pool", label_value=pool))
            self.do("cluster", key, command)
        if connected:
            self.connect(cluster_id, name)
        return cluster_id

    def connect(self, cluster_id: str, name: str = "local", *, connected: bool = True) -> None:
        self.do("cluster", cluster_key(name), ReportCluster(cluster_id=cluster_id, connected=connected))

    def project(
        self,
        name: str = "default",
        *,
        quota: int | None = None,
        limit: int | None = None,
        pools: tuple[str, ...] = (),
        **settings: Any,
    ) -> str:
        self.do(
            "project",
            project_key(name),
            CreateProject(name=name, gpu_quota_milli=quota, gpu_limit_milli=limit, node_pools=pools, **settings),
        )
        project_id: str = self.chain("project", project_key(name)).state.project_id
        self.project_id = self.project_id or project_id
        return project_id

    def node(self, name: str, *, cluster_id: str = "", **facts: Any) -> str:
        cluster_id = cluster_id or self.cluster_id
        given: dict[str, Any] = {"cpu_milli": 32_000, "memory_bytes": 256 * GIB} | facts
        key = node_key(cluster_id, name)
        self.do("node", key, ReportNode(cluster_id=cluster_id, name=name, facts=NodeFacts(**given)))
        return key

    def cordon(self, name: str, kind: Any = CordonNode) -> None:
        """With Muster's own mark; with UncordonNode it is taken off."""
        self.do("node", node_key(self.cluster_id, name), kind(cluster_id=self.cluster_id, name=name))

    def submit(self, name: str, *, project_id: str = "", cluster_id: str = "", **spec: Any) -> str:
        """A training; keywords of ComputeSpec and of TrainingSpec alike, and `among`: ids of clusters, of which the
        scheduler chooses one. Its key.
        """
        self.now += timedelta(seconds=1)
        among: tuple[str, ...] = spec.pop("among", ())
        compute = {field: spec.pop(field) for field in list(spec) if field in ComputeSpec.__struct_fields__}
        project_id = project_id or self.project_id
        key = workload_key(project_id, name)
        command = CreateWorkload(
            kind="Training",
            name=name,
            requested_name=name,
            project_id=project_id,
            cluster_id="" if among else cluster_id or self.cluster_id,
            among=among,
            spec=TrainingSpec(image="busybox", compute=ComputeSpec(**compute), **spec),
        )
        self.do("workload", key, command)
        return key

    def command(self, key: str, kind: Any, **fields: Any) -> None:
        self.do("workload", key, kind(workload_id=self.workload(key).workload_id, **fields))

    def workload(self, key: str) -> Workload:
        return self.chain("workload", key).state

    def fact(self, key: str, kind: PodFactKind, *, index: int = 0, **fields: Any) -> None:
        """What the cluster saw of the newest run of a pod."""
        state = self.workload(key)
        pod = state.pods["main", index]
        ref = PodRef(pod_set="main", index=index, attempt=pod.attempt, try_=pod.try_)
        fact = PodFact(pod=ref, kind=kind, at=self.now, **fields)
        self.do("workload", key, ReportPods(workload_id=state.workload_id, facts=(fact,)))

    def places(self, key: str) -> dict[int, tuple[str, list[tuple[int, int]]]]:
        """Node and (device, milli) of each live pod, by index."""
        return {
            index: (pod.node_name, [(share.device, share.milli) for share in pod.devices])
            for (_, index), pod in self.workload(key).pods.items()
            if pod.node_key and pod.phase != "Pending"
        }

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self, **limits: Any) -> Plan:
        snapshot = self.fold.snapshot(self.now)
        planned = plan(snapshot, policy=self.policy, **limits)
        self.seen = seen_by(planned, self.fold.nodes)
        assert plan(snapshot, policy=self.policy, **limits) == planned, "the same snapshot gave another plan"
        assert not planned.broken
        return planned

    def cycle(self, *, estimates: bool = True, max_messages: int = BATCH_MESSAGES, **limits: Any) -> Plan:
        planned = super().cycle(estimates=estimates, max_messages=max_messages, **limits)
        assert not planned.broken
        return planned

    def looked_at(self, snapshot: Snapshot, planned: Plan) -> None:
        self.seen_snapshot, self.seen_queues = snapshot, snapshot.queues
        self.seen_growth = snapshot.growing
