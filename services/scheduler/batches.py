"""From a plan to commits: atomic batches closed over workloads and their nodes, one message per aggregate. Pure.

Batches are appended one after the other, each decided on the state that the one before left. So a workload or a node
may appear in several, and a workload of a thousand pods needs no batch of a thousand nodes.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from events.aggregate import NODE, WORKLOAD, Draft, draft
from events.commit import service_actor
from events.decision import Context
from events.node import Reservation, ReserveOnNode
from events.refusal import Refusal
from events.workload.commands import PlacePods
from events.workload.events import Placement
from services.scheduler.fold import Fold
from services.scheduler.snapshot import Plan, Telling

ACTOR: Final = service_actor("scheduler")


@dataclass(slots=True, kw_only=True)
class Batch:
    """What is to be bound and reserved in one step."""

    workload_ids: dict[str, str] = field(default_factory=dict[str, str])
    """By workload key."""
    placements: dict[str, list[Placement]] = field(default_factory=dict[str, list[Placement]])
    reservations: dict[str, list[Reservation]] = field(default_factory=dict[str, list[Reservation]])
    """By node key."""
    releases: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def messages(self) -> int:
        return len(self.placements) + len(self.reservations)


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
        if batch is None or batch.messages + 2 > max_messages:
            both_in = batch is not None and binding.key in batch.placements and node_key in batch.reservations
            if batch is None or not both_in:
                batch = Batch()
                found.append(batch)
        batch.workload_ids[binding.key] = binding.workload_id
        batch.placements.setdefault(binding.key, []).append(binding.placement)
        batch.reservations.setdefault(node_key, []).append(binding.reservation)
        if node_key in releases:
            batch.releases[node_key] = tuple(releases.pop(node_key))
    return found, {node_key: tuple(ids) for node_key, ids in releases.items()}


def batch_drafts(fold: Fold, batch: Batch, command_id: str, now: datetime) -> tuple[list[Draft], dict[str, Refusal]]:
    """The commits of a batch on the fold as it is now, and by workload key what the world has outrun since the plan.

    A workload is left out where it, or any node of its pods, refuses: the batch stays closed without it.
    """
    of_workloads: dict[str, list[Draft]] = {}
    outrun: dict[str, Refusal] = {}
    for key, placements in batch.placements.items():
        command = PlacePods(workload_id=batch.workload_ids[key], placements=tuple(placements))
        decided = _of_workload(fold, key, command, command_id, now)
        if isinstance(decided, Refusal):
            outrun[key] = decided
        else:
            of_workloads[key] = decided
    while True:
        before = len(outrun)
        of_nodes: list[Draft] = []
        for node_key, reservations in batch.reservations.items():
            kept = tuple(held for held in reservations if held.workload_key not in outrun)
            reserve = ReserveOnNode(release=batch.releases.get(node_key, ()), reserve=kept)
            decided = _of_node(fold, node_key, reserve, command_id, now)
            if isinstance(decided, Refusal):
                outrun |= {held.workload_key: decided for held in kept}
            else:
                of_nodes.extend(decided)
        if len(outrun) == before:
            break
    drafts = [one for key, decided in of_workloads.items() if key not in outrun for one in decided]
    return drafts + of_nodes, outrun


def telling_drafts(fold: Fold, telling: Telling, command_id: str, now: datetime) -> list[Draft] | Refusal:
    command = PlacePods(
        workload_id=telling.workload_id,
        waiting_reason=telling.waiting.reason if telling.waiting else "",
        waiting_message=telling.waiting.message if telling.waiting else "",
    )
    return _of_workload(fold, telling.key, command, command_id, now)


def release_drafts(
    fold: Fold, node_key: str, ids: tuple[str, ...], command_id: str, now: datetime
) -> list[Draft] | Refusal:
    return _of_node(fold, node_key, ReserveOnNode(release=ids), command_id, now)


def _of_workload(fold: Fold, key: str, command: PlacePods, command_id: str, now: datetime) -> list[Draft] | Refusal:
    chain = fold.workloads.get(key)
    if chain is None:
        return Refusal(code="stale_placement", message="the workload has ended")
    context = Context(now=now, actor=ACTOR, command_id=command_id, version=chain.version)
    decided = WORKLOAD.decide(command, chain.state, context)
    if isinstance(decided, Refusal):
        return decided
    return [draft(WORKLOAD, key, chain, decided, command_id=command_id, actor=ACTOR, now=now)] if decided else []


def _of_node(fold: Fold, key: str, command: ReserveOnNode, command_id: str, now: datetime) -> list[Draft] | Refusal:
    chain = fold.nodes[key]
    context = Context(now=now, actor=ACTOR, command_id=command_id, version=chain.version)
    decided = NODE.decide(command, chain.state, context)
    if isinstance(decided, Refusal):
        return decided
    return [draft(NODE, key, chain, decided, command_id=command_id, actor=ACTOR, now=now)] if decided else []
