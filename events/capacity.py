"""Reservations of capacity: nodes of a cluster, or GPUs of them, that only workloads of a project or a department, or
those with certain labels, may use from one time to another, perhaps each week. A part of the cluster aggregate.

As with maintenance, what a moment means for a node follows from what stands here and from the nodes as they are.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from events.calendar_entry import (
    DEFAULT_LEAD_SECONDS,
    LONGEST,
    MOST_LABELS_NAMED,
    check,
    forgotten,
    invalid,
    told,
    wrong,
)
from events.decision import Context, Decision
from events.refusal import Refusal
from events.reserved import WEEK, Reserved, ReservedFields
from events.reserved_shares import remembered

MOST_RESERVED: Final = 200
"""Of one cluster. Those that are over are forgotten sooner where there are more."""
MOST_GPUS: Final = 1_000_000
MOST_NODES: Final = 100_000
MICROSECOND: Final = timedelta(microseconds=1)
MOST_AGO: Final = timedelta(days=366)
"""So long ago one that comes again each week may have begun."""


class CapacityReserved(ReservedFields, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator keeps nodes, or GPUs of them, for some for a time, or changed that. The event holds all of
    it.
    """

    at: datetime
    """When it was decided."""
    gone: tuple[str, ...] = ()
    """Ids of projects and departments that were deleted by then, of those for which there were reservations."""


class CapacityReservationCancelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator cancelled a reservation. Everybody may use its nodes again."""

    at: datetime
    """When it was decided."""
    name: str
    """Name of the reservation."""
    gone: tuple[str, ...] = ()
    """As of CapacityReserved."""


CapacityEvent = CapacityReserved | CapacityReservationCancelled


class ReserveCapacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    cluster_id: str
    name: str
    project_id: str = ""
    project_name: str = ""
    department_id: str = ""
    department_name: str = ""
    workload_labels: dict[str, str] = {}
    starts_at: datetime
    ends_at: datetime
    weekly: bool = False
    nodes: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    gpus: int | None = None
    node_count: int | None = None
    exact: bool = False
    lead_seconds: int = DEFAULT_LEAD_SECONDS
    new: bool = False
    """Whether there must be none of this name yet; otherwise there must be one, which becomes this."""
    gone_projects: tuple[str, ...] = ()
    """Ids of projects and departments that are deleted: what is reserved for them stands in nobody's way."""

    def __post_init__(self) -> None:
        """Raises ValueError where there can be no such reservation: nobody but the api has looked at it before."""
        check(self)
        if self.gpus is not None and not 0 < self.gpus <= MOST_GPUS:
            raise ValueError("no GPUs")
        if self.node_count is not None and not 0 < self.node_count <= MOST_NODES:
            raise ValueError("no nodes")
        if (self.gpus is not None and self.node_count is not None) or (self.exact and self.gpus is None):
            raise ValueError("GPUs or nodes are counted, and only GPUs exactly")
        if not (self.project_id or self.department_id or self.workload_labels):
            raise ValueError("for nobody")
        if (self.project_id and self.department_id) or len(self.workload_labels) > MOST_LABELS_NAMED:
            raise ValueError("a project is of one department, and so many labels are too many")


class CancelCapacityReservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    cluster_id: str
    name: str
    gone_projects: tuple[str, ...] = ()
    """As of ReserveCapacity."""


CapacityCommand = ReserveCapacity | CancelCapacityReservation


def evolve(
    reserved: tuple[Reserved, ...], former: tuple[Reserved, ...], event: CapacityEvent
) -> tuple[tuple[Reserved, ...], tuple[Reserved, ...]]:
    """Args: former, those that were and are still needed (`shared_out`)."""
    moment = _moment(reserved, former, event.at)
    if event.gone:
        reserved = tuple(replace(each, gone_since=moment) if _is_gone(each, event.gone) else each for each in reserved)
        moment += MICROSECOND
    match event:
        case CapacityReserved():
            there = next((each for each in reserved if each.id == event.id), None)
            new = _as_reserved(event, there, moment)
            others = [each for each in reserved if each is not there]
            over = [each for each in others if each.times(event.at) is None]
            past = forgotten(over, event.at, MOST_RESERVED - 1 - (len(others) - len(over)))
            kept = [each for each in others if each not in past]
            past += [] if there is None or new.wants_as(there) else [there]
            now = tuple(sorted((*kept, new), key=lambda each: (each.starts_at, each.name, each.id)))
        case CapacityReservationCancelled():
            found = living(reserved, event.name, event.at)
            past = [] if found is None else [found]
            now = tuple(each for each in reserved if each is not found)
    were = (*former, *(replace(each, until=moment) for each in past if each.counted))
    return now, remembered(were, now, event.at)


