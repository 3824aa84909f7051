"""Clusters, their node pools and nodes: clusters from this api's fold of the log, nodes from the projections."""

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from msgspec.structs import asdict

from events.aggregate import Chain
from events.authorize import Permission
from events.cluster import (
    DEFAULT_POOL,
    AddCluster,
    Cluster,
    NodePool,
    RemoveCluster,
    RemoveNodePool,
    SetNodePool,
    SetOwnershipProtection,
    local_taken,
    name_of_local,
    name_taken,
    pool_names,
)
from events.fields.declare import Body, Limits
from events.fields.values import NonEmpty, PoolWord
from events.node import CordonNode, DrainNode, UncordonNode
from events.node_file import LONGEST_POOL, NAME_PATTERN, NAME_WORDS
from events.simulated import DisconnectSimulatedCluster, ReconnectSimulatedCluster, node_count
from projections.found import Moment
from services.api import answers
from services.api.context import MIN_SEQ, Call, Look, if_answered, read_answer, version_header
from services.api.errors import not_found
from services.api.issues import Issue, shown
from services.api.label_rules import check_label_key, check_label_value
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of, reading
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import CLUSTER, CLUSTERS, NODE, NODE_POOL, NODE_POOLS, NODES
from services.api.places import (
    cluster_at,
    cluster_chain,
    clusters_at,
    directory_caught_up,
    directory_fresh,
    sent_with_name,
)
from services.api.rules import check_name, free_name
from services.api.shown_rows import drain_answer, node_answer, node_pod_answer
from services.api.simulated_nodes import PoolName, SimulatedNodesFields, pools_of, read_simulated

MAX_NODE_PODS: Final = 1000
"""In one answer; the kubelet's own default limit is 110."""
REMOVED: Final = Query(
    name="removed",
    type="boolean",
    default=False,
    help="Removed clusters instead: for each name that is free, the last one.",
)
FORCE: Final = Query(
    name="force",
    type="boolean",
    default=False,
    help="Also where workloads live there: they are deleted with the reason `cluster_removed`.",
)
CLUSTER_FILTER: Final = Query(name="clusterId", help="Only of this cluster.")


class NodeDraining(Body, frozen=True, kw_only=True):
    force: bool = False
    """Whether pods of non-preemptible workloads are told to end, too. Otherwise the drain waits until they have ended.
    """


class ClusterCreation(Body, frozen=True, kw_only=True):
    name: NonEmpty
    """Name of the cluster, unique among the tenant's clusters."""
    kind: Literal["local", "simulated", "kubernetes"]
    """How its pods run: as processes on this machine (one cluster, named local), simulated, or on Kubernetes."""
    simulated_nodes: Annotated[tuple[SimulatedNodesFields, ...], Limits(longest=1000)] = ()
    """Nodes of a simulated cluster."""


class ClusterChange(Body, frozen=True, kw_only=True):
    ownership_protection: bool
    """Whether only owners, and who may override them, act on its workloads; 409 where the cluster's own
    configuration says otherwise.
    """


class NodePoolLabel(Body, frozen=True, kw_only=True):
    """Which nodes are in a pool."""

    label_key: Annotated[str, Limits(shortest=1, longest=253)]
    """Key of the label that puts a node in this pool."""
    label_value: PoolWord
    """Value of that label on the nodes of this pool."""


class NodePoolCreation(NodePoolLabel, frozen=True, kw_only=True):
    """A node pool to be made."""

    cluster_id: str
    """Id of the cluster."""
    name: PoolName
    """Name of the pool, unique in its cluster."""


@reads(
    CLUSTERS,
    tag="Clusters",
    summary="List clusters",
    query=(REMOVED, AS_OF, MIN_SEQ),
    errors=(403,),
    headers=MOMENT_HEADERS,
)
async def list_clusters(call: Look) -> Answer[answers.Clusters]:
    require_some_role(call)
    if (moment := await moment_of(call)) is not None:
        were = [_cluster_answer(c) for c in await clusters_at(call, moment, removed=call.values["removed"])]
        return read_answer(answers.Clusters(clusters=were), moment.seq, moment_headers(moment))
    headers = await directory_fresh(call)
    clusters = [_cluster_answer(cluster) for cluster in clusters_of(call, removed=call.values["removed"])]
    return read_answer(answers.Clusters(clusters=clusters), call.api.directory.seq, headers)


