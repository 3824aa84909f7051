"""A standard training: one set of independent pods, which runs to completion."""

from collections.abc import Mapping
from typing import Final

from events.quantities import cores_to_milli, parse_bytes
from events.workload.kinds.kind import Kind
from events.workload.pod_sets import PodLimits, PodSet, PodTemplate
from events.workload.spec import (
    DEFAULT_BACKOFF_LIMIT,
    DEFAULT_GRACE_SECONDS,
    ComputeSpec,
    TrainingSpec,
    pod_request,
    with_defaults,
)


def pod_sets(spec: TrainingSpec) -> tuple[PodSet, ...]:
    count, parallelism = spec.completions, spec.parallelism
    return (
        PodSet(
            name="main",
            count=1 if count is None else count,
            parallelism=1 if parallelism is None else parallelism,
            template=template(spec),
            node_pools=spec.node_pools or (),
        ),
    )


def template(spec: TrainingSpec) -> PodTemplate:
    seconds = spec.termination_grace_period_seconds
    return PodTemplate(
        image=spec.image or "",
        command=spec.command or "",
        args=spec.args or "",
        working_dir=spec.working_dir or "",
        code=spec.code or "",
        environment=spec.environment_variables or (),
        request=pod_request(spec.compute),
        limits=_limits(spec.compute or ComputeSpec()),
        grace_seconds=DEFAULT_GRACE_SECONDS if seconds is None else seconds,
        labels={label.name: label.value for label in spec.labels or ()},
        annotations={annotation.name: annotation.value for annotation in spec.annotations or ()},
    )


def _limits(compute: ComputeSpec) -> PodLimits:
    return PodLimits(
        cpu_milli=cores_to_milli(compute.cpu_core_limit or 0.0),
        memory_bytes=parse_bytes(compute.cpu_memory_limit or "0"),
        gpu_milli=cores_to_milli(compute.gpu_portion_limit or 0.0),
        gpu_memory_bytes=parse_bytes(compute.gpu_memory_limit or "0"),
    )


def all_succeeded(sets: tuple[PodSet, ...], succeeded: Mapping[str, int]) -> bool:
    """Whether as many pods as were asked for have succeeded."""
    return sum(succeeded.values()) == sum(pod_set.count for pod_set in sets)


def backoff_limit(spec: TrainingSpec) -> int:
    return DEFAULT_BACKOFF_LIMIT if spec.backoff_limit is None else spec.backoff_limit


TRAINING: Final = Kind(
    name="Training",
    with_defaults=with_defaults,
    pod_sets=pod_sets,
    completed=all_succeeded,
    backoff_limit=backoff_limit,
)
