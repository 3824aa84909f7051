"""Reservations of capacity: nodes of a cluster, or GPUs of them, that only workloads of a project or a department, or
those with certain labels, may use from one time to another, perhaps each week. A part of the cluster aggregate.

As with maintenance, what a moment means for a node follows from what stands here and from the nodes as they are.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from events.calendar_entry import (
    DEFAULT_LEAD_SECONDS,
    KEPT_AFTER_END,
    LONGEST,
    MOST_LABELS_NAMED,
    check,
    invalid,
    is_about,
    told,
    wrong,
)
from events.decision import Context, Decision
from events.node import Node
from events.refusal import Refusal

WEEK: Final = timedelta(days=7)
MOST_RESERVED: Final = 200
"""Of one cluster, those that are over included."""
MOST_FORMER: Final = 200
"""Of one cluster, forms of reservations that are over, changed or cancelled; of more, the last ones."""
MOST_GPUS: Final = 1_000_000
MOST_NODES: Final = 100_000
MOST_AGO: Final = timedelta(days=366)
"""So long ago one that comes again each week may have begun."""


class _Fields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes that are kept for some for a time: those to which all fits that is said of them. Meanwhile only workloads
    may use them to which all fits that is said of these.
    """

    id: str
    """Id. A later one of the same name has another."""
    name: str
    """Unique in its cluster among those that are not over."""
    project_id: str = ""
    """The project whose workloads may use the nodes meanwhile; empty: those of any project."""
    project_name: str = ""
    """Its name."""
    department_id: str = ""
    """The department whose projects' workloads may; empty: those of any department."""
    department_name: str = ""
    """Its name."""
    workload_labels: dict[str, str] = {}
    """Labels that a workload must have to use the nodes, all of them; empty: whatever labels it has."""
    starts_at: datetime
    """When it begins, the first time."""
    ends_at: datetime
    """When it is over, the first time."""
    weekly: bool = False
    """Whether it comes again 168 hours later, until it is cancelled."""
    nodes: tuple[str, ...] = ()
    """Names of nodes; empty for nodes of any name."""
    node_pools: tuple[str, ...] = ()
    """Names of node pools; empty for nodes of any pool."""
    labels: dict[str, str] = {}
    """Labels that the nodes have, all of them; empty for nodes with any labels."""
    gpus: int | None = None
    """How many GPUs: of these nodes, in the order of their names, as many as have so many together. None: all."""
    node_count: int | None = None
    """How many of these nodes, in the order of their names. None: all."""
    exact: bool = False
    """Whether of the last node no more GPUs are kept than are wanted, with their part of its CPU and memory; otherwise
    whole nodes.
    """
    lead_seconds: int = DEFAULT_LEAD_SECONDS
    """For so long before it begins no pod of others is placed on the nodes that is non-preemptible and may still run
    then.
    """
    reserved_by: str = ""
    """Id of who made it, or changed it last."""
    made_at: datetime | None = None
    """When it was made. Of two that want so many nodes, or GPUs, of the same ones, the earlier has the first of them.
    """

    def holder_told(self, *, quoted: bool = False) -> str:
        """For whom it is, for a person, such as `project vision` or `department ai with team=nlp`."""
        noun, name = ("department", self.department_name) if self.department_id else ("project", self.project_name)
        known = self.project_id or self.department_id
        whose = f"{noun} {repr(name) if quoted else name}" if known else "workloads"
        labels = ",".join(f"{key}={value}" for key, value in sorted(self.workload_labels.items()))
        return f"{whose} with {labels}" if labels else whose


class Times(NamedTuple):
    """When a reservation holds, the time that goes on or comes next."""

    starts_at: datetime
    ends_at: datetime


type Parts = dict[str, tuple[int, ...] | None]
"""By key of a node: the devices of it that are kept; None: all of the node."""
type Taken = dict[str, set[int]]
"""By key of a node: devices that are kept already; a node without devices stands in it with none."""


