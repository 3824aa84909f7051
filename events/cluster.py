"""The cluster aggregate: which clusters there are, how they are reached, and their settings."""

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from events import capacity, maintenance, simulated
from events.capacity import CancelCapacityReservation, CapacityReservationCancelled, CapacityReserved, ReserveCapacity
from events.decision import Context, Decision
from events.event import Event
from events.ids import cluster_key, incarnation_id, key_of_id
from events.maintenance import (
    CancelMaintenance,
    Maintenance,
    MaintenanceCancelled,
    MaintenancePlanned,
    PlanMaintenance,
)
from events.refusal import Refusal
from events.reserved import Reserved
from events.simulated import (
    POOL_LABEL,
    AddSimulatedNodes,
    ChangeSimulatedNode,
    DisconnectSimulatedCluster,
    ReconnectSimulatedCluster,
    RemoveSimulatedNodes,
    SimulatedClusterCutOff,
    SimulatedClusterReconnected,
    SimulatedNodeChanged,
    SimulatedNodes,
    SimulatedNodesAdded,
    SimulatedNodesRemoved,
    node_named,
)

ClusterKind = Literal["local", "simulated", "kubernetes"]
SettingSource = Literal["cluster", "administrator"]

DEFAULT_POOL: Final = "default"
"""The pool of the nodes that are in no other; every cluster has it."""

LOCAL_NAME: Final = "local"
"""Of the one cluster of kind local. Its devices are this machine's, so a second one would give them out twice; one name
is how the log keeps a thing single, also where two are added at once.
"""
MAX_NAMED_POOLS: Final = 10
"""In one sentence."""
MAX_NAME_SHOWN: Final = 63
"""Of a name that no pool can have: the longest that one can."""

# -- events ----------------------------------------------------------------------------------------------------------


