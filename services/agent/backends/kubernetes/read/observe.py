"""What a pod's object, or the API server's refusal to make one, says of a run. Pure.

A run has ended when its pod's phase says so, and never before: a pod that is being deleted, or whose node is silent,
may still have processes.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from events.cluster_protocol import CREDENTIAL_SECRETS, ObservedPod, RunPod
from events.workload.commands import PodWarning
from events.workload.pod import PodRef
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import (
    EPOCH,
    MAIN,
    ContainerStatus,
    Event,
    Pod,
    Waiting,
)
from services.agent.backends.kubernetes.act.port_manifests import address_of
from services.agent.backends.kubernetes.act.security import advice_on_root
from services.agent.backends.kubernetes.read.ends import REFUSALS, end_of, ended_at, refused_creation

MAX_MESSAGE: Final = 1000
"""Characters of one sentence of a cluster's that are kept; they stand in the log for ever."""
MAX_CODE: Final = 63


def observed_pod(pod: Pod, *, fence: int, cluster_id: str, deleted_at: datetime | None = None) -> ObservedPod | None:
    """The run that this object stands for; None where it is not ours. `fence`: smallest token that may still start.
    `deleted_at`: when its deletion was asked for, where that was seen.
    """
    if not pod.ours(cluster_id):
        return None
    labels, main = pod.metadata.labels, main_status(pod)
    token = int(labels.token)
    end = end_of(pod, main, asked_to_stop=fence > token, deleted_at=deleted_at) if pod.ended else None
    running = end is None and _runs(pod, main)
    started = _started_at(main)
    if end is not None:
        kind, at, message = end.kind, ended_at(pod, main), end.message
    elif running:
        kind, at, message = "running", started or pod.status.start_time or pod.metadata.creation_timestamp, ""
    else:
        kind, at, message = "starting", pod.metadata.creation_timestamp, ""
    return ObservedPod(
        pod_key=labels.pod_key,
        token=token,
        workload_id=labels.workload,
        pod=PodRef(pod_set=labels.pod_set, index=int(labels.index), attempt=int(labels.attempt), try_=int(labels.try_)),
        kind=kind,
        at=at,
        # Where it answers is told together with that it runs.
        ready=not running
        or (
            (main is None or main.ready or not pod.metadata.annotations.probed)
            and (bool(pod.status.pod_ip) or not pod.metadata.annotations.ports)
        ),
        address=address_of(pod) if running else None,
        node_name=pod.spec.node_name,
        exit_code=None if end is None else end.exit_code,
        reason="" if end is None else end.reason,
        message=message[:MAX_MESSAGE],
        started_at=started,
        warnings=tuple(_warnings(pod)) if end is None else (),
    )


def main_status(pod: Pod) -> ContainerStatus | None:
    """Of the container that runs the workload."""
    return next((status for status in pod.status.container_statuses if status.name == MAIN), None)


def _runs(pod: Pod, main: ContainerStatus | None) -> bool:
    """Whether its process began: it may be over already, where the pod's phase has yet to follow."""
    if main is None:
        return pod.status.phase == "Running"
    return main.state.running is not None or _started_at(main) is not None


def _started_at(main: ContainerStatus | None) -> datetime | None:
    """When its process began; None also where a container that could not be started has the calendar's beginning."""
    state = None if main is None else main.state.running or main.state.terminated
    return None if state is None or state.started_at == EPOCH else state.started_at


def unreachable(seen: ObservedPod, *, at: datetime, seconds: float) -> ObservedPod:
    """The same live run, on a node that has not answered for this long."""
    return msgspec.structs.replace(
        seen,
        kind="unreachable",
        at=at,
        reason="node_unreachable",
        message=f"node {seen.node_name} has not answered for {seconds:.0f} s; the pod may still run there, and keeps "
        "its devices until the node answers, is removed from the cluster, or is tainted as out of service",
    )


