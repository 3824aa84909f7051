"""A standard training: one set of independent pods, which runs to completion."""

import shlex
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from events.quantities import cores_to_milli, parse_bytes
from events.workload.exposure import container_ports
from events.workload.fields.creation import TrainingCreation
from events.workload.fields.scheduling import DEFAULT_TRAINING_PRIORITY
from events.workload.kinds.kind import Kind
from events.workload.pod_sets import Container, PodLimits, PodSet, PodTemplate, StopBy
from events.workload.readiness import readiness
from events.workload.spec import Beside, ComputeSpec, TrainingSpec, group_ids, pod_needs, with_defaults
from events.workload.volumes import checkpoint_folder, volumes


def pod_sets(spec: TrainingSpec, _: Beside = None) -> tuple[PodSet, ...]:
    return (
        PodSet(
            name="main",
            count=spec.completions,
            parallelism=spec.parallelism,
            template=with_checkpoint(template(spec), spec, min(spec.completions, spec.parallelism)),
            sweep=spec.sweep,
            node_pools=spec.node_pools,
            pod_affinity=spec.pod_affinity,
            ports=container_ports(spec.exposed_urls, spec.ports),
        ),
    )


def template(spec: TrainingSpec, workers: TrainingSpec | None = None) -> PodTemplate:
    """The image's own command, arguments and folder are empty texts, no limit is 0: here ends every null of a spec.
    Args: workers, of a master's spec that of its workers.
    """
    return PodTemplate(
        image=spec.image,
        command=spec.command or "",
        args=spec.args or "",
        working_dir=spec.working_dir or "",
        code=spec.code or "",
        environment=spec.environment_variables,
        request=pod_needs(spec),
        limits=_limits(spec.compute),
        container=_container(spec),
        volumes=volumes(spec.storage, None if workers is None else workers.storage),
        readiness=readiness(spec.probes.readiness),
        tolerations=spec.tolerations,
        grace_seconds=spec.termination_grace_period_seconds,
        stop_by=stop_by(spec),
        labels={label.name: label.value for label in spec.labels},
        annotations={annotation.name: annotation.value for annotation in spec.annotations},
    )


def with_checkpoint(made: PodTemplate, workload: TrainingSpec, pods: int) -> PodTemplate:
    """With the folder that outlives the workload's pods, of which so many are there at a time at most."""
    folder = checkpoint_folder(workload.checkpoint, workload.storage, pods)
    return replace(made, volumes=(*made.volumes, *folder)) if folder else made


def stop_by(spec: TrainingSpec) -> StopBy | None:
    given = spec.pre_stop
    if given is None or not (given.signal or given.command):
        return None
    return StopBy(signal=given.signal or "", arguments=tuple(shlex.split(given.command or "")))


def _container(spec: TrainingSpec) -> Container:
    security = spec.security
    return Container(
        pull_policy=spec.image_pull_policy or "",
        pull_secrets=tuple(one.name for one in spec.image_pull_secrets if not one.user_credential),
        pull_credentials=tuple(one.name for one in spec.image_pull_secrets if one.user_credential),
        stdin=spec.stdin,
        tty=spec.tty,
        home=spec.create_home_dir,
        large_shm=spec.compute.large_shm_request,
        user=security.run_as_uid,
        group=security.run_as_gid,
        groups=group_ids(security.supplemental_groups),
        non_root=security.run_as_non_root,
        escalation=security.allow_privilege_escalation,
        capabilities=security.capabilities,
        read_only=security.read_only_root_filesystem,
        seccomp=security.seccomp_profile_type or "",
        host_network=security.host_network,
        host_ipc=security.host_ipc,
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
    return spec.backoff_limit


TRAINING: Final = Kind(
    name="Training",
    kubernetes_name="TrainingWorkload",
    collection="trainings",
    priority=DEFAULT_TRAINING_PRIORITY,
    creation=TrainingCreation,
    shown=lambda spec, _: spec,
    with_defaults=with_defaults,
    pod_sets=pod_sets,
    completed=all_succeeded,
    backoff_limit=backoff_limit,
)
