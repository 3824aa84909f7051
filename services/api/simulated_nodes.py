"""Nodes of simulated clusters: what a request says of them, and adding, changing and removing them."""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from events.agent_bounds import MAX_BYTES, MAX_CPU_MILLI, MAX_EXTENDED, MAX_GPUS, MAX_PIECES
from events.fields.declare import Body, Limits
from events.fields.values import PoolWord
from events.node import Taint
from events.node_file import LONGEST_POOL, MOST_LABELS, MOST_TAINTS, NAME_PATTERN, NAME_WORDS
from events.quantities import cores_to_milli
from events.simulated import (
    MOST_NODES,
    AddSimulatedNodes,
    ChangeSimulatedNode,
    RemoveSimulatedNodes,
    SimulatedNodes,
    node_count,
)
from services.api import answers
from services.api.compute_rules import check_extended
from services.api.context import Call
from services.api.issues import Issue, shown
from services.api.label_rules import check_label_key, check_label_value
from services.api.operations import Answer, changes
from services.api.paths import NODE, NODES
from services.api.places import directory_caught_up

MAX_NODE_CPU_CORES: Final = MAX_CPU_MILLI // 1000
NodeName = Annotated[str, Limits(shortest=1, longest=253, pattern=NAME_PATTERN, words=NAME_WORDS)]
NodePrefix = Annotated[
    str,
    Limits(
        shortest=1,
        longest=200,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        words="must be letters, digits, `.`, `_` and `-`, with a letter or digit at its beginning",
    ),
]
Bytes = Annotated[int, Limits(least=0, most=MAX_BYTES)]
LabelKey = Annotated[str, Limits(shortest=1, longest=253)]


PoolName = Annotated[str, Limits(shortest=1, longest=LONGEST_POOL, pattern=NAME_PATTERN, words=NAME_WORDS)]
Cores = Annotated[float, Limits(least=0.001, most=MAX_NODE_CPU_CORES)]
Gpus = Annotated[int, Limits(least=0, most=MAX_GPUS)]
Amount = Annotated[int, Limits(least=1, most=MAX_PIECES)]
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodeLabelFields(Body, frozen=True, kw_only=True):
    """One label of nodes."""

    name: LabelKey
    """Key of the label."""
    value: PoolWord = ""
    """Value of the label."""


class NodeTaintFields(Body, frozen=True, kw_only=True):
    """One taint of nodes."""

    key: LabelKey
    """Key of the taint."""
    value: PoolWord = ""
    """Value of the taint."""
    effect: Effect
    """What it does to pods that do not tolerate it."""


class NodeResourceFields(Body, frozen=True, kw_only=True):
    """An extended resource of nodes."""

    resource: LabelKey
    """Name of the resource, such as rdma/hca."""
    amount: Amount
    """How many each node has."""


class SimulatedNodesFields(Body, frozen=True, kw_only=True):
    """Nodes that are alike: named one by one, or counted with a prefix."""

    names: Annotated[tuple[NodeName, ...], Limits(shortest=1, longest=MOST_NODES)] | None = None
    """Name of each node. Instead you can give count and prefix."""
    count: Annotated[int, Limits(least=1, most=MOST_NODES)] | None = None
    """Number of nodes."""
    prefix: NodePrefix | None = None
    """Prefix of their names, which are `PREFIX-NUMBER`."""
    cpu_cores: Cores
    """CPU cores of each node."""
    memory_bytes: Bytes
    """Memory of each node."""
    gpus: Gpus = 0
    """GPUs of each node."""
    gpu_model: PoolWord = ""
    """Model of the GPUs: any word. It is also the value of the nodes' label `nvidia.com/gpu.product`, without
    characters that labels cannot hold.
    """
    gpu_memory_bytes: Bytes = 0
    """Memory of one GPU; 0 if it is not known."""
    labels: Annotated[tuple[NodeLabelFields, ...], Limits(longest=MOST_LABELS)] = ()
    """Labels of each node, beside its host name and GPU model."""
    taints: Annotated[tuple[NodeTaintFields, ...], Limits(longest=MOST_TAINTS)] = ()
    """Taints of each node."""
    extended_resources: Annotated[tuple[NodeResourceFields, ...], Limits(longest=MAX_EXTENDED)] = ()
    """Extended resources of each node."""
    node_pool: PoolName | None = None
    """Node pool that they are to be in: they get its label. A pool of this name is made where the cluster has none.
    Without it their labels say in which pool they are.
    """


class NodesCreation(Body, frozen=True, kw_only=True):
    cluster_id: str
    """Id of a cluster of kind simulated."""
    nodes: Annotated[tuple[SimulatedNodesFields, ...], Limits(shortest=1, longest=1000)]
    """The new nodes."""


