"""Nodes of simulated clusters: their cluster's log says what they are, and changes while the cluster runs.

Nodes that are alike are one entry, however many they are. Nodes of other clusters are facts of their agents.
"""

import re
import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from events.event import Event
from events.labels import LABEL_VALUE
from events.node import Taint
from events.refusal import Refusal

if TYPE_CHECKING:
    from events.cluster import Cluster

MOST_NODES: Final = 10_000
"""Of one simulated cluster."""
MOST_PACKED_BYTES: Final = 512 * 1024
"""Of what a cluster's agent is told of its nodes: it fits a message of 1 MB. Ten thousand nodes that
differ in their labels have some 150 KiB.
"""
_MOST_UNPACKED_BYTES: Final = 64 * 1024 * 1024
GPU_PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
"""As NVIDIA's feature discovery labels real nodes: so that a node pool can be made of those of one model."""
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9._-]")
POOL_LABEL: Final = "muster.dev/node-pool"
"""Of nodes that were put into a pool by its name, where the cluster had none of this name."""
MOST_NAMED: Final = 5
"""In one sentence."""


class SimulatedNodes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes of a simulated cluster with the same properties."""

    names: tuple[str, ...]
    """Names of the nodes."""
    cpu_milli: int
    """CPU of each node, in thousandths of a core."""
    memory_bytes: int
    """Memory of each node."""
    gpu_count: int = 0
    """Devices of each node."""
    gpu_model: str = ""
    """Any text. It is shown, and is the value of the node label `nvidia.com/gpu.product`, without characters that
    labels cannot hold."""
    gpu_memory_bytes: int = 0
    """Memory of one device; 0 if unknown."""
    labels: dict[str, str] = {}
    """Labels of each node, beside its host name and GPU model."""
    taints: tuple[Taint, ...] = ()
    """Taints of each node."""
    extended: dict[str, int] = {}
    """Extended resources of each node, by name."""


# -- events ----------------------------------------------------------------------------------------------------------


class SimulatedNodesAdded(Event, frozen=True, kw_only=True):
    """An administrator added nodes to a simulated cluster."""

    at: datetime
    """When it was decided."""
    nodes: tuple[SimulatedNodes, ...]
    """The new nodes."""


class SimulatedNodeChanged(Event, frozen=True, kw_only=True):
    """An administrator changed what a simulated node has."""

    at: datetime
    """When it was decided."""
    node: SimulatedNodes
    """All that the node has after the change, with its one name."""


class SimulatedNodesRemoved(Event, frozen=True, kw_only=True):
    """An administrator removed nodes of a simulated cluster. Their pods end as those of lost nodes do."""

    at: datetime
    """When it was decided."""
    names: tuple[str, ...]
    """Names of the nodes."""


SimulatedEvent = SimulatedNodesAdded | SimulatedNodeChanged | SimulatedNodesRemoved


class SimulatedClusterCutOff(Event, frozen=True, kw_only=True):
    """An administrator cut a simulated cluster off: its agent hears nothing and says nothing, and its pods go on."""

    at: datetime
    """When it was decided."""


class SimulatedClusterReconnected(Event, frozen=True, kw_only=True):
    """An administrator connected a simulated cluster again that was cut off."""

    at: datetime
    """When it was decided."""


# -- commands --------------------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    cluster_id: str


class AddSimulatedNodes(_Command, frozen=True, kw_only=True):
    nodes: tuple[SimulatedNodes, ...]
    node_pools: tuple[str, ...] = ()
    """Of each entry of `nodes` the pool that its nodes are to be in, empty where its labels say that; none at all where
    that holds for all of them.
    """


class ChangeSimulatedNode(_Command, frozen=True, kw_only=True):
    """None: that stays as it is."""

    name: str
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpu_count: int | None = None
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    labels: dict[str, str | None] = {}
    """Labels to set, and with None those to drop; likewise `extended`."""
    extended: dict[str, int | None] = {}
    taints: tuple[Taint, ...] = ()
    """To set: one of the same key and effect gets this value."""
    dropped_taints: tuple[Taint, ...] = ()
    """By key and effect."""
    node_pool: str | None = None


class RemoveSimulatedNodes(_Command, frozen=True, kw_only=True):
    names: tuple[str, ...]


class DisconnectSimulatedCluster(_Command, frozen=True, kw_only=True):
    """Cut its agent off, as a net that breaks would."""


class ReconnectSimulatedCluster(_Command, frozen=True, kw_only=True):
    """Let its agent hear and speak again."""


# -- what there is ---------------------------------------------------------------------------------------------------


def node_names(nodes: Iterable[SimulatedNodes]) -> set[str]:
    return {name for alike in nodes for name in alike.names}


def node_count(nodes: Iterable[SimulatedNodes]) -> int:
    return sum(len(alike.names) for alike in nodes)


def node_named(nodes: Iterable[SimulatedNodes], name: str) -> SimulatedNodes | None:
    """What one node is like, with its name alone."""
    return next((replace(alike, names=(name,)) for alike in nodes if name in alike.names), None)


def all_labels(name: str, alike: SimulatedNodes) -> dict[str, str]:
    """Of one node, with those that it has by its name and its devices. A name that no label can hold, of more than 63
    characters, is in none: cut, it might be that of another node.
    """
    model = _NOT_IN_LABELS.sub("-", alike.gpu_model).strip("-_.") if alike.gpu_count else ""
    product = {GPU_PRODUCT_LABEL: model} if model else {}
    host = {"kubernetes.io/hostname": name} if LABEL_VALUE.match(name) else {}
    return host | product | alike.labels


def _kind(nodes: SimulatedNodes) -> bytes:
    """The same of nodes that are alike. As JSON, which can hold every number that the log's JSON held."""
    return msgspec.json.encode(replace(nodes, names=()), order="deterministic")


