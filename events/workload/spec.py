"""What a workload asks for, as it is stored, and what follows from it for pods.

Its fields are declared in `fields`, by section. Names and meanings are the contract's (camelCase on the wire);
quantities stay the text that the person wrote.
What a kind makes of it stands in `kinds`, what the pods are made of in `pod_sets`.
"""

import shlex
from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import msgspec
from msgspec.structs import replace

from events.fields.declare import Section, joined
from events.quantities import cores_to_milli, parse_bytes
from events.very_same import for_the_very_same
from events.workload.fields.compute import ComputeSpec, ExtendedResource, Resources
from events.workload.fields.connections import Connections
from events.workload.fields.distribution import Distribution, with_distribution_defaults
from events.workload.fields.inference import Serving, ServingPort, with_serving_defaults
from events.workload.fields.lifetime import Lifetime
from events.workload.fields.metadata import Metadata
from events.workload.fields.probes import MasterProbes, Probes
from events.workload.fields.process import Process
from events.workload.fields.saving import Checkpoint, Stopping
from events.workload.fields.scheduling import (
    DEFAULT_INFERENCE_PRIORITY,
    DEFAULT_WORKSPACE_PRIORITY,
    NodeSelectorTerm,
    PriorityClass,
    Scheduling,
)
from events.workload.fields.storage import MasterStorage, Storage, StorageSpec
from events.workload.fields.sweep import Sweep
from events.workload.fields.workspace import OverQuota
from events.workload.needs import ExtendedAmount, Tolerated, tolerated
from events.workload.sweeps import runs_of
from events.workload.volumes import check_volumes

NO_INFERENCES: Final = frozenset(
    {
        *("completions", "parallelism", "backoff_limit", "restart_policy"),
        "auto_deletion_time_after_completion_seconds",
        *("exposed_urls", "ports", "checkpoint"),
    }
)
"""Fields that an inference does not have: it does not end by itself (R26), is reached at its serving port, and saves no
work."""
MAX_AUTO_DELETION_SECONDS: Final = 100 * 365 * 24 * 3600
"""A hundred years: longer cannot be a wish, and a larger number would leave the calendar."""
MAX_GRACE_SECONDS: Final = 3_600
"""An hour, for a last checkpoint: whoever takes their place back, or deletes them, waits for so long."""
PRIORITY_RANK: Final[dict[str, int]] = {name: rank for rank, name in enumerate(get_args(PriorityClass))}
"""The seven priority classes (R18), least first."""
FIRST_NON_PREEMPTIBLE_RANK: Final = PRIORITY_RANK["high"]
"""From this class on, an unset preemptibility means non-preemptible (R19)."""

WHOLE_GPU_MILLI: Final = 1000


if TYPE_CHECKING:

    class TrainingSpec(
        Process,
        Resources,
        Storage,
        Probes,
        Connections,
        Scheduling,
        Lifetime,
        Stopping,
        Checkpoint,
        Sweep,
        Metadata,
        frozen=True,
        kw_only=True,
    ):
        """The effective spec of a standard training: every field has its value. Every kind stores one: a field that a
        kind does not have keeps its default there.
        """

    class WorkspaceSpec(
        Process,
        Resources,
        Storage,
        Probes,
        Connections,
        Scheduling,
        OverQuota,
        Lifetime,
        Stopping,
        Checkpoint,
        Metadata,
        frozen=True,
        kw_only=True,
    ):
        """What a request may say of a workspace, and what is shown of one."""

    class DistributedSpec(
        Process,
        Resources,
        Storage,
        Probes,
        Connections,
        Scheduling,
        Lifetime,
        Stopping,
        Checkpoint,
        Metadata,
        Distribution,
        frozen=True,
        kw_only=True,
    ):
        """What a request may say of the workers of a distributed training, and of it as a whole."""

    class InferenceSpec(
        Process,
        Resources,
        Storage,
        Probes,
        Scheduling,
        Lifetime,
        Stopping,
        Metadata,
        Serving,
        frozen=True,
        kw_only=True,
    ):
        """What a request may say of an inference, and what is shown of one."""

    class WorkloadSpec(
        Process,
        Resources,
        Storage,
        Probes,
        Connections,
        Scheduling,
        OverQuota,
        Lifetime,
        Stopping,
        Checkpoint,
        Sweep,
        Metadata,
        Distribution,
        Serving,
        frozen=True,
        kw_only=True,
    ):
        """Every field that a spec of some kind has: the form of answers that are of any kind."""

    class MasterSpec(Process, Resources, MasterStorage, MasterProbes, Metadata, frozen=True, kw_only=True):
        """What a request may say of a master that is made otherwise than the workers."""