class NodeLabelChange(Body, frozen=True, kw_only=True):
    """One label to set, or to take off."""

    name: LabelKey
    """Key of the label."""
    value: PoolWord = ""
    """Value of the label."""
    exclude: bool = False
    """Whether the label is taken off."""


class NodeTaintChange(Body, frozen=True, kw_only=True):
    """One taint to set, or to take off."""

    key: LabelKey
    """Key of the taint."""
    value: PoolWord = ""
    """Value of the taint."""
    effect: Effect
    """What it does to pods that do not tolerate it."""
    exclude: bool = False
    """Whether the taint of this key and effect is taken off."""


class NodeResourceChange(Body, frozen=True, kw_only=True):
    """One extended resource to set, or to take away."""

    resource: LabelKey
    """Name of the resource, such as rdma/hca."""
    amount: Amount | None = None
    """How many the node has. Required unless the resource is taken away."""
    exclude: bool = False
    """Whether the resource is taken away."""


class NodeChange(Body, frozen=True, kw_only=True):
    """What is to be changed of a node; what is left out stays as it is."""

    cpu_cores: Cores | None = None
    """CPU cores of the node."""
    memory_bytes: Bytes | None = None
    """Memory of the node."""
    gpus: Gpus | None = None
    """GPUs of the node."""
    gpu_model: PoolWord | None = None
    """Model of the GPUs."""
    gpu_memory_bytes: Bytes | None = None
    """Memory of one GPU."""
    labels: Annotated[tuple[NodeLabelChange, ...], Limits(longest=MOST_LABELS)] = ()
    """Labels to set or to take off; others stay."""
    taints: Annotated[tuple[NodeTaintChange, ...], Limits(longest=MOST_TAINTS)] = ()
    """Taints to set or to take off; others stay."""
    extended_resources: Annotated[tuple[NodeResourceChange, ...], Limits(longest=MAX_EXTENDED)] = ()
    """Extended resources to set or to take away; others stay."""
    node_pool: PoolName | None = None
    """Node pool that the node is to be in: it gets its label."""


@changes(
    "POST",
    NODES,
    tag="Clusters",
    summary="Add nodes to a simulated cluster",
    body=NodesCreation,
    example={
        "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
        "nodes": [{"names": ["gpu-9"], "cpuCores": 64, "memoryBytes": 549755813888, "gpus": 8, "gpuModel": "H100"}],
    },
    errors=(403, 404),
)
async def add_nodes(call: Call) -> Answer[answers.HttpResponse]:
    def wrong(asked: NodesCreation) -> Iterator[Issue]:
        yield from read_simulated(asked.nodes, "nodes")[1]

    given = call.fields(NodesCreation, wrong)
    nodes, _ = read_simulated(given.nodes, "nodes")
    command = AddSimulatedNodes(cluster_id=given.cluster_id, nodes=nodes, node_pools=pools_of(given.nodes))
    reply = await call.send(command, creation=True)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"{node_count(nodes)} {'node is' if node_count(nodes) == 1 else 'nodes are'} added")


@changes(
    "PATCH",
    NODE,
    tag="Clusters",
    summary="Change what a node of a simulated cluster has",
    body=NodeChange,
    example={"gpus": 4, "labels": [{"name": "zone", "value": "b"}]},
    errors=(403, 404),
)
async def change_node(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = str(call.request.path_params["clusterId"]), call.request.path_params["name"]

    def wrong(change: NodeChange) -> Iterator[Issue]:
        if all(value in (None, []) for value in call.json_object().values()):
            yield Issue(field="body", details="gives nothing to change", rule="required")
        yield from _issues_of_change(change)

    given = call.fields(NodeChange, wrong)
    command = ChangeSimulatedNode(
        cluster_id=cluster_id,
        name=name,
        cpu_milli=None if given.cpu_cores is None else cores_to_milli(given.cpu_cores),
        memory_bytes=given.memory_bytes,
        gpu_count=given.gpus,
        gpu_model=given.gpu_model,
        gpu_memory_bytes=given.gpu_memory_bytes,
        labels={one.name: None if one.exclude else one.value for one in given.labels},
        extended={one.resource: None if one.exclude else one.amount for one in given.extended_resources},
        taints=tuple(_taint(one) for one in given.taints if not one.exclude),
        dropped_taints=tuple(_taint(one) for one in given.taints if one.exclude),
        node_pool=given.node_pool,
    )
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"node {name} {'is changed' if reply.changed else 'was so already'}")


@changes(
    "DELETE",
    NODE,
    tag="Clusters",
    summary="Remove a node of a simulated cluster. Its pods end as those of a lost node do",
    errors=(403, 404),
)
async def remove_node(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = str(call.request.path_params["clusterId"]), call.request.path_params["name"]
    reply = await call.send(RemoveSimulatedNodes(cluster_id=cluster_id, names=(name,)))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"node {name} is removed")


