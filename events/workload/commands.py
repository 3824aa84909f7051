"""What can be asked of a workload, by people (first) and by the services (below)."""

from datetime import datetime
from typing import Final, Literal

import msgspec

from events.actors import STRANGER
from events.time_limits import LimitKind
from events.workload.evictions import EvictionReason
from events.workload.fields.inference import ScaleReason
from events.workload.fields.metadata import Annotation, Label
from events.workload.fields.scheduling import PriorityClass
from events.workload.fields.storage import StorageSpec
from events.workload.kinds import KINDS
from events.workload.life import UndoableAct
from events.workload.made_from import MadeFrom
from events.workload.pod import Placement, PodAddress, PodRef
from events.workload.sessions import SessionKind
from events.workload.spec import Beside, Distributed, Inference, TrainingSpec


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Settings that all commands share; the tag on the wire is the class name."""


class CreateWorkload(_Command, frozen=True, kw_only=True):
    """Make a workload of any kind. `name` is final: a prefix already has its suffix (`final_name`)."""

    kind: str
    """One of the registered kinds, such as `Training`."""
    name: str
    requested_name: str
    project_id: str
    cluster_id: str
    """Empty where the scheduler chooses it."""
    spec: TrainingSpec
    distributed: Distributed | None = None
    """Of a distributed training; None for every other kind."""
    inference: Inference | None = None
    """Of an inference; None for every other kind."""
    made_from: MadeFrom | None = None
    """From which template and assets the api made the spec, and who set its fields."""
    among: tuple[str, ...] = ()
    """Ids of the clusters among which the scheduler chooses; none where one is named."""

    def __post_init__(self) -> None:
        """Raises ValueError where there is no such kind."""
        if self.kind not in KINDS:
            raise ValueError(f"no kind of workload is called {self.kind!r}")

    @property
    def beside(self) -> Beside:
        """What its kind stores beside the spec."""
        return self.distributed or self.inference


class SuspendWorkload(_Command, frozen=True, kw_only=True):
    workload_id: str


class ResumeWorkload(_Command, frozen=True, kw_only=True):
    workload_id: str


class DeleteWorkload(_Command, frozen=True, kw_only=True):
    workload_id: str
    generation: int | None = None
    """Of the auto-deletion that is due; a command with a generation that has moved on does nothing."""
    project_deleted: bool = False
    """From auto_deletion: its project is no more."""
    cluster_removed: bool = False
    """From auto_deletion: its cluster is no more, and it had not ended."""


class ChangeWorkload(_Command, frozen=True, kw_only=True):
    """Change what may change after submission; absent fields stay."""

    workload_id: str
    priority_class: PriorityClass | None = None
    auto_deletion_time_after_completion_seconds: int | None = None
    labels: tuple[Label, ...] | None = None
    """All of them: what is not among them is taken off."""
    annotations: tuple[Annotation, ...] | None = None
    """Likewise."""
    storage: StorageSpec | None = None
    """All volumes. Only where pods find claims and Secrets, and rights of files, may differ from before (R30)."""
    master_storage: StorageSpec | None = None
    """All of a master that has its own, likewise."""


class TransferWorkload(_Command, frozen=True, kw_only=True):
    """Make somebody else its owner."""

    workload_id: str
    subject: str
    """Of the new owner's tokens, or the id of a service account."""
    actor: str = STRANGER
    """Id of the new owner; the gate sets it."""


class Changeable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change can set; None: what it left alone."""

    priority_class: PriorityClass | None = None
    auto_deletion_time_after_completion_seconds: int | None = None
    labels: tuple[Label, ...] | None = None
    annotations: tuple[Annotation, ...] | None = None
    storage: StorageSpec | None = None
    master_storage: StorageSpec | None = None


class UndoAct(_Command, frozen=True, kw_only=True):
    """Take back what somebody did to a workload, as the log tells of it."""

    workload_id: str
    sequence: int
    """Of the act's commit."""
    act: UndoableAct
    attempt: int = 0
    """Of a suspension or resumption: the attempt that the workload was seen in. In another one it was resumed since."""
    made: Changeable = Changeable()
    """Of a change: what it made of the workload."""
    before: Changeable = Changeable()
    """Of a change: what that was before."""


class ScaleInference(_Command, frozen=True, kw_only=True):
    """From the autoscaler: let an inference have so many replicas."""

    workload_id: str
    replicas: int
    was: int
    """How many there were to be when it was decided; where there are others by now, it comes too late and does nothing.
    """
    reason: ScaleReason
    message: str
    """The load that it was decided by, in a sentence of at most 300 characters."""


