"""What each cluster should be told: desired runs against what WANTED holds. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from events.cluster_protocol import EnvironmentSource, RunPod, SettledPod, StopPod, WantedPod, pod_key
from events.phases import FINISHED, DesiredPhase, PodPhase
from events.project import Project
from events.quantities import cores_to_milli, parse_bytes
from events.workload.events import PodRef
from events.workload.spec import DEFAULT_GRACE_SECONDS, EnvironmentVariable, NameValue, pod_sets, process_arguments
from events.workload.state import LIVE_POD_PHASES, Pod, PodId, Workload


class Desired(msgspec.Struct, frozen=True):
    """One run that holds a node, and what it is a run of."""

    workload_key: str
    pod_id: PodId
    state: Workload
    pod: Pod
    project: Project
    """Its first state where the log knows no such project."""

    @property
    def token(self) -> int:
        return self.pod.token

    @property
    def stop(self) -> bool:
        return self.pod.phase is PodPhase.STOPPING


class Held(msgspec.Struct, frozen=True):
    """What WANTED says of a pod key."""

    kind: type[WantedPod]
    token: int


UNREADABLE: Final = Held(RunPod, 0)
"""A word that nobody can read. Older than every run, so that what is desired takes its place; where nothing is, it is
settled and goes away.
"""

WANTED_POD: Final[msgspec.json.Decoder[WantedPod]] = msgspec.json.Decoder(WantedPod)


def desired_pod(key: str, pod_id: PodId, state: Workload, pod: Pod, project: Project) -> Desired | None:
    """What should be told of a pod; None where it holds no node."""
    return Desired(key, pod_id, state, pod, project) if pod.phase in LIVE_POD_PHASES else None


def reconcile(
    subjects: Iterable[str], desired: Mapping[str, Desired], held: Mapping[str, Held]
) -> list[tuple[str, WantedPod]]:
    """What to publish for these subjects, so that WANTED says what is desired. Nothing where it already does.

    A word of a newer run is left alone: another instance is ahead of us.
    """
    publish: list[tuple[str, WantedPod]] = []
    for subject in subjects:
        wanted, known = desired.get(subject), held.get(subject)
        if wanted is None:
            if known is not None and known.kind is not SettledPod:
                publish.append((subject, SettledPod(pod_key=subject.rpartition(".")[2], token=known.token)))
            continue
        kind = StopPod if wanted.stop else RunPod
        if known is not None and (known.token > wanted.token or (known.token, known.kind) == (wanted.token, kind)):
            continue
        publish.append((subject, stop_pod(wanted) if wanted.stop else run_pod(wanted)))
    return publish


def run_pod(desired: Desired) -> RunPod:
    """Everything an agent must know to run a pod."""
    state, pod, (set_name, index) = desired.state, desired.pod, desired.pod_id
    spec, compute = state.spec, state.spec.compute
    sets = pod_sets(spec)
    pod_set = next((one for one in sets if one.name == set_name), sets[0])
    request, variables = pod_set.request, spec.environment_variables or ()
    sources = {variable.name: source for variable in variables if (source := _source(variable)) is not None}
    return RunPod(
        pod_key=pod_key(desired.workload_key, set_name, index),
        token=pod.token,
        workload_id=state.workload_id,
        workload_name=state.name,
        project_id=state.project_id,
        project_name=desired.project.name,
        pod_security=desired.project.pod_security,
        pod=_ref(desired),
        pods=min(pod_set.parallelism, pod_set.count),
        node_name=pod.node_name,
        devices=pod.devices,
        gpu_memory_bytes=request.gpu_memory_bytes,
        gpu_limit_milli=cores_to_milli(compute.gpu_portion_limit or 0.0) if compute else 0,
        gpu_memory_limit_bytes=parse_bytes(compute.gpu_memory_limit or "0") if compute else 0,
        image=spec.image or "",
        arguments=process_arguments(spec),
        keeps_entry_point=not spec.command,
        working_dir=spec.working_dir or "",
        environment={variable.name: variable.value for variable in variables if variable.name not in sources},
        environment_from=tuple(sources.values()),
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        cpu_limit_milli=cores_to_milli(compute.cpu_core_limit or 0.0) if compute else 0,
        memory_limit_bytes=parse_bytes(compute.cpu_memory_limit or "0") if compute else 0,
        grace_seconds=_grace_seconds(state),
        labels=_by_name(spec.labels),
        annotations=_by_name(spec.annotations),
    )


def stop_pod(desired: Desired) -> StopPod:
    state = desired.state
    if state.desired is DesiredPhase.DELETED:
        reason = "deleted"
    elif state.phase in FINISHED:
        reason = "failed"
    else:
        reason = "suspended"
    return StopPod(
        pod_key=pod_key(desired.workload_key, *desired.pod_id),
        token=desired.token,
        workload_id=state.workload_id,
        pod=_ref(desired),
        grace_seconds=_grace_seconds(state),
        reason=reason,
    )


def _source(variable: EnvironmentVariable) -> EnvironmentSource | None:
    """Where the cluster finds the variable's value; None where it is given."""
    if secret := variable.secret:
        return EnvironmentSource(name=variable.name, kind="secret", object_name=secret.name, key=secret.key)
    if config_map := variable.config_map:
        return EnvironmentSource(name=variable.name, kind="config_map", object_name=config_map.name, key=config_map.key)
    if field := variable.pod_field_ref:
        return EnvironmentSource(name=variable.name, kind="field", key=field.path)
    return None


def _ref(desired: Desired) -> PodRef:
    set_name, index = desired.pod_id
    return PodRef(pod_set=set_name, index=index, attempt=desired.pod.attempt, try_=desired.pod.try_)


def _grace_seconds(state: Workload) -> int:
    seconds = state.spec.termination_grace_period_seconds
    return DEFAULT_GRACE_SECONDS if seconds is None else seconds


def _by_name(pairs: tuple[NameValue, ...] | None) -> dict[str, str]:
    return {pair.name: pair.value for pair in pairs or ()}
