"""Why a workload waits, runs where it does, or was evicted. Pure."""

from typing import Literal

from msgspec import UNSET, UnsetType

from events.phases import Phase
from events.why import Act
from services.api.answers.evaluation import PlaceKept, Value
from services.api.answers.forms import Form, Uuid
from services.api.answers.workloads import Moment


class NodesCounted(Form, frozen=True, kw_only=True):
    """How many nodes one ground keeps pods from. A node that is short of several things counts at each."""

    pods: str
    """Which pods, by what each asks for; where they ask for different things, as `worker: 4 GPUs`."""
    ground: str
    """`room`: they have room. `size`: too small even when empty. Else the scheduler's rule, such as gpu or taints."""
    nodes: int
    """How many nodes."""
    message: str
    """The same in words, with numbers."""
    cluster: str | UnsetType = UNSET
    """Name of their cluster, where the scheduler chooses among several."""


class CapacityHolder(Form, frozen=True, kw_only=True):
    """What a workload holds of the capacity that another one waits for."""

    workload_id: Uuid
    """Id of the workload."""
    name: str
    """Name of the workload."""
    project_id: str
    """UUID of its project."""
    pods: int
    """Its pods there."""
    gpus: float
    """GPUs that they hold."""
    cpu_cores: float
    """CPU cores that they hold."""
    memory_bytes: int
    """Memory that they hold."""


class OtherHolders(Form, frozen=True, kw_only=True):
    """What workloads hold that you may not see, or that are beyond the twenty that hold most."""

    workloads: int
    """How many workloads."""
    pods: int
    """Their pods there."""
    gpus: float
    """GPUs that they hold."""


class ChangeStep(Form, frozen=True, kw_only=True):
    """One thing to be done, or waited for."""

    act: Act
    """What is to be done. change_workload: submit it again with another field."""
    field: str | UnsetType = UNSET
    """Of change_workload: path of the field."""
    value: Value | UnsetType = UNSET
    """What the field, quota or limit (in GPUs) is to be; of add_node, what each node has free. Null: leave it out."""
    of: str | UnsetType = UNSET
    """Of which project, department, node or cluster; or what the value is the id of; of wait, for what."""
    node_pool: str | UnsetType = UNSET
    """In which node pool."""
    cluster: str | UnsetType = UNSET
    """Of what is done to nodes, where the scheduler chooses among several clusters: name of theirs."""
    workloads: list[str] | UnsetType = UNSET
    """Of end_workloads: names of those that you may see."""
    hidden_workloads: int | UnsetType = UNSET
    """Of end_workloads: how many others there are."""


class LettingChange(Form, frozen=True, kw_only=True):
    """What would let it start: the scheduler has planned with it."""

    message: str
    """The same in words."""
    steps: list[ChangeStep]
    """All of them together."""
    waits: bool
    """False: it started with that. True: it then waited for room, as others do, and without it never could start."""


class NodeScore(Form, frozen=True, kw_only=True):
    """What one score says of a node: the least is the best."""

    name: str
    """Name of the score, such as gpu_price."""
    value: int
    """Its value, in thousandths of a GPU or core; that of node_value in millionths of a GPU."""


class NodeOption(Form, frozen=True, kw_only=True):
    """A node on which a pod could be."""

    node: str
    """Name of the node."""
    node_pool: str
    """Its pool."""
    scores: list[NodeScore]
    """In the order in which they count: the first that tells two nodes apart decides."""


class PlaceExplained(Form, frozen=True, kw_only=True):
    """Where pods are, and how that compares with other nodes now, as if one of them were placed anew."""

    pod_set: str
    """Pod set, such as `main`."""
    node: str
    """Name of the node."""
    node_pool: str
    """Its pool."""
    pods: int
    """How many of its pods are there."""
    rank: int | None
    """1: no other node would be better now. Null: the node would take no such pod now."""
    chosen: NodeOption | None
    """The node itself. Null where it would take no such pod now."""
    others: list[NodeOption]
    """The best of the other nodes with room, at most five."""
    refused: list[NodesCounted]
    """Why the rest would not take it."""


