"""The node aggregate: what a node has, and who holds which part of it.

Reserving and releasing are events of the node, written in one atomic batch with the workload's own. So no new
reservation can ever exceed a node's capacity, whoever schedules, however many at once. Capacity may shrink below what
is reserved (a dead GPU, a foreign pod): that is a fact, shown as it is.

Devices are logical: what stands behind one, the kubelet may choose. So no device is others' by its number; the devices
that any reservation touches and those of others are together never more than work.
"""

from datetime import datetime
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.refusal import Refusal
from events.workload.needs import ExtendedAmount
from events.workload.pod import DeviceShare, PodRef
from events.workload.spec import WHOLE_GPU_MILLI

DEFAULT_MAX_PODS: Final = 110
"""The kubelet's default limit of pods on one node."""
NO_EXECUTE: Final = "NoExecute"
"""Effect of a taint that evicts those who do not tolerate it."""
MOST_DEVICES: Final = 1_024
"""Of one node; further ones are passed by. A place is kept for each, and the largest machines have 16 to 72."""
MOST_MAINTAINED: Final = 32
"""Maintenance that a node remembers: as much as a cluster may have at one time."""
MOST_RESERVED: Final = 2**62
"""Of anything on one node: sums and differences of two still fit 64 bits."""

# -- events ----------------------------------------------------------------------------------------------------------


class Taint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Keeps off pods that do not tolerate it, as in Kubernetes."""

    key: str
    """Key of the taint."""
    value: str = ""
    """Value of the taint."""
    effect: str = "NoSchedule"
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`."""
    since: datetime | None = None
    """When Muster first heard of it; only with `NoExecute`. Pods that tolerate it for a time stay for so long after."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cluster reports about a node."""

    cpu_milli: int
    """Allocatable, in thousandths of a core."""
    memory_bytes: int
    """Allocatable."""
    gpu_count: int = 0
    """Number of working devices."""
    gpu_model: str = ""
    """Model of all devices; empty if unknown."""
    gpu_memory_bytes: int = 0
    """Memory of one device; 0 if unknown. Then pods that request GPU memory do not fit."""
    max_pods: int = DEFAULT_MAX_PODS
    """How many pods the node accepts at a time, including pods of other programs."""
    pool: str = "default"
    """Node pool, from its labels."""
    labels: dict[str, str] = {}
    """Labels of the node."""
    taints: tuple[Taint, ...] = ()
    """Taints of the node."""
    ready: bool = True
    """Whether the node is ready."""
    unschedulable: bool = False
    """Whether the cluster keeps new pods off it."""
    foreign_cpu_milli: int = 0
    """What pods of other programs request, in thousandths of a core."""
    foreign_memory_bytes: int = 0
    """What pods of other programs request."""
    foreign_gpus: int = 0
    """Devices that pods of other programs request."""
    foreign_pods: int = 0
    """Number of pods of other programs."""
    extended: dict[str, int] = {}
    """Allocatable extended resources beside `nvidia.com/gpu`, by name."""
    foreign_extended: dict[str, int] = {}
    """Those that pods of other programs request."""
    stand_in: bool = False
    """Whether its GPUs are declared and not real (`--gpus N`, or a simulated node)."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one pod holds on a node. It is released as a whole."""

    id: str
    """`reservation_id` of the run."""
    workload_id: str
    """UUID."""
    workload_key: str
    """Aggregate key of the workload, to look up the run."""
    cpu_milli: int = 0
    """Thousandths of a core."""
    memory_bytes: int = 0
    """Memory of the node."""
    devices: tuple[DeviceShare, ...] = ()
    """Which devices, and how much of each."""
    extended: tuple[ExtendedAmount, ...] = ()
    """Extended resources, each once."""


class MaintenanceOf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The maintenance of the node's cluster for which something is done to the node."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    starts_at: datetime | None = None
    """When it began, or was to begin then."""


class NodeRegistered(Event, frozen=True, kw_only=True):
    """A cluster has a new node."""

    cluster_id: str
    """UUID."""
    name: str
    """Name of the node in its cluster."""
    facts: NodeFacts
    """What it has."""