@reads(
    CLUSTER,
    tag="Clusters",
    summary="Get a cluster",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_cluster(call: Look) -> Answer[answers.Cluster]:
    require_some_role(call)
    if (moment := await moment_of(call)) is not None:
        was = await _cluster_at(call, moment, call.id)
        return read_answer(_cluster_answer(was.state), moment.seq, version_header(was.version) | moment_headers(moment))
    headers = await directory_fresh(call)
    chain = await cluster_of(call, call.id)
    headers = version_header(chain.version) | headers
    return read_answer(_cluster_answer(chain.state), call.api.directory.seq, headers)


@changes(
    "POST",
    CLUSTERS,
    tag="Clusters",
    summary="Add a cluster",
    body=ClusterCreation,
    example={
        "name": "lab",
        "kind": "simulated",
        "simulatedNodes": [{"count": 4, "cpuCores": 64, "memoryBytes": 549755813888, "gpus": 8, "gpuModel": "H100"}],
    },
    errors=(403,),
)
async def add_cluster(call: Call) -> Answer[answers.Created]:
    def taken(cluster: ClusterCreation) -> Iterator[Issue]:
        if not call.grants.allows(Permission.MANAGE_CLUSTERS, None):
            return
        if is_taken(cluster.name):
            instead = free_name(cluster.name, is_taken)
            yield Issue(field="name", details=name_taken(cluster.name, instead).message)
        elif cluster.kind == "local":
            others = (known for known in call.api.directory.clusters.values() if known.kind == "local")
            yield from (Issue(field="kind", details=local_taken(known.name).message) for known in others)

    def is_taken(name: str) -> bool:
        return call.api.directory.cluster_named(name) is not None

    given = call.fields(ClusterCreation, _issues_of_cluster, taken)
    nodes, _ = read_simulated(given.simulated_nodes, "simulatedNodes")
    pools = pools_of(given.simulated_nodes)
    command = AddCluster(name=given.name, kind=given.kind, simulated_nodes=nodes, node_pools=pools)
    reply = await sent_with_name(call, command, given.name, is_taken, name_taken)
    await directory_caught_up(call, reply)
    return call.created(reply, given.name)


@changes(
    "PATCH",
    CLUSTER,
    tag="Clusters",
    summary="Turn ownership protection on or off",
    body=ClusterChange,
    example={"ownershipProtection": True},
    errors=(403, 404),
)
async def change_cluster(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(ClusterChange)
    reply = await call.send(SetOwnershipProtection(cluster_id=call.id, enabled=given.ownership_protection))
    await directory_caught_up(call, reply)
    word = "on" if given.ownership_protection else "off"
    return call.accepted(reply, f"ownership protection of cluster {call.id} is {word}")


@changes(
    "DELETE",
    CLUSTER,
    tag="Clusters",
    summary="Remove a cluster on which no workload lives",
    query=(FORCE,),
    errors=(403, 404),
)
async def remove_cluster(call: Call) -> Answer[answers.HttpResponse]:
    reply = await call.send(RemoveCluster(cluster_id=call.id, force=call.values["force"]))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"cluster {call.id} is removed")


@changes(
    "POST",
    f"{CLUSTER}/disconnect",
    tag="Clusters",
    summary="Cut a simulated cluster off: its agent hears and says nothing, and its pods go on",
    errors=(403, 404),
)
async def disconnect_cluster(call: Call) -> Answer[answers.HttpResponse]:
    reply = await call.send(DisconnectSimulatedCluster(cluster_id=call.id))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"cluster {call.id} {'is' if reply.changed else 'was already'} cut off")


@changes(
    "POST",
    f"{CLUSTER}/reconnect",
    tag="Clusters",
    summary="Connect a simulated cluster again that was cut off",
    errors=(403, 404),
)
async def reconnect_cluster(call: Call) -> Answer[answers.HttpResponse]:
    reply = await call.send(ReconnectSimulatedCluster(cluster_id=call.id))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"cluster {call.id} {'is no longer' if reply.changed else 'was not'} cut off")