else:
    _OF_PODS = (Process, Resources, Storage, Probes, Connections, Scheduling, Lifetime, Stopping, Checkpoint, Metadata)
    _RUNS = {"completions", "parallelism"}
    TrainingSpec = joined("TrainingSpec", __name__, *_OF_PODS[:-1], Sweep, Metadata)
    WorkspaceSpec = joined(
        "WorkspaceSpec",
        __name__,
        *(Process, Resources, Storage, Probes, Connections, Scheduling, OverQuota, Lifetime),
        *(Stopping, Checkpoint, Metadata),
        without=_RUNS,
        defaults={"priority_class": DEFAULT_WORKSPACE_PRIORITY},
    )
    DistributedSpec = joined("DistributedSpec", __name__, *_OF_PODS, Distribution, without=_RUNS)
    InferenceSpec = joined(
        "InferenceSpec",
        __name__,
        *_OF_PODS,
        Serving,
        without=NO_INFERENCES,
        defaults={"priority_class": DEFAULT_INFERENCE_PRIORITY},
    )
    WorkloadSpec = joined(
        "WorkloadSpec",
        __name__,
        *(Process, Resources, Storage, Probes, Connections, Scheduling, OverQuota, Lifetime),
        *(Stopping, Checkpoint, Sweep, Metadata),
        Distribution,
        Serving,
        # Only one kind has them, and insists on them.
        defaults={"distributed_framework": None, "serving_port": None},
    )
    MasterSpec = joined(
        "MasterSpec", __name__, Process, Resources, MasterStorage, MasterProbes, Metadata, without={"category", "code"}
    )

OF_WORKERS: Final = ("storage", "probes")
"""Fields in which a master that names none is made as its workers are."""

NO_SPEC: Final = TrainingSpec(image="")
"""Of a workload that never was."""
NO_WORKSPACE_SPEC: Final = WorkspaceSpec(image="")
_NO_PORT: Final = ServingPort(container=0)
NO_WORKLOAD_SPEC: Final = WorkloadSpec(image="", distributed_framework="PyTorch", serving_port=_NO_PORT)
NO_INFERENCE_SPEC: Final = InferenceSpec(image="", serving_port=_NO_PORT)
NO_DISTRIBUTED_SPEC: Final = DistributedSpec(image="", distributed_framework="PyTorch")
"""What a request has that says nothing."""


class Distributed(msgspec.Struct, frozen=True, kw_only=True):
    """What a distributed training stores beside the spec of its workers."""

    distribution: Distribution
    """Every field with its value."""
    master: TrainingSpec | None
    """The spec of its master, every field with its value; null where it has workers only."""


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """What an inference stores beside the spec of its replicas."""

    serving: Serving
    """Every field with its value."""
    replicas: int
    """How many there are to be now."""


Beside = Distributed | Inference | None
"""What a workload stores beside its spec, by its kind."""


def first_replicas(serving: Serving) -> int:
    """How many an inference starts with: one at least, by which everybody sees that it works."""
    return max(serving.autoscaling.min_replicas or 0, 1)


def stored(request: Section, before: TrainingSpec = NO_SPEC) -> TrainingSpec:
    """The stored spec with the fields of a request that it has, and all others as in `before`."""
    names = set(request.__struct_fields__)
    given = {name: getattr(request, name) for name in TrainingSpec.__struct_fields__ if name in names}
    return replace(before, **given)


