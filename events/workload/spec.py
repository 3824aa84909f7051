"""What a workload asks for, as it is stored, and what follows from it for pods.

Field names and meanings are the contract's (camelCase on the wire); quantities stay the text that the person wrote.
What a kind makes of it stands in `kinds`, what the pods are made of in `pod_sets`.
"""

import shlex
from typing import Final, Literal

import msgspec

from events.quantities import cores_to_milli, parse_bytes

DEFAULT_BACKOFF_LIMIT: Final = 6
"""Retries before Failed (C1)."""
DEFAULT_AUTO_DELETION_SECONDS: Final = 30 * 24 * 3600
"""Thirty days after the end (C3)."""
MAX_AUTO_DELETION_SECONDS: Final = 100 * 365 * 24 * 3600
"""A hundred years: longer cannot be a wish, and a larger number would leave the calendar."""
DEFAULT_GRACE_SECONDS: Final = 30
"""Kubernetes' default termination grace period."""

PriorityClass = Literal["very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high"]
PRIORITY_RANK: Final[dict[str, int]] = {
    name: rank
    for rank, name in enumerate(["very-low", "low", "medium-low", "medium", "medium-high", "high", "very-high"])
}
"""The seven priority classes (R18), least first."""
DEFAULT_TRAINING_PRIORITY: Final = "low"
"""Trainings are unattended: people who wait at a workspace go first."""
FIRST_NON_PREEMPTIBLE_RANK: Final = PRIORITY_RANK["high"]
"""From this class on, an unset preemptibility means non-preemptible (R19)."""

WHOLE_GPU_MILLI: Final = 1000


class KeyReference(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a Secret or ConfigMap in the project's namespace."""

    name: str
    key: str


class PodFieldReference(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the pod itself, as Kubernetes' downward API names it."""

    path: str


class EnvironmentVariable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """At most one of the value and the references (R8)."""

    name: str
    value: str = ""
    secret: KeyReference | None = None
    config_map: KeyReference | None = None
    pod_field_ref: PodFieldReference | None = None
    description: str | None = None


class NameValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A label or an annotation."""

    name: str
    value: str = ""


class ComputeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Requests and limits of one pod; the GPU fields are per device (S036)."""

    cpu_core_request: float | None = None
    cpu_core_limit: float | None = None
    cpu_memory_request: str | None = None
    cpu_memory_limit: str | None = None
    gpu_devices_request: int | None = None
    gpu_request_type: Literal["portion", "memory"] | None = None
    gpu_portion_request: float | None = None
    gpu_portion_limit: float | None = None
    gpu_memory_request: str | None = None
    gpu_memory_limit: str | None = None


class TrainingSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The effective spec of a standard training: what the person sent, with defaults filled in (`with_defaults`)."""

    image: str | None = None
    command: str | None = None
    args: str | None = None
    working_dir: str | None = None
    code: str | None = None
    """SHA-256 of an archive that was sent before, in hexadecimal digits: unpacked into each run's own folder."""
    environment_variables: tuple[EnvironmentVariable, ...] | None = None
    compute: ComputeSpec | None = None
    node_pools: tuple[str, ...] | None = None
    priority_class: PriorityClass | None = None
    preemptibility: Literal["preemptible", "non-preemptible"] | None = None
    completions: int | None = None
    parallelism: int | None = None
    backoff_limit: int | None = None
    termination_grace_period_seconds: int | None = None
    auto_deletion_time_after_completion_seconds: int | None = None
    labels: tuple[NameValue, ...] | None = None
    annotations: tuple[NameValue, ...] | None = None
    category: str | None = None


MOST_ASKED: Final = 2**62
MOST_DEVICES_ASKED: Final = 2**20
"""Of one pod."""


class PodRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod takes from its node. Everything in whole units, so sums are exact."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpu_devices: int = 0
    gpu_milli: int = 0
    """Share of each device, in thousandths; WHOLE_GPU_MILLI for whole ones; 0 where memory decides."""
    gpu_memory_bytes: int = 0
    """Share of each device by memory; the node's device size turns it into thousandths."""


def with_defaults(spec: TrainingSpec) -> TrainingSpec:
    """The spec with every default written out, so that a later change of a default changes no stored workload."""
    priority = spec.priority_class or DEFAULT_TRAINING_PRIORITY
    derived = "non-preemptible" if PRIORITY_RANK[priority] >= FIRST_NON_PREEMPTIBLE_RANK else "preemptible"
    completions = 1 if spec.completions is None else spec.completions
    return msgspec.structs.replace(
        spec,
        priority_class=priority,
        preemptibility=spec.preemptibility or derived,
        completions=completions,
        parallelism=1 if spec.parallelism is None else spec.parallelism,
        backoff_limit=DEFAULT_BACKOFF_LIMIT if spec.backoff_limit is None else spec.backoff_limit,
        termination_grace_period_seconds=_or(spec.termination_grace_period_seconds, DEFAULT_GRACE_SECONDS),
        auto_deletion_time_after_completion_seconds=_or(
            spec.auto_deletion_time_after_completion_seconds, DEFAULT_AUTO_DELETION_SECONDS
        ),
    )


def pod_request(compute: ComputeSpec | None) -> PodRequest:
    """Requests in whole units; without a GPU request a pod takes no GPU (S036)."""
    if compute is None:
        return PodRequest()
    by_type = compute.gpu_request_type is not None
    devices = _or(compute.gpu_devices_request, 1 if by_type else 0)
    milli, memory = WHOLE_GPU_MILLI if devices else 0, 0
    if compute.gpu_request_type == "portion":
        milli = cores_to_milli(compute.gpu_portion_request or 0.0)
    elif compute.gpu_request_type == "memory":
        milli, memory = 0, parse_bytes(compute.gpu_memory_request or "0")
    return PodRequest(
        cpu_milli=_at_most(MOST_ASKED, cores_to_milli(compute.cpu_core_request or 0.0)),
        memory_bytes=_at_most(MOST_ASKED, parse_bytes(compute.cpu_memory_request or "0")),
        gpu_devices=_at_most(MOST_DEVICES_ASKED, devices),
        gpu_milli=_at_most(WHOLE_GPU_MILLI, milli if devices else 0),
        gpu_memory_bytes=_at_most(MOST_ASKED, memory if devices else 0),
    )


def check_quantities(spec: TrainingSpec) -> None:
    """Raises ValueError where a quantity of the spec is none, or quotes of its command do not close."""
    if compute := spec.compute:
        for quantity in (
            compute.cpu_memory_request,
            compute.cpu_memory_limit,
            compute.gpu_memory_request,
            compute.gpu_memory_limit,
        ):
            if quantity is not None:
                parse_bytes(quantity)
    if any(character in text for text in (spec.command, spec.args) if text for character in "'\"\\"):
        shlex.split(spec.command or "")
        shlex.split(spec.args or "")


def _at_most(most: int, number: int) -> int:
    """What is beyond fits nowhere either; sums and differences of two still fit 64 bits."""
    return max(0, min(number, most))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
