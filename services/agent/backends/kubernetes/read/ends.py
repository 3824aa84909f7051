"""Why a pod ended, or could not be made. Pure.

Who ended it follows from times and marks on the object, and so is the same at every look and after every restart.
"""

import re
from datetime import datetime, timedelta
from typing import Final

import msgspec

from events.quantities import QuantityError, format_bytes, parse_bytes
from events.workload.commands import PodFactKind
from services.agent.backends.clone import NO_PROGRAM, NOT_CLONED
from services.agent.backends.fetching import LEAST_MEMORY, NOT_FETCHED
from services.agent.backends.interface import BAD_CODE
from services.agent.backends.kubernetes.act.code_manifests import IS_CHANGED
from services.agent.backends.kubernetes.act.objects import (
    BUCKET_CONTAINER,
    CLONE_CONTAINER,
    CODE_CONTAINER,
    MAIN,
    Condition,
    ContainerStatus,
    Pod,
    Terminated,
)
from services.agent.backends.kubernetes.act.security import advice_on_refusal, violates

SIGNAL_BASE: Final = 128
"""Exit codes above are 128 + the number of the signal that ended the process."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    kind: PodFactKind
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


SETTLE_SECONDS: Final = 15
"""Within which a node usually settles a deletion once the containers have ended: its status goes up every ten seconds
at the latest. A program's own end in that time before a deletion that nobody saw being asked for counts as cut off:
work is done twice rather than lost.
"""

SIDECAR: Final = "Always"
"""Restart policy of an init container that runs as long as the pod."""
_DISRUPTION: Final = "DisruptionTarget"
"""Condition by which some part of Kubernetes says that it is about to end the pod, and why."""

_DISRUPTIONS: Final = {
    "DeletionByPodGC": ("node_lost", "its node no longer exists"),
    "DeletionByTaintManager": ("evicted", "its node was tainted to take no pods"),
    "DeletionByDeviceTaintManager": ("evicted", "one of its devices was tainted"),
    "EvictionByEvictionAPI": ("evicted", "somebody drained its node"),
    "PreemptionByScheduler": ("evicted", "Kubernetes' scheduler made room for a pod of higher priority"),
    "TerminationByKubelet": ("evicted", "its node ended it"),
}
"""Reasons of that condition: our code, and why in words."""

_ENDED_BY_NODE: Final = {
    "Evicted": ("evicted", "its node ran short of memory or disk"),
    "Preempting": ("evicted", "its node made room for a critical pod"),
    "Terminated": ("shutdown", "its node is shutting down"),
    "Shutdown": ("shutdown", "its node is shutting down"),
    "NodeShutdown": ("shutdown", "its node is shutting down"),
    "NodeLost": ("node_lost", "its node is lost"),
}
"""`status.reason` of a pod that its node ended."""

_REFUSED: Final = "Pod was rejected"
"""How the node begins the message of a pod that it never took (`rejectPod` in the kubelet)."""
_VANISHED: Final = "ContainerStatusUnknown"
"""Reason of a container that its node looked for and did not find."""
_START_FAILURES: Final = frozenset({"StartError", "ContainerCannotRun"})


def end_of(pod: Pod, main: ContainerStatus | None, *, asked_to_stop: bool, deleted_at: datetime | None = None) -> End:
    """Why a pod in a terminal phase ended. `main`: the status of its main container, where there is one. `deleted_at`:
    when its deletion was asked for, where that was seen.
    """
    terminated = None if main is None else main.state.terminated
    deleted = pod.metadata.deletion_timestamp is not None
    if terminated is not None and _before_anybody_asked(pod, terminated, deleted_at):
        return _own_end(pod, terminated)
    if terminated is None and (failed := _failed_before(pod, deleted_at)) is not None:
        return failed
    if deleted and asked_to_stop:
        return End(kind="stopped", reason="stopped", exit_code=_exit_code(terminated))
    if _refused_by_node(pod):
        return _refusal(pod)
    if (disturbed := _disturbed(pod, terminated)) is not None:
        return disturbed
    if terminated is None and main is not None and pod.status.phase == "Failed":
        # A node says how each container ended; whoever else sets the phase knows that the node will not.
        message = "Kubernetes gave up the pod without its node: the node is gone or was put out of service"
        return End(kind="interrupted", reason="node_lost", message=message)
    if deleted:
        message = "deleted by somebody else, not by Muster; to end a workload, suspend or delete it in Muster"
        return End(kind="interrupted", reason="deleted", message=message, exit_code=_exit_code(terminated))
    if terminated is not None:
        message = "its container vanished from the node, which may have been restarted"
        return End(kind="interrupted", reason="container_lost", message=message)
    return _without_container(pod)


def _failed_before(pod: Pod, deleted_at: datetime | None) -> End | None:
    """The end that an init container made by its own, where one did: the container `main` was never begun."""
    sidecars = {each.name for each in pod.spec.init_containers if each.restart_policy == SIDECAR}
    for status in pod.status.init_container_statuses:
        ended = status.state.terminated
        if ended is None or not _exit_code(ended) or status.name in sidecars:
            continue
        if not _before_anybody_asked(pod, ended, deleted_at):
            return None
        if status.name == CODE_CONTAINER and pod.metadata.annotations.code:
            return End(kind="failed", reason=BAD_CODE, message=_not_unpacked(ended))
        if status.name.startswith(CLONE_CONTAINER) and pod.metadata.labels.token:
            return End(kind="failed", reason=NOT_CLONED, message=_not_cloned(ended))
        if status.name.startswith(BUCKET_CONTAINER) and pod.metadata.labels.token:
            return End(kind="failed", reason=NOT_FETCHED, message=_not_fetched(ended))
        said = f": {ended.message.strip()}" if ended.message.strip() else ""
        message = (
            f"container {status.name}, which the cluster put before it, ended with exit code {ended.exit_code}{said}"
        )
        return End(kind="failed", reason="init_container", message=message)
    return None


def _not_unpacked(ended: Terminated) -> str:
    said = ended.message.strip() or f"exit code {_exit_code(ended)}"
    advice = "use an image that has sh, cat, sha256sum and tar, or one that holds the code"
    if ended.exit_code == IS_CHANGED:
        advice = "somebody else made ConfigMaps of its name in the project's namespace: delete them"
    elif ended.reason == "OOMKilled":
        said, advice = "out of memory", "ask for a higher memory limit"
    return f"its code could not be unpacked in its image: {said}; {advice}"


def _not_cloned(ended: Terminated) -> str:
    said = ended.message.strip() or f"exit code {_exit_code(ended)}"
    advice = "check its address, branch and revision, and that everybody may read it, or that its secretRef may"
    if ended.exit_code == NO_PROGRAM:
        advice = "use an image that has sh, git and timeout, and for an address of ssh OpenSSH's ssh"
    return f"its repository could not be cloned: {said}; {advice}"


def _not_fetched(ended: Terminated) -> str:
    said = ended.message.strip() or f"exit code {_exit_code(ended)}"
    if ended.reason == "OOMKilled":
        return f"its bucket could not be fetched: out of memory; ask for a memory limit of {LEAST_MEMORY} at least"
    return f"its bucket could not be fetched: {said}"


def _before_anybody_asked(pod: Pod, terminated: Terminated, deleted_at: datetime | None) -> bool:
    """Whether its process ended for reasons of its own, and deletion or eviction came after. Times are whole seconds;
    in the same second the request decides: work that was cut off must not count as done.
    """
    if terminated.reason == _VANISHED:
        return False
    disruption = _condition(pod, _DISRUPTION)
    asked = (_delete_asked_at(pod, deleted_at), disruption.last_transition_time if disruption else None)
    times = [time for time in asked if time is not None]
    if not times:
        return disruption is None and pod.status.reason not in _ENDED_BY_NODE
    return terminated.finished_at is not None and all(terminated.finished_at < time for time in times)


def _own_end(pod: Pod, terminated: Terminated) -> End:
    """The program's own: by the container `main`, whatever became of others that were put beside it."""
    code = _exit_code(terminated)
    if code == 0:
        return End(kind="succeeded", exit_code=0)
    if terminated.reason == "OOMKilled":
        return End(kind="failed", reason="out_of_memory", message=_out_of_memory(pod), exit_code=code)
    if terminated.reason in _START_FAILURES:
        message = f"its command could not be started: {terminated.message or 'no reason given'}"
        return End(kind="failed", reason="start_failed", message=message, exit_code=code)
    if pod.status.reason == "DeadlineExceeded":
        return End(kind="failed", reason="deadline_exceeded", message=pod.status.message, exit_code=code)
    return End(kind="failed", reason="exit_code", message=terminated.message, exit_code=code)