def distribution_of(spec: DistributedSpec) -> Distribution:
    return Distribution(**{name: getattr(spec, name) for name in Distribution.__struct_fields__})


def serving_of(spec: InferenceSpec) -> Serving:
    return Serving(**{name: getattr(spec, name) for name in Serving.__struct_fields__})


def shown[S: Section](form: type[S], *parts: Section) -> S:
    """What a kind shows of what is stored: each field from the first part that has it."""
    return form(
        **{
            name: next(getattr(part, name) for part in parts if name in part.__struct_fields__)
            for name in form.__struct_fields__
        }
    )


MOST_GROUP_ID: Final = 2**31 - 1
"""Of users and groups, as Kubernetes takes them."""
MOST_ASKED: Final = 2**62
MOST_DEVICES_ASKED: Final = 2**20
"""Of one pod."""


class PodRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod takes from its node, in whole units, so sums are exact; and what the node must be like."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_devices: int = 0
    gpu_milli: int = 0
    """Share of each device, in thousandths; WHOLE_GPU_MILLI for whole ones; 0 where memory decides."""
    gpu_memory_bytes: int = 0
    """Share of each device by memory; the node's device size turns it into thousandths."""
    extended: tuple[ExtendedAmount, ...] = ()
    """By name, each once."""
    node_type: str = ""
    """Value of the node's label for it; empty: any."""
    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    """At least one must match the node's labels; None: any node will do."""
    tolerated: tuple[Tolerated, ...] = ()
    """Taints that do not keep it away, beside those of what it asks for."""
    topology_key: str = ""
    """Label that the node must have, whatever its value; empty: none."""


@for_the_very_same
def with_defaults(spec: TrainingSpec) -> TrainingSpec:
    """The spec with the defaults that depend on other fields (R19, C4, S026); every other is the field's own. An item
    that says exclude is left out, with what it excludes (R37).

    Done once, when the creation is decided: a later change of a default changes no stored workload.
    """
    spec = what_follows(spec)
    compute = spec.compute
    return replace(
        spec,
        compute=replace(compute, extended_resources=_included(compute.extended_resources)),
        tolerations=_included(spec.tolerations),
        environment_variables=_included(spec.environment_variables),
        image_pull_secrets=_included(spec.image_pull_secrets),
        labels=_included(spec.labels),
        annotations=_included(spec.annotations),
        related_urls=_included(spec.related_urls),
        exposed_urls=_included(spec.exposed_urls),
        ports=_included(spec.ports),
        storage=_included_volumes(spec.storage),
    )


def what_follows(spec: TrainingSpec) -> TrainingSpec:
    """The spec with the defaults that depend on other fields, and all of its items."""
    compute = spec.compute
    if compute.gpu_request_type is not None and not compute.gpu_devices_request:
        compute = replace(compute, gpu_devices_request=1)
    return replace(
        spec,
        compute=compute,
        preemptibility=spec.preemptibility or preemptibility_of(spec.priority_class),
        completions=runs_of(spec.sweep) or spec.completions,
        backoff_limit=0 if spec.restart_policy == "Never" else spec.backoff_limit,
    )


FOLLOWING: Final = frozenset(
    {
        *("preemptibility", "compute.gpuDevicesRequest", "completions"),
        *("autoscaling.minReplicas", "autoscaling.maxReplicas"),
        *("slotsPerWorker", "mpiLauncherCreationPolicy"),
    }
)
"""Fields whose default `with_defaults` and `beside_with_defaults` make of other fields."""


class _Excludable(Protocol):
    @property
    def exclude(self) -> bool: ...


def _included[T: _Excludable](items: tuple[T, ...]) -> tuple[T, ...]:
    for item in items:
        if item.exclude:
            return tuple(item for item in items if not item.exclude)
    return items


def _included_volumes(storage: StorageSpec) -> StorageSpec:
    for name in storage.__struct_fields__:
        held = getattr(storage, name)
        if (left := _included(held)) is not held:
            storage = replace(storage, **{name: left})
    return storage