class EvictionExplained(Form, frozen=True, kw_only=True):
    """The last time that its place was taken, or that it left a lost cluster."""

    at: Moment
    """When its pods were told to end."""
    by: str
    """Who told them."""
    rule: str
    """By which rule, such as preempted or reclaimed; cluster_lost if it left a lost cluster."""
    message: str
    """For whom, and why, in words."""
    pods: int
    """How many pods."""
    gpu_hours_at_risk: float
    """GPU-hours that they had worked since its checkpoint, or since they began: lost unless they saved it before they
    ended.
    """
    for_workload_id: str | None
    """Id of the workload that got the place. Null where you may not see it; likewise its name."""
    for_workload: str | None
    """Its name."""


class StartEstimate(Form, frozen=True, kw_only=True):
    """When it is expected to start, as a range."""

    earliest: Moment
    """Begin of the range."""
    latest: Moment
    """End of the range: four in five of the past waits came out within such a one, unless it is known."""
    latest_known: bool
    """Whether the end of the range follows from limits on running time, graces and the calendar, and not from past
    waits: as the queue stands, all that it waits for has surely ended then.
    """
    measured: int
    """Past estimates from which the range is: those of workloads that have started since. 0 where there are too few of
    them, and only the end is known.
    """
    typical_error_percent: float
    """The median of how far those were off, in percent of the wait that was expected; 0 where there are too few."""


class Explanation(Form, frozen=True, kw_only=True):
    """Why a workload waits, runs where it does, or was evicted."""

    id: Uuid
    """Id of the workload."""
    name: str
    """Its name."""
    phase: Phase
    """Its phase, as the tables have it."""
    phase_reason: str | None
    """Code of the reason for the phase, as the tables and the history have it."""
    phase_message: str | None
    """The same in words, as it was reported."""
    outcome: Literal["waits", "never", "starts", "runs", "ended", "unknown"]
    """waits: some of its pods wait for what may become free. never: it cannot ever fit as written. starts: the next
    plan of the scheduler gives it a place. runs: none of its pods waits. ended: it asks for no place. unknown: the
    scheduler did not answer, or did not find out; or the cluster of its pods does not report, so nobody knows whether
    they run.
    """
    reason: str | None
    """Dominant code of why it waits, such as insufficient_gpu."""
    message: str | None
    """The same in words, with the numbers of now."""
    waiting_pods: int
    """Pods that wait."""
    ahead: int
    """Workloads that wait in the same cluster, and go first."""
    nodes: list[NodesCounted]
    """How many nodes keep it waiting, by ground."""
    holders: list[CapacityHolder]
    """Who holds the capacity, the one with the most first; those that you may see, at most twenty."""
    other_holders: OtherHolders
    """All others that hold it."""
    kept: list[PlaceKept]
    """Whose places it may not take, or not yet, and until when; at most twenty by name."""
    keeps_its_place: PlaceKept | None
    """Until when nobody takes the place of what runs. Null where somebody may now, or nobody ever may."""
    changes: list[LettingChange]
    """What would let it start, the smallest first; at most three. Empty where the scheduler knows of no small one."""
    places: list[PlaceExplained]
    """Where its pods are, at most five nodes."""
    eviction: EvictionExplained | None
    """Null where nobody ever took its place."""
    estimate: StartEstimate | None
    """When it is expected to start. Null where there is no ground for an estimate."""
    no_estimate: str | None
    """Why there is none, of what waits."""
    work_at_risk: float | None
    """GPU-hours that its runs have worked since its checkpoint, or since they began: what an eviction would lose now.
    Null of an inference.
    """
    checkpoint_at: Moment | None
    """When the newest file of its checkpoint folder was changed, as far as that was told."""
