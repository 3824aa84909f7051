"""From a trace to a script: workloads with the times at which they come, on nodes of one cluster. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import median
from typing import Final

import msgspec

from events.cluster import ClusterAdded, ClusterConnected
from events.department import DEFAULT_DEPARTMENT, DEFAULT_DEPARTMENT_ID
from events.ids import cluster_key, incarnation_id, node_key, project_key, workload_key
from events.node import NodeFacts, NodeRegistered
from events.project import ProjectCreated
from events.workload.fields.compute import ComputeSpec
from events.workload.fields.distribution import Distribution
from events.workload.fields.scheduling import (
    DEFAULT_TRAINING_PRIORITY,
    MatchExpression,
    NodeAffinityRequired,
    NodeSelectorTerm,
    PriorityClass,
)
from events.workload.kinds.distributed import DISTRIBUTED
from events.workload.kinds.training import TRAINING
from events.workload.life import WorkloadCreated
from events.workload.spec import Distributed, TrainingSpec, beside_with_defaults
from services.scheduler.simulation.change import NewNode
from services.scheduler.simulation.ledger import Ledger
from services.scheduler.simulation.script import USUAL_SECONDS, Act, Run, Runs, Script, Settings, act, stored

CLUSTER: Final = "trace"
"""Name of the one that it runs on."""
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""The second 0 of a trace."""
MODEL_LABEL: Final = "nvidia.com/gpu.product"
"""Of nodes, as NVIDIA's feature discovery and simulated clusters set it."""
MOST_WORKERS: Final = 499
"""That a distributed training has."""


class TraceWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace."""

    name: str
    project: str = "default"
    arrival: float
    """Seconds since EPOCH."""
    runtime: float | None = None
    """Seconds. None: the median of all others."""
    gpus: int = 0
    """Of each pod."""
    portion: float | None = None
    """Of each of these GPUs; None: all of it."""
    cpu: float = 0.0
    """Cores of each pod."""
    memory_bytes: int = 0
    gang: int = 1
    """Pods that are placed together."""
    priority: PriorityClass = DEFAULT_TRAINING_PRIORITY
    preemptible: bool | None = None
    """None: by the priority."""
    models: tuple[str, ...] = ()
    """Of GPUs that it accepts; empty: any."""
    pools: tuple[str, ...] = ()
    """Node pools, in order; empty: any."""


def cluster_id() -> str:
    return incarnation_id(cluster_key(CLUSTER), CLUSTER)


def project_id(name: str) -> str:
    return incarnation_id(project_key(name), CLUSTER)


def script_of(
    workloads: Sequence[TraceWorkload], nodes: Sequence[NewNode], *, settings: Settings, end: timedelta | None = None
) -> tuple[Script, int]:
    """The script, and of how many workloads it is assumed how long they run.

    Args:
        workloads: at least one.
        end: from the first arrival on; None: when all of them have ended.
    """
    workloads = sorted(workloads, key=lambda each: (each.arrival, each.name))
    begin = EPOCH + timedelta(seconds=workloads[0].arrival)
    last = EPOCH + timedelta(seconds=workloads[-1].arrival)
    usual = _usual(workloads)
    acts: list[Act] = []
    runs: dict[str, Runs] = {}
    for each in workloads:
        at = EPOCH + timedelta(seconds=each.arrival)
        created = created_of(each, at, cluster_id(), project_id(each.project))
        acts.append(act(at, "workload", workload_key(created.project_id, each.name), created))
        lasts = usual if each.runtime is None else each.runtime
        runs[created.workload_id] = Runs(Run(lasts), assumed=each.runtime is None)
    fold = _prepared(begin, nodes, sorted({each.project for each in workloads})).fold
    script = Script(
        begin=begin,
        end=None if end is None else begin + end,
        loaded_until=last if end is None else min(last, begin + end),
        seq=fold.seq,
        chains=stored(fold),
        beside=fold.beside(),
        acts=acts,
        runs=runs,
        settings=settings,
    )
    return script, sum(each.assumed for each in runs.values())


def _usual(workloads: Iterable[TraceWorkload]) -> float:
    known = [each.runtime for each in workloads if each.runtime is not None]
    return median(known) if known else USUAL_SECONDS


def _prepared(begin: datetime, nodes: Iterable[NewNode], projects: Iterable[str]) -> Ledger:
    """What there is before anybody comes."""
    ledger, id_ = Ledger(begin), cluster_id()
    added = ClusterAdded(cluster_id=id_, name=CLUSTER, kind="simulated", at=begin)
    ledger.write("cluster", cluster_key(CLUSTER), (added, ClusterConnected(at=begin)))
    for node in nodes:
        registered = NodeRegistered(cluster_id=id_, name=node.name, facts=node.facts)
        ledger.write("node", node_key(id_, node.name), (registered,))
    for name in projects:
        created = ProjectCreated(
            project_id=project_id(name),
            name=name,
            at=begin,
            department_id=DEFAULT_DEPARTMENT_ID,
            department_name=DEFAULT_DEPARTMENT,
        )
        ledger.write("project", project_key(name), (created,))
    return ledger


def created_of(of: TraceWorkload, at: datetime, cluster_id: str, project_id: str) -> WorkloadCreated:
    """Its creation, in this project and on this cluster."""
    spec, distributed = _spec(msgspec.structs.replace(of, name="", project="", arrival=0.0, runtime=None))
    return WorkloadCreated(
        workload_id=incarnation_id(workload_key(project_id, of.name), CLUSTER),
        name=of.name,
        requested_name=of.name,
        kind=(TRAINING if distributed is None else DISTRIBUTED).name,
        project_id=project_id,
        cluster_id=cluster_id,
        owner="",
        at=at,
        spec=spec,
        distributed=distributed,
    )


@cache
def _spec(of: TraceWorkload) -> tuple[TrainingSpec, Distributed | None]:
    """Of all that are alike."""
    compute = ComputeSpec(
        cpu_core_request=of.cpu,
        cpu_memory_request=str(of.memory_bytes),
        gpu_devices_request=of.gpus,
        gpu_request_type="portion" if of.gpus and of.portion is not None else None,
        gpu_portion_request=of.portion if of.gpus else None,
    )
    models = MatchExpression(key=MODEL_LABEL, operator="In", values=of.models)
    spec = TrainingSpec(
        image="trace",
        compute=compute,
        priority_class=of.priority,
        preemptibility=None if of.preemptible is None else "preemptible" if of.preemptible else "non-preemptible",
        node_pools=of.pools,
        node_affinity_required=NodeAffinityRequired(
            node_selector_terms=(NodeSelectorTerm(match_expressions=(models,)),)
        )
        if of.models
        else None,
    )
    if of.gang == 1:
        return TRAINING.with_defaults(spec), None
    alone = Distributed(distribution=Distribution(distributed_framework="PyTorch", num_workers=of.gang), master=None)
    made = beside_with_defaults(alone)
    assert isinstance(made, Distributed)
    return DISTRIBUTED.with_defaults(spec), made


def facts_of(
    name: str,
    *,
    cpu_milli: int,
    memory_bytes: int,
    gpu_count: int = 0,
    gpu_model: str = "",
    gpu_memory_bytes: int = 0,
    labels: dict[str, str] | None = None,
    pool: str = "",
) -> NodeFacts:
    """Of a node of a trace."""
    model = {MODEL_LABEL: gpu_model} if gpu_count and gpu_model else {}
    return NodeFacts(
        cpu_milli=cpu_milli,
        memory_bytes=memory_bytes,
        gpu_count=gpu_count,
        gpu_model=gpu_model,
        gpu_memory_bytes=gpu_memory_bytes,
        labels={"kubernetes.io/hostname": name} | model | (labels or {}),
        pool=pool or "default",
    )