def preemptibility_of(priority: PriorityClass) -> Literal["preemptible", "non-preemptible"]:
    """That of a workload which says nothing of it (R19)."""
    return "non-preemptible" if PRIORITY_RANK[priority] >= FIRST_NON_PREEMPTIBLE_RANK else "preemptible"


def beside_with_defaults(beside: Beside) -> Beside:
    """As `with_defaults`, of what is stored beside a spec."""
    match beside:
        case Inference():
            serving = with_serving_defaults(beside.serving)
            return Inference(serving=serving, replicas=first_replicas(serving))
        case Distributed():
            master = None if beside.master is None else with_defaults(beside.master)
            return Distributed(distribution=with_distribution_defaults(beside.distribution), master=master)
        case _:
            return beside


def pod_request(compute: ComputeSpec) -> PodRequest:
    """Requests in whole units; without a GPU request a pod takes no GPU (S036)."""
    # A spec that was stored before the devices of a share were written out has none.
    devices = compute.gpu_devices_request or (1 if compute.gpu_request_type is not None else 0)
    milli, memory = WHOLE_GPU_MILLI if devices else 0, 0
    if compute.gpu_request_type == "portion":
        milli = cores_to_milli(compute.gpu_portion_request or 0.0)
    elif compute.gpu_request_type == "memory":
        milli, memory = 0, parse_bytes(compute.gpu_memory_request or "0")
    return PodRequest(
        cpu_milli=_at_most(MOST_ASKED, cores_to_milli(compute.cpu_core_request)),
        memory_bytes=_at_most(MOST_ASKED, parse_bytes(compute.cpu_memory_request)),
        gpu_devices=_at_most(MOST_DEVICES_ASKED, devices),
        gpu_milli=_at_most(WHOLE_GPU_MILLI, milli),
        gpu_memory_bytes=_at_most(MOST_ASKED, memory),
        extended=_extended(compute.extended_resources),
    )


def group_ids(text: str) -> tuple[int, ...]:
    """The groups that a comma separated text names. Raises ValueError where it names something else."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if any(not (word.isascii() and word.isdecimal()) or int(word) > MOST_GROUP_ID for word in words):
        raise ValueError(f"group ids are whole numbers from 0 to {MOST_GROUP_ID}, comma separated")
    return tuple(int(word) for word in words)


def pod_needs(spec: TrainingSpec) -> PodRequest:
    """`pod_request`, and what the node must be like (S040–S044)."""
    affinity, together = spec.node_affinity_required, spec.pod_affinity
    return replace(
        pod_request(spec.compute),
        node_type=spec.node_type or "",
        node_terms=None if affinity is None else affinity.node_selector_terms,
        tolerated=tolerated(spec.tolerations),
        topology_key=together.key if together is not None and together.type == "Required" else "",
    )


def _extended(resources: tuple[ExtendedResource, ...]) -> tuple[ExtendedAmount, ...]:
    amounts = {
        item.resource: _at_most(MOST_ASKED, parse_bytes(item.quantity or "0")) for item in resources if not item.exclude
    }
    return tuple(ExtendedAmount(resource=name, amount=amount) for name, amount in sorted(amounts.items()) if amount)


@for_the_very_same
def check_quantities(spec: TrainingSpec) -> None:
    """Raises ValueError where a quantity of the spec or its volumes is none, or quotes of a command do not close."""
    compute = spec.compute
    parse_bytes(compute.cpu_memory_request)
    extended = (item.quantity for item in compute.extended_resources)
    for quantity in (compute.cpu_memory_limit, compute.gpu_memory_request, compute.gpu_memory_limit, *extended):
        if quantity is not None:
            parse_bytes(quantity)
    group_ids(spec.security.supplemental_groups)
    check_volumes(spec.storage)
    if spec.checkpoint is not None:
        parse_bytes(spec.checkpoint.size)
    told = None if spec.pre_stop is None else spec.pre_stop.command
    for text in (spec.command, spec.args, told):
        if text and any(character in text for character in "'\"\\"):
            shlex.split(text)


def _at_most(most: int, number: int) -> int:
    """What is beyond fits nowhere either; sums and differences of two still fit 64 bits."""
    return max(0, min(number, most))