class NodePool(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that have this label. A node that is in no other pool is in the pool `default`."""

    name: str
    """Name that workloads and projects use."""
    label_key: str
    """Key of the label."""
    label_value: str
    """Value of the label."""


class StorageClass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A class of storage of which a cluster makes new claims."""

    name: str
    """Name of the class."""
    default: bool = False
    """Whether claims that name no class are of this one."""
    attributes: tuple[str, ...] = ()
    """Keys of the attributes that a new claim of this class may have."""


def usual_class(classes: Sequence[StorageClass]) -> StorageClass | None:
    """That of a new claim that names none (R28): the default, or the only one that there is."""
    only = classes[0] if len(classes) == 1 else None
    return next((one for one in classes if one.default), only)


class RefusedReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value in an agent's report that was refused because it breaks a rule."""

    about: Literal["node", "pod", "cluster"]
    """What the report was about."""
    name: str
    """Name of one of the things that the report was about, cut."""
    field: str
    """Path of the value in the agent's message; empty if the whole message is wrong."""
    rule: str
    """What would be accepted."""
    value: str
    """The given value, cut."""

    @property
    def kind(self) -> tuple[str, str, str]:
        """Which rule is broken, whatever the value is, and whichever entry of a list it is in."""
        return self.about, self.field.partition("[")[0], self.rule


class ClusterAdded(Event, frozen=True, kw_only=True):
    """An administrator added a cluster."""

    cluster_id: str
    """UUID."""
    name: str
    """Unique in the tenant."""
    kind: ClusterKind
    """How its pods are run."""
    at: datetime
    """When it was decided."""
    simulated_nodes: tuple[SimulatedNodes, ...] = ()
    """Nodes of a simulated cluster; empty for other clusters."""


class ClusterConnected(Event, frozen=True, kw_only=True):
    """Its agent reports again."""

    at: datetime
    """When it was decided."""
    agent_version: str = ""
    """Version that the agent reports."""


class ClusterDisconnected(Event, frozen=True, kw_only=True):
    """Its agent did not report in time, or reports that it cannot work with the cluster. Nothing new is placed there,
    and pods that run keep running.
    """

    at: datetime
    """When it was decided."""
    silent_seconds: int
    """Seconds without a report; 0 if the agent reports."""
    reason: str = ""
    """The problem that the agent reports; empty if it does not report."""


class ClusterReportsRefused(Event, frozen=True, kw_only=True):
    """The refused reports of its agent changed: they break other rules, or none any more."""

    at: datetime
    """When it was decided."""
    refused: tuple[RefusedReport, ...] = ()
    """One for each broken rule, at most ten. Empty if no report is refused."""


class StorageClassesReported(Event, frozen=True, kw_only=True):
    """The storage classes of the cluster are others than before."""

    classes: tuple[StorageClass, ...] = ()
    """All of them, by name."""


class OwnershipProtectionSet(Event, frozen=True, kw_only=True):
    """Ownership protection was turned on or off: whether only owners and administrators may change the cluster's
    workloads.
    """

    enabled: bool
    """Whether it is on."""
    source: SettingSource
    """Who set it. The cluster's own configuration takes precedence over an administrator."""


class OwnershipProtectionUnset(Event, frozen=True, kw_only=True):
    """The cluster's own configuration no longer sets ownership protection, so the administrator's setting applies
    again.
    """


class NodePoolSet(Event, frozen=True, kw_only=True):
    """A node pool was added or changed."""

    pool: NodePool
    """The node pool after the change."""


class NodePoolRemoved(Event, frozen=True, kw_only=True):
    """A node pool was removed. Its nodes are in the pool `default` again."""

    name: str
    """Name of the pool."""


class ClusterRemoved(Event, frozen=True, kw_only=True):
    """An administrator removed the cluster, and its nodes with it."""

    at: datetime
    """When it was decided."""


ClusterEvent = (
    ClusterAdded
    | ClusterConnected
    | ClusterDisconnected
    | ClusterReportsRefused
    | StorageClassesReported
    | OwnershipProtectionSet
    | OwnershipProtectionUnset
    | NodePoolSet
    | NodePoolRemoved
    | SimulatedNodesAdded
    | SimulatedNodeChanged
    | SimulatedNodesRemoved
    | SimulatedClusterCutOff
    | SimulatedClusterReconnected
    | MaintenancePlanned
    | MaintenanceCancelled
    | CapacityReserved
    | CapacityReservationCancelled
    | ClusterRemoved
)

# -- state -----------------------------------------------------------------------------------------------------------


class Cluster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    cluster_id: str = ""
    name: str = ""
    kind: ClusterKind = "local"
    created_at: datetime | None = None
    removed: bool = False
    simulated_nodes: tuple[SimulatedNodes, ...] = ()
    cut_off_at: datetime | None = None
    """Since when a simulated one is cut off; None where it is not."""
    connected: bool = False
    connection_changed_at: datetime | None = None
    problem: str = ""
    """Why it is disconnected, as its agent said first; empty where it is not heard, or is connected."""
    agent_version: str = ""
    refused: tuple[RefusedReport, ...] = ()
    """What of its agent's words is not taken."""
    storage_classes: tuple[StorageClass, ...] | None = None
    """None where its agent never told them."""
    protection_reported: bool | None = None
    """What the cluster's own configuration says; None where it says nothing."""
    protection_set: bool = False
    """What an administrator says."""
    node_pools: dict[str, NodePool] = msgspec.field(default_factory=dict[str, NodePool])
    maintenance: tuple[Maintenance, ...] = ()
    """What is planned, goes on, or was over not long ago; in the order in which it begins."""
    reserved: tuple[Reserved, ...] = ()
    """Likewise, of reservations of capacity."""
    formerly_reserved: tuple[Reserved, ...] = ()
    """Those that were, as long as it follows from them which nodes others have."""

    @property
    def exists(self) -> bool:
        return bool(self.cluster_id) and not self.removed

    @property
    def ownership_protection(self) -> bool:
        return self.protection_set if self.protection_reported is None else self.protection_reported


def evolve(state: Cluster, event: ClusterEvent) -> Cluster:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    known = key_of_id(event.cluster_id) if isinstance(event, ClusterAdded) else state.cluster_id
    return _evolve(state, event) if known else state


def _evolve(state: Cluster, event: ClusterEvent) -> Cluster:
    match event:
        case ClusterAdded():
            return Cluster(
                cluster_id=event.cluster_id,
                name=event.name,
                kind=event.kind,
                created_at=event.at,
                simulated_nodes=event.simulated_nodes,
            )
        case ClusterConnected():
            return replace(
                state, connected=True, connection_changed_at=event.at, problem="", agent_version=event.agent_version
            )
        case ClusterDisconnected():
            # Of one that is lost already only the problem is news.
            lost = state.connection_changed_at is not None and not state.connected
            since = state.connection_changed_at if lost else event.at
            return replace(state, connected=False, connection_changed_at=since, problem=event.reason)
        case ClusterReportsRefused():
            return replace(state, refused=event.refused)
        case StorageClassesReported():
            return replace(state, storage_classes=event.classes)
        case OwnershipProtectionSet():
            if event.source == "cluster":
                return replace(state, protection_reported=event.enabled)
            return replace(state, protection_set=event.enabled)
        case OwnershipProtectionUnset():
            return replace(state, protection_reported=None)
        case NodePoolSet():
            return replace(state, node_pools=state.node_pools | {event.pool.name: event.pool})
        case NodePoolRemoved():
            return replace(state, node_pools={k: v for k, v in state.node_pools.items() if k != event.name})
        case SimulatedNodesAdded() | SimulatedNodeChanged() | SimulatedNodesRemoved():
            return replace(state, simulated_nodes=simulated.evolve(state.simulated_nodes, event))
        case SimulatedClusterCutOff():
            return replace(state, cut_off_at=event.at)
        case SimulatedClusterReconnected():
            return replace(state, cut_off_at=None)
        case MaintenancePlanned() | MaintenanceCancelled():
            return replace(state, maintenance=maintenance.evolve(state.maintenance, event))
        case CapacityReserved() | CapacityReservationCancelled():
            reserved, former = capacity.evolve(state.reserved, state.formerly_reserved, event)
            return replace(state, reserved=reserved, formerly_reserved=former)
        case ClusterRemoved():
            return replace(state, removed=True, connected=False)
        case _:
            assert_never(event)


def pool_names(state: Cluster) -> tuple[str, ...]:
    """Every pool that there is, by name."""
    return tuple(sorted({DEFAULT_POOL, *state.node_pools}))


def pool_of(labels: dict[str, str], pools: dict[str, NodePool]) -> str:
    """The pool of a node with these labels; the first by name where several match."""
    for name in sorted(pools):
        if labels.get(pools[name].label_key) == pools[name].label_value:
            return name
    return DEFAULT_POOL


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    pass


class AddCluster(_Command, frozen=True, kw_only=True):
    name: str
    kind: ClusterKind
    simulated_nodes: tuple[SimulatedNodes, ...] = ()
    node_pools: tuple[str, ...] = ()
    """As in `AddSimulatedNodes`."""


class RemoveCluster(_Command, frozen=True, kw_only=True):
    """Forget the cluster. What runs there is no longer looked after; the gate lets only administrators do it. Whether
    workloads still live there, the log of this aggregate does not say: `commands` looks before.
    """

    cluster_id: str
    force: bool = False
    """Also where workloads live there. They are deleted with the reason `cluster_removed`."""


class SetOwnershipProtection(_Command, frozen=True, kw_only=True):
    cluster_id: str
    enabled: bool


class SetNodePool(_Command, frozen=True, kw_only=True):
    cluster_id: str
    pool: NodePool
    new: bool = False
    """Whether a pool of this name with another label stands in the way; otherwise it is changed."""


class RemoveNodePool(_Command, frozen=True, kw_only=True):
    cluster_id: str
    name: str


class ReportCluster(_Command, frozen=True, kw_only=True):
    """From cluster_sync: whether the agent is heard and can work, and what the cluster itself says of ownership
    protection.
    """

    cluster_id: str
    connected: bool
    silent_seconds: int = 0
    problem: str = ""
    """Why the agent cannot work with the cluster, where it is heard and says so."""
    agent_version: str = ""
    ownership_protection: bool | None = None
    storage_classes: tuple[StorageClass, ...] | None = None
    """None: it says nothing of them."""
    refused: tuple[RefusedReport, ...] = ()
    """What of the agent's words was not taken lately."""


UserClusterCommand = (
    AddCluster
    | RemoveCluster
    | SetOwnershipProtection
    | SetNodePool
    | RemoveNodePool
    | AddSimulatedNodes
    | ChangeSimulatedNode
    | RemoveSimulatedNodes
    | DisconnectSimulatedCluster
    | ReconnectSimulatedCluster
    | PlanMaintenance
    | CancelMaintenance
    | ReserveCapacity
    | CancelCapacityReservation
)
ClusterCommand = UserClusterCommand | ReportCluster


def decide(command: ClusterCommand, state: Cluster, context: Context) -> Decision[ClusterEvent]:
    if isinstance(command, AddCluster):
        return _add(command, state, context)
    if not state.exists or command.cluster_id != state.cluster_id:
        return Refusal(code="not_found", message=f"there is no cluster {command.cluster_id}")
    match command:
        case RemoveCluster():
            return (ClusterRemoved(at=context.now),)
        case SetOwnershipProtection():
            return _protect(command, state)
        case SetNodePool():
            there = state.node_pools.get(command.pool.name)
            if command.new and there not in (None, command.pool):
                return pool_name_taken(state, command.pool.name)
            return () if there == command.pool else (NodePoolSet(pool=command.pool),)
        case RemoveNodePool():
            return _remove_pool(command, state)
        case AddSimulatedNodes() | ChangeSimulatedNode() | RemoveSimulatedNodes():
            return _nodes(command, state, context)
        case DisconnectSimulatedCluster() | ReconnectSimulatedCluster():
            return _link(command, state, context)
        case PlanMaintenance() | CancelMaintenance():
            return maintenance.decide(command, state.maintenance, pool_names(state), state.name, context)
        case ReserveCapacity() | CancelCapacityReservation():
            return capacity.decide(command, state.reserved, pool_names(state), state.name, context)
        case ReportCluster():
            return _report(command, state, context)
        case _:
            assert_never(command)


def name_taken(name: str, instead: str) -> Refusal:
    """Args: instead, a name to propose."""
    return Refusal(
        code="name_taken",
        field="name",
        message=f"a cluster named {name!r} already exists; choose another name, such as {instead!r}",
    )


def pool_name_taken(state: Cluster, name: str) -> Refusal:
    instead = next(other for number in itertools.count(2) if (other := f"{name}-{number}") not in state.node_pools)
    return Refusal(
        code="name_taken",
        field="name",
        message=f"cluster {state.name!r} already has a node pool {name!r}, with another label; change that one, or "
        f"choose another name, such as {instead!r}",
    )


def local_taken(name: str) -> Refusal:
    message = f"cluster {name!r} of kind local already exists, and there can be only one: it is this machine"
    return Refusal(code="local_taken", field="kind", message=message)


def name_of_local(kind: ClusterKind, name: str) -> str:
    """What is wrong with the name of a new cluster of this kind; empty where nothing is."""
    if kind != "local" or name == LOCAL_NAME:
        return ""
    return f"a cluster of kind local is this machine, of which there is one: it is named {LOCAL_NAME!r}"


def _add(command: AddCluster, state: Cluster, context: Context) -> Decision[ClusterEvent]:
    if state.exists:
        return name_taken(command.name, f"{command.name}-2")
    if wrong := name_of_local(command.kind, command.name):
        return Refusal(code="invalid", field="name", message=wrong)
    if obstacle := simulated.name_obstacle((), command.simulated_nodes):
        return obstacle
    nodes, pools = _in_pools(command.simulated_nodes, command.node_pools, {})
    if obstacle := _pool_obstacle(nodes, command.node_pools, pools) or simulated.size_obstacle(nodes):
        return obstacle
    added = ClusterAdded(
        cluster_id=incarnation_id(cluster_key(command.name), context.command_id),
        name=command.name,
        kind=command.kind,
        at=context.now,
        simulated_nodes=nodes,
    )
    return (added, *(NodePoolSet(pool=pool) for pool in pools.values()))


def _nodes(
    command: AddSimulatedNodes | ChangeSimulatedNode | RemoveSimulatedNodes, state: Cluster, context: Context
) -> Decision[ClusterEvent]:
    there = state.simulated_nodes
    if state.kind != "simulated":
        return simulated.not_simulated(state)
    if isinstance(command, RemoveSimulatedNodes):
        if unknown := set(command.names) - simulated.node_names(there):
            message = f"cluster {state.name!r} has no node {simulated.shown_names(unknown)}"
            return Refusal(code="not_found", message=message)
        return (SimulatedNodesRemoved(at=context.now, names=tuple(dict.fromkeys(command.names))),)
    if isinstance(command, AddSimulatedNodes):
        if obstacle := simulated.name_obstacle(there, command.nodes):
            return obstacle
        given, asked = command.nodes, command.node_pools
    else:
        if (before := node_named(there, command.name)) is None:
            return Refusal(code="not_found", message=f"cluster {state.name!r} has no node {command.name!r}")
        after = simulated.changed_node(before, command)
        if command.node_pool and after.labels.get(POOL_LABEL) is not None and POOL_LABEL not in command.labels:
            # Of the pool that it was put into by name before.
            after = replace(after, labels={k: v for k, v in after.labels.items() if k != POOL_LABEL})
        if wrong := simulated.device_obstacle(after):
            return wrong
        given, asked = (after,), () if command.node_pool is None else (command.node_pool,)
    nodes, pools = _in_pools(given, asked, state.node_pools)
    event: ClusterEvent
    if isinstance(command, AddSimulatedNodes):
        event = SimulatedNodesAdded(at=context.now, nodes=nodes)
    else:
        event = SimulatedNodeChanged(at=context.now, node=nodes[0])
    if obstacle := _pool_obstacle(nodes, asked, state.node_pools | pools):
        return obstacle
    if obstacle := simulated.size_obstacle(simulated.evolve(there, event)):
        return obstacle
    if nodes == (node_named(there, nodes[0].names[0]),):
        return ()
    return (*(NodePoolSet(pool=pool) for pool in pools.values()), event)


def _link(
    command: DisconnectSimulatedCluster | ReconnectSimulatedCluster, state: Cluster, context: Context
) -> Decision[ClusterEvent]:
    if state.kind != "simulated":
        return simulated.not_cut_off(state)
    cuts = isinstance(command, DisconnectSimulatedCluster)
    if cuts == (state.cut_off_at is not None):
        return ()
    return (SimulatedClusterCutOff(at=context.now) if cuts else SimulatedClusterReconnected(at=context.now),)


def _in_pools(
    nodes: tuple[SimulatedNodes, ...], asked: tuple[str, ...], pools: dict[str, NodePool]
) -> tuple[tuple[SimulatedNodes, ...], dict[str, NodePool]]:
    """Nodes with the labels of the pools that they are to be in, and the pools that must be made for that."""
    made: dict[str, NodePool] = {}
    labelled: list[SimulatedNodes] = []
    for alike, name in zip(nodes, (*asked, *("",) * len(nodes)), strict=False):
        if name in {"", DEFAULT_POOL}:
            labelled.append(alike)
            continue
        pool = pools.get(name) or made.setdefault(name, NodePool(name=name, label_key=POOL_LABEL, label_value=name))
        labelled.append(replace(alike, labels=alike.labels | {pool.label_key: pool.label_value}))
    return tuple(labelled), made


def _pool_obstacle(
    nodes: tuple[SimulatedNodes, ...], asked: tuple[str, ...], pools: dict[str, NodePool]
) -> Refusal | None:
    """Why nodes cannot be in the pools that they are to be in: their labels put them into others."""
    for alike, name in zip(nodes, asked, strict=False):
        found = pool_of(simulated.all_labels(alike.names[0], alike), pools)
        if name and found != name:
            pool = pools[found] if found != DEFAULT_POOL else None
            why = "" if pool is None else f": their label {pool.label_key}={pool.label_value} puts them there"
            message = (
                f"nodes {simulated.shown_names(alike.names)} cannot be in node pool {name!r}, since they are in "
                f"{found!r}{why}; leave out the pool, or the label"
            )
            return Refusal(code="invalid", field="nodes", message=message)
    return None


def _remove_pool(command: RemoveNodePool, state: Cluster) -> Decision[ClusterEvent]:
    if command.name in state.node_pools:
        return (NodePoolRemoved(name=command.name),)
    if command.name == DEFAULT_POOL:
        message = f"the pool {DEFAULT_POOL!r} holds the nodes in no other: it is always there, and cannot be removed"
    else:
        there = ", ".join(pool_names(state)[:MAX_NAMED_POOLS])
        message = f"cluster {state.name!r} has no node pool {command.name[:MAX_NAME_SHOWN]!r}; it has {there}"
    return Refusal(code="not_found", message=message)


def _protect(command: SetOwnershipProtection, state: Cluster) -> Decision[ClusterEvent]:
    reported = state.protection_reported
    if reported is not None and reported != command.enabled:
        word = "on" if reported else "off"
        return Refusal(
            code="set_by_cluster",
            message=f"cluster {state.name!r} has ownership protection {word} in its own configuration; change it there",
        )
    if state.protection_set == command.enabled:
        return ()
    return (OwnershipProtectionSet(enabled=command.enabled, source="administrator"),)


def _report(command: ReportCluster, state: Cluster, context: Context) -> Decision[ClusterEvent]:
    events: list[ClusterEvent] = []
    if command.connected and not state.connected:
        events.append(ClusterConnected(at=context.now, agent_version=command.agent_version))
    # Of a cluster that is disconnected already only the first problem is told: its words change with every attempt.
    news = state.connected or (command.problem and not state.problem)
    if not command.connected and news:
        events.append(
            ClusterDisconnected(at=context.now, silent_seconds=command.silent_seconds, reason=command.problem)
        )
    if command.connected and command.ownership_protection != state.protection_reported:
        if command.ownership_protection is None:
            events.append(OwnershipProtectionUnset())
        else:
            events.append(OwnershipProtectionSet(enabled=command.ownership_protection, source="cluster"))
    if command.connected and command.storage_classes not in (None, state.storage_classes):
        events.append(StorageClassesReported(classes=command.storage_classes or ()))
    if _rules(command.refused) != _rules(state.refused):
        events.append(ClusterReportsRefused(at=context.now, refused=command.refused))
    return tuple(events)


def _rules(refused: tuple[RefusedReport, ...]) -> set[tuple[str, str, str]]:
    return {report.kind for report in refused}