def lost_with_node(seen: ObservedPod, *, at: datetime, why: str) -> ObservedPod:
    """The same live run, on a node that is known to be gone: its object is gone, or somebody fenced it."""
    return msgspec.structs.replace(
        seen,
        kind="interrupted",
        at=at,
        reason="node_lost",
        message=f"node {seen.node_name} is lost: {why}; the pod is placed again",
        warnings=(),
    )


def creation_refused(run: RunPod, *, namespace: str, status: int, message: str, at: datetime) -> ObservedPod | None:
    """The end of a run that the API server refuses to make; None where another try may do (then: BackendError)."""
    end = refused_creation(status, message, namespace=namespace)
    if end is None:
        return None
    return ObservedPod(
        pod_key=run.pod_key,
        token=run.token,
        workload_id=run.workload_id,
        pod=run.pod,
        kind=end.kind,
        at=at,
        node_name=run.node_name,
        reason=end.reason,
        message=end.message[:MAX_MESSAGE],
    )


# -- warnings --------------------------------------------------------------------------------------------------------

_WAITING: Final = {
    "ErrImagePull": "image_pull",
    "ImagePullBackOff": "image_pull",
    "ErrImageNeverPull": "image_pull",
    "ImageInspectError": "image_pull",
    "RegistryUnavailable": "image_pull",
    "SignatureValidationFailed": "image_pull",
    "InvalidImageName": "image_name",
    "CreateContainerConfigError": "container_config",
    "CreateContainerError": "container_create",
    "PreCreateHookError": "container_create",
    "RunContainerError": "container_start",
    "PreStartHookError": "container_start",
    "PostStartHookError": "container_start",
    "CrashLoopBackOff": "container_restarts",
}
"""Why a container waits, where it waits for something that may never come: our code."""

_EVENTS: Final = {
    "FailedMount": "volume",
    "FailedMapVolume": "volume",
    "FailedAttachVolume": "volume",
    "FailedCreatePodSandBox": "sandbox",
    "FailedPodSandBoxStatus": "sandbox",
    "NetworkNotReady": "network",
    "InspectFailed": "image_name",
    "ErrImageNeverPull": "image_pull",
    "Unhealthy": "not_ready",
    "Evicted": "evicted",
    "Preempting": "evicted",
    "TaintManagerEviction": "evicted",
    "ExceededGracePeriod": "grace_period",
    "FailedKillPod": "kill",
}
"""Reasons of Warning Events: our code. Others pass with their own name in our spelling."""

_SENTENCES: Final = {
    "image_pull": ("its image cannot be pulled", "check the image's name, and that the cluster may pull it"),
    "image_name": ("its image's name is no name of an image", "correct it in the workload"),
    "container_config": ("its container cannot be set up", "make what it refers to in the project's namespace"),
    "container_as_root": (
        "its image runs as root, which Pod Security `restricted` of its project or namespace forbids",
        "",
    ),
    "credentials": ("the values of its credentials are not on the cluster yet", "they are put there again"),
    "container_create": ("its container cannot be made", "the node tries again"),
    "container_start": ("its container cannot be started", "check its command and working directory"),
    "container_restarts": ("a container that the cluster put beside it ends again and again", "look at its logs"),
    "volume": ("a volume cannot be mounted", "check that what it refers to is there"),
    "not_ready": ("it is not ready", "it is asked again"),
    "sandbox": ("its node cannot set up its sandbox or network", "the node tries again"),
    "network": ("its node's network is not ready", "the node tries again"),
    "evicted": ("it is being evicted from its node", "it is placed again"),
    "grace_period": ("it did not end within its grace period", "the node kills it"),
    "kill": ("its node cannot end it", "the node tries again"),
}
"""What happened, and what to do or what happens next, by our code."""