def _taint(given: NodeTaintFields | NodeTaintChange) -> Taint:
    return Taint(key=given.key, value=given.value, effect=given.effect)


def _issues_of_change(change: NodeChange) -> Iterator[Issue]:
    for index, label in enumerate(change.labels):
        yield from check_label_key(f"labels[{index}].name", label.name)
        yield from check_label_value(f"labels[{index}].value", label.value)
    for index, taint in enumerate(change.taints):
        yield from check_label_key(f"taints[{index}].key", taint.key)
        yield from check_label_value(f"taints[{index}].value", taint.value)
    for index, each in enumerate(change.extended_resources):
        yield from check_extended(f"extendedResources[{index}].resource", each.resource)
        if each.amount is None and not each.exclude:
            details = "is required, unless the resource is taken away with exclude"
            yield Issue(field=f"extendedResources[{index}].amount", details=details, rule="required")
    named = {
        "labels": [one.name for one in change.labels],
        "taints": [f"{one.key}:{one.effect}" for one in change.taints],
        "extendedResources": [one.resource for one in change.extended_resources],
    }
    for name, given in named.items():
        if twice := next((one for at, one in enumerate(given) if one in given[:at]), None):
            yield Issue(field=name, details=f"{shown(twice)} stands there twice; leave one out")


def pools_of(groups: tuple[SimulatedNodesFields, ...]) -> tuple[str, ...]:
    """Of each entry the pool that is asked for; none at all where no entry asks for one."""
    pools = tuple(group.node_pool or "" for group in groups)
    return pools if any(pools) else ()


def read_simulated(groups: tuple[SimulatedNodesFields, ...], at: str) -> tuple[tuple[SimulatedNodes, ...], list[Issue]]:
    """Nodes that are declared, and what is wrong with them. `at`: the field in which they stand."""
    issues: list[Issue] = []
    nodes: list[SimulatedNodes] = []
    seen: set[str] = set()
    for index, group in enumerate(groups):
        field = f"{at}[{index}]"
        if (group.names is None) == (group.count is None):
            involves = frozenset({f"{field}.names", f"{field}.count"})
            issues.append(
                Issue(field=field, details="give either names or a count", rule="required", involves=involves)
            )
            continue
        prefix = group.prefix or "node"
        names = tuple(group.names or (f"{prefix}-{number}" for number in range(group.count or 0)))
        if twice := next((name for name in names if name in seen), None):
            where, todo = (
                (field, "choose another prefix") if group.names is None else (f"{field}.names", "leave one out")
            )
            issues.append(Issue(field=where, details=f"there already is a node {twice}; {todo}"))
        if len(set(names)) < len(names):
            issues.append(Issue(field=f"{field}.names", details="a name stands there twice; leave one out"))
        seen.update(names)
        nodes.append(
            SimulatedNodes(
                names=names,
                cpu_milli=cores_to_milli(group.cpu_cores),
                memory_bytes=group.memory_bytes,
                gpu_count=group.gpus,
                gpu_model=group.gpu_model,
                gpu_memory_bytes=group.gpu_memory_bytes,
                labels={label.name: label.value for label in group.labels},
                taints=tuple(map(_taint, group.taints)),
                extended={each.resource: each.amount for each in group.extended_resources},
            )
        )
        issues += _issues_of_simulated(field, group)
    if len(seen) > MOST_NODES:
        details = f"{len(seen)} nodes are too many; at most {MOST_NODES} are simulated in one cluster"
        issues.append(Issue(field=at, details=details, rule="max"))
    return tuple(nodes), issues


def _issues_of_simulated(field: str, group: SimulatedNodesFields) -> Iterator[Issue]:
    """Labels, taints and resources as Kubernetes has them."""
    for index, label in enumerate(group.labels):
        yield from check_label_key(f"{field}.labels[{index}].name", label.name)
        yield from check_label_value(f"{field}.labels[{index}].value", label.value)
    for index, taint in enumerate(group.taints):
        yield from check_label_key(f"{field}.taints[{index}].key", taint.key)
        yield from check_label_value(f"{field}.taints[{index}].value", taint.value)
    for index, each in enumerate(group.extended_resources):
        yield from check_extended(f"{field}.extendedResources[{index}].resource", each.resource)
    names = {"labels": [label.name for label in group.labels]}
    names["extendedResources"] = [each.resource for each in group.extended_resources]
    for name, given in names.items():
        if twice := next((one for at, one in enumerate(given) if one in given[:at]), None):
            yield Issue(field=f"{field}.{name}", details=f"{shown(twice)} stands there twice; leave one out")
