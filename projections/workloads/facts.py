"""What the rows of a workload are made of: its state, and the little beside it that a state does not keep. Pure."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, Protocol, Self

import msgspec

from events.workload.exposure import called
from events.workload.fields.storage import StorageSpec
from events.workload.pod import Pod
from events.workload.spec import Beside, PodRequest, TrainingSpec
from events.workload.state import Workload
from projections.values import clean, fit, indexed

type OnNodes = dict[tuple[str, str], int]
"""How many runs hold a node, by (node name, node pool)."""


class Spent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How long a workload was in which phase, and what its first and its last run told: a state keeps no past."""

    phase_updated_at: datetime
    pending_micros: int = 0
    running_micros: int = 0
    started_at: datetime | None = None
    exit_code: int | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was told of one run that holds a node, beside where it stands."""

    bound_at: datetime | None = None
    started_at: datetime | None = None
    reason: str = ""
    message: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a run ended, and when."""

    phase: str
    at: datetime
    exit_code: int | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a spec asks for, in the units of the rows."""

    spec: TrainingSpec
    beside: Beside
    framework: str
    priority_class: str
    preemptibility: str
    category: str
    image: str
    node_pools: tuple[str, ...]
    labels: tuple[str, ...]
    label_keys: tuple[str, ...]
    completions: int
    parallelism: int
    backoff_limit: int
    auto_deletion_seconds: int
    pods: int
    most_pods: int
    """To which it may grow; as many as `pods` where it does not."""
    pod_cpu_milli: int
    pod_memory_bytes: int
    of_sets: tuple[tuple[str, PodRequest], ...]
    """What a pod of each pod set asks for."""
    gpu_milli: int
    gpu_memory_bytes: int
    cpu_milli: int
    memory_bytes: int
    environment: str
    """Name of the environment that it was made from; empty if there is none."""
    connections: tuple[str, ...]
    """Each as `name=type`; likewise the data sources."""
    data_sources: tuple[str, ...]

    @classmethod
    def of(cls, state: Workload) -> "Asked":
        """Of workloads that share a spec, one behind the other, the very same."""
        key = (state.spec, state.pod_sets, state.beside, state.made_from, state.exposed_urls)
        last = _LAST.get(cls)
        if last is None or any(one is not other for one, other in zip(last[0], key, strict=True)):
            last = _LAST[cls] = key, cls._of(state)
        return last[1]

    @classmethod
    def _of(cls, state: Workload) -> Self:
        spec = state.spec
        sets = state.pod_sets
        used = None if state.made_from is None else state.made_from.environment
        first = sets[0].template.request
        completions = parallelism = pods = most = gpu_milli = gpu_memory = cpu_milli = memory = 0
        for pod_set in sets:
            request, at_once = pod_set.template.request, pod_set.at_once
            completions += pod_set.count
            parallelism += pod_set.parallelism
            pods += at_once
            most += pod_set.most or at_once
            gpu_milli += at_once * request.gpu_devices * request.gpu_milli
            gpu_memory += at_once * request.gpu_devices * request.gpu_memory_bytes
            cpu_milli += at_once * request.cpu_milli
            memory += at_once * request.memory_bytes
        return cls(
            spec=spec,
            beside=state.beside,
            framework="" if state.distributed is None else state.distributed.distribution.distributed_framework,
            priority_class=spec.priority_class,
            preemptibility=spec.preemptibility or "",
            category=clean(spec.category),
            image=clean(spec.image),
            node_pools=tuple(map(clean, spec.node_pools)),
            labels=tuple(sorted(indexed(f"{label.name}={label.value}") for label in spec.labels)),
            label_keys=tuple(sorted(indexed(label.name) for label in spec.labels)),
            completions=fit(completions),
            parallelism=fit(parallelism),
            backoff_limit=fit(spec.backoff_limit),
            auto_deletion_seconds=fit(spec.auto_deletion_time_after_completion_seconds),
            pods=fit(pods),
            most_pods=fit(most),
            pod_cpu_milli=fit(first.cpu_milli),
            pod_memory_bytes=fit(first.memory_bytes),
            of_sets=tuple((pod_set.name, pod_set.template.request) for pod_set in sets),
            gpu_milli=fit(gpu_milli),
            gpu_memory_bytes=fit(gpu_memory),
            cpu_milli=fit(cpu_milli),
            memory_bytes=fit(memory),
            environment="" if used is None else indexed(used.name),
            connections=tuple(clean(one) for one in _connections(state)),
            data_sources=tuple(clean(one) for one in dict.fromkeys(_all_data_sources(state))),
        )


_LAST: Final[dict[type[Asked], tuple[tuple[object, ...], Asked]]] = {}
"""What it was made of last."""


def _connections(state: Workload) -> Iterator[str]:
    """As `connections` of a workload names them, and in that order."""
    for url in state.exposed_urls:
        yield f"{called(url)}=ExternalUrl"
    for port in state.spec.ports:
        yield f"{called(port)}={port.service_type or 'ClusterIP'}"


def _all_data_sources(state: Workload) -> Iterator[str]:
    yield from _data_sources(state.spec.storage)
    if state.distributed is not None and state.distributed.master is not None:
        yield from _data_sources(state.distributed.master.storage)


def _data_sources(storage: StorageSpec) -> Iterator[str]:
    """By their kinds, as the fields of the spec are called; what is empty at first is no source of data."""
    for kind, wire in zip(storage.__struct_fields__, storage.__struct_encode_fields__, strict=True):
        if kind != "empty_dir_volume":
            for volume in getattr(storage, kind):
                name = getattr(volume, "name", None)  # a data volume is known by its id
                yield f"{name or getattr(volume, 'mount_path', None) or volume.path}={wire}"


class Sized(Protocol):
    @property
    def size(self) -> int: ...
    def of_set(self, name: str) -> int: ...


class PodCounts(Protocol):
    """The pods of a workload, counted: of a state, or of one that is being folded."""

    @property
    def live(self) -> Sized: ...
    @property
    def running(self) -> int: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def gpu_memory_bytes(self) -> int: ...


class WorkloadFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of a workload as one of its commits left it."""

    key: str
    """Of its subject in the log."""
    version: int
    state: Workload
    """Its pods are not looked at: `pods` counts them."""
    pods: PodCounts
    spent: Spent
    asked: Asked
    warning: str
    """What its pods were warned of while none of them runs."""
    current_nodes: tuple[str, ...]
    current_node_pools: tuple[str, ...]

    def held_of(self, amount: Callable[[PodRequest], int]) -> int:
        """What all pods that hold a node hold, by what one asks for."""
        sets, live = self.asked.of_sets, self.pods.live
        if len(sets) == 1:
            return live.size * amount(sets[0][1])
        return sum(live.of_set(name) * amount(request) for name, request in sets)


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run of one of its pods: the pod as it is, or as it was when the run ended."""

    workload_id: str
    pod_set: str
    index: int
    pod: Pod
    told: Told = Told()
    end: End | None = None
