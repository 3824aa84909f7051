"""What can have happened to a workload. The names and fields are the storage format: only ever extended.

A changed shape gets a new version and an upcaster (codec.py); every shape ever shipped keeps a golden payload.
"""

from datetime import datetime
from typing import Final

import msgspec

from events.workload.spec import WHOLE_GPU_MILLI, PriorityClass, TrainingSpec, check_quantities


class PodRef(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One run of one pod. Attempt and try order the runs: a fact that names an older pair changes nothing."""

    pod_set: str
    """Name of its pod set; `main` for a training."""
    index: int
    """From 0; the same for every run of this pod (`JOB_COMPLETION_INDEX`)."""
    attempt: int
    """Rises with the workload: on resume, eviction, a gang's restart."""
    try_: int = msgspec.field(name="try")
    """Rises when this pod is run again within an attempt."""


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    device: int
    """Logical device of the node, 0..n-1."""
    milli: int
    """Share in thousandths of the device."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's node and devices."""

    pod: PodRef
    """The run that is placed."""
    node_key: str
    """Aggregate key of the node."""
    node_name: str
    """As its cluster calls it."""
    pool: str
    """Node pool that the node was in."""
    devices: tuple[DeviceShare, ...] = ()
    """Empty where no GPU was asked for."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that all events share: immutable, keyword-only, defaults not written."""


class WorkloadCreated(_Event, frozen=True, kw_only=True):
    """Somebody submitted a workload, and it was taken."""

    workload_id: str
    """UUID of this incarnation of the name."""
    name: str
    """Unique among the living workloads of the project."""
    requested_name: str
    """What was asked; differs from `name` only where the name was given as a prefix (R38)."""
    kind: str
    """`Training`; other kinds follow."""
    project_id: str
    """UUID."""
    cluster_id: str
    """UUID of the cluster that runs it."""
    owner: str
    """Subject of the token that submitted it; ownership protection asks for it."""
    at: datetime
    """When it was decided."""
    spec: TrainingSpec
    """What was asked, every default written out."""

    def __post_init__(self) -> None:
        """Raises ValueError where nobody could run the spec: whoever reads it would fail, each in another place."""
        check_quantities(self.spec)


class WorkloadQueued(_Event, frozen=True, kw_only=True):
    """The scheduler took it into its queue: Creating or Resuming becomes Pending."""


class WorkloadWaiting(_Event, frozen=True, kw_only=True):
    """Nothing could be placed, for a reason that was not the last one told."""

    reason: str
    """A waiting reason, such as `insufficient_gpu` (refusals.md)."""
    message: str
    """The same as a sentence, with numbers."""


class PodsBound(_Event, frozen=True, kw_only=True):
    """The scheduler gave runs their nodes and devices, in one batch with what the nodes reserved for them."""

    placements: tuple[Placement, ...]
    """One per run."""
    token: int
    """Version of the workload when this was decided: rises with every commit of the name."""


class PodStarting(_Event, frozen=True, kw_only=True):
    """The cluster has it, and is getting it ready."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the agent saw it."""
    message: str = ""
    """What the cluster says of it, such as which image is recorded but not pulled."""


class PodRunning(_Event, frozen=True, kw_only=True):
    """Its process runs."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the agent saw it."""


class PodUnreachable(_Event, frozen=True, kw_only=True):
    """Its node has not answered for long: whether it runs is not known, so what it holds stays held."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the agent gave up on hearing of it soon."""
    reason: str = ""
    """Code, such as `node_unreachable`."""
    message: str = ""
    """The same as a sentence."""


class PodWarned(_Event, frozen=True, kw_only=True):
    """Its cluster warned of something that keeps the run from coming up, or endangers it; once per run and reason."""

    pod: PodRef
    """The run."""
    at: datetime
    """When the cluster said it."""
    reason: str
    """Code, such as `image_pull`."""
    message: str
    """The cluster's words."""


class PodSucceeded(_Event, frozen=True, kw_only=True):
    """A run ended with exit code 0."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it ended."""


class PodFailed(_Event, frozen=True, kw_only=True):
    """A run ended badly and spent one of the retries."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it ended."""
    exit_code: int | None = None
    """128 + n where signal n ended it; absent where there was no process."""
    reason: str = "exit_code"
    """`exit_code`, or what kept it from running."""
    message: str = ""
    """The cluster's words, where it had any."""
    retry_at: datetime | None = None
    """When it may run again; None where nothing is left of the budget."""


class PodInterrupted(_Event, frozen=True, kw_only=True):
    """A run ended through no fault of its own (shutdown, lost node, refused placement): spends no retry."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it ended, or was given up."""
    reason: str
    """What ended it, such as `shutdown` or `node_lost`."""
    message: str = ""
    """The same as a sentence."""
    retry_at: datetime | None = None
    """When it may run again."""


class PodStopped(_Event, frozen=True, kw_only=True):
    """A pod that was told to go is gone."""

    pod: PodRef
    """The run."""
    at: datetime
    """When it was gone."""
    exit_code: int | None = None
    """Of the process, where it had begun."""


class WorkloadSuspended(_Event, frozen=True, kw_only=True):
    """Somebody wants it stopped; it is Stopped once its pods are gone."""


class WorkloadStopped(_Event, frozen=True, kw_only=True):
    """It was suspended, and its last pod is gone."""

    at: datetime
    """When the last one was gone."""


class WorkloadResumed(_Event, frozen=True, kw_only=True):
    """Somebody wants it to run again."""

    attempt: int
    """The attempt that begins: pods of older ones are fenced off."""


class WorkloadCompleted(_Event, frozen=True, kw_only=True):
    """As many runs succeeded as were asked for."""

    at: datetime
    """When the last one ended."""
    succeeded: int
    """How many did."""
    delete_at: datetime
    """When auto-deletion is due."""


class WorkloadFailed(_Event, frozen=True, kw_only=True):
    """It ended badly and will not run again."""

    at: datetime
    """When it ended."""
    reason: str
    """`backoff_limit_exceeded` so far."""
    message: str
    """The same as a sentence."""
    delete_at: datetime
    """When auto-deletion is due."""
    exit_code: int | None = None
    """Of the last failed run."""


class WorkloadChanged(_Event, frozen=True, kw_only=True):
    """Somebody changed what may change; absent fields stay."""

    priority_class: PriorityClass | None = None
    """One of the seven."""
    auto_deletion_time_after_completion_seconds: int | None = None
    """Counted from the end of the workload."""
    delete_at: datetime | None = None
    """New due time of the auto-deletion, where the workload has already ended."""


class WorkloadDeletionRequested(_Event, frozen=True, kw_only=True):
    """Somebody, or auto-deletion, wants it gone; it is, once its pods are."""

    reason: str
    """`user` or `auto_deletion`."""


class WorkloadDeleted(_Event, frozen=True, kw_only=True):
    """All pods are gone; the name is free again."""

    at: datetime
    """When the last pod was gone."""


WorkloadEvent = (
    WorkloadCreated
    | WorkloadQueued
    | WorkloadWaiting
    | PodsBound
    | PodStarting
    | PodRunning
    | PodUnreachable
    | PodWarned
    | PodSucceeded
    | PodFailed
    | PodInterrupted
    | PodStopped
    | WorkloadSuspended
    | WorkloadStopped
    | WorkloadResumed
    | WorkloadCompleted
    | WorkloadFailed
    | WorkloadChanged
    | WorkloadDeletionRequested
    | WorkloadDeleted
)

PodEvent = (
    PodStarting | PodRunning | PodUnreachable | PodWarned | PodSucceeded | PodFailed | PodInterrupted | PodStopped
)
"""Those that name a run which holds a node."""

MOST_COUNTED: Final = 2**31 - 1
"""Of attempts, tries and indexes, which are counted one by one."""


def countable(event: WorkloadEvent) -> bool:
    """Whether the numbers that it gives to runs can be such numbers at all."""
    match event:
        case PodsBound():
            return 0 <= event.token < 2**63 and all(_possible(placement) for placement in event.placements)
        case WorkloadResumed():
            return 0 <= event.attempt < MOST_COUNTED
        case _:
            return True


def _possible(placement: Placement) -> bool:
    ref = placement.pod
    counted = all(0 <= number < MOST_COUNTED for number in (ref.index, ref.attempt, ref.try_))
    return counted and all(0 < share.milli <= WHOLE_GPU_MILLI for share in placement.devices)
