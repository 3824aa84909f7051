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
    """The phase that its users want (S095)."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    DELETED = "Deleted"


class PodPhase(StrEnum):
    """What one pod of a workload is doing, as far as the log knows."""

    PENDING = "Pending"
    """It waits for a node, for its first run or for another one."""
    BOUND = "Bound"
    """It has a node and devices. Its cluster has not reported it yet."""
    STARTING = "Starting"
    """Its cluster is preparing it."""
    RUNNING = "Running"
    """Its process is running."""
    UNKNOWN = "Unknown"
    """Its node has not answered for long, so nobody knows whether it runs. Its place on the node stays reserved."""
    STOPPING = "Stopping"
    """It was told to end. Its place on the node stays reserved until it has."""


RUNS: Final = frozenset({Phase.RUNNING, Phase.DEGRADED})
"""Phases that count as running time: some of its pods run."""

FINISHED: Final = frozenset({Phase.COMPLETED, Phase.FAILED})
"""Terminal phases: what is left is the record (and pods on their way out)."""

UNQUEUED: Final = frozenset({Phase.CREATING, Phase.RESUMING})
"""Phases of an attempt that the scheduler has not taken up yet."""

CLOSING: Final = FINISHED | {Phase.TERMINATING}
"""Phases in which nothing of it starts any more."""

UNBUILT_PHASES: Final[dict[Phase, str]] = {
    Phase.UPDATING: "a change reaches the pods that run, and not all of them have it: every change that can be made "
    "now is for runs that begin later",
}
"""Phases of the contract that no workload enters yet, and what each means. The table says what may come before and
after them.
"""

TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.CREATING: frozenset({Phase.PENDING, Phase.INITIALIZING, Phase.STOPPED, Phase.DELETING}),
    Phase.PENDING: frozenset(
        {
            Phase.INITIALIZING,
            # An inference that is scaled to zero while its replicas wait for a node.
            Phase.RUNNING,
            # A limit on waiting, while pods of it that lost their place still end.
            Phase.TERMINATING,
            Phase.STOPPED,
            Phase.STOPPING,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.INITIALIZING: frozenset(
        {
            Phase.RUNNING,
            # All of it waited to be run again, and the first of its pods runs.
            Phase.DEGRADED,
            Phase.UNKNOWN,
            Phase.PENDING,
            Phase.STOPPING,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.DEGRADED: frozenset(
        {
            Phase.RUNNING,
            Phase.INITIALIZING,
            Phase.UPDATING,
            Phase.TERMINATING,
            Phase.UNKNOWN,
            Phase.PENDING,
            Phase.STOPPING,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.UPDATING: frozenset(
        {
            Phase.RUNNING,
            Phase.DEGRADED,
            Phase.TERMINATING,
            Phase.UNKNOWN,
            Phase.STOPPING,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.TERMINATING: frozenset({Phase.DELETING, Phase.COMPLETED, Phase.FAILED}),
    Phase.RUNNING: frozenset(
        {
            Phase.INITIALIZING,
            Phase.DEGRADED,
            Phase.UPDATING,
            Phase.TERMINATING,
            Phase.UNKNOWN,
            Phase.PENDING,
            Phase.STOPPING,
            # An inference that is suspended while it has no replica.
            Phase.STOPPED,
            Phase.DELETING,
            Phase.COMPLETED,
            Phase.FAILED,
        }
    ),
    Phase.UNKNOWN: frozenset(
        {
            Phase.INITIALIZING,
            Phase.RUNNING,
            Phase.DEGRADED,
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
    """Why a workload has no node yet. A workload shows one code, with numbers in its message.

    With the first three it can never be placed as it is. With the others it may be placed later.
    """

    NO_SUCH_NODE_POOL = "no_such_node_pool"
    """None of the node pools that it may use exists."""
    NO_MATCHING_NODE = "no_matching_node"
    """No node has the labels that it needs, or none of those that have is large enough, even when it is empty."""
    QUOTA_TOO_SMALL = "quota_too_small"
    """It is non-preemptible and needs more than the whole quota of its project or department."""
    PROJECT_DELETED = "project_deleted"
    """It was created while its project was being deleted, so it will be deleted too."""
    CLUSTER_DISCONNECTED = "cluster_disconnected"
    """The agent of its cluster does not report, or the cluster was removed."""
    NO_NODES = "no_nodes"
    """The node pools have no nodes, or every node that is large enough accepts no new pods or has a taint that the
    workload does not tolerate.
    """
    MAINTENANCE = "maintenance"
    """Maintenance of the nodes goes on, or begins before the workload would surely have ended, and it is not
    preemptible.
    """
    CAPACITY_RESERVED = "capacity_reserved"
    """The nodes are reserved for another project, or are soon, before the workload would surely have ended, and it is
    not preemptible.
    """
    QUOTA_USED = "quota_used"
    """It is non-preemptible, and other workloads of the project or department leave too little of the quota."""
    LIMIT_TOO_SMALL = "limit_too_small"
    """It needs more GPUs than the whole limit of its project or department."""
    LIMIT_USED = "limit_used"
    """Other workloads of the project or department leave too little of its limit on GPUs."""
    OUTSIDE_WINDOW = "outside_window"
    """Workloads of its project may start only at certain times, and now is none of these."""
    SHARE_RESERVED = "share_reserved"
    """A wide workload of its project has waited for longer, and needs what is left of the project's fair share."""
    WAITING_FOR_PODS_TO_END = "waiting_for_pods_to_end"
    """Its place is kept: other pods were told to end there, and it starts once they have."""
    INSUFFICIENT_GPU = "insufficient_gpu"
    """No node has enough free GPUs."""
    INSUFFICIENT_CPU = "insufficient_cpu"
    """No node has enough free CPU."""
    INSUFFICIENT_MEMORY = "insufficient_memory"
    """No node has enough free memory."""
    INSUFFICIENT_PODS = "insufficient_pods"
    """Every node already runs as many pods as it may."""
    INSUFFICIENT_RESOURCES = "insufficient_resources"
    """Each resource is free somewhere, but no node has all of them at once."""
    BACKOFF = "backoff"
    """A pod has failed and waits before it runs again."""