def _exit_code(terminated: Terminated | None) -> int | None:
    if terminated is None or terminated.reason == _VANISHED:
        return None
    by_signal = terminated.signal > 0 and terminated.exit_code < SIGNAL_BASE
    return SIGNAL_BASE + terminated.signal if by_signal else terminated.exit_code


def _out_of_memory(pod: Pod) -> str:
    limit = next((c.resources.limits.get("memory", "0") for c in pod.spec.containers if c.name == MAIN), "0")
    try:
        size = parse_bytes(limit)
    except QuantityError:
        size = 0
    if size:
        return f"out of memory: it used more than its limit of {format_bytes(size)}; ask for a higher memory limit"
    return "out of memory: its node had no more; ask for as much memory as the program needs, so that it is placed so"


def _refused_by_node(pod: Pod) -> bool:
    """Whether the node never took it: then it has a reason, and no container was ever looked at."""
    status = pod.status
    untouched = not status.container_statuses and not status.init_container_statuses
    return untouched and bool(status.reason) and (status.message.startswith(_REFUSED) or not _ended_by_node(pod))


def _ended_by_node(pod: Pod) -> bool:
    return pod.status.reason in _ENDED_BY_NODE or _condition(pod, _DISRUPTION) is not None


def _refusal(pod: Pod) -> End:
    reason = pod.status.reason
    said = pod.status.message.removeprefix(_REFUSED).removeprefix(": ") or "no more was said"
    if reason.startswith("OutOf"):
        what = f"has not enough {reason.removeprefix('OutOf')} left"
    else:
        what = REFUSALS.get(reason, "refused the pod")
    message = f"node {pod.spec.node_name} {what} ({reason}: {said}); the pod is placed again"
    return End(kind="refused", reason="node_refused", message=message)


