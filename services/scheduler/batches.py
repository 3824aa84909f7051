"""From a plan to commits: atomic batches closed over workloads and their nodes, one message per aggregate. Pure.

A batch that shares a workload or a node with those before it is decided on the state that they left. So either may
appear in several, and a workload of a thousand pods needs no batch of a thousand nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from events.aggregate import NODE, WORKLOAD, Aggregate, Chain, Draft, draft
from events.codec import UnwritableError
from events.commit import service_actor
from events.decision import Context
from events.node import BeginMaintenance, EndMaintenance, Node, NodeFacts, Reservation, ReserveOnNode
from events.refusal import Refusal
from events.workload.commands import EvictPods, LeaveCluster, PlacePods
from events.workload.pod import Placement
from events.workload.state import Workload
from services.scheduler.snapshot import Binding, Departure, Eviction, NodeMark, Plan, StatusUpdate

ACTOR: Final = service_actor("scheduler")
UNWRITABLE: Final = "unwritable"
"""Of a refusal: nobody could read what was decided, which is a fault of whoever decided it."""
BATCH_PODS: Final = 500
"""Bound in one batch, perhaps all of one workload and on one node: a commit of so many fits a message of 1 MB, however
long their names are.
"""

NEARLY_FULL: Final = 0.9
"""From this part of its messages on, a batch ends where the next pod goes to another node: the next batch then mostly
shares none with it, and both are stored at the same time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The newest known state of each aggregate that a batch may touch, by key, with the version that guards it."""

    workloads: Mapping[str, Chain[Workload]]
    nodes: Mapping[str, Chain[Node]]
    seen: Mapping[str, NodeFacts] = field(default_factory=dict[str, NodeFacts])
    """By node key: what the plan was made by."""
    incarnation: int = 0
    """How often the log was restored."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """What is to be bound and reserved in one step."""

    workload_ids: dict[str, str] = field(default_factory=dict[str, str])
    """By workload key."""
    clusters: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Likewise: id and name of that of its nodes."""
    placements: dict[str, list[Placement]] = field(default_factory=dict[str, list[Placement]])
    reservations: dict[str, list[Reservation]] = field(default_factory=dict[str, list[Reservation]])
    """By node key."""
    releases: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    pods: int = 0

    @property
    def messages(self) -> int:
        return len(self.placements) + len(self.reservations)


def seen_by(plan: Plan, nodes: Mapping[str, Chain[Node]]) -> dict[str, NodeFacts]:
    """The facts of the nodes that pods are bound to; `nodes` are still those that the plan was made by."""
    return {key: nodes[key].state.facts for key in {binding.placement.node_key for binding in plan.bindings}}


def batches(plan: Plan, *, max_messages: int) -> tuple[list[Batch], dict[str, tuple[str, ...]]]:
    """The bindings in batches, and the releases of nodes that nothing is bound to.

    What is released on a node goes with its first reservation: the plan counts on that room.
    """
    releases: dict[str, list[str]] = {}
    for release in plan.releases:
        releases.setdefault(release.node_key, []).append(release.reservation.id)
    found: list[Batch] = []
    for binding in plan.bindings:
        node_key = binding.placement.node_key
        batch = found[-1] if found else None
        if batch is None or not _takes(batch, binding, max_messages=max_messages):
            batch = Batch()
            found.append(batch)
        batch.workload_ids[binding.key] = binding.workload_id
        batch.clusters[binding.key] = binding.cluster_id, binding.cluster_name
        batch.pods += 1
        batch.placements.setdefault(binding.key, []).append(binding.placement)
        batch.reservations.setdefault(node_key, []).append(binding.reservation)
        if node_key in releases:
            batch.releases[node_key] = tuple(releases.pop(node_key))
    return found, {node_key: tuple(ids) for node_key, ids in releases.items()}


def _takes(batch: Batch, binding: Binding, *, max_messages: int) -> bool:
    """Whether there is room for one more pod. A gang begins a batch and stays in it, whatever that comes to."""
    if binding.whole:
        return binding.key in batch.placements
    if batch.pods >= BATCH_PODS:
        return False
    node_in = binding.placement.node_key in batch.reservations
    if not node_in and batch.messages >= NEARLY_FULL * max_messages:
        return False
    both_in = binding.key in batch.placements and node_in
    return both_in or batch.messages + 2 <= max_messages


type Decided = tuple[Chain[Workload] | None, list[Draft] | Refusal]
"""Of a workload: on what something was decided, and what."""
NOTHING_AHEAD: Final[Mapping[str, Decided]] = {}


def decided_ahead(heads: Heads, batch: Batch, key: str, command_id: str, now: datetime) -> Decided:
    """What `batch_drafts` decides of a workload; it may be asked before the batch has its turn."""
    return heads.workloads.get(key), _placed(heads, batch, key, command_id, now)


