"""The life of one pod of a workload: its runs, what can have happened to one, and what follows from that for it.

A pod is bound to a node, starts, runs and ends; then it has succeeded and leaves, or it waits to be run again. What
follows for the workload stands in `life.py`, how its pods are kept in `pods.py`. The names and fields of events are
the storage format: only ever extended.
"""

from datetime import datetime, timedelta
from typing import Final, TypeGuard, assert_never, get_args

import msgspec
from msgspec.structs import replace

from events.event import Event
from events.phases import PodPhase
from events.workload.spec import WHOLE_GPU_MILLI

PodId = tuple[str, int]
"""(pod set, index)."""
VERSION_BITS: Final = 40
"""Of a run token: versions below a million million. With the incarnation above them, a token stays a whole number in
JavaScript (2^53)."""


def run_token(incarnation: int, version: int) -> int:
    """The number that orders the runs of a pod: how often the log was restored, then the version of the workload. So
    what is decided after a restore is newer than all that agents have seen, also of what was lost.
    """
    return incarnation << VERSION_BITS | version


def split_token(token: int) -> tuple[int, int]:
    """(incarnation, version)."""
    return token >> VERSION_BITS, token & ((1 << VERSION_BITS) - 1)


class PodRef(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run of one pod. Attempt and try order the runs. A fact about an earlier run changes nothing."""

    pod_set: str
    """Name of its pod set; `main` for a training."""
    index: int
    """From 0. It is the same for every run of this pod (`JOB_COMPLETION_INDEX`)."""
    attempt: int
    """Counts the runs of the whole workload, from 1. It rises when the workload is resumed."""
    try_: int = msgspec.field(name="try")
    """Counts the runs of this pod within the attempt, from 0."""

    @property
    def run(self) -> int:
        """Its number in the attempt: people count the runs of an attempt from 1."""
        return self.try_ + 1


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    device: int
    """Logical device of the node, 0..n-1."""
    milli: int
    """Share in thousandths of the device."""


class PortAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a port of a pod answers."""

    container: int
    """The port as the workload calls it."""
    port: int
    """The port at the address of the pod."""
    external: int = 0
    """The port of a NodePort; 0 if it has none."""


class PodAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a pod answers, as its agent found it. Only what forwards to it decides whether that is believed."""

    host: str
    """IP address of the pod."""
    ports: tuple[PortAddress, ...] = ()
    """Those ports of the workload that are not the same at the pod, or are node ports. By `container`."""
    node: str = ""
    """IP address of the node, for node ports; empty if unknown."""
    service: str = ""
    """Name in its cluster by which all pods of the workload are reached; empty if there is none."""

    def port(self, container: int) -> int:
        """At the pod."""
        return next((one.port for one in self.ports if one.container == container), container)


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node and the devices of a pod."""

    pod: PodRef
    """The run that is placed."""
    node_key: str
    """Aggregate key of the node."""
    node_name: str
    """Name of the node in its cluster."""
    pool: str
    """Node pool that the node was in."""
    devices: tuple[DeviceShare, ...] = ()
    """Empty if no GPU was requested."""
    gpu_model: str = ""
    """Model of the node's GPUs at that time; empty if unknown, or if no GPU was requested."""
    gpu_memory_bytes: int = 0
    """Memory of one of the node's GPUs at that time; 0 if unknown, or if no GPU was requested."""


# -- what can have happened ------------------------------------------------------------------------------------------


class PodsBound(Event, frozen=True, kw_only=True):
    """The scheduler gave runs their nodes and devices. The reservations on the nodes are in the same batch."""

    placements: tuple[Placement, ...]
    """One per run."""
    token: int
    """How often the log had been restored, times 2^40, plus the version of the workload when this was decided. It rises
    with every commit of the name, and with every restore."""


class PodStarting(Event, frozen=True, kw_only=True):
    """The cluster has accepted the pod and prepares it."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the agent saw it."""
    message: str = ""
    """What the cluster says about it, for example which image is recorded but not pulled."""


class PodRunning(Event, frozen=True, kw_only=True):
    """Its process is running."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the agent saw it."""
    address: PodAddress | None = None
    """Where it answers. Only of a workload with ports."""


class PodUnreachable(Event, frozen=True, kw_only=True):
    """Its node has not answered for long, so nobody knows whether it runs. Its reservation stays."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the agent stopped expecting news soon."""
    reason: str = ""
    """Code, such as `node_unreachable`."""
    message: str = ""
    """The same in a sentence."""


class PodWarned(Event, frozen=True, kw_only=True):
    """Its cluster warned of something that prevents the run from starting or endangers it. Once per run and reason."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the cluster reported it."""
    reason: str
    """Code, such as `image_pull`."""
    message: str
    """The text of the cluster."""


class PodSucceeded(Event, frozen=True, kw_only=True):
    """A run ended with exit code 0."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it ended."""


class PodFailed(Event, frozen=True, kw_only=True):
    """A run failed and used one retry."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it ended."""
    exit_code: int | None = None
    """128 + n if signal n ended it. Absent if there was no process."""
    reason: str = "exit_code"
    """`exit_code`, or what prevented it from running."""
    message: str = ""
    """The text of the cluster, if there was one."""
    retry_at: datetime | None = None
    """When it may run again. None if no retry is left."""


class PodInterrupted(Event, frozen=True, kw_only=True):
    """A run ended for a reason outside of it (shutdown, lost node, refused placement). It uses no retry."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it ended, or was given up."""
    reason: str
    """What ended it, such as `shutdown` or `node_lost`."""
    message: str = ""
    """The same in a sentence."""
    retry_at: datetime | None = None
    """When it may run again."""


class PodStopped(Event, frozen=True, kw_only=True):
    """A pod that was told to end is gone."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it was gone."""
    exit_code: int | None = None
    """Exit code of the process, if one had started."""


PodEvent = (
    PodStarting | PodRunning | PodUnreachable | PodWarned | PodSucceeded | PodFailed | PodInterrupted | PodStopped
)
"""Those that name a run which holds a node."""
POD_EVENTS: Final = frozenset(get_args(PodEvent))
"""The same, to be asked whether a type is among them."""


def is_of_pod(event: object) -> TypeGuard[PodEvent]:
    """Whether the event names a run: as `isinstance`, which tries eight types for each of ten thousand facts."""
    return type(event) in POD_EVENTS


MOST_WORDS_OF_AN_END: Final = 300
"""Characters that are kept of how a run ended, for each pod that waits to be run again."""
STEADY: Final = timedelta(minutes=10)
"""A run that lasted so long has worked: what ends it is no part of a loop of failures. As Kubernetes has it."""
MOST_COUNTED: Final = 2**31 - 1
"""Of attempts, tries and indexes, which are counted one by one."""


def possible(event: PodsBound) -> bool:
    """Whether the numbers that it gives to runs can be such numbers at all."""
    return 0 <= event.token < 2**63 and all(_possible(placement) for placement in event.placements)


def _possible(placement: Placement) -> bool:
    ref = placement.pod
    counted = 0 <= ref.index < MOST_COUNTED and 0 <= ref.attempt < MOST_COUNTED and 0 <= ref.try_ < MOST_COUNTED
    for share in placement.devices:
        counted = counted and 0 < share.milli <= WHOLE_GPU_MILLI
    return counted


# -- state -----------------------------------------------------------------------------------------------------------


LIVE_POD_PHASES: Final = frozenset(
    {PodPhase.BOUND, PodPhase.STARTING, PodPhase.RUNNING, PodPhase.UNKNOWN, PodPhase.STOPPING}
)
"""Phases in which a pod holds its node. In the other one, Pending, it waits for a node."""

POD_TRANSITIONS: Final[dict[PodPhase, frozenset[PodPhase]]] = {
    PodPhase.PENDING: frozenset({PodPhase.BOUND}),
    PodPhase.BOUND: frozenset({PodPhase.STARTING, PodPhase.RUNNING, PodPhase.UNKNOWN, PodPhase.STOPPING}),
    PodPhase.STARTING: frozenset({PodPhase.RUNNING, PodPhase.UNKNOWN, PodPhase.STOPPING}),
    PodPhase.RUNNING: frozenset({PodPhase.UNKNOWN, PodPhase.STOPPING}),
    PodPhase.UNKNOWN: frozenset({PodPhase.STARTING, PodPhase.RUNNING, PodPhase.STOPPING}),
    PodPhase.STOPPING: frozenset(),
}
"""What is decided of one run. From every phase but Pending it may end: its pod leaves, or waits for its next run."""


class Pod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that holds a node, or waits to be run again."""

    attempt: int
    try_: int = msgspec.field(name="try")
    phase: PodPhase
    node_key: str = ""
    node_name: str = ""
    pool: str = ""
    devices: tuple[DeviceShare, ...] = ()
    gpu_model: str = ""
    """Of the devices; empty if unknown."""
    gpu_memory_bytes: int = 0
    """Of one of the devices; 0 if unknown."""
    not_before: datetime | None = None
    """A pending pod may not be placed earlier."""
    interruptions: int = 0
    """How often this pod's runs were cut short without fault since it last ran; slows a loop of refusals down."""
    ended: str = ""
    """How the run before ended, in words, where it was none of ours to end it."""
    warned: tuple[str, ...] = ()
    """Reasons of the warnings that were told of this run."""
    failures: int = 0
    """How many of its runs failed one after the other, none of which lasted STEADY: slows a loop of failures down where
    nothing else ends it."""
    running_since: datetime | None = None
    """When its process began to run."""
    token: int = 0
    """Orders the runs of one pod key through all incarnations of the name: an agent never starts an older one."""
    address: PodAddress | None = None
    """Where it answers; None where it was not told of yet, or the workload has no ports."""

    def is_run(self, ref: PodRef) -> bool:
        """Whether its newest run is this one."""
        return self.try_ == ref.try_ and self.attempt == ref.attempt


def pod_id(ref: PodRef) -> PodId:
    return (ref.pod_set, ref.index)


MOST_GPU_MEMORY_BYTES: Final = 2**40
"""That is counted of one device: then the sum over all pods of a workload fits 64 bits, whatever a node reports."""

# -- evolve ----------------------------------------------------------------------------------------------------------


def bound(before: Pod | None, placement: Placement, token: int) -> Pod | None:
    """The pod on its node; None where the placement does not fit it. `before`: None where it was never bound."""
    ref = placement.pod
    if before is not None and not (before.phase is PodPhase.PENDING and before.is_run(ref)):
        return None
    return Pod(
        attempt=ref.attempt,
        try_=ref.try_,
        phase=PodPhase.BOUND,
        node_key=placement.node_key,
        node_name=placement.node_name,
        pool=placement.pool,
        devices=placement.devices,
        gpu_model=placement.gpu_model,
        gpu_memory_bytes=max(0, min(placement.gpu_memory_bytes, MOST_GPU_MEMORY_BYTES)),
        interruptions=before.interruptions if before else 0,
        failures=before.failures if before else 0,
        token=token,
    )


def moved(pod: Pod, event: PodEvent, *, attempt: int | None) -> Pod | None:
    """The pod after an event of its newest run; None where it leaves the workload.

    Args:
        attempt: the workload's; None where nothing of it will run again.
    """
    match event:
        case PodStarting():
            return replace(pod, phase=PodPhase.STARTING)
        case PodRunning():
            # One that was out of sight began before.
            return replace(
                pod,
                phase=PodPhase.RUNNING,
                interruptions=0,
                running_since=pod.running_since or event.at,
                address=event.address or pod.address,
            )
        case PodUnreachable():
            return replace(pod, phase=PodPhase.UNKNOWN)
        case PodWarned():
            return replace(pod, warned=(*pod.warned, event.reason))
        case PodSucceeded():
            return None
        case PodFailed():
            failed = replace(pod, failures=failures_in_a_row(pod, event.at))
            return _waiting(failed, event.retry_at, interruptions=pod.interruptions, ended=how_it_failed(event))
        case PodInterrupted():
            told = event.message or event.reason.replace("_", " ")
            return _waiting(pod, event.retry_at, interruptions=pod.interruptions + 1, ended=f"was interrupted ({told})")
        case PodStopped():
            if attempt is None:
                return None
            # One of an attempt before this one begins anew.
            return Pod(attempt=attempt, try_=pod.try_ + 1 if pod.attempt == attempt else 0, phase=PodPhase.PENDING)
        case _:
            assert_never(event)


def failures_in_a_row(pod: Pod, at: datetime) -> int:
    """With the run of it that failed at this time."""
    steady = pod.running_since is not None and at - pod.running_since >= STEADY
    return 1 if steady else pod.failures + 1


def how_it_failed(event: PodFailed) -> str:
    """In words; the backend's own where the exit code does not say it all."""
    told = "" if event.reason in ("", "exit_code") else event.message or event.reason.replace("_", " ")
    if event.exit_code is None:
        return f"failed: {told}" if told else "failed"
    return f"ended with exit code {event.exit_code}{f' ({told})' if told else ''}"


def _waiting(pod: Pod, not_before: datetime | None, *, interruptions: int, ended: str) -> Pod:
    return Pod(
        attempt=pod.attempt,
        try_=pod.try_ + 1,
        phase=PodPhase.PENDING,
        not_before=not_before,
        interruptions=interruptions,
        failures=pod.failures,
        ended=ended if len(ended) <= MOST_WORDS_OF_AN_END else f"{ended[: MOST_WORDS_OF_AN_END - 1]}…",
    )
