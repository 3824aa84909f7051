"""What each cluster should be told: desired runs against what WANTED holds. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from events.cluster_protocol import EnvironmentSource, RunPod, SettledPod, StartPod, StopPod, WantedPod, pod_key
from events.phases import FINISHED, DesiredPhase, PodPhase
from events.project import Project
from events.workload import rendezvous
from events.workload.fields.process import EnvironmentVariable
from events.workload.mpi import Mpi, suggested
from events.workload.pod import LIVE_POD_PHASES, Pod, PodId, PodRef
from events.workload.pod_sets import PodSet, PodTemplate
from events.workload.spec import MAX_GRACE_SECONDS
from events.workload.state import Workload


class Desired(msgspec.Struct, frozen=True):
    """One run that holds a node, and what it is a run of."""

    workload_key: str
    pod_id: PodId
    state: Workload
    pod: Pod
    project: Project
    """Its first state where the log knows no such project."""
    held: bool = False
    """Whether it is not to start yet, since others come first. Where its agent was told already, it stays told."""

    @property
    def token(self) -> int:
        return self.pod.token

    @property
    def stop(self) -> bool:
        return self.pod.phase is PodPhase.STOPPING

    @property
    def word(self) -> tuple[int, bool, bool]:
        """What its agent is told depends on this alone."""
        return self.token, self.stop, self.held


class Held(msgspec.Struct, frozen=True):
    """What WANTED says of a pod key."""

    kind: type[WantedPod]
    token: int


UNREADABLE: Final = Held(StartPod, 0)
"""A word that nobody can read. Older than every run, so that what is desired takes its place; where nothing is, it is
settled and goes away.
"""

WANTED_POD: Final[msgspec.json.Decoder[WantedPod]] = msgspec.json.Decoder(WantedPod)


def desired_pod(
    key: str, pod_id: PodId, state: Workload, pod: Pod, project: Project, *, held: bool = False
) -> Desired | None:
    """What should be told of a pod; None where it holds no node."""
    return Desired(key, pod_id, state, pod, project, held) if pod.phase in LIVE_POD_PHASES else None


def held_sets(state: Workload) -> frozenset[str]:
    """Pod sets whose pods are not to start yet: others come first, and do not all run. One of those that has succeeded
    will not run again, and is not waited for.
    """
    sets = state.pod_sets
    if not any(pod_set.starts_after for pod_set in sets):
        return frozenset()
    there = Counter(name for (name, _), pod in state.pods.live.items() if pod.phase is PodPhase.RUNNING)
    for name, progress in state.progress.items():
        there[name] += progress.succeeded
    short = {pod_set.name for pod_set in sets if there[pod_set.name] < pod_set.count}
    return frozenset(pod_set.name for pod_set in sets if pod_set.starts_after in short)


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
        kind = StopPod if wanted.stop else StartPod
        if wanted.held and (known is None or known.token < wanted.token):
            # An earlier run of it is over, and nothing takes the place of that word yet.
            if known is not None and known.kind is not SettledPod:
                publish.append((subject, SettledPod(pod_key=subject.rpartition(".")[2], token=known.token)))
            continue
        if known is not None and (known.token > wanted.token or (known.token, known.kind) == (wanted.token, kind)):
            continue
        publish.append((subject, stop_pod(wanted) if wanted.stop else start_pod(wanted)))
    return publish


def start_pod(desired: Desired) -> StartPod:
    return StartPod(
        pod_key=pod_key(desired.workload_key, *desired.pod_id),
        token=desired.token,
        workload_id=desired.state.workload_id,
        pod=_ref(desired),
        node_name=desired.pod.node_name,
        devices=desired.pod.devices,
    )


def run_pod(desired: Desired, *, ssh_keys: bool = False) -> RunPod:
    """The run's recipe: everything an agent must know to start it. `ssh_keys`: as its agent asked."""
    state, pod, (set_name, index) = desired.state, desired.pod, desired.pod_id
    pod_set = _pod_set(desired)
    template, request, limits = pod_set.template, pod_set.template.request, pod_set.template.limits
    mpi = mpi_of(desired, ssh_keys=ssh_keys)
    sources = {variable.name: found for variable in template.environment if (found := _source(variable)) is not None}
    return RunPod(
        pod_key=pod_key(desired.workload_key, set_name, index),
        token=pod.token,
        workload_id=state.workload_id,
        workload_name=state.name,
        project_id=state.project_id,
        project_name=desired.project.name,
        pod_security=desired.project.pod_security,
        privileged=desired.project.privileged,
        pod=_ref(desired),
        endless=pod_set.endless,
        pods=_pods(pod_set),
        node_name=pod.node_name,
        devices=pod.devices,
        gpu_memory_bytes=request.gpu_memory_bytes,
        gpu_limit_milli=limits.gpu_milli,
        gpu_memory_limit_bytes=limits.gpu_memory_bytes,
        image=template.image,
        arguments=template.arguments,
        keeps_entry_point=not template.command,
        working_dir=template.working_dir,
        code=template.code,
        environment=_suggested(mpi, elastic=pod_set.peers is not None and pod_set.peers.elastic is not None)
        | {
            one.name: one.value or ""
            for one in template.environment
            if one.name not in sources and one.user_credential is None
        }
        | pod_set.values(index),
        environment_from=tuple(sources.values()),
        rendezvous={} if pod_set.peers is None else rendezvous.variables(pod_set.peers, index),
        mpi=mpi,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        cpu_limit_milli=limits.cpu_milli,
        memory_limit_bytes=limits.memory_bytes,
        container=template.container,
        volumes=template.volumes,
        readiness=template.readiness,
        extended=request.extended,
        node_type=request.node_type,
        node_terms=request.node_terms,
        tolerations=template.tolerations,
        pod_affinity=pod_set.pod_affinity,
        grace_seconds=template.grace_seconds,
        stop_by=template.stop_by,
        ports=pod_set.ports,
        labels=template.labels,
        annotations=template.annotations,
    )