REFUSALS: Final = {
    "NodeAffinity": "does not have the labels that the pod asks for",
    "NodeName": "is not the node that the pod names",
    "NodePorts": "has no free port of those that the pod asks for",
    "TaintToleration": "has a taint that the pod does not tolerate",
    "UnexpectedAdmissionError": "could not give the pod its devices",
    "TopologyAffinityError": "cannot give CPUs, memory and devices that lie near each other",
    "SMTAlignmentError": "cannot give whole CPU cores in this number",
    "NodeShutdown": "is shutting down",
    "Evicted": "is short of memory, disk or process ids",
    "VolumeAttachmentLimitExceeded": "cannot attach one more volume",
    "PodLevelResourcesNotSupported": "does not know resources of a pod as a whole",
    "InvalidNodeInfo": "does not know itself yet",
}
"""Reasons for which a node refuses a pod, in words; others are given as the node says them."""


def _disturbed(pod: Pod, terminated: Terminated | None) -> End | None:
    """The end that some part of Kubernetes made, where one did."""
    condition = _condition(pod, _DISRUPTION)
    known = _ENDED_BY_NODE.get(pod.status.reason)
    if known is None and condition is not None:
        known = _DISRUPTIONS.get(condition.reason, ("evicted", "Kubernetes ended it"))
    if known is None:
        return None
    code, why = known
    said = pod.status.message or (condition.message if condition else "")
    return End(
        kind="interrupted",
        reason=code,
        message=f"{why}: {said}" if said else why,
        exit_code=_exit_code(terminated),
    )