def warning_of(event: Event) -> tuple[str, PodWarning] | None:
    """Uid of the pod that a Warning Event is about, and the warning; None for all other events.

    Also None for events that say in other words what the pod's object says itself: how its containers wait, and why its
    node refused it.
    """
    about = event.involved_object
    if event.type != "Warning" or about.kind != "Pod" or not about.uid or _told_by_the_object(event):
        return None
    times = (event.first_timestamp, event.event_time, event.last_timestamp, event.metadata.creation_timestamp)
    at = next((time for time in times if time is not None), EPOCH)
    code = "image_pull" if event.reason == "Failed" else _EVENTS.get(event.reason, _in_our_spelling(event.reason))
    return about.uid, PodWarning(reason=code, message=_sentence(code, event.message), at=at)


def missing_code(event: Event) -> tuple[str, str] | None:
    """Namespace and digest of code that a node did not find: then it is not there yet, or somebody deleted it."""
    found = _CODE_NOT_FOUND.search(event.message) if event.reason == "FailedMount" else None
    return (event.involved_object.namespace, found["digest"]) if found else None


def missing_secret(event: Event) -> tuple[str, str, datetime] | None:
    """Namespace and name of a Secret of ours that a node did not find, and when."""
    found = words.search(event.message) if (words := _OF_SECRETS.get(event.reason)) is not None else None
    at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return (event.involved_object.namespace, found[0], at) if found and at is not None else None


_SECRET_NOT_FOUND: Final = re.compile(rf"{CREDENTIAL_SECRETS}[a-z0-9]+")
_OF_SECRETS: Final = {
    "Failed": _SECRET_NOT_FOUND,
    "FailedToRetrieveImagePullSecret": _SECRET_NOT_FOUND,
    # A mount fails for other reasons, too, in which it is named.
    "FailedMount": re.compile(rf'{CREDENTIAL_SECRETS}[a-z0-9]+(?=" not found)'),
}
"""By the reason of an event: how a node names one that it did not find."""
_CODE_NOT_FOUND: Final = re.compile(
    rf'configmap "{names.CODE_MAP}[a-z0-9]+-(?P<digest>[0-9a-f]{{64}})-[0-9]+" not found'
)


def _told_by_the_object(event: Event) -> bool:
    match event.reason:
        case "Failed":
            return not event.message.startswith("Failed to pull image")
        case "BackOff":
            return True
        case reason:
            return reason not in _EVENTS and (reason in REFUSALS or reason.startswith("OutOf"))


def _warnings(pod: Pod) -> Iterator[PodWarning]:
    """Why its containers wait, each reason once."""
    at = pod.status.start_time or pod.metadata.creation_timestamp
    told: set[str] = set()
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting
        code = None if waiting is None else _waiting_code(waiting)
        if waiting is not None and code is not None and code not in told:
            told.add(code)
            advice = _advice_on_root(pod) if code == "container_as_root" else ""
            yield PodWarning(reason=code, message=_sentence(code, waiting.message, advice), at=at)


def _waiting_code(waiting: Waiting) -> str | None:
    code = _WAITING.get(waiting.reason)
    if code == "container_config" and _SECRET_NOT_FOUND.search(waiting.message):
        return "credentials"
    return "container_as_root" if code == "container_config" and "run as root" in waiting.message else code


def _advice_on_root(pod: Pod) -> str:
    meta = pod.metadata
    return advice_on_root(
        meta.annotations.restricted_by, namespace=meta.namespace, project=meta.annotations.project_name
    )


def _sentence(code: str, said: str, advice: str = "") -> str:
    what, usual = _SENTENCES.get(code, ("", ""))
    advice = advice or usual
    # A pull that is put off repeats in front what it waited for.
    said = _BACK_OFF.sub("", said).strip()
    return ": ".join(part for part in (what, said) if part)[:MAX_MESSAGE] + (f"; {advice}" if advice else "")


_BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*"(: )?')
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _in_our_spelling(reason: str) -> str:
    """`FailedBinding` as `failed_binding`."""
    return _WORD_START.sub("_", reason).lower()[:MAX_CODE]
