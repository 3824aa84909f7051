"""What the planner is given and what it answers, as immutable values. No logic beyond naming things.

Waiting pods come as queues: one queue per kind of request, so that what holds for one pod of a kind holds for all, and
a cycle costs what the kinds cost, not what the pods cost.
"""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from events.node import Reservation
from events.phases import WaitingReason
from events.workload.events import Placement, PodRef
from events.workload.spec import PodRequest

type Integers = NDArray[np.int64]
type Booleans = NDArray[np.bool_]
type Order = tuple[int, float, str]
"""Rank of the priority (negated), time of creation, key: who goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Why pods wait: the dominant code, and a sentence with numbers."""

    reason: WaitingReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Pods that the planner cannot tell apart."""

    project_id: str
    cluster_id: str
    pools: tuple[str, ...]
    """Those the workload names, in its order; empty: the project's, else all."""
    request: PodRequest
    preemptible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A pod set of a workload with pods that may be bound now."""

    order: Order
    key: str
    workload_id: str
    pods: tuple[PodRef, ...]
    queued: bool
    """Whether the log already says that the scheduler took it up."""
    idle: bool
    """Whether no pod of the workload holds a node: only then is its waiting told in the log."""
    told: str
    """The reason that the log gives, empty where it gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    kind: Kind
    entries: tuple[Pending, ...]
    """In order."""
    untold: tuple[Pending, ...]
    """Those of the entries that the log does not show as queued, or gives no reason for."""
    blocked: Waiting | None
    """Known from an earlier cycle, where nothing was freed since."""
    retell: bool
    """Whether enough time went by to correct a reason that was told before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """A workload without pods to bind now: it is only queued, or a failed pod waits for its time."""

    key: str
    workload_id: str
    waiting: Waiting | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    name: str
    exists: bool
    connected: bool
    problem: str
    """Why it is not connected, as its agent says; empty where the agent is not heard."""
    pools: tuple[str, ...]
    """Every pool, in the order in which they are tried where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    name: str
    pools: tuple[str, ...]
    quota_milli: int | None
    """Bound of what is non-preemptible; None: none."""
    used_milli: int
    """GPU shares that non-preemptible pods hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """Nodes as columns; row i of each is one node. The planner copies what it changes."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    places: dict[tuple[str, str], int]
    """Number of a (cluster id, pool)."""
    place: Integers
    present: Booleans
    usable: Booleans
    """Takes new pods: present, ready, not cordoned, no refusing taint, cluster connected."""
    gpu_usable: Booleans
    """Takes new pods that ask for GPUs: as `usable`, or its only refusing taint is the one that keeps it for them."""
    free_cpu_milli: Integers
    free_memory_bytes: Integers
    free_pods: Integers
    free_devices: Integers
    """How many of the untouched devices can be had; negative where the node lost some that are held."""
    free_device_milli: Integers
    """Two-dimensional; -1 where the node has no such device."""
    gpu_memory_bytes: Integers
    most_cpu_milli: Integers
    """What the node has when nothing of ours is on it; likewise the three below."""
    most_memory_bytes: Integers
    most_pods: Integers
    most_devices: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A reservation whose run is over."""

    node_key: str
    row: int
    """-1 where the node is not in the table."""
    reservation: Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    now: datetime
    nodes: NodeTable
    clusters: dict[str, ClusterView]
    projects: dict[str, ProjectView]
    queues: tuple[Queue, ...]
    resting: tuple[Resting, ...]
    releases: tuple[Release, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One pod's place, for its workload and for its node."""

    key: str
    workload_id: str
    placement: Placement
    reservation: Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """A workload to be queued, and told why it waits where there is a reason."""

    key: str
    workload_id: str
    waiting: Waiting | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    bindings: tuple[Binding, ...] = ()
    releases: tuple[Release, ...] = ()
    tellings: tuple[Telling, ...] = ()
    blocked: dict[Kind, Waiting]
    """What no room was found for, and why: stays so until something is freed."""
    more: bool = False
    """Whether the plan stopped at a limit, and there is more to place or to tell."""

    @property
    def empty(self) -> bool:
        return not (self.bindings or self.releases or self.tellings)
