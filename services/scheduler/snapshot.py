"""What the planner is given and what it answers, as immutable values. No logic beyond naming things.

Waiting pods come as queues, one per class of pods, so that what holds for one pod of a class holds for all, and a cycle
costs what the classes cost, not what the pods cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, override

import numpy as np
from numpy.typing import NDArray

from events.cluster import ClusterKind
from events.node import BeginMaintenance, EndMaintenance, Reservation, Taint
from events.phases import WaitingReason
from events.quantities import format_bytes
from events.time_limits import TimeLimit
from events.why import KeptBy
from events.workload.commands import LeaveCluster
from events.workload.evictions import EvictionReason
from events.workload.pod import Placement, PodRef
from events.workload.spec import MAX_GRACE_SECONDS, WHOLE_GPU_MILLI, PodRequest
from events.workload.state import Workload
from services.scheduler.mix import Weighed
from services.scheduler.node_labels import NodeLabels
from services.scheduler.waits import Stint

INFINITE: Final = float("inf")
DEFAULT_WEIGHT: Final = 1.0
"""Of a project or department for which nobody set one."""
EXPRESSIONS_PER_POD: Final = 20
"""Of node affinity: comparing so many with all nodes takes as long as placing one pod."""

type Integers = NDArray[np.int64]
type Booleans = NDArray[np.bool_]
type BoundKey = tuple[str, str, bool]
"""Id of a project or department, node pool (empty: all), and whether only non-preemptible pods count."""
type HeldKey = tuple[str, str, str, bool]
"""Project id, cluster id, node pool, and whether it is of non-preemptible pods."""
type OrderKey = tuple[tuple[float, ...], str, int]
"""What the policy's orders say of a workload, then its key and the number of the pod set: the least goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why pods wait: the dominant code, and a sentence with numbers."""

    reason: WaitingReason
    message: str
    planned: frozenset[str] = frozenset()
    """Entries of the calendar that were to come soon or went on when this was found out (filters.calendar)."""


class GangPart(NamedTuple):
    """The pods of one pod set of a gang that may be bound now."""

    pools: tuple[str, ...]
    """As of PodClass."""
    request: PodRequest
    pods: int
    needed: int
    """So many of them must find a place, or none of the gang gets one."""


class Together(NamedTuple):
    """That a workload's pods go to nodes with the same value of a label."""

    workload_key: str
    label: str
    required: bool
    """Whether a pod waits that has no room there; otherwise it goes elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClass:
    """Pods that the planner cannot tell apart, or gangs of pods that it cannot."""

    project_id: str
    cluster_id: str
    """Where the scheduler chooses: that at which it stands; empty until that is found out (policy.among)."""
    pools: tuple[str, ...]
    """Those the workload names, in its order; empty: the project's, else all."""
    request: PodRequest
    preemptible: bool
    lasts_seconds: int | None = None
    """After so long all of it has ended, by its project's limit on running time and its grace; None: nobody knows."""
    grace_seconds: int = 0
    """For so long its pods still run once they are told to give way; 0 where they need not."""
    entitled: tuple[str, ...] = ()
    """Ids of reservations of capacity that are for workloads with certain labels, which its workload has."""
    among: tuple[str, ...] = ()
    """Ids of the clusters among which the scheduler chooses; none where the workload has one."""
    together: Together | None = None
    """Of a workload whose pods stay together: its pods are a class of their own."""
    gang: tuple[GangPart, ...] = ()
    """Of pods that are placed together; pools and request are then those of the first part."""
    hashed: int = field(init=False, repr=False, compare=False, default=0)
    """Found out once: a request may have a thousand entries, and each plan asks for its class several times."""

    def __post_init__(self) -> None:
        where = self.project_id, self.cluster_id, self.pools, self.among
        of = (*where, self.request, self.preemptible, self.lasts_seconds, self.grace_seconds)
        of = (*of, self.entitled, self.together, self.gang)
        object.__setattr__(self, "hashed", hash(of))

    @override
    def __hash__(self) -> int:
        return self.hashed

    @property
    def probing(self) -> int:
        """What it costs to find out that it has no room, in pods that are placed in vain; 0 where that is cheap."""
        terms = self.request.node_terms or ()
        expressions = sum(len(term.match_expressions) for term in terms)
        return expressions // EXPRESSIONS_PER_POD + sum(part.pods for part in self.gang)

    @property
    def extended(self) -> tuple[str, ...]:
        """Names of the extended resources that its pods want."""
        requests = (self.request, *(part.request for part in self.gang))
        return tuple({each.resource for request in requests for each in request.extended})

    def on(self, cluster_id: str) -> "PodClass":
        """The same, where it stands at this cluster."""
        return self if cluster_id == self.cluster_id else replace(self, cluster_id=cluster_id)

    def part(self, of: GangPart) -> "PodClass":
        """The pods of this part, as if each stood for itself."""
        return replace(self, pools=of.pools, request=of.request, gang=())