def with_nodes(there: tuple[SimulatedNodes, ...], added: Iterable[SimulatedNodes]) -> tuple[SimulatedNodes, ...]:
    """Nodes that are alike as one entry. A name that is there already stays what it is."""
    known: set[str] = set()
    found: dict[bytes, tuple[SimulatedNodes, list[str]]] = {}
    for alike in (*there, *added):
        _, names = found.setdefault(_kind(alike), (alike, []))
        names += [name for name in dict.fromkeys(alike.names) if name not in known]
        known.update(alike.names)
    return tuple(replace(alike, names=tuple(names)) for alike, names in found.values() if names)


def without_nodes(there: tuple[SimulatedNodes, ...], names: Iterable[str]) -> tuple[SimulatedNodes, ...]:
    gone = set(names)
    left = (replace(alike, names=tuple(name for name in alike.names if name not in gone)) for alike in there)
    return tuple(alike for alike in left if alike.names)


def evolve(there: tuple[SimulatedNodes, ...], event: SimulatedEvent) -> tuple[SimulatedNodes, ...]:
    match event:
        case SimulatedNodesAdded():
            return with_nodes(there, event.nodes)
        case SimulatedNodeChanged():
            return with_nodes(without_nodes(there, event.node.names), (event.node,))
        case SimulatedNodesRemoved():
            return without_nodes(there, event.names)


def packed(nodes: tuple[SimulatedNodes, ...]) -> bytes:
    """As a cluster's agent is told of them; empty where there are none."""
    return zlib.compress(msgspec.json.encode(nodes)) if nodes else b""


def unpacked(data: bytes) -> tuple[SimulatedNodes, ...]:
    """Raises msgspec.DecodeError, and ValueError where it is too large or damaged."""
    if not data:
        return ()
    reader = zlib.decompressobj()
    try:
        told = reader.decompress(data, _MOST_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"the cluster's nodes cannot be read: {error}") from error
    if not reader.eof:
        raise ValueError("the cluster's nodes cannot be read: they are cut, or too large")
    return msgspec.json.decode(told, type=tuple[SimulatedNodes, ...])