@reads(
    NODE_POOLS,
    tag="Clusters",
    summary="List node pools",
    query=(CLUSTER_FILTER, AS_OF),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def list_node_pools(call: Look) -> Answer[answers.NodePools]:
    require_some_role(call)
    wanted: str | None = call.values["clusterId"]
    if (moment := await moment_of(call)) is not None:
        were = (
            await clusters_at(call, moment, removed=False)
            if wanted is None
            else [(await _cluster_at(call, moment, wanted)).state]
        )
        there = await call.queries.as_of(moment).nodes_by_pool()
        of_then = [_pool_answer(cluster, name, there) for cluster in were for name in pool_names(cluster)]
        return read_answer(answers.NodePools(node_pools=of_then), moment.seq, moment_headers(moment))
    clusters = clusters_of(call) if wanted is None else [(await cluster_of(call, wanted)).state]
    counted = await if_answered(call.queries.nodes_by_pool())
    pools = [_pool_answer(cluster, name, counted) for cluster in clusters for name in pool_names(cluster)]
    return read_answer(answers.NodePools(node_pools=pools), call.api.directory.seq, {})


@reads(
    NODE_POOL,
    tag="Clusters",
    summary="Get a node pool",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_node_pool(call: Look) -> Answer[answers.NodePool]:
    require_some_role(call)
    cluster_id, name = _pool(call)
    if (moment := await moment_of(call)) is not None:
        was = (await _cluster_at(call, moment, cluster_id)).state
        there = await call.queries.as_of(moment).nodes_by_pool()
        seq, headers = moment.seq, moment_headers(moment)
    else:
        headers = await directory_fresh(call)
        was, there = (await cluster_of(call, cluster_id)).state, await if_answered(call.queries.nodes_by_pool())
        seq = call.api.directory.seq
    if name not in pool_names(was):
        raise not_found(f"cluster {was.name} has no node pool {shown(name)}")
    return read_answer(_pool_answer(was, name, there), seq, headers)


@changes(
    "POST",
    NODE_POOLS,
    tag="Clusters",
    summary="Create a node pool",
    body=NodePoolCreation,
    example={
        "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
        "name": "h100",
        "labelKey": "nvidia.com/gpu.product",
        "labelValue": "H100",
    },
    errors=(403, 404),
)
async def create_node_pool(call: Call) -> Answer[answers.HttpResponse]:
    await directory_fresh(call)

    def unknown(pool: NodePoolCreation) -> Iterator[Issue]:
        if call.api.directory.cluster(pool.cluster_id) is None:
            yield Issue(field="clusterId", details=f"there is no cluster {shown(pool.cluster_id)}")

    given = call.fields(NodePoolCreation, _issues_of_pool, unknown)
    await cluster_of(call, given.cluster_id)
    pool = NodePool(name=given.name, label_key=given.label_key, label_value=given.label_value)
    reply = await call.send(SetNodePool(cluster_id=given.cluster_id, pool=pool, new=True), creation=True)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"node pool {given.name} is set")


@changes(
    "PUT",
    NODE_POOL,
    tag="Clusters",
    summary="Create a node pool, or change which nodes are in it",
    body=NodePoolLabel,
    example={"labelKey": "nvidia.com/gpu.product", "labelValue": "H100"},
    errors=(403, 404),
)
async def set_node_pool(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _pool(call)
    await directory_fresh(call)
    await cluster_of(call, cluster_id)

    def wrong(label: NodePoolLabel) -> Iterator[Issue]:
        if not re.fullmatch(NAME_PATTERN.removesuffix("$"), name) or len(name) > LONGEST_POOL:
            yield Issue(field="name", details=f"{NAME_WORDS}, and has at most {LONGEST_POOL} characters")
        yield from _issues_of_pool(NodePoolCreation(cluster_id=cluster_id, name=name, **asdict(label)))

    given = call.fields(NodePoolLabel, wrong)
    pool = NodePool(name=name, label_key=given.label_key, label_value=given.label_value)
    reply = await call.send(SetNodePool(cluster_id=cluster_id, pool=pool))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"node pool {name} is set")


@changes(
    "DELETE",
    NODE_POOL,
    tag="Clusters",
    summary="Remove a node pool that no department and no project names. Its nodes go back to the pool default",
    errors=(403, 404),
)
async def remove_node_pool(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _pool(call)
    reply = await call.send(RemoveNodePool(cluster_id=cluster_id, name=name))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"node pool {name} is removed")


@reads(
    NODES,
    tag="Clusters",
    summary="List nodes, their capacity and what is reserved",
    query=(CLUSTER_FILTER, AS_OF, MIN_SEQ),
    errors=(403,),
    headers=MOMENT_HEADERS,
)
async def list_nodes(call: Look) -> Answer[answers.Nodes]:
    require_some_role(call)
    tables = await reading(call)
    found = await tables.queries.nodes(cluster_id=call.values["clusterId"])
    people = {row["cordoned_by"] for row in found.rows if row["cordoned_by"]}
    people |= {row["drain"]["by"] for row in found.rows if row["drain"]}
    await call.api.actors.subjects_of(people)
    nodes = [node_answer(row, call.api.actors.person) for row in found.rows]
    return read_answer(answers.Nodes(nodes=nodes), found.seq, tables.headers)


@changes(
    "POST",
    f"{NODE}/cordon",
    tag="Clusters",
    summary="Cordon a node: keep new pods off it. Running pods stay",
    errors=(403, 404),
)
async def cordon_node(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _node(call)
    reply = await call.send(CordonNode(cluster_id=cluster_id, name=name))
    return call.accepted(reply, f"node {name} {'is' if reply.changed else 'was already'} cordoned")


@changes(
    "POST", f"{NODE}/uncordon", tag="Clusters", summary="Uncordon a node: allow new pods on it again", errors=(403, 404)
)
async def uncordon_node(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _node(call)
    reply = await call.send(UncordonNode(cluster_id=cluster_id, name=name))
    return call.accepted(reply, f"node {name} {'is no longer' if reply.changed else 'was not'} cordoned")


@changes(
    "POST",
    f"{NODE}/drain",
    tag="Clusters",
    summary="Drain a node: cordon it, and have its pods end and run elsewhere",
    body=NodeDraining,
    example={"force": False},
    errors=(403, 404),
)
async def drain_node(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _node(call)
    given = call.fields(NodeDraining)
    reply = await call.send(DrainNode(cluster_id=cluster_id, name=name, force=given.force))
    return call.accepted(reply, f"node {name} {'is' if reply.changed else 'was already'} being drained")


@reads(
    f"{NODE}/pods",
    tag="Clusters",
    summary="List what is reserved on a node, and what a drain of it leaves there",
    query=(Query(name="force", type="boolean", default=False, help="As of a drain with force."), MIN_SEQ),
    errors=(403, 404),
)
async def list_node_pods(call: Look) -> Answer[answers.NodePods]:
    require_some_role(call)
    cluster_id, name = _node(call)
    headers = await call.fresh()
    found = await call.queries.pods_on(cluster_id, name, limit=MAX_NODE_PODS)
    if found is None:
        raise not_found(f"there is no node {shown(name)} in this cluster")
    if found.node["drain"]:
        await call.api.actors.subjects_of({found.node["drain"]["by"]})
    drain = drain_answer(found.node, call.api.actors.person)
    force: bool = call.values["force"] or (drain is not None and drain.force)
    return read_answer(
        answers.NodePods(
            drain=drain,
            reserved=found.node["reserved_pods"],
            pods=[node_pod_answer(row, force=force) for row in found.rows],
        ),
        found.seq,
        headers,
    )


async def pools_there_are(call: Look) -> set[str]:
    """Of all clusters: departments and projects are for all of them."""
    await directory_fresh(call)
    pools = {DEFAULT_POOL}
    for cluster in call.api.directory.clusters.values():
        pools.update(pool_names(cluster))
    return pools


def _pool(call: Look) -> tuple[str, str]:
    """Cluster id and name of the node pool in the path."""
    return str(call.request.path_params["clusterId"]), call.request.path_params["name"]


def _node(call: Look) -> tuple[str, str]:
    """Cluster id and name of the node in the path."""
    return str(call.request.path_params["clusterId"]), call.request.path_params["name"]


def _issues_of_cluster(cluster: ClusterCreation) -> Iterator[Issue]:
    yield from check_name(cluster.name, as_prefix=False)
    about = frozenset({"kind"})
    if wrong := name_of_local(cluster.kind, cluster.name):
        yield Issue(field="name", details=wrong, involves=about)
    if cluster.kind != "simulated" and cluster.simulated_nodes:
        details = "belong to clusters of kind simulated only"
        yield Issue(field="simulatedNodes", details=details, rule="canAdd", involves=about)
    if cluster.kind == "simulated" and not cluster.simulated_nodes:
        details = "is required of a cluster of kind simulated: the nodes that it shall have"
        yield Issue(field="simulatedNodes", details=details, rule="required", involves=about)
    yield from read_simulated(cluster.simulated_nodes, "simulatedNodes")[1]


def _issues_of_pool(pool: NodePoolCreation) -> Iterator[Issue]:
    if pool.name == DEFAULT_POOL:
        details = "default is the pool of nodes that are in no other; choose another name"
        yield Issue(field="name", details=details)
    yield from check_label_key("labelKey", pool.label_key)
    yield from check_label_value("labelValue", pool.label_value)


def require_some_role(call: Look) -> None:
    """Clusters and nodes are everybody's who may read anything."""
    if call.grants.readable_projects == frozenset():
        call.require(Permission.READ, None)


def clusters_of(call: Look, *, removed: bool = False) -> list[Cluster]:
    require_some_role(call)
    if removed:
        return sorted(call.api.directory.removed_clusters(), key=lambda cluster: cluster.name)
    return sorted(call.api.directory.clusters.values(), key=lambda cluster: cluster.name)


async def _cluster_at(call: Look, moment: Moment, cluster_id: str) -> Chain[Cluster]:
    """As it stood at a moment. Raises 404."""
    chain = await cluster_at(call, moment, cluster_id)
    if chain is None:
        raise not_found("there was no such cluster then")
    return chain


async def cluster_of(call: Look, cluster_id: str) -> Chain[Cluster]:
    require_some_role(call)
    chain = await cluster_chain(call, cluster_id)
    if chain is None:
        raise not_found("there is no such cluster")
    return chain


def _cluster_answer(cluster: Cluster) -> answers.Cluster:
    waiting = cluster.connection_changed_at is None
    source = "administrator" if cluster.protection_set else "default"
    return answers.Cluster(
        id=cluster.cluster_id,
        name=cluster.name,
        kind=cluster.kind,
        status="Connected" if cluster.connected else "WaitingToConnect" if waiting else "Disconnected",
        status_changed_at=cluster.connection_changed_at,
        problem=cluster.problem or None,
        refused_reports=[
            answers.RefusedReport(
                about=report.about,
                name=report.name or None,
                field=report.field or None,
                rule=report.rule,
                value=report.value,
            )
            for report in cluster.refused
        ],
        ownership_protection=cluster.ownership_protection,
        ownership_protection_source="cluster" if cluster.protection_reported is not None else source,
        storage_classes=None
        if cluster.storage_classes is None
        else [
            answers.StorageClass(name=one.name, default=one.default, attributes=one.attributes)
            for one in cluster.storage_classes
        ],
        created_at=cluster.created_at,
        # Others' nodes are facts of their agents: /nodes lists them. No number is better than a wrong one.
        nodes=node_count(cluster.simulated_nodes) if cluster.kind == "simulated" else None,
        agent_version=cluster.agent_version or None,
        cut_off_at=cluster.cut_off_at,
    )


def _pool_answer(cluster: Cluster, name: str, counted: dict[tuple[str, str], int] | None) -> answers.NodePool:
    pool = cluster.node_pools.get(name)
    return answers.NodePool(
        cluster_id=cluster.cluster_id,
        cluster_name=cluster.name,
        name=name,
        # Nodes of the pool default are those without any of the others' labels.
        label_key=None if pool is None else pool.label_key,
        label_value=None if pool is None else pool.label_value,
        nodes=None if counted is None else counted.get((cluster.cluster_id, name), 0),
    )