class EndAtLimit(_Command, frozen=True, kw_only=True):
    """From auto_deletion: a limit of its project on its time is reached. Where it does something else by now, it does
    nothing.
    """

    workload_id: str
    limit: LimitKind
    seconds: int
    """That the limit is."""
    attempt: int
    """In which it was seen."""


class OpenSession(_Command, frozen=True, kw_only=True):
    """Let somebody into a pod."""

    workload_id: str
    session_id: str
    kind: SessionKind
    pod_set: str
    index: int
    seconds: int
    """How long it may last."""
    command: tuple[str, ...] = ()
    stdin: bool = False
    tty: bool = False
    ports: tuple[int, ...] = ()


class CloseSession(_Command, frozen=True, kw_only=True):
    """From the api, whose session it was, or from cluster_sync, where nobody has it any more: it is over."""

    workload_id: str
    session_id: str
    reason: str
    message: str = ""
    exit_code: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0


class PlacePods(_Command, frozen=True, kw_only=True):
    """From the scheduler: take the workload into the queue, and bind these pods, if any."""

    workload_id: str
    placements: tuple[Placement, ...] = ()
    cluster_id: str = ""
    """Of the nodes of the placements; empty where the workload's own is meant."""
    cluster_name: str = ""
    waiting_reason: str = ""
    """Why the rest waits; told again only when it is another reason."""
    waiting_message: str = ""
    expected_start: datetime | None = None
    """When it is expected to start, as it is told with a reason; None: nobody knows."""


class EvictPods(_Command, frozen=True, kw_only=True):
    """From the scheduler: end these runs, since another workload needs their place and has more right to it, or they
    have to leave their node.
    """

    workload_id: str
    pods: tuple[PodRef, ...]
    """Of a gang: all that hold a node, or so many that its minimum stays."""
    reason: EvictionReason
    message: str
    """For whom and by which rule, in a sentence."""
    beneficiary: str
    """Id of the workload that gets the place; empty where none does."""


class LeaveCluster(_Command, frozen=True, kw_only=True):
    """From the scheduler: its cluster has been lost for longer than its project waits, so it waits for another one."""

    workload_id: str
    cluster_id: str
    """That it leaves."""
    cluster_name: str
    attempt: int
    """In which that was seen."""
    among: tuple[str, ...]
    """Ids of the clusters that can take the place of that one, which is among them."""
    lost_since: datetime
    seconds: int
    """For how long its project waits."""
    problem: str = ""
    """As of ClusterLeft."""


PodFactKind = Literal["starting", "running", "unreachable", "succeeded", "failed", "interrupted", "refused", "stopped"]
"""The first three are of a run that lives, the others are ends. `unreachable`: its node has not been heard from for
long, so nobody knows whether it still runs.
"""
LIVE_FACTS: Final[frozenset[PodFactKind]] = frozenset({"starting", "running", "unreachable"})


class PodWarning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What keeps a run from coming up, or endangers it, as its cluster says it."""

    reason: str
    """Code, such as `image_pull`; told once for each run."""
    message: str
    """In words."""
    at: datetime


class PodFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cluster saw of one run of one pod."""

    pod: PodRef
    kind: PodFactKind
    at: datetime
    """When it happened there, UTC."""
    token: int = 0
    """Of the run, where known: a fact that names another token than the run's own changes nothing."""
    exit_code: int | None = None
    reason: str = ""
    """Code, such as `exit_code`, `signal`, `shutdown`, `node_lost`, `out_of_memory`."""
    message: str = ""
    warnings: tuple[PodWarning, ...] = ()
    """What the cluster warned of during this run, oldest first, perhaps not for the first time."""
    address: PodAddress | None = None
    """With `running`: where it answers, if it has ports."""
    checkpoint_at: datetime | None = None
    """When the newest file of its workload's checkpoint folder was changed, as far as that is known."""


class ReportPods(_Command, frozen=True, kw_only=True):
    """From cluster_sync: facts about pods of one workload, in any order, perhaps not for the first time."""

    workload_id: str
    facts: tuple[PodFact, ...]


UserWorkloadCommand = (
    CreateWorkload
    | SuspendWorkload
    | ResumeWorkload
    | DeleteWorkload
    | ChangeWorkload
    | TransferWorkload
    | UndoAct
    | ScaleInference
    | EndAtLimit
    | OpenSession
    | CloseSession
)
WorkloadCommand = UserWorkloadCommand | PlacePods | EvictPods | LeaveCluster | ReportPods
