"""Clusters, their node pools and nodes. Pure."""

from typing import Literal

from events.cluster import ClusterKind
from services.api.answers.forms import Form, Uuid
from services.api.shown_events import Moment


class RefusedReport(Form, frozen=True, kw_only=True):
    """Something that an agent says and that is not taken."""

    about: Literal["node", "pod", "cluster"]
    """What it is about."""
    name: str | None
    """Name of the node or pod."""
    field: str | None
    """The field at fault."""
    rule: str
    """The rule that it breaks."""
    value: str
    """The value that the agent reported."""


class StorageClass(Form, frozen=True, kw_only=True):
    """A class of storage of which a cluster makes new claims."""

    name: str
    """What `claimInfo.storageClass` names it by."""
    default: bool
    """Whether claims that name no class are of this one."""
    attributes: tuple[str, ...]
    """Keys that `claimInfo.addedAttrValues` may have."""


class Cluster(Form, frozen=True, kw_only=True):
    """A cluster, as the log knows it."""

    id: Uuid
    """Id of the cluster. A later cluster of the same name has another id."""
    name: str
    """Unique among the living clusters."""
    kind: ClusterKind
    """How its pods are run."""
    status: Literal["Connected", "Disconnected", "WaitingToConnect"]
    """Whether its agent is connected."""
    status_changed_at: Moment | None
    """When the status last changed."""
    problem: str | None
    """Why it is disconnected, if its agent reports a reason."""
    refused_reports: list[RefusedReport]
    """Reports of its agent that Muster refused, one for each rule that they break."""
    ownership_protection: bool
    """Whether only owners, and users who may override ownership, may act on its workloads."""
    ownership_protection_source: Literal["cluster", "administrator", "default"]
    """Who set ownership protection."""
    storage_classes: list[StorageClass] | None
    """Those of which it makes new claims, by name. Null where its agent has not told them, and for a simulated
    cluster.
    """
    created_at: Moment | None
    """When it was added."""
    nodes: int | None
    """Number of nodes of a simulated cluster. Null for other clusters: see /api/v1/nodes."""
    agent_version: str | None
    """Version of the agent that connected last."""
    cut_off_at: Moment | None
    """Since when an administrator has cut a simulated cluster off. Null where nobody did, and for other clusters."""


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
    """Name of the pool."""
    label_key: str | None
    """Key of the label that puts a node in this pool. Null for `default`, which holds the nodes that are in no other
    pool.
    """
    label_value: str | None
    """Value of that label on the nodes of this pool."""
    nodes: int | None
    """Number of nodes in the pool now. Null while the lists cannot be read."""


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
    """Number of GPUs."""
    gpu_model: str
    """Model of its GPUs; empty if it is not known."""
    gpu_memory_bytes: int
    """Memory of one GPU; 0 if it is not known."""
    pods: int
    """Number of pods that it can hold."""
    extended_resources: dict[str, int]
    """Extended resources beside `nvidia.com/gpu`, by name."""


class NodeUse(Form, frozen=True, kw_only=True):
    """What is taken of a node."""

    cpu_cores: float
    """CPU cores."""
    memory_bytes: int
    """Memory in bytes."""
    gpus: float
    """GPUs, with shares of them as fractions."""
    pods: int
    """Number of pods."""
    extended_resources: dict[str, int]
    """Extended resources, by name."""


class NodeDevice(Form, frozen=True, kw_only=True):
    """One GPU of a node."""

    device: int
    """Its number, from 0."""
    reserved_milli: int
    """Thousandths of it that are reserved."""


class Taint(Form, frozen=True, kw_only=True):
    """Keeps off pods that do not tolerate it, as in Kubernetes."""

    key: str
    """Key of the taint."""
    value: str
    """Value of the taint; empty if it has none."""
    effect: str
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`."""


class NodeDrain(Form, frozen=True, kw_only=True):
    """That a node is drained: its pods are told to end, and run elsewhere."""

    started_by: str
    """Who drains it."""
    started_at: Moment
    """When that began."""
    force: bool
    """Whether pods of non-preemptible workloads are told to end, too."""
    ended_at: Moment | None
    """When the node was empty. Null while it is not."""
    maintenance: str | None
    """Name of the maintenance for which it is. Null if somebody drains the node."""


class NodePod(Form, frozen=True, kw_only=True):
    """A pod that holds a part of a node."""

    workload_id: Uuid
    """Its workload."""
    workload_name: str
    """Name of the workload."""
    project_id: Uuid
    """Project of the workload."""
    project_name: str | None
    """Name of the project."""
    pod: str
    """Its pod set and number, such as `main-0`."""
    phase: str
    """Phase of the pod."""
    preemptible: bool
    """Whether the workload is preemptible."""
    stays: str | None
    """Why a drain does not tell it to end. Null if it does, or the pod ends already."""


class NodePods(Form, frozen=True, kw_only=True):
    """What is reserved on a node."""

    drain: NodeDrain | None
    """The last drain of the node. Null if there was none since the node was uncordoned."""
    reserved: int
    """How many pods hold something of the node."""
    pods: list[NodePod]
    """Those that you may see, at most 1,000. Pods of projects that you may not read are counted only."""


class Node(Form, frozen=True, kw_only=True):
    """A node: what it has, and what is reserved."""

    name: str
    """Name of the node in its cluster."""
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
    """Who cordoned it in Muster. Null if nobody did."""
    cordoned_at: Moment | None
    """When it was cordoned in Muster."""
    drain: NodeDrain | None
    """The last drain, until the node is uncordoned."""
    capacity: NodeCapacity
    """Its capacity."""
    foreign: NodeUse
    """What pods that do not belong to Muster request."""
    reserved: NodeUse
    """What pods of Muster reserve."""
    devices: list[NodeDevice]
    """Its GPUs."""
    stand_in_gpus: bool
    """Whether its GPUs are declared, not real."""
    labels: dict[str, str]
    """Its labels in the cluster."""
    taints: list[Taint]
    """Its taints in the cluster."""
    version: int
    """Rises with every change."""


class Nodes(Form, frozen=True, kw_only=True):
    """The nodes there are."""

    nodes: list[Node]
    """By cluster and name."""