NODE_PORT_TAKEN: Final = "node_port_taken"
"""Of a run, and so of its workload: another one has the node port that it asks for (S030)."""
NO_CLAIM: Final = "no_claim"
"""Likewise: there is no claim of the name that it asks for, or it is another's, or none can be made."""
NO_COMMAND: Final = "no_command"
"""Likewise: it has no command, and its cluster knows no image's entry point."""
NO_VOLUME: Final = "no_volume"
"""Likewise: where it is to run, a volume cannot be laid as it asks for it."""
ENDS_AT_ONCE: Final = frozenset({NODE_PORT_TAKEN, NO_CLAIM, NO_COMMAND, NO_VOLUME})
"""Reasons of a run that more runs would not change."""
PREEMPTED: Final = "preempted"
"""Reason of a workload that waits again, or has Failed: its place was taken for a higher priority."""
BACKFILLED: Final = "backfilled"
"""Reason of a workload that waits again: it was let in while another one of its project waited for room, which that one
has now.
"""
RECLAIMED: Final = "reclaimed"
"""Reason of a workload that waits again: its place was taken for a project below its quota."""
MOVED: Final = "moved"
"""Reason of a workload that waits again: it makes room for another one, and another place is kept for it."""
SHRUNK: Final = "shrunk"
"""Reason of an elastic workload that waits again: it gave up what it had grown by, and the others of its pods did not
go on either.
"""
TAINTED: Final = "tainted"
"""Reason of a workload that waits again: its node got a taint that it does not tolerate."""
DRAINED: Final = "drained"
"""Reason of a workload that waits again: its node is drained."""
WINDOW_CLOSED: Final = "window_closed"
"""Reason of a workload that waits again: no window of its project is open, which ends what gives way."""
RESERVED: Final = "reserved"
"""Reason of a workload that waits again: its node is reserved for another project now."""
CLUSTER_LOST: Final = "cluster_lost"
"""Reason of a workload that waits again: its cluster did not report for longer than its project waits, and it waits for
another one.
"""
RUNTIME_LIMIT: Final = "runtime_limit"
"""Reason of a workload that a limit of its project on running time ends."""
IDLE_GPU_LIMIT: Final = "idle_gpu_limit"
"""Likewise: all its GPUs did nothing for too long."""
PENDING_LIMIT: Final = "pending_limit"
"""Likewise: it waited for too long."""
BACKOFF_LIMIT_EXCEEDED: Final = "backoff_limit_exceeded"
"""Reason of a workload that is Failed."""

SCALED_TO_ZERO: Final = "scaled_to_zero"
"""Reason of an inference that is Running, and has no replica."""
SCALED_TO_ZERO_MESSAGE: Final = "scaled to zero, since nobody asked for it: the next request starts a replica"

PODS_RUN_AGAIN: Final = "pods_run_again"
"""Reason of a workload that is Degraded."""


def pods_run_again(count: int) -> str:
    """What a workload is told of which some pods run, and so many others are to run again."""
    return f"{count} of its pods ended, and {'is' if count == 1 else 'are'} to run again; the others run"


PHASE_REASONS: Final = (
    *(reason.value for reason in WaitingReason),
    NODE_UNREACHABLE,
    PREEMPTED,
    BACKFILLED,
    RECLAIMED,
    MOVED,
    SHRUNK,
    TAINTED,
    DRAINED,
    WINDOW_CLOSED,
    RESERVED,
    CLUSTER_LOST,
    RUNTIME_LIMIT,
    IDLE_GPU_LIMIT,
    PENDING_LIMIT,
    BACKOFF_LIMIT_EXCEEDED,
    SCALED_TO_ZERO,
    NODE_PORT_TAKEN,
    NO_CLAIM,
    NO_COMMAND,
    NO_VOLUME,
    PODS_RUN_AGAIN,
)
"""Every code that a workload gives for its phase."""