def grace_of(workload: Workload) -> int:
    """As of PodClass."""
    return min(max(workload.spec.termination_grace_period_seconds, 0), MAX_GRACE_SECONDS) if workload.preemptible else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod set of a workload, or a gang, with pods that may be bound now."""

    order: OrderKey
    rank: int
    """Of its priority: the higher one goes first, and may take the place of a lower one in its project."""
    key: str
    workload_id: str
    name: str
    pods: tuple[PodRef, ...]
    """Of a gang: those of its parts, one after the other."""
    queued: bool
    """Whether the log already says that the scheduler took it up."""
    idle: bool
    """Whether no pod of the workload holds a node: only then does the log say why it waits."""
    reported: str
    """The reason that the log gives, empty where it gives none."""
    told: str = ""
    """Its sentence."""
    since: float = INFINITE
    """When it began to wait, in seconds since 1970, as if what it had waited for before had been just before that."""
    waits_from: float = INFINITE
    """When it really began to."""
    gave_way_to: tuple[str, ...] = ()
    """Ids of workloads that got its place: it takes no place from them."""
    gives_way: bool = False
    """Whether it may be let in behind a gang that has waited for longer: it gives up its place for it at any time."""
    beside: str = ""
    """Key of a node that holds a pod of the workload, where those stay together; empty: none does, or they need not."""
    workload: Workload | None = field(default=None, repr=False, compare=False)
    """As it was then. None where nothing is known of it: what a plan makes of it, nobody can look at then."""


_RANK: Final = attrgetter("rank")


class Highest(NamedTuple):
    """The highest rank of some entries. Of a queue that has others, it says nothing."""

    of: tuple[Pending, ...]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    pod_class: PodClass
    entries: tuple[Pending, ...]
    """In order."""
    unreported: tuple[Pending, ...]
    """Those of the entries that the log does not show as queued, or gives no reason for."""
    blocked: Waiting | None
    """Known from an earlier cycle, where nothing was freed since."""
    report_again: bool
    """Whether enough time went by to correct a reason that was reported before."""
    pods: int
    """Of all entries."""
    put_off: int = 0
    """How many plans in a row did not get to it."""
    may_report: bool = False
    """Whether enough time went by for that, should there be another reason by the end of the plan."""
    kept_as: PodClass | None = None
    """Its class as the fold has it, where the scheduler chooses its cluster; None: the same."""
    highest: Highest | None = None
    """What is known of its ranks."""

    def has_above(self, rank: int, *, since: int) -> bool:
        """Whether any of its entries, from this index on, has a higher rank. Many wait, and mostly none has."""
        known = self.highest
        if known is not None and known.of is self.entries and known.rank <= rank:
            return False
        return any(map(rank.__lt__, map(_RANK, self.entries[since:])))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSchedulable:
    """A workload without pods to bind now: it is only queued, or a failed pod waits before it is run again."""

    key: str
    workload_id: str
    name: str
    waiting: Waiting | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What an elastic workload may grow by."""

    pod_class: PodClass
    entry: Pending
    """Its pods are those that it does not need."""
    pods: int
    """How many of the set there are already, or come before these."""
    wanted: int
    """How many it would like to have before others have more than they would."""
    most: int
    starts: bool
    """Whether pods that it needs wait: it grows only where these have a place first."""
    rests_until: datetime | None
    """When it may change its number again; None where it may now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    name: str
    kind: ClusterKind
    exists: bool
    connected: bool
    problem: str
    """Why it is not connected, as its agent says; empty where the agent is not heard."""
    pools: tuple[str, ...]
    """Every pool, in the order in which they are tried where nobody says otherwise."""


class Closed(NamedTuple):
    """That workloads of a project may not start now, or only within its quota."""

    told: str
    """Its windows, for a person."""
    opens_at: datetime | None
    """When the next one opens; None where none ever does."""
    ends_running: bool


class Bound(NamedTuple):
    """What pods of a project, or of all projects of a department, may hold of GPUs together."""

    holder: str
    """Such as `project vision`."""
    id: str
    """Of the project or department."""
    pool: str
    """Where; empty: everywhere."""
    firm: bool
    """Whether only non-preemptible pods count."""
    milli: int
    window: Closed | None = None
    """That it is the quota, beyond which its project goes only in these windows; None: it bounds at any time."""

    @property
    def key(self) -> BoundKey:
        """Under which it is counted what they hold."""
        return self.id, self.pool, self.firm

    @property
    def all_key(self) -> BoundKey:
        """Under which it is counted what all of them hold, non-preemptible or not."""
        return self.id, self.pool, False


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """By which a project or department shares what is left of node pools beyond the quotas."""

    everywhere: float = DEFAULT_WEIGHT
    pools: dict[str, float] = field(default_factory=dict[str, float])
    """By name of the pool, where it has another one there."""

    def in_pool(self, pool: str) -> float:
        return self.pools.get(pool, self.everywhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    name: str
    exists: bool
    department_id: str
    """Empty where it has none."""
    pools: tuple[str, ...]
    bounds: tuple[Bound, ...]
    """Its own, then those of its department."""
    weights: Weights = field(default_factory=Weights)
    department_weights: Weights = field(default_factory=Weights)
    closed: Closed | None = None
    """None where its workloads may start."""
    within_quota: Closed | None = None
    """None where it may go over its quota."""
    minimum_runtime: timedelta = timedelta(0)
    """How long pods of its workloads run before their place may be taken."""
    time_limits: tuple[TimeLimit, ...] = ()
    """Of its workloads, by kind."""


class Holder(NamedTuple):
    """Those for whom capacity is reserved."""

    reservation: str
    """Its id."""
    projects: frozenset[str] | None
    """Their ids; None: of any project."""
    labelled: bool
    """Whether their workloads need labels, too."""

    def has(self, pod_class: PodClass) -> bool:
        mine = self.projects is None or pod_class.project_id in self.projects
        return mine and (not self.labelled or self.reservation in pod_class.entitled)


type Labelled = tuple[tuple[str, dict[str, str]], ...]
"""Ids of reservations that are for workloads with certain labels, and those labels."""


class Closing(NamedTuple):
    """Nodes from which the calendar keeps pods."""

    called: str
    """For a person, such as `maintenance firmware`."""
    rows: Booleans
    """Whether it is about the node of this row."""
    starts_at: datetime
    ends_at: datetime
    left_seconds: float
    """Until it begins; 0 once it has."""
    reason: WaitingReason = WaitingReason.MAINTENANCE
    holder: Holder | None = None
    """Those that alone may use them; None: none may."""
    parts: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """By row, the devices of nodes of which only these are kept."""
    firm_too: bool = True
    """Whether it is so close that what does not give way is kept away."""

    def refuses(self, pod_class: PodClass, minimum: timedelta) -> bool:
        """Whether such pods are kept away: before it begins, those that could still run then and do not give way, and
        those that would have to give way too soon.

        Args:
            minimum: for how long pods of its project run before their place may be taken.
        """
        if self.holder is not None and self.holder.has(pod_class):
            return False
        if not self.left_seconds:
            return True
        ends_before = pod_class.lasts_seconds is not None and pod_class.lasts_seconds <= self.left_seconds
        if not pod_class.preemptible:
            return self.firm_too and not ends_before
        # Of the time that is planned nothing is to be lost: they would be told to end at once.
        if pod_class.grace_seconds >= self.left_seconds:
            return True
        needs = minimum.total_seconds() + pod_class.grace_seconds
        return self.firm_too and bool(minimum) and not ends_before and needs > self.left_seconds


class Cordon(NamedTuple):
    """Who keeps new pods away from a node, by id, and since when."""

    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """Nodes as columns; row i of each is one node. The planner copies what it changes."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    gpu_models: tuple[str, ...]
    """Empty where it is not known."""
    pool_numbers: dict[tuple[str, str], int]
    """By (cluster id, pool)."""
    pool: Integers
    """The number of its pool."""
    present: Booleans
    usable: Booleans
    """Its cluster lets new pods on it: present, ready, not cordoned there, cluster connected. Taints are apart."""
    taints: Integers
    """The number of its set of taints that refuse pods."""
    taint_sets: tuple[tuple[Taint, ...], ...]
    """By number."""
    labels: NodeLabels
    cordoned: Booleans
    """Somebody keeps new pods away with Muster's own mark."""
    cordons: dict[int, Cordon]
    """Of those nodes, by row."""
    free_cpu_milli: Integers
    free_memory_bytes: Integers
    free_pods: Integers
    free_devices: Integers
    """How many of the untouched devices can be had; negative where the node lost some that are held."""
    free_device_milli: Integers
    """Two-dimensional; -1 where the node has no such device."""
    gpu_memory_bytes: Integers
    capacity_cpu_milli: Integers
    """What the node has when nothing of ours is on it; likewise the three below."""
    capacity_memory_bytes: Integers
    capacity_pods: Integers
    capacity_devices: Integers
    free_extended: dict[str, Integers]
    """By resource; those that no node has, or no pod waits for, are not there."""
    capacity_extended: dict[str, Integers]
    closings: tuple[Closing, ...] = ()
    """Those that matter now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A reservation whose run is over."""

    node_key: str
    node_name: str
    row: int
    """-1 where the node is not in the table."""
    reservation: Reservation