def _suggested(mpi: Mpi | None, *, elastic: bool) -> dict[str, str]:
    """Variables that the workload may set otherwise."""
    if elastic:
        return dict(rendezvous.RESTARTS)
    return {} if mpi is None else suggested(mpi)


def mpi_of(desired: Desired, *, ssh_keys: bool) -> Mpi | None:
    """What the pod is in an MPI training; None where it is in none."""
    peers = _pod_set(desired).peers
    mpi = None if peers is None else peers.mpi
    return mpi if mpi is None or ssh_keys else replace(mpi, ssh="", serves=False)


def _pods(pod_set: PodSet) -> int:
    """How many find each other; those of an endless set come and go, and need not."""
    if pod_set.endless:
        return 1
    if pod_set.peers is None:
        return pod_set.at_once
    return pod_set.peers.size if pod_set.peers.elastic is None else pod_set.peers.elastic[1]


def stop_pod(desired: Desired) -> StopPod:
    state = desired.state
    if state.cluster_id in state.left:
        reason = "superseded"
    elif state.desired is DesiredPhase.DELETED:
        reason = "deleted"
    elif state.phase in FINISHED:
        reason = "failed"
    elif state.desired is DesiredPhase.RUNNING:
        reason = "scaled_down"
    else:
        reason = "suspended"
    return StopPod(
        pod_key=pod_key(desired.workload_key, *desired.pod_id),
        token=desired.token,
        workload_id=state.workload_id,
        pod=_ref(desired),
        # Those that were submitted before there was a limit have to go, too.
        grace_seconds=min(_pod_set(desired).template.grace_seconds, MAX_GRACE_SECONDS),
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


def template_of(desired: Desired) -> PodTemplate:
    """What the pod is made of."""
    return _pod_set(desired).template


def _pod_set(desired: Desired) -> PodSet:
    """The pod's; the first one where the workload has none of that name: it was bound by what nobody decides."""
    sets = desired.state.pod_sets
    return next((one for one in sets if one.name == desired.pod_id[0]), sets[0])