# -- decide ----------------------------------------------------------------------------------------------------------


def changed_node(node: SimulatedNodes, command: ChangeSimulatedNode) -> SimulatedNodes:
    """What the node is after the change, but for its pool."""
    given = {
        name: value
        for name in ("cpu_milli", "memory_bytes", "gpu_count", "gpu_model", "gpu_memory_bytes")
        if (value := getattr(command, name)) is not None
    }
    if given.get("gpu_count") == 0:
        given = {"gpu_model": "", "gpu_memory_bytes": 0} | given
    marked = {(taint.key, taint.effect) for taint in (*command.taints, *command.dropped_taints)}
    return replace(
        node,
        **given,
        labels=_merged(node.labels, command.labels),
        extended=_merged(node.extended, command.extended),
        taints=(*(taint for taint in node.taints if (taint.key, taint.effect) not in marked), *command.taints),
    )


def _merged[T](there: dict[str, T], change: dict[str, T | None]) -> dict[str, T]:
    merged = there | {name: value for name, value in change.items() if value is not None}
    return {name: value for name, value in merged.items() if name not in change or change[name] is not None}


def not_cut_off(state: "Cluster") -> Refusal:
    """Of a cluster whose agent is none of ours to stop."""
    message = (
        f"cluster {state.name!r} is of kind {state.kind}, and only a simulated cluster can be cut off: whether the "
        "agent of another one is reached, its machine and its network decide"
    )
    return Refusal(code="not_simulated", field="clusterId", message=message)


def not_simulated(state: "Cluster") -> Refusal:
    where = "this machine" if state.kind == "local" else "a Kubernetes cluster, whose agent reports them"
    message = (
        f"nodes of cluster {state.name!r} are those of {where}: they are added, changed and removed there; "
        "`muster node cordon` and `muster node drain` work on them, too"
    )
    return Refusal(code="not_simulated", field="clusterId", message=message)


def shown_names(names: Iterable[str]) -> str:
    listed = sorted(set(names))
    more = len(listed) - MOST_NAMED
    return ", ".join(listed[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def name_obstacle(there: tuple[SimulatedNodes, ...], added: tuple[SimulatedNodes, ...]) -> Refusal | None:
    """Why nodes cannot be added: names that are there, or too many nodes."""
    names, given = node_names(there), node_names(added)
    if taken := names & given:
        message = f"the cluster already has nodes of these names: {shown_names(taken)}; leave them out, or change them"
        return Refusal(code="name_taken", field="nodes", message=message)
    if node_count(added) > len(given):
        return Refusal(code="invalid", field="nodes", message="a name stands there twice; leave one out")
    if (count := len(names) + len(given)) > MOST_NODES:
        message = f"a simulated cluster has at most {MOST_NODES:,} nodes, and would have {count:,}"
        return Refusal(code="invalid", field="nodes", message=message)
    return None


def device_obstacle(node: SimulatedNodes) -> Refusal | None:
    """Of a node without GPUs nothing can be said of them."""
    if node.gpu_count or not (node.gpu_model or node.gpu_memory_bytes):
        return None
    message = "a node without GPUs has neither a model nor memory of them: give gpus, too, or leave them out"
    return Refusal(code="invalid", field="gpus", message=message)


def size_obstacle(nodes: tuple[SimulatedNodes, ...]) -> Refusal | None:
    """Why a cluster cannot have these nodes: its agent could not be told of them in one message."""
    if (size := len(packed(nodes))) <= MOST_PACKED_BYTES:
        return None
    message = (
        f"what is said of the cluster's nodes has {size:,} bytes, packed, and may have {MOST_PACKED_BYTES:,}: "
        "give fewer labels, taints and resources that differ from node to node"
    )
    return Refusal(code="invalid", field="nodes", message=message)