class Reserved(_Fields, frozen=True, kw_only=True, omit_defaults=True):
    """As it is, or was until it was over, changed or cancelled."""

    since: datetime | None = None
    """Since when it wants so much of these nodes at these times."""
    until: datetime | None = None
    """Until when it did. None: it still does."""

    @property
    def form(self) -> str:
        """Which one it is among all that are, and were."""
        return self.id if self.until is None else f"{self.id} until {self.until.isoformat()}"

    def fits(self, node: Node) -> bool:
        """Whether it is about such a node."""
        return node.present and is_about(self, node)

    @property
    def counted(self) -> bool:
        """Whether it is about so many of its nodes, or of their GPUs, and not about all."""
        return self.gpus is not None or self.node_count is not None

    @property
    def holder(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """For whom it is."""
        return self.project_id, self.department_id, tuple(sorted(self.workload_labels.items()))

    def is_for(self, project_id: str, department_id: str) -> bool:
        """Whether it is for workloads of such a project, as far as their labels fit, too."""
        return self.project_id in ("", project_id) and self.department_id in ("", department_id)

    def fits_labels(self, labels: Mapping[str, str]) -> bool:
        """Whether it is for workloads with these labels, as far as their project fits, too."""
        return self.workload_labels.items() <= labels.items()

    def chosen(self, fitting: Mapping[str, Node], taken: Taken | None = None, left: Taken | None = None) -> Parts:
        """Of the nodes that it is about (by key) those that are kept, with the devices of each.

        Args:
            taken: by key of a node, devices that others have then.
            left: likewise, those that others had who do not want them any more: they come last, so that it keeps those
                that it had beside them.
        """
        if not self.counted:
            return self._first(fitting, {}, None, None)
        taken, left = taken or {}, left or {}
        found = self._first(fitting, _both(taken, left), self.gpus, self.node_count)
        if not left:
            return found
        have = {key: {*_devices(fitting[key], devices)} for key, devices in found.items()}
        gpus = None if self.gpus is None else max(self.gpus - sum(map(len, have.values())), 0)
        count = None if self.node_count is None else self.node_count - len(found)
        for key, devices in self._first(fitting, _both(taken, have), gpus, count).items():
            kept = have.get(key, set()) | {*_devices(fitting[key], devices)}
            found[key] = None if len(kept) == fitting[key].facts.gpu_count else tuple(sorted(kept))
        return found

    def _first(self, fitting: Mapping[str, Node], taken: Taken, gpus: int | None, count: int | None) -> Parts:
        """The first by name that have so much."""
        found: Parts = {}
        for key in sorted(fitting, key=lambda key: (fitting[key].name, key)):
            if gpus == 0 or count == 0:
                break
            others = taken.get(key, set[int]())
            free = [each for each in range(fitting[key].facts.gpu_count) if each not in others]
            whole = len(free) == fitting[key].facts.gpu_count and (bool(free) or key not in taken)
            if gpus is not None:
                if not free or not (whole or self.exact):
                    continue
                kept = free[:gpus] if self.exact else free
                gpus = max(gpus - len(kept), 0)
                found[key] = None if len(kept) == fitting[key].facts.gpu_count else tuple(kept)
            elif whole:
                count = None if count is None else count - 1
                found[key] = None
        return found

    def times(self, now: datetime) -> Times | None:
        """None where it is over."""
        if now < self.ends_at:
            return Times(self.starts_at, self.ends_at)
        if not self.weekly:
            return None
        weeks = WEEK * ((now - self.ends_at) // WEEK + 1)
        return Times(self.starts_at + weeks, self.ends_at + weeks)

    def clashes(self, other: "Reserved", now: datetime) -> bool:
        """Whether both keep the same nodes at the same time, from now on, as far as that can be told without nodes. So
        many nodes, or GPUs, and so many others are never the same (`chosen`).
        """
        both_counted = self.counted and other.counted
        return not both_counted and self._may_share_nodes(other) and self._share_time(other, now)

    def ever_meets(self, other: "Reserved") -> bool:
        """Whether both hold at one time."""
        return self._share_time(other, min(self.starts_at, other.starts_at))

    def yields_to(self, other: "Reserved") -> bool:
        """Whether it has what the other one leaves, as that was made before, and stood as it does when this one did."""
        return (
            self.counted
            and other.counted
            and self.id != other.id
            and _made(other) < _made(self)
            and (other.until is None or self.made_at is None or self.made_at <= other.until)
            and (self.until is None or other.since is None or other.since < self.until)
            and self.ever_meets(other)
        )

    def outlives(self, other: "Reserved") -> bool:
        """Whether the other one wants nothing any more while this one does."""
        return other.until is not None and (self.until is None or other.until < self.until)

    def wants_as(self, other: "Reserved") -> bool:
        """Whether it is about so much of the same nodes at the same times."""
        return all(getattr(self, name) == getattr(other, name) for name in _WANTED)

    def _may_share_nodes(self, other: "Reserved") -> bool:
        """A node has one name, one pool, and of each label one value."""
        for mine, others in ((self.nodes, other.nodes), (self.node_pools, other.node_pools)):
            if mine and others and not set(mine) & set(others):
                return False
        return all(other.labels.get(key, value) == value for key, value in self.labels.items())

    def _share_time(self, other: "Reserved", now: datetime) -> bool:
        if other.weekly and not self.weekly:
            return other._share_time(self, now)  # noqa: SLF001 (of the same class)
        begin = max(now, other.starts_at)
        if other.weekly:
            begin = max(begin, self.starts_at)
        mine, theirs = self.times(begin), other.times(begin)
        if mine is None or theirs is None:
            return False
        # Of two that come again each week, one of either may meet the one before or after of the other.
        shifts = (-WEEK, timedelta(0), WEEK) if other.weekly else (timedelta(0),)
        return any(mine.starts_at < theirs.ends_at + each and theirs.starts_at + each < mine.ends_at for each in shifts)


_WANTED: Final = ("starts_at", "ends_at", "weekly", "nodes", "node_pools", "labels", "gpus", "node_count", "exact")


def _devices(node: Node, kept: tuple[int, ...] | None) -> Iterable[int]:
    return range(node.facts.gpu_count) if kept is None else kept


def _both(one: Taken, other: Taken) -> Taken:
    return {key: one.get(key, set()) | other.get(key, set()) for key in (*one, *other)}


def shared_out(
    reserved: Iterable[Reserved], fitting: Mapping[str, Mapping[str, Node]], gone: Collection[str] = ()
) -> dict[str, Parts]:
    """What is kept by each (by its form). Of those that want so many nodes, or GPUs, and ever hold at one time, the one
    that was made first has the first of them. So each keeps what it has when another one comes, or is over, or
    cancelled: those that were stay among these as long as another one has what they left.

    Args:
        fitting: by form, the nodes that each may be about, by key.
        gone: forms of those for whom nobody is there any more.
    """
    found: dict[str, Parts] = {}
    before: list[Reserved] = []
    for entry in sorted(reserved, key=_made):
        taken: Taken = {}
        left: Taken = {}
        nodes = fitting.get(entry.form, {})
        for other in before:
            if not entry.yields_to(other):
                continue
            into = left if other.form in gone or entry.outlives(other) else taken
            for key, devices in found[other.form].items():
                if key in nodes:
                    into.setdefault(key, set()).update(_devices(nodes[key], devices))
        found[entry.form] = entry.chosen(nodes, taken, left)
        before.append(entry)
    return found


def _made(entry: Reserved) -> tuple[float, str]:
    """By when it was made; of those of before that was noted, by id."""
    return (0.0 if entry.made_at is None else entry.made_at.timestamp(), entry.id)


class KeptFor(NamedTuple):
    """That a node is kept by a reservation."""

    entry: Reserved
    starts_at: datetime
    """The time that goes on or comes next."""
    devices: tuple[int, ...] | None = None
    """Those that are kept; None: all of the node."""


class CapacityReserved(_Fields, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator keeps nodes, or GPUs of them, for some for a time, or changed that. The event holds all of
    it.
    """

    at: datetime
    """When it was decided."""


class CapacityReservationCancelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An administrator cancelled a reservation. Everybody may use its nodes again."""

    at: datetime
    """When it was decided."""
    name: str
    """Name of the reservation."""


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


CapacityCommand = ReserveCapacity | CancelCapacityReservation


def evolve(
    reserved: tuple[Reserved, ...], former: tuple[Reserved, ...], event: CapacityEvent
) -> tuple[tuple[Reserved, ...], tuple[Reserved, ...]]:
    """Args: former, those that were and are still needed (`shared_out`)."""
    match event:
        case CapacityReserved():
            there = next((each for each in reserved if each.id == event.id), None)
            new = _as_reserved(event, there)
            past = [each for each in reserved if each is not there and _is_long_over(each, event.at)]
            kept = [each for each in reserved if each is not there and each not in past]
            past += [] if there is None or new.wants_as(there) else [there]
            now = tuple(sorted((*kept, new), key=lambda each: (each.starts_at, each.name, each.id)))
        case CapacityReservationCancelled():
            found = living(reserved, event.name, event.at)
            past = [] if found is None else [found]
            now = tuple(each for each in reserved if each is not found)
    were = (*former, *(replace(each, until=event.at) for each in past if each.counted))
    return now, _needed(were, now, event.at)


def _is_long_over(each: Reserved, now: datetime) -> bool:
    return not each.weekly and now - each.ends_at > KEPT_AFTER_END


def _needed(former: tuple[Reserved, ...], reserved: tuple[Reserved, ...], now: datetime) -> tuple[Reserved, ...]:
    """Those of which it follows what one has that is not over."""
    if not former:
        return ()
    last, found = [each for each in reserved if each.times(now) is not None], set[str]()
    while last:
        entry = last.pop()
        more = [each for each in (*reserved, *former) if each.form not in found and entry.yields_to(each)]
        found |= {each.form for each in more}
        last += more
    return tuple(each for each in former if each.form in found)[-MOST_FORMER:]


def _as_reserved(event: CapacityReserved, there: Reserved | None) -> Reserved:
    """Args: there, as it was before."""
    made = Reserved(**{name: getattr(event, name) for name in _Fields.__struct_fields__}, since=event.at)
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
    if isinstance(command, CancelCapacityReservation):
        return (CapacityReservationCancelled(at=now, name=command.name),)
    if there is not None and command.new:
        message = f"cluster {cluster!r} has a reservation {command.name!r} already; change it, or choose another name"
        return Refusal(code="name_taken", field="name", message=message)
    if refusal := _wrong(command, there, pools, cluster, now):
        return refusal
    if there is None and len(reserved) >= MOST_RESERVED:
        message = f"cluster {cluster!r} has {MOST_RESERVED} reservations, which is the limit; cancel one"
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
    )
    made = _as_reserved(event, there)
    if there is not None and replace(made, reserved_by=there.reserved_by) == there:
        return ()
    gone = {*command.gone_projects}
    others = (each for each in reserved if each is not there and gone.isdisjoint((each.project_id, each.department_id)))
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