class Undisturbed(NamedTuple):
    """Until when nobody takes a place, and by which rule."""

    until: datetime
    rule: KeptBy


class Leaving(NamedTuple):
    """What a pod still holds that was told to end."""

    row: int
    reservation: Reservation
    project_id: str
    pool: str
    """Where it is counted; both empty where it holds no GPU."""
    preemptible: bool
    returns: bool = False
    """Whether it makes room for others, and has another place: what it holds counts until then."""


class Moving(NamedTuple):
    """A pod that makes room for others. It has another place, on a node from which nobody is moved."""

    pod_class: PodClass
    row: int
    """Where it still is."""


class MustLeave(NamedTuple):
    """A run, and why and from when on it has to leave its node."""

    at: datetime
    key: str
    """Of its workload."""
    pod: PodRef
    reason: EvictionReason
    message: str


class NodeMark(NamedTuple):
    """What maintenance that begins, or is over, does to a node."""

    node_key: str
    node_name: str
    command: BeginMaintenance | EndMaintenance


class Departure(NamedTuple):
    """A workload whose cluster is lost for longer than its project waits: it is to wait for another one."""

    key: str
    command: LeaveCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    now: datetime
    nodes: NodeTable
    clusters: dict[str, ClusterView]
    projects: dict[str, ProjectView]
    held_milli: dict[BoundKey, int]
    """What is held under each bound, by its key."""
    held_in: dict[HeldKey, int] = field(default_factory=dict[HeldKey, int])
    """What each project holds where."""
    queues: tuple[Queue, ...]
    not_schedulable: tuple[NotSchedulable, ...]
    releases: tuple[Release, ...]
    leaving: tuple[Leaving, ...] = ()
    late: tuple[Leaving, ...] = ()
    """Likewise, of pods that should have ended by now. Nobody counts on their places; they make nobody use too much."""
    consolidates: bool = True
    """Whether pods may be moved to make room for what is wide."""
    moving: tuple[Moving, ...] = ()
    """Pods that were told to end to make room for others, and have not yet."""
    growing: tuple[Growth, ...] = ()
    running: dict[str, tuple[Workload, ...]] = field(default_factory=dict[str, tuple[Workload, ...]])
    """By project id: preemptible workloads that hold nodes, and elastic ones."""
    labelled: Labelled = ()
    marks: tuple[NodeMark, ...] = ()
    """Nodes that are to be taken out of service now, or back."""
    must_leave: tuple[tuple[Workload, tuple[MustLeave, ...]], ...] = ()
    """Workloads of which pods have to leave their node now, and those pods. None of them is among the running."""
    departures: tuple[Departure, ...] = ()
    """Workloads that are to leave their clusters now. None of them is among the running, nor those that must leave
    nodes.
    """
    placed_again: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """By id of a workload that gave up a place before: when it got the last one."""
    promised: dict[str, int] = field(default_factory=dict[str, int])
    """By id of a workload for which others were told to end, until their places are given: what they hold of GPUs, in
    thousandths. They go first, in this order.
    """
    promised_then: dict[str, int] = field(default_factory=dict[str, int])
    """The same once what is over has been released."""
    stints: Mapping[str, Stint] = field(default_factory=dict[str, Stint])
    """By id of a workload that has had a place: since when it has it, or waits."""
    head_start_seconds: float = INFINITE
    """For so long a workload of one rank less must have waited before it goes first."""
    mix: tuple[Weighed, ...] = ()
    """Which requests for GPUs have come."""


