"""Maintenance of nodes of a cluster: from when to when they are out of service. A part of the cluster aggregate.

Nobody has to watch the clock for it: what a moment means for a node follows from what stands here. What is really done
to nodes at these times are events of the nodes (events/node.py).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from events.calendar_entry import DEFAULT_LEAD_SECONDS, LONGEST, check, forgotten, invalid, is_about, told, wrong
from events.decision import Context, Decision
from events.node import MOST_MAINTAINED, MaintenanceOf, Node
from events.refusal import Refusal

MOST_PLANNED: Final = 200
"""Of one cluster, those that are over included."""


class _Fields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes that are out of service for a time: those to which all fits that is said of them."""

    id: str
    """Id. A later one of the same name has another."""
    name: str
    """Unique in its cluster among those that are not over."""
    starts_at: datetime
    """When the nodes are drained."""
    ends_at: datetime
    """When they take pods again."""
    nodes: tuple[str, ...] = ()
    """Names of nodes; empty for nodes of any name."""
    node_pools: tuple[str, ...] = ()
    """Names of node pools; empty for nodes of any pool."""
    labels: dict[str, str] = {}
    """Labels that the nodes have, all of them; empty for nodes with any labels."""
    lead_seconds: int = DEFAULT_LEAD_SECONDS
    """For so long before it begins no pod is placed on the nodes that is non-preemptible and may still run then."""
    force: bool = False
    """Whether pods of non-preemptible workloads are told to end when it begins, too."""
    planned_by: str = ""
    """Id of who planned it, or changed it last."""


class Maintenance(_Fields, frozen=True, kw_only=True, omit_defaults=True):
    """As it is planned."""

    @property
    def itself(self) -> MaintenanceOf:
        """As its nodes name it."""
        return MaintenanceOf(id=self.id, name=self.name, starts_at=self.starts_at)

    def covers(self, node: Node) -> bool:
        """Whether it is about this node."""
        return is_about(self, node)

    def is_on(self, now: datetime) -> bool:
        return self.starts_at <= now < self.ends_at

    def is_over(self, now: datetime) -> bool:
        return self.ends_at <= now


class MaintenancePlanned(_Fields, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator planned maintenance of nodes, or changed what is planned. The event holds all of it."""

    at: datetime
    """When it was decided."""


class MaintenanceCancelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator cancelled maintenance. Nodes that it took out of service take pods again."""

    at: datetime
    """When it was decided."""
    name: str
    """Name of the maintenance."""


MaintenanceEvent = MaintenancePlanned | MaintenanceCancelled


class PlanMaintenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    cluster_id: str
    name: str
    starts_at: datetime
    ends_at: datetime
    nodes: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    lead_seconds: int = DEFAULT_LEAD_SECONDS
    force: bool = False
    new: bool = False
    """Whether there must be none of this name yet; otherwise there must be one, which becomes this."""

    def __post_init__(self) -> None:
        check(self)


class CancelMaintenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    cluster_id: str
    name: str


MaintenanceCommand = PlanMaintenance | CancelMaintenance


def evolve(planned: tuple[Maintenance, ...], event: MaintenanceEvent) -> tuple[Maintenance, ...]:
    match event:
        case MaintenancePlanned():
            new = _as_planned(event)
            others = [each for each in planned if each.id != new.id]
            over = [each for each in others if each.is_over(event.at)]
            past = forgotten(over, event.at, MOST_PLANNED - 1 - (len(others) - len(over)))
            kept = (each for each in others if each not in past)
            return tuple(sorted((*kept, new), key=lambda each: (each.starts_at, each.name, each.id)))
        case MaintenanceCancelled():
            found = living(planned, event.name, event.at)
            return tuple(each for each in planned if each is not found)


def _as_planned(event: MaintenancePlanned) -> Maintenance:
    return Maintenance(**{name: getattr(event, name) for name in Maintenance.__struct_fields__})


def living(planned: Iterable[Maintenance], name: str, now: datetime) -> Maintenance | None:
    """The one of this name that is not over."""
    return next((each for each in planned if each.name == name and not each.is_over(now)), None)


def decide(
    command: MaintenanceCommand,
    planned: tuple[Maintenance, ...],
    pools: tuple[str, ...],
    cluster: str,
    context: Context,
) -> Decision[MaintenanceEvent]:
    """Args:
    pools: names of the node pools that there are.
    cluster: name of the cluster.
    """
    now, there = context.now, living(planned, command.name, context.now)
    if there is None and not (isinstance(command, PlanMaintenance) and command.new):
        message = f"cluster {cluster!r} has no maintenance {command.name!r} that is still to come or goes on"
        return Refusal(code="not_found", message=message)
    if isinstance(command, CancelMaintenance):
        return (MaintenanceCancelled(at=now, name=command.name),)
    if there is not None and command.new:
        message = (
            f"cluster {cluster!r} has maintenance {command.name!r} already; change that one, or choose another name"
        )
        return Refusal(code="name_taken", field="name", message=message)
    if refusal := _wrong(command, there, pools, cluster, now):
        return refusal
    others = [each for each in planned if each is not there]
    at_once = [each for each in others if each.starts_at < command.ends_at and command.starts_at < each.ends_at]
    if len(at_once) >= MOST_MAINTAINED:
        message = (
            f"cluster {cluster!r} has {len(at_once)} other entries then, and at most {MOST_MAINTAINED} may overlap"
        )
        return Refusal(code="invalid", field="startsAt", message=message)
    if there is None and sum(not each.is_over(now) for each in planned) >= MOST_PLANNED:
        message = (
            f"cluster {cluster!r} has {MOST_PLANNED} entries of maintenance that are still to come or go on, which is "
            "the limit; cancel one"
        )
        return Refusal(code="invalid", field="name", message=message)
    event = MaintenancePlanned(
        at=now,
        id=context.command_id if there is None else there.id,
        name=command.name,
        starts_at=command.starts_at,
        ends_at=command.ends_at,
        nodes=tuple(sorted(set(command.nodes))),
        node_pools=tuple(sorted(set(command.node_pools))),
        labels=command.labels,
        lead_seconds=command.lead_seconds,
        force=command.force,
        planned_by=context.actor.id,
    )
    made = _as_planned(event)
    if there is not None and replace(made, planned_by=there.planned_by) == there:
        return ()
    return (event,)


def _wrong(
    command: PlanMaintenance, there: Maintenance | None, pools: tuple[str, ...], cluster: str, now: datetime
) -> Refusal | None:
    if there is not None and there.is_on(now) and command.starts_at != there.starts_at:
        return invalid(
            "startsAt",
            f"it began at {told(there.starts_at)}, and that stays; its end, nodes and force can be changed",
        )
    if command.ends_at - command.starts_at > LONGEST:
        return invalid("endsAt", f"must be at most {LONGEST.days} days after startsAt, got {told(command.ends_at)}")
    return wrong(command, pools, cluster, now)
