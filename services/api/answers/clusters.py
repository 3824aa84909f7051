"""Clusters, their node pools and nodes. Pure."""

from typing import Literal

from events.cluster import ClusterKind
from events.node import Taint
from services.api.answers.forms import Form, Uuid
from services.api.shown_events import Moment


class RefusedReport(Form, frozen=True, kw_only=True):
    """Something that an agent says and that is not taken."""

    about: Literal["node", "pod", "cluster"]
    """What it is about."""
    name: str | None
    """Of the node or pod."""
    field: str | None
    """The field at fault."""
    rule: str
    """The rule that is broken."""
    value: str
    """What was said."""


class Cluster(Form, frozen=True, kw_only=True):
    """A cluster, as the log knows it."""

    id: Uuid
    """Of this cluster; another one of the same name has another id."""
    name: str
    """Unique among the living clusters."""
    kind: ClusterKind
    """How its pods are run."""
    status: Literal["Connected", "Disconnected", "WaitingToConnect"]
    """Whether its agent is heard."""
    status_changed_at: Moment | None
    """Since when that is so."""
    problem: str | None
    """Why it is disconnected, where its agent is heard and says so."""
    refused_reports: list[RefusedReport]
    """What its agent says and is not taken, one for each rule that is broken."""
    ownership_protection: bool
    """Whether only owners, and who may override them, act on its workloads."""
    ownership_protection_source: Literal["cluster", "administrator", "default"]
    """Who said so."""
    created_at: Moment | None
    """When it was added."""
    nodes: int | None
    """Of a simulated cluster; null of any other, whose nodes /api/v1/nodes lists."""
    agent_version: str | None
    """Of the agent that was heard last."""


class Clusters(Form, frozen=True, kw_only=True):
    """The clusters there are."""

    clusters: list[Cluster]
    """By name."""


class NodePool(Form, frozen=True, kw_only=True):
    """A part of a cluster's nodes."""

    cluster_id: Uuid
    """Its cluster."""
    cluster_name: str
    """Name of its cluster."""
    name: str
    """Of the pool."""
    label_key: str | None
    """Nodes with this label are in it; null of `default`, which has those that are in no other pool."""
    label_value: str | None
    """The value that the label has on them."""
    nodes: int | None
    """How many nodes are in it now; null while the lists cannot be read."""


class NodePools(Form, frozen=True, kw_only=True):
    """The node pools there are."""

    node_pools: list[NodePool]
    """By cluster."""


class NodeCapacity(Form, frozen=True, kw_only=True):
    """What a node has."""

    cpu_cores: float
    """Cores that pods can have."""
    memory_bytes: int
    """Memory that pods can have."""
    gpus: int
    """Devices."""
    gpu_model: str
    """Of its devices; empty where it is not known."""
    gpu_memory_bytes: int
    """Of one device; 0 where it is not known."""
    pods: int
    """How many pods it takes."""


class NodeUse(Form, frozen=True, kw_only=True):
    """What is taken of a node."""

    cpu_cores: float
    """Cores."""
    memory_bytes: int
    """Memory."""
    gpus: float
    """Devices, also shares of them."""
    pods: int
    """How many pods that is."""


class NodeDevice(Form, frozen=True, kw_only=True):
    """One GPU of a node."""

    device: int
    """Its number, from 0."""
    reserved_milli: int
    """Thousandths of it that are reserved."""


class Node(Form, frozen=True, kw_only=True):
    """A node: what it has, and what is reserved."""

    name: str
    """As its cluster calls it."""
    cluster_id: Uuid
    """Its cluster."""
    cluster_name: str | None
    """Name of its cluster."""
    node_pool: str
    """The pool that it is in."""
    ready: bool
    """Whether it takes part at all."""
    schedulable: bool
    """Whether it takes new pods, as far as its own state goes."""
    cordoned_by_cluster: bool
    """Whether its cluster keeps new pods away."""
    cordoned_by: str | None
    """Who keeps new pods away with Muster's own mark; null where nobody does."""
    cordoned_at: Moment | None
    """Since when."""
    capacity: NodeCapacity
    """What it has."""
    foreign: NodeUse
    """What pods that are not Muster's ask for."""
    reserved: NodeUse
    """What Muster's pods hold."""
    devices: list[NodeDevice]
    """Its GPUs."""
    stand_in_gpus: bool
    """Whether its GPUs are declared, not real."""
    labels: dict[str, str]
    """As its cluster has them."""
    taints: list[Taint]
    """As its cluster has them."""
    version: int
    """Rises with every change."""


class Nodes(Form, frozen=True, kw_only=True):
    """The nodes there are."""

    nodes: list[Node]
    """By cluster and name."""