def _without_container(pod: Pod) -> End:
    """No container of ours ended, and nobody says that he ended the pod."""
    if pod.status.phase == "Succeeded":
        return End(kind="succeeded", exit_code=0)
    message = pod.status.message or "Kubernetes says that it failed, and not why"
    return End(kind="interrupted", reason="unknown", message=message)


def _condition(pod: Pod, type_: str) -> Condition | None:
    return next((c for c in pod.status.conditions if c.type == type_ and c.status == "True"), None)


def deletion_asked_at(pod: Pod) -> datetime | None:
    """When somebody asked for its deletion, while the object still says so: the timestamp is the end of the grace
    period. Once the node has ended the pod, both are overwritten with that moment and zero; before that, zero is what
    somebody asked for.
    """
    meta = pod.metadata
    if meta.deletion_timestamp is None or (pod.ended and not meta.deletion_grace_period_seconds):
        return None
    return meta.deletion_timestamp - timedelta(seconds=meta.deletion_grace_period_seconds or 0)


def _delete_asked_at(pod: Pod, seen: datetime | None) -> datetime | None:
    meta = pod.metadata
    if meta.deletion_timestamp is None:
        return None
    marked = _moment(meta.annotations.asked_to_end_at)
    # Who looks only now cannot know more than that a node settles a deletion soon after its containers ended.
    return marked or seen or deletion_asked_at(pod) or meta.deletion_timestamp - timedelta(seconds=SETTLE_SECONDS)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def ended_at(pod: Pod, main: ContainerStatus | None) -> datetime:
    """The best that the object knows; never the clock, or the same end would look new at every look."""
    terminated = None if main is None else main.state.terminated
    if terminated is not None and terminated.finished_at is not None:
        return terminated.finished_at
    disruption = _condition(pod, _DISRUPTION)
    times = (
        disruption.last_transition_time if disruption else None,
        _delete_asked_at(pod, None),
        *(c.last_transition_time for c in pod.status.conditions if c.type == "Ready" and c.status != "True"),
        pod.status.start_time,
    )
    return next((time for time in times if time is not None), pod.metadata.creation_timestamp)


def refused_creation(status: int, message: str, *, namespace: str) -> End | None:
    """By the words of the API server's admission, which says all of it as 403: rights that we lack, a namespace that is
    going or not quite there yet, and pods that break a rule. Of the last alone the run is at fault.
    """
    if status in _NEVER:
        return End(kind="failed", reason="invalid_pod", message=f"Kubernetes does not take this pod: {message}")
    if status not in _BY_ADMISSION:
        return None
    if violates(message):
        said = f"{message}; {advice_on_refusal(message, namespace)}"
        return End(kind="failed", reason="invalid_pod", message=said)
    for words, kind, reason, advice in _FORBIDDEN_PODS:
        if words.search(message):
            return End(kind=kind, reason=reason, message=f"{message}; {advice}")
    return None


_NEVER: Final = frozenset({413, 422})
"""Too large, invalid: the same pod will never be taken."""
_BY_ADMISSION: Final = frozenset({400, 403})
"""Forbidden; some policy webhooks call it a bad request."""
_FORBIDDEN_PODS: Final[tuple[tuple[re.Pattern[str], PodFactKind, str, str], ...]] = (
    (
        re.compile(r"exceeded quota"),
        "refused",
        "quota_of_namespace",
        "it is tried again; an administrator may raise the ResourceQuota of the project's namespace",
    ),
    (
        re.compile(r"failed quota"),
        "failed",
        "invalid_pod",
        "the ResourceQuota of the project's namespace wants this in the workload",
    ),
    (
        re.compile(r"(maximum|minimum) \S+ usage per (Container|Pod)|limit to request ratio per"),
        "failed",
        "invalid_pod",
        "the LimitRange of the project's namespace wants it otherwise",
    ),
    (
        # Muster's own policy speaks of what the agent may do, and not of this pod.
        re.compile(
            r"admission webhook .* denied the request|ValidatingAdmissionPolicy '(?!muster-agent').* denied request",
            re.DOTALL,
        ),
        "failed",
        "invalid_pod",
        "a policy of the cluster refuses this pod",
    ),
)
"""How those who refuse a pod say so, what that makes of the run, and what to do."""