class NodeChanged(Event, frozen=True, kw_only=True):
    """The facts of the node changed. The event holds all of them."""

    facts: NodeFacts
    """What it has now."""


class NodeRemoved(Event, frozen=True, kw_only=True):
    """The node was removed from its cluster, with its pods."""


class PodsReserved(Event, frozen=True, kw_only=True):
    """Runs reserve parts of the node. All reservations together never exceed what it has at that time."""

    reservations: tuple[Reservation, ...]
    """One per run."""


class ReservationsReleased(Event, frozen=True, kw_only=True):
    """Ended runs release their reservations."""

    ids: tuple[str, ...]
    """Ids of the reservations."""


class NodeCordoned(Event, frozen=True, kw_only=True):
    """An administrator keeps new pods off the node. Pods that run there stay. It is a mark of Muster, not of the
    cluster.
    """

    actor: str
    """Id of the administrator."""
    at: datetime
    """When it was decided."""
    maintenance: MaintenanceOf | None = None
    """The maintenance that began; the actor is who planned it. Nothing if an administrator cordoned the node."""


class NodeUncordoned(Event, frozen=True, kw_only=True):
    """The node accepts new pods again, unless its cluster says otherwise. This ends a drain, too."""

    maintenance: MaintenanceOf | None = None
    """The maintenance that is over, or cancelled. Nothing if an administrator uncordoned the node."""
    again: tuple[str, ...] = ()
    """Ids of maintenance that may take the node out of service once more: it is still to begin, or is not about this
    node now.
    """


class NodeDrainStarted(Event, frozen=True, kw_only=True):
    """An administrator drains the node: it is cordoned, and its pods are told to end and run elsewhere. The node stays
    cordoned when it is empty.
    """

    actor: str
    """Id of the administrator."""
    at: datetime
    """When it was decided."""
    force: bool = False
    """Whether pods of non-preemptible workloads are told to end, too. Otherwise the drain waits until they have ended.
    """
    maintenance: MaintenanceOf | None = None
    """The maintenance that began; the actor is who planned it. Nothing if an administrator drains the node."""
    over: tuple[str, ...] = ()
    """Ids of maintenance that is over, which the node need not remember any more: it remembers only so much."""


class NodeDrained(Event, frozen=True, kw_only=True):
    """The drain is over: nothing on the node is reserved any more. The node stays cordoned."""

    at: datetime
    """When the last reservation was released."""


NodeEvent = (
    NodeRegistered
    | NodeChanged
    | NodeRemoved
    | PodsReserved
    | ReservationsReleased
    | NodeCordoned
    | NodeUncordoned
    | NodeDrainStarted
    | NodeDrained
)

# -- state -----------------------------------------------------------------------------------------------------------