class Binding(NamedTuple):
    """One pod on one node, as its workload records it and as the node does."""

    key: str
    workload_id: str
    name: str
    """Of the workload."""
    placement: Placement
    reservation: Reservation
    cluster_id: str
    cluster_name: str
    whole: bool = False
    """Whether it is stored together with all others of its workload, or not at all."""
    firm_of: str = ""
    """Id of its project, where it is non-preemptible; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Pods of one workload whose place another one gets, or that have to leave their node."""

    key: str
    workload_id: str
    name: str
    """Of the workload."""
    pods: tuple[PodRef, ...]
    reason: EvictionReason
    message: str
    beneficiary: str
    """Id of the workload that gets it; empty where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """A workload that the log shall show as queued, with the reason why it waits where there is one."""

    key: str
    workload_id: str
    name: str
    waiting: Waiting | None
    expected_start: datetime | None = None
    """When it is expected to start; None where there is no ground for an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A part of a plan that breaks what holds of every plan. It was left out."""

    rule: str
    """Such as `no node beyond its capacity`."""
    of: str
    """Of what: a node, a workload, a project or department."""
    message: str
    """With numbers."""
    left_out: int
    """How many pods were to be bound, or told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    bindings: tuple[Binding, ...] = ()
    releases: tuple[Release, ...] = ()
    updates: tuple[StatusUpdate, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    marks: tuple[NodeMark, ...] = ()
    """As of Snapshot; likewise the one below."""
    departures: tuple[Departure, ...] = ()
    held: dict[PodClass, Waiting] = field(default_factory=dict[PodClass, Waiting])
    """For what a place is kept that others still hold, which were told to end: it is looked at each time."""
    blocked: dict[PodClass, Waiting]
    """What no room was found for, and why: stays so until something is freed."""
    put_off: frozenset[PodClass] = frozenset()
    """What was not tried, because others of its project had been tried in vain at some length."""
    look_again: datetime | None = None
    """When a place may be taken that was looked at in vain, because whoever has it has not run for long enough."""
    more: bool = False
    """Whether the plan stopped at a limit, and there is more to place or to report."""
    broken: tuple[Broken, ...] = ()
    """What was left out, as it must not be: a fault of the scheduler itself."""

    @property
    def empty(self) -> bool:
        decided = self.bindings or self.releases or self.updates or self.evictions or self.marks or self.departures
        return not decided

    def render(self) -> str:
        """The plan for a person, one line each: releases, bindings, evictions, updates."""
        lines = [f"release on {each.node_name}: {_amounts(each.reservation)}" for each in self.releases]
        for each in self.marks:
            begins = isinstance(each.command, BeginMaintenance)
            lines.append(f"{'begin' if begins else 'end'} maintenance of {each.node_name}")
        lines += [f"{each.key} leaves cluster {each.command.cluster_name}" for each in self.departures]
        for each in self.bindings:
            pod, placed = each.placement.pod, each.placement
            held = _amounts(each.reservation)
            lines.append(f"bind {each.name}/{pod.pod_set}-{pod.index} to {placed.node_name} in {placed.pool}: {held}")
        for each in self.evictions:
            pods = ", ".join(f"{pod.pod_set}-{pod.index}" for pod in each.pods)
            lines.append(f"evict {each.name}, {each.reason}: {pods}")
        for each in self.updates:
            waits = f"waits, {each.waiting.reason}: {each.waiting.message}" if each.waiting else "is queued"
            lines.append(f"update {each.name}: {waits}")
        if self.more:
            lines.append("and more, in the next plan")
        return "\n".join(lines or ["nothing to do"])


def _amounts(held: Reservation) -> str:
    parts = [
        f"GPU {share.device}"
        if share.milli == WHOLE_GPU_MILLI
        else f"{share.milli / WHOLE_GPU_MILLI:g} of GPU {share.device}"
        for share in held.devices
    ]
    parts += [f"{held.cpu_milli / 1000:g} CPU"] if held.cpu_milli else []
    parts += [format_bytes(held.memory_bytes)] if held.memory_bytes else []
    parts += [f"{each.amount} {each.resource}" for each in held.extended]
    return ", ".join(parts) or "one pod"