def batch_drafts(
    heads: Heads, batch: Batch, command_id: str, now: datetime, ahead: Mapping[str, Decided] = NOTHING_AHEAD
) -> tuple[list[Draft], dict[str, Refusal]]:
    """The commits of a batch on the newest known state, and by workload key what was refused, changed since the plan.

    A workload is left out where it, or any node of its pods, refuses: the batch stays closed without it.

    Args:
        ahead: what was decided before of workloads, by the same command; it counts for those that are still the same.
    """
    of_workloads: dict[str, list[Draft]] = {}
    refused: dict[str, Refusal] = {}
    for key in batch.placements:
        on, decided = ahead.get(key, (None, None))
        if decided is None or on is not heads.workloads.get(key):
            decided = _placed(heads, batch, key, command_id, now)
        if isinstance(decided, Refusal):
            refused[key] = decided
        else:
            of_workloads[key] = decided
    while True:
        before = len(refused)
        of_nodes: list[Draft] = []
        for node_key, reservations in batch.reservations.items():
            kept = tuple(held for held in reservations if held.workload_key not in refused)
            reserve = ReserveOnNode(release=batch.releases.get(node_key, ()), reserve=kept)
            decided = _of_node(heads, node_key, reserve, command_id, now)
            if isinstance(decided, Refusal):
                refused |= {held.workload_key: decided for held in kept}
            else:
                of_nodes.extend(decided)
        if len(refused) == before:
            break
    drafts = [one for key, decided in of_workloads.items() if key not in refused for one in decided]
    return drafts + of_nodes, refused


def update_drafts(heads: Heads, update: StatusUpdate, command_id: str, now: datetime) -> list[Draft] | Refusal:
    command = PlacePods(
        workload_id=update.workload_id,
        waiting_reason=update.waiting.reason if update.waiting else "",
        waiting_message=update.waiting.message if update.waiting else "",
        expected_start=update.expected_start,
    )
    return _of_workload(heads, update.key, command, command_id, now)


def eviction_drafts(heads: Heads, eviction: Eviction, command_id: str, now: datetime) -> list[Draft] | Refusal:
    command = EvictPods(
        workload_id=eviction.workload_id,
        pods=eviction.pods,
        reason=eviction.reason,
        message=eviction.message,
        beneficiary=eviction.beneficiary,
    )
    return _of_workload(heads, eviction.key, command, command_id, now)


def departure_drafts(heads: Heads, departure: Departure, command_id: str, now: datetime) -> list[Draft] | Refusal:
    return _of_workload(heads, departure.key, departure.command, command_id, now)


def mark_drafts(heads: Heads, marks: Sequence[NodeMark], command_id: str, now: datetime) -> list[Draft] | Refusal:
    drafts: list[Draft] = []
    for each in marks:
        decided = _of_node(heads, each.node_key, each.command, command_id, now)
        if isinstance(decided, Refusal):
            return decided
        drafts += decided
    return drafts


def release_drafts(
    heads: Heads, node_key: str, ids: tuple[str, ...], command_id: str, now: datetime
) -> list[Draft] | Refusal:
    return _of_node(heads, node_key, ReserveOnNode(release=ids), command_id, now)


def _placed(heads: Heads, batch: Batch, key: str, command_id: str, now: datetime) -> list[Draft] | Refusal:
    cluster_id, cluster_name = batch.clusters[key]
    command = PlacePods(
        workload_id=batch.workload_ids[key],
        placements=tuple(batch.placements[key]),
        cluster_id=cluster_id,
        cluster_name=cluster_name,
    )
    return _of_workload(heads, key, command, command_id, now)


def _of_workload(
    heads: Heads, key: str, command: PlacePods | EvictPods | LeaveCluster, command_id: str, now: datetime
) -> list[Draft] | Refusal:
    chain = heads.workloads.get(key)
    if chain is None:
        return Refusal(code="stale_placement", message="the workload has ended")
    context = Context(now=now, actor=ACTOR, command_id=command_id, version=chain.version, incarnation=heads.incarnation)
    decided = WORKLOAD.decide(command, chain.state, context)
    if isinstance(decided, Refusal):
        return decided
    return _drafted(WORKLOAD, key, chain, decided, command_id, now) if decided else []


def _of_node(
    heads: Heads,
    key: str,
    command: ReserveOnNode | BeginMaintenance | EndMaintenance,
    command_id: str,
    now: datetime,
) -> list[Draft] | Refusal:
    chain = heads.nodes[key]
    if isinstance(command, ReserveOnNode) and command.reserve and _is_another(heads.seen.get(key), chain.state.facts):
        # Nobody else looks at these again: a node's own decider knows what pods hold, and not what they ask of labels.
        message = f"labels, taints or node pool of node {chain.state.name!r} have changed since the plan"
        return Refusal(code="stale_placement", message=message)
    context = Context(now=now, actor=ACTOR, command_id=command_id, version=chain.version)
    decided = NODE.decide(command, chain.state, context)
    if isinstance(decided, Refusal):
        return decided
    return _drafted(NODE, key, chain, decided, command_id, now) if decided else []


def _drafted[S](  # noqa: PLR0917
    aggregate: Aggregate[S], key: str, chain: Chain[S], events: tuple[Any, ...], command_id: str, now: datetime
) -> list[Draft] | Refusal:
    try:
        return [draft(aggregate, key, chain, events, command_id=command_id, actor=ACTOR, now=now)]
    except UnwritableError as error:
        return Refusal(code=UNWRITABLE, message=f"{aggregate.name} {key}: {error}")


def _is_another(before: NodeFacts | None, now: NodeFacts) -> bool:
    """Whether what decides which pods may go there has changed, beside their room."""
    if before is None or before is now:
        return False
    return (before.labels, before.taints, before.pool) != (now.labels, now.taints, now.pool)
