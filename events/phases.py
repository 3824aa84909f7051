"""Phases of a workload and of a pod, and which may follow which."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """What a workload is doing: the fourteen names of the contract (S094)."""

    CREATING = "Creating"
    INITIALIZING = "Initializing"
    RESUMING = "Resuming"
    PENDING = "Pending"
    DELETING = "Deleting"
    RUNNING = "Running"
    UPDATING = "Updating"
    STOPPED = "Stopped"
    STOPPING = "Stopping"
    DEGRADED = "Degraded"
    FAILED = "Failed"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    UNKNOWN = "Unknown"


class DesiredPhase(StrEnum):
    """What its people want of a workload (S095)."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    DELETED = "Deleted"


class PodPhase(StrEnum):
    """What one pod of a workload is doing, as far as the log knows."""

    PENDING = "Pending"
    """Waits for a node: never placed, or to be run again."""
    BOUND = "Bound"
    """Has a node and devices; its cluster has not said anything yet."""
    STARTING = "Starting"
    """Its cluster has it and is getting it ready."""
    RUNNING = "Running"
    """Its process runs."""
    UNKNOWN = "Unknown"
    """Nobody knows whether it still runs: its node has not answered for long. The node is still held."""
    STOPPING = "Stopping"
    """Told to go; its node is still held."""


FINISHED: Final = frozenset({Phase.COMPLETED, Phase.FAILED})
"""Terminal phases: what is left is the record (and pods on their way out)."""

UNQUEUED: Final = frozenset({Phase.CREATING, Phase.RESUMING})
"""Phases of an attempt that the scheduler has not taken up yet."""

UNBUILT_PHASES: Final[dict[Phase, str]] = {
    Phase.DEGRADED: "some pods of a gang are gone, and the rest goes on",
    Phase.UPDATING: "what runs is being changed",
    Phase.TERMINATING: "a limit of its running time was reached",
}
"""Named by the contract, and entered by nothing yet: what each will say."""

TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.CREATING: frozenset({Phase.PENDING, Phase.INITIALIZING, Phase.STOPPED, Phase.DELETING}),
    Phase.PENDING: frozenset(
        {Phase.INITIALIZING, Phase.STOPPED, Phase.STOPPING, Phase.DELETING, Phase.COMPLETED, Phase.FAILED}
    ),
    Phase.INITIALIZING: frozenset(
        {Phase.RUNNING, Phase.UNKNOWN, Phase.PENDING, Phase.STOPPING, Phase.DELETING, Phase.COMPLETED, Phase.FAILED}
    ),
    Phase.RUNNING: frozenset(
        {
            Phase.INITIALIZING,
            Phase.UNKNOWN,
            Phase.PENDING,
            Phase.STOPPING,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.UNKNOWN: frozenset(
        {
            Phase.INITIALIZING,
            Phase.RUNNING,
            Phase.PENDING,
            Phase.STOPPING,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.RESUMING, Phase.DELETING, Phase.COMPLETED}),
    Phase.STOPPED: frozenset({Phase.RESUMING, Phase.DELETING}),
    Phase.RESUMING: frozenset(
        {Phase.PENDING, Phase.INITIALIZING, Phase.STOPPING, Phase.STOPPED, Phase.DELETING, Phase.COMPLETED}
    ),
    Phase.COMPLETED: frozenset({Phase.DELETING}),
    Phase.FAILED: frozenset({Phase.DELETING}),
    Phase.DELETING: frozenset(),
    **dict.fromkeys(UNBUILT_PHASES, frozenset[Phase]()),
}
"""Which phase may follow which. An event that would move one otherwise changes nothing; the tests of the deciders see
to it that none is decided.
"""


def may_follow(before: Phase, after: Phase) -> bool:
    """Whether a workload may go from one phase to the other, or stay in it."""
    return after is before or after in TRANSITIONS[before]


NODE_UNREACHABLE: Final = "node_unreachable"
"""Reason of a workload that is Unknown."""
_MAX_NAMED_NODES: Final = 3


def nodes_unreachable(nodes: Iterable[str]) -> str:
    """What a workload is told whose pods are on these nodes, from which nothing is heard."""
    names = sorted(set(nodes))
    named, more = names[:_MAX_NAMED_NODES], len(names) - _MAX_NAMED_NODES
    told = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    which = f"node {told} does" if len(names) == 1 else f"nodes {told} do"
    return f"{which} not answer: whether its pods there still run is not known, and what they hold stays reserved"


class WaitingReason(StrEnum):
    """Why a workload has no node yet: one dominant code, each with numbers in its message.

    The first three are *cannot ever fit as written*, the others *waiting*.
    """

    NO_SUCH_NODE_POOL = "no_such_node_pool"
    """None of the pools that it may use is there."""
    NO_MATCHING_NODE = "no_matching_node"
    """No node is large enough even when empty."""
    QUOTA_TOO_SMALL = "quota_too_small"
    """Non-preemptible, and larger than the project's whole quota."""
    PROJECT_DELETED = "project_deleted"
    """It came in while its project was deleted: it is deleted, too."""
    CLUSTER_DISCONNECTED = "cluster_disconnected"
    """Its cluster's agent is not heard from, or the cluster was removed."""
    NO_NODES = "no_nodes"
    """The pools have no nodes, or those that are large enough take no new pods."""
    QUOTA_USED = "quota_used"
    """Non-preemptible, and what others of the project hold leaves too little of its quota."""
    INSUFFICIENT_GPU = "insufficient_gpu"
    """No node has that much GPU free."""
    INSUFFICIENT_CPU = "insufficient_cpu"
    """No node has that much CPU free."""
    INSUFFICIENT_MEMORY = "insufficient_memory"
    """No node has that much memory free."""
    INSUFFICIENT_PODS = "insufficient_pods"
    """Every node holds as many pods as it may."""
    INSUFFICIENT_RESOURCES = "insufficient_resources"
    """Each resource is free somewhere, but no node has all of them at once."""
    BACKOFF = "backoff"
    """A failed pod waits before it is run again."""


BACKOFF_LIMIT_EXCEEDED: Final = "backoff_limit_exceeded"
"""Reason of a workload that is Failed."""

PHASE_REASONS: Final = (*(reason.value for reason in WaitingReason), NODE_UNREACHABLE, BACKOFF_LIMIT_EXCEEDED)
"""Every code that a workload gives for its phase."""