def _moment(reserved: Iterable[Reserved], former: Iterable[Reserved], at: datetime) -> datetime:
    """When it happened, as far as shares are concerned: after all that came before it in the log, also where the clock
    of who decided it was behind.
    """
    moments = (moment for each in (*reserved, *former) for moment in (each.since, each.until, each.gone_since))
    before = max((moment for moment in moments if moment is not None), default=None)
    return at if before is None else max(at, before + MICROSECOND)


def _is_gone(entry: Reserved, gone: Collection[str]) -> bool:
    """Whether it is for one of these, and that was not known yet."""
    return entry.gone_since is None and bool({entry.project_id, entry.department_id} & {*gone})


def _as_reserved(event: CapacityReserved, there: Reserved | None, since: datetime) -> Reserved:
    """Args: there, as it was before."""
    made = Reserved(**{name: getattr(event, name) for name in ReservedFields.__struct_fields__}, since=since)
    return made if there is None or not made.wants_as(there) else replace(made, since=there.since)


def living(reserved: Iterable[Reserved], name: str, now: datetime) -> Reserved | None:
    """The one of this name that is not over."""
    return next((each for each in reserved if each.name == name and (each.weekly or now < each.ends_at)), None)


def decide(
    command: CapacityCommand,
    reserved: tuple[Reserved, ...],
    pools: tuple[str, ...],
    cluster: str,
    context: Context,
) -> Decision[CapacityEvent]:
    """Args:
    pools: names of the node pools that there are.
    cluster: name of the cluster.
    """
    now, there = context.now, living(reserved, command.name, context.now)
    if there is None and not (isinstance(command, ReserveCapacity) and command.new):
        message = f"cluster {cluster!r} has no reservation {command.name!r} that is still to come or goes on"
        return Refusal(code="not_found", message=message)
    gone = tuple(sorted({id_ for id_ in command.gone_projects if any(_is_gone(each, (id_,)) for each in reserved)}))
    if isinstance(command, CancelCapacityReservation):
        return (CapacityReservationCancelled(at=now, name=command.name, gone=gone),)
    if there is not None and command.new:
        message = f"cluster {cluster!r} has a reservation {command.name!r} already; change it, or choose another name"
        return Refusal(code="name_taken", field="name", message=message)
    if refusal := _wrong(command, there, pools, cluster, now):
        return refusal
    if there is None and sum(each.times(now) is not None for each in reserved) >= MOST_RESERVED:
        message = (
            f"cluster {cluster!r} has {MOST_RESERVED} reservations that are still to come or go on, which is the "
            "limit; cancel one"
        )
        return Refusal(code="invalid", field="name", message=message)
    event = CapacityReserved(
        at=now,
        id=context.command_id if there is None else there.id,
        name=command.name,
        project_id=command.project_id,
        project_name=command.project_name,
        department_id=command.department_id,
        department_name=command.department_name,
        workload_labels=command.workload_labels,
        starts_at=command.starts_at,
        ends_at=command.ends_at,
        weekly=command.weekly,
        nodes=tuple(sorted(set(command.nodes))),
        node_pools=tuple(sorted(set(command.node_pools))),
        labels=command.labels,
        gpus=command.gpus,
        node_count=command.node_count,
        exact=command.exact,
        lead_seconds=command.lead_seconds,
        reserved_by=context.actor.id,
        made_at=now if there is None else there.made_at,
        gone=gone,
    )
    made = _as_reserved(event, there, now)
    if there is not None and replace(made, reserved_by=there.reserved_by) == there:
        return ()
    deleted = {*command.gone_projects}
    others = (
        each for each in reserved if each is not there and deleted.isdisjoint((each.project_id, each.department_id))
    )
    return _clash(made, others, now) or (event,)


def _clash(made: Reserved, others: Iterable[Reserved], now: datetime) -> Refusal | None:
    """Where two are to have the same nodes for themselves, neither can use them."""
    for other in others:
        if other.holder == made.holder or not made.clashes(other, now):
            continue
        times = other.times(now)
        assert times is not None
        each_week = ", each week" if other.weekly else ""
        message = (
            f"reservation {other.name!r} keeps nodes for {other.holder_told(quoted=True)} then, and they may be "
            f"the same ({told(times.starts_at)} to {told(times.ends_at)}{each_week}); choose another time, give both "
            "node names, or node pools, that differ, or let both say how many GPUs, or nodes, they want"
        )
        return Refusal(code="invalid", field="startsAt", message=message)
    return None


def _wrong(
    command: ReserveCapacity, there: Reserved | None, pools: tuple[str, ...], cluster: str, now: datetime
) -> Refusal | None:
    longest = WEEK if command.weekly else LONGEST
    stays = there is not None and there.starts_at == command.starts_at
    if command.starts_at < now - MOST_AGO and not stays:
        return invalid("startsAt", f"must be at most {MOST_AGO.days} days ago, got {told(command.starts_at)}")
    if command.ends_at - command.starts_at >= longest:
        return invalid("endsAt", f"must be less than {longest.days} days after startsAt, got {told(command.ends_at)}")
    return wrong(command, pools, cluster, now, comes_again=command.weekly)