class Drain(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a node is being emptied, or was."""

    by: str
    """Id of who wants it."""
    at: datetime
    """When it began."""
    force: bool = False
    """Whether non-preemptible workloads go, too."""
    ended_at: datetime | None = None
    """When the node was empty; None while it is not."""
    maintenance: MaintenanceOf | None = None
    """For which it is."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    cluster_id: str = ""
    """Empty where the node was never registered."""
    name: str = ""
    present: bool = False
    facts: NodeFacts = NodeFacts(cpu_milli=0, memory_bytes=0)
    cordoned_by: str = ""
    """Id of who keeps new pods away; empty where nobody does. It stays while the node is away, too."""
    cordoned_at: datetime | None = None
    cordoned_for: MaintenanceOf | None = None
    """The maintenance for which it is; None where somebody wants it whatever is planned."""
    maintained: dict[str, datetime | None] = {}
    """The last maintenance that took it out of service, by id, and for which beginning: each does so once for each,
    also where somebody uncordons the node.
    """
    undone: dict[str, datetime | None] = {}
    """Likewise, that which began before its time, and was undone: once for each beginning."""
    drain: Drain | None = None
    """The last one, until somebody uncordons the node."""
    reservations: dict[str, Reservation] = msgspec.field(default_factory=dict[str, Reservation])
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0
    used_device_milli: tuple[int, ...] = ()
    """Reserved share of each device; may be longer than facts.gpu_count where devices were lost."""
    used_extended: dict[str, int] = {}
    """Reserved amounts, by name; none is 0."""

    @property
    def schedulable(self) -> bool:
        """Whether its cluster lets new pods on it. Muster's own mark is not looked at."""
        return self.present and self.facts.ready and not self.facts.unschedulable

    @property
    def cordoned(self) -> bool:
        return self.cordoned_at is not None

    @property
    def out_for(self) -> MaintenanceOf | None:
        """The maintenance for which it is cordoned, or drained."""
        return self.cordoned_for or (None if self.drain is None else self.drain.maintenance)

    def begun(self, of: MaintenanceOf) -> bool:
        """Whether this maintenance has taken it out of service."""
        return of.id in self.maintained and self.maintained[of.id] in (None, of.starts_at)

    def spares(self, of: MaintenanceOf, *, force: bool) -> bool:
        """Whether a drain for maintenance goes on that spares those which now are to end, too."""
        drain = self.drain
        spared = drain is not None and drain.maintenance is not None and not drain.force
        return force and spared and self.draining and self.begun(of)

    @property
    def draining(self) -> bool:
        """Whether its pods are to leave it."""
        return self.drain is not None and self.drain.ended_at is None

    @property
    def free_cpu_milli(self) -> int:
        return self.facts.cpu_milli - self.facts.foreign_cpu_milli - self.used_cpu_milli

    @property
    def free_memory_bytes(self) -> int:
        return self.facts.memory_bytes - self.facts.foreign_memory_bytes - self.used_memory_bytes

    @property
    def free_pods(self) -> int:
        return self.facts.max_pods - self.facts.foreign_pods - len(self.reservations)

    @property
    def free_devices(self) -> int:
        """How many devices that none of ours touches may still be; negative where others' came, or some died."""
        touched = sum(1 for milli in self.used_device_milli if milli)
        return self.facts.gpu_count - self.facts.foreign_gpus - touched

    def free_extended(self, resource: str) -> int:
        """What is left of an extended resource; 0 where the node has none."""
        has, others = self.facts.extended.get(resource, 0), self.facts.foreign_extended.get(resource, 0)
        return has - others - self.used_extended.get(resource, 0)

    @property
    def free_device_milli(self) -> tuple[int, ...]:
        """The share of each device that none of ours holds. Of the untouched ones only `free_devices` can be had."""
        used = self.used_device_milli
        devices = range(min(self.facts.gpu_count, MOST_DEVICES))
        return tuple(WHOLE_GPU_MILLI - (used[i] if i < len(used) else 0) for i in devices)


MOST_DIGITS: Final = 10
"""Of an index, an attempt or a try."""


def reservation_id(workload_id: str, pod_set: str, index: int, attempt: int, try_: int) -> str:
    return f"{workload_id}/{pod_set}-{index}/{attempt}.{try_}"


def run_of(reservation_id_: str, workload_id: str) -> PodRef | None:
    """The run of this workload that a reservation is for; None where it is for none."""
    of, _, run = reservation_id_.rpartition("/")
    of, _, pod = of.rpartition("/")
    name, _, index = pod.rpartition("-")
    attempt, _, try_ = run.partition(".")
    numbers = (index, attempt, try_)
    if of != workload_id or not all(number.isdecimal() and len(number) <= MOST_DIGITS for number in numbers):
        return None
    return PodRef(pod_set=name, index=int(index), attempt=int(attempt), try_=int(try_))


def holdable(reservation: Reservation) -> bool:
    """Whether its amounts can be those of a reservation at all."""
    fits = 0 <= reservation.cpu_milli <= MOST_RESERVED and 0 <= reservation.memory_bytes <= MOST_RESERVED
    for each in reservation.extended:
        fits = fits and 0 <= each.amount <= MOST_RESERVED
    for share in reservation.devices:
        fits = fits and 0 <= share.device < MOST_DEVICES and 0 < share.milli <= WHOLE_GPU_MILLI
    return fits


def evolve(state: Node, event: NodeEvent) -> Node:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    known = event.cluster_id if isinstance(event, NodeRegistered) else state.cluster_id
    return _evolve(state, event) if known else state


def _evolve(state: Node, event: NodeEvent) -> Node:
    match event:
        case NodeRegistered():
            return replace(state, cluster_id=event.cluster_id, name=event.name, present=True, facts=event.facts)
        case NodeChanged():
            return replace(state, facts=event.facts)
        case NodeRemoved():
            return replace(state, present=False)
        case PodsReserved():
            return _with(state, event.reservations, +1)
        case ReservationsReleased():
            held = state.reservations
            return _with(state, tuple(held[id_] for id_ in dict.fromkeys(event.ids) if id_ in held), -1)
        case NodeCordoned():
            return replace(state, cordoned_by=event.actor, cordoned_at=event.at, cordoned_for=event.maintenance)
        case NodeUncordoned():
            opened = replace(state, cordoned_by="", cordoned_at=None, cordoned_for=None, drain=None)
            return _may_come_again(opened, event.again) if event.again else opened
        case NodeDrainStarted():
            return _drained(state, event)
        case NodeDrained():
            return state if state.drain is None else replace(state, drain=replace(state.drain, ended_at=event.at))
        case _:
            assert_never(event)


def _drained(state: Node, event: NodeDrainStarted) -> Node:
    drain = Drain(by=event.actor, at=event.at, force=event.force, maintenance=event.maintenance)
    if event.maintenance is None:
        return replace(state, drain=drain)
    left = {id_: at for id_, at in state.maintained.items() if id_ not in event.over}
    return replace(state, drain=drain, maintained=_with_last(left, event.maintenance))


def _with_last(of: dict[str, datetime | None], last: MaintenanceOf) -> dict[str, datetime | None]:
    others = [(id_, at) for id_, at in of.items() if id_ != last.id]
    return dict([*others, (last.id, last.starts_at)][-MOST_MAINTAINED:])


def _may_come_again(state: Node, ids: tuple[str, ...]) -> Node:
    undone = state.undone
    for id_ in ids:
        if id_ in state.maintained:
            undone = _with_last(undone, MaintenanceOf(id=id_, name="", starts_at=state.maintained[id_]))
    kept = {id_: at for id_, at in state.maintained.items() if id_ not in ids}
    return replace(state, maintained=kept, undone=undone)


def _with(state: Node, changed: tuple[Reservation, ...], sign: int) -> Node:
    held = dict(state.reservations)
    cpu, memory = state.used_cpu_milli, state.used_memory_bytes
    milli, extended = list(state.used_device_milli), state.used_extended
    for reservation in changed:
        if sign > 0:
            more = max(cpu + reservation.cpu_milli, memory + reservation.memory_bytes)
            if reservation.extended:
                more = max(more, *(extended.get(each.resource, 0) + each.amount for each in reservation.extended))
            if reservation.id in held or more > MOST_RESERVED or not holdable(reservation):
                continue
            held[reservation.id] = reservation
        else:
            del held[reservation.id]
        cpu += sign * reservation.cpu_milli
        memory += sign * reservation.memory_bytes
        for share in reservation.devices:
            milli.extend([0] * (share.device + 1 - len(milli)))
            milli[share.device] += sign * share.milli
        if reservation.extended:
            extended = _extended_with(extended, reservation.extended, sign)
    return replace(
        state,
        reservations=held,
        used_cpu_milli=cpu,
        used_memory_bytes=memory,
        used_device_milli=tuple(milli),
        used_extended=extended,
    )


def _extended_with(used: dict[str, int], amounts: tuple[ExtendedAmount, ...], sign: int) -> dict[str, int]:
    found = dict(used)
    for each in amounts:
        found[each.resource] = found.get(each.resource, 0) + sign * each.amount
    return {name: amount for name, amount in found.items() if amount}


# -- commands and decide ---------------------------------------------------------------------------------------------


class ReportNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From cluster_sync: the node exists and looks like this."""

    cluster_id: str
    name: str
    facts: NodeFacts


class ReportNodeGone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From cluster_sync: the cluster no longer has this node."""


class ReserveOnNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the scheduler: release these, then reserve those, as one step."""

    release: tuple[str, ...] = ()
    reserve: tuple[Reservation, ...] = ()


class CordonNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep new pods away from the node; what runs there stays."""

    cluster_id: str
    name: str


class UncordonNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let new pods on the node again, and those that run there stay."""

    cluster_id: str
    name: str


class DrainNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep new pods away from the node, and have those that run there leave it."""

    cluster_id: str
    name: str
    force: bool = False
    """Those of non-preemptible workloads, too."""


class BeginMaintenance(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the scheduler: the node is out of service now."""

    maintenance: MaintenanceOf
    by: str
    """Id of who planned it."""
    force: bool
    over: tuple[str, ...] = ()
    """As of NodeDrainStarted."""


class EndMaintenance(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From the scheduler: what was done to the node for this maintenance is to be undone."""

    id: str
    again: tuple[str, ...] = ()
    """As of NodeUncordoned."""


UserNodeCommand = CordonNode | UncordonNode | DrainNode
NodeCommand = UserNodeCommand | ReportNode | ReportNodeGone | ReserveOnNode | BeginMaintenance | EndMaintenance


def decide(command: NodeCommand, state: Node, context: Context) -> Decision[NodeEvent]:
    match command:
        case ReportNode():
            facts = _dated(command.facts, state, context.now)
            if not state.present:
                return (NodeRegistered(cluster_id=command.cluster_id, name=command.name, facts=facts),)
            return () if facts == state.facts else (NodeChanged(facts=facts),)
        case ReportNodeGone():
            return (NodeRemoved(),) if state.present else ()
        case ReserveOnNode():
            return _reserve(command, state, context)
        case CordonNode() | UncordonNode() | DrainNode():
            return _mark(command, state, context)
        case BeginMaintenance():
            return _begin_maintenance(command, state, context)
        case EndMaintenance():
            return _end_maintenance(command, state)
        case _:
            assert_never(command)


def _dated(facts: NodeFacts, state: Node, now: datetime) -> NodeFacts:
    """With the time since when each taint that evicts has been there. What an agent says of it counts for nothing: its
    clock may be another.
    """
    if not facts.taints:
        return facts
    since = {(t.key, t.value): t.since for t in state.facts.taints if t.effect == NO_EXECUTE} if state.present else {}
    dated = tuple(
        replace(t, since=(since.get((t.key, t.value)) or now) if t.effect == NO_EXECUTE else None) for t in facts.taints
    )
    return replace(facts, taints=dated)


def _mark(command: UserNodeCommand, state: Node, context: Context) -> Decision[NodeEvent]:
    # A mark can be taken off also while the node is away: else it would wait for the node's return.
    if not state.present and not (state.cordoned and isinstance(command, UncordonNode)):
        return Refusal(code="not_found", message=f"the cluster has no node {command.name!r}")
    if isinstance(command, CordonNode):
        return () if _kept_by_a_person(state) else (NodeCordoned(actor=context.actor.id, at=context.now),)
    if isinstance(command, DrainNode):
        return _drain(command, state, context)
    if not state.cordoned:
        return ()
    of = state.out_for
    began = None if of is None else state.maintained.get(of.id)
    early = of is not None and began is not None and context.now < began
    return (NodeUncordoned(again=(of.id,) if of is not None and early else ()),)


def _drain(command: DrainNode, state: Node, context: Context) -> Decision[NodeEvent]:
    """One that is going on is not begun again, unless now others are to leave, too."""
    goes_on = state.drain is not None and state.drain.ended_at is None and state.drain.force >= command.force
    cordoned = _kept_by_a_person(state)
    if cordoned and (goes_on or (state.drain is not None and not state.reservations)):
        return ()
    events: list[NodeEvent] = []
    if not cordoned:
        events.append(NodeCordoned(actor=context.actor.id, at=context.now))
    events.append(NodeDrainStarted(actor=context.actor.id, at=context.now, force=command.force))
    if not state.reservations:
        events.append(NodeDrained(at=context.now))
    return tuple(events)


def _kept_by_a_person(state: Node) -> bool:
    """Whether new pods are kept away whatever is planned. A cordon for maintenance ends with it: somebody may want one
    that stays.
    """
    return state.cordoned and state.cordoned_for is None


def _begin_maintenance(command: BeginMaintenance, state: Node, context: Context) -> Decision[NodeEvent]:
    of = command.maintenance
    if not state.present or (state.begun(of) and not state.spares(of, force=command.force)):
        return ()
    events: list[NodeEvent] = []
    if not state.cordoned:
        events.append(NodeCordoned(actor=command.by, at=context.now, maintenance=of))
    force = command.force or (state.draining and state.drain is not None and state.drain.force)
    events.append(NodeDrainStarted(actor=command.by, at=context.now, force=force, maintenance=of, over=command.over))
    if not state.reservations:
        events.append(NodeDrained(at=context.now))
    return tuple(events)


def _end_maintenance(command: EndMaintenance, state: Node) -> Decision[NodeEvent]:
    """Whoever cordoned the node, or drains it, meanwhile or before, still does."""
    of = state.out_for
    if of is None or of.id != command.id or not state.cordoned:
        return ()
    events: list[NodeEvent] = [NodeUncordoned(maintenance=of, again=command.again)]
    if _kept_by_a_person(state) and state.cordoned_at is not None:
        events.append(NodeCordoned(actor=state.cordoned_by, at=state.cordoned_at))
    return tuple(events)


def _reserve(command: ReserveOnNode, state: Node, context: Context) -> Decision[NodeEvent]:
    events: list[NodeEvent] = []
    release = tuple(id_ for id_ in command.release if id_ in state.reservations)
    if release:
        events.append(ReservationsReleased(ids=release))
        state = evolve(state, events[-1])
    reserve = tuple(r for r in command.reserve if state.reservations.get(r.id) != r)
    if reserve:
        if not state.schedulable or state.cordoned:
            return Refusal(code="node_not_schedulable", message=f"node {state.name!r} takes no new pods")
        if shortage := _shortage(state, reserve):
            return Refusal(code="capacity_exceeded", message=f"node {state.name!r} {shortage}")
        events.append(PodsReserved(reservations=reserve))
    elif state.draining and not state.reservations:
        events.append(NodeDrained(at=context.now))
    return tuple(events)


def _shortage(before: Node, reserve: tuple[Reservation, ...]) -> str | None:
    """What these reservations would take beyond the node's capacity, with numbers; None where all fits.

    Only what they ask for is compared: a node that shrank below what it holds still takes a pod that asks for nothing
    of the lacking kind.
    """
    if any(r.id in before.reservations for r in reserve):
        return "already holds another reservation under this id"
    ids: set[str] = set()
    for r in reserve:
        if r.id in ids:
            return f"cannot hold {r.id} twice"
        ids.add(r.id)
        if len({share.device for share in r.devices}) < len(r.devices):
            return "cannot give a device twice to one pod"
    shares = tuple(share for r in reserve for share in r.devices)
    for share in shares:
        if not 0 <= share.device < min(before.facts.gpu_count, MOST_DEVICES):
            return f"has no device {share.device}"
        if not 0 < share.milli <= WHOLE_GPU_MILLI:
            return f"cannot give it: no share of a device is {share.milli} thousandths"
    after = _with(before, reserve, +1)
    if uncounted := next((r.id for r in reserve if r.id not in after.reservations), None):
        return f"cannot count what {uncounted} asks for"
    if after.free_cpu_milli < 0 and any(r.cpu_milli for r in reserve):
        return f"lacks {-after.free_cpu_milli} milli of CPU"
    if after.free_memory_bytes < 0 and any(r.memory_bytes for r in reserve):
        return f"lacks {-after.free_memory_bytes} bytes of memory"
    for name in sorted({each.resource for r in reserve for each in r.extended if each.amount}):
        if (free := after.free_extended(name)) < 0:
            return f"lacks {-free} of {name}"
    if after.free_pods < 0:
        return f"takes at most {after.facts.max_pods} pods"
    return _shortage_of_devices(after, shares)


def _shortage_of_devices(after: Node, shares: tuple[DeviceShare, ...]) -> str | None:
    free, facts = after.free_device_milli, after.facts
    for share in shares:
        if free[share.device] < 0:
            return f"lacks {-free[share.device]} thousandths of device {share.device}"
    if shares and after.free_devices < 0:
        ours = facts.gpu_count - facts.foreign_gpus - after.free_devices
        return (
            f"has {facts.gpu_count} devices that work, of which {facts.foreign_gpus} are others', "
            f"and {ours} would be held by pods of ours"
        )
    return None
