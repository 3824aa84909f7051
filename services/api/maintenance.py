"""Maintenance of nodes: what is planned, as this api's fold of the log has it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple

from sqlalchemy import RowMapping

from events.calendar_entry import (
    DEFAULT_LEAD_SECONDS,
    MOST_LABELS_NAMED,
    MOST_LEAD,
    MOST_NODES_NAMED,
    MOST_POOLS_NAMED,
    is_about,
)
from events.cluster import Cluster
from events.fields.declare import Body, Limits
from events.maintenance import CancelMaintenance, Maintenance, PlanMaintenance
from events.node import Node, NodeFacts
from events.node_file import NAME_PATTERN, NAME_WORDS
from services.api import answers
from services.api.clusters import CLUSTER_FILTER, cluster_of, clusters_of, require_some_role
from services.api.context import MIN_SEQ, Call, Look, if_answered, read_answer
from services.api.errors import not_found
from services.api.issues import BadValueError, Issue, shown
from services.api.label_rules import check_label_key, check_label_value
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of, parse_zoned
from services.api.operations import Answer, changes, reads
from services.api.paths import MAINTENANCE, MAINTENANCES
from services.api.places import cluster_at, clusters_at, directory_caught_up, directory_fresh
from services.api.simulated_nodes import NodeLabelFields, NodeName, PoolName

EntryName = Annotated[str, Limits(shortest=1, longest=63, pattern=NAME_PATTERN, words=NAME_WORDS)]
Time = Annotated[str, Limits(shortest=1, longest=40)]


class NodesFields(Body, frozen=True, kw_only=True):
    """When, and which nodes: those to which all fits that is said of them."""

    starts_at: Time
    """When it begins: a time with its zone (RFC 3339), or a date, which is its midnight by UTC."""
    ends_at: Time
    """When it is over, likewise."""
    nodes: Annotated[tuple[NodeName, ...], Limits(longest=MOST_NODES_NAMED)] = ()
    """Names of nodes; empty for nodes of any name."""
    node_pools: Annotated[tuple[PoolName, ...], Limits(longest=MOST_POOLS_NAMED)] = ()
    """Names of node pools; empty for nodes of any pool."""
    labels: Annotated[tuple[NodeLabelFields, ...], Limits(longest=MOST_LABELS_NAMED)] = ()
    """Labels that the nodes have, all of them; empty for nodes with any labels."""
    lead_seconds: Annotated[int, Limits(least=0, most=int(MOST_LEAD.total_seconds()))] = DEFAULT_LEAD_SECONDS
    """For so long before it begins no pod is placed on the nodes that is non-preemptible and may still run then."""


class MaintenanceFields(NodesFields, frozen=True, kw_only=True):
    """When nodes are out of service, and which: those to which all fits that is said of them."""

    force: bool = False
    """Whether pods of non-preemptible workloads are told to end when it begins, too. Otherwise they stay until they
    end.
    """


class MaintenanceCreation(MaintenanceFields, frozen=True, kw_only=True):
    cluster_id: str
    """Id of the cluster."""
    name: EntryName
    """Unique in the cluster among those that are not over."""


@reads(
    MAINTENANCES,
    tag="Clusters",
    summary="List maintenance of nodes: what is planned, goes on, or was over less than 30 days ago",
    query=(CLUSTER_FILTER, AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def list_maintenance(call: Look) -> Answer[answers.Maintenances]:
    require_some_role(call)
    wanted: str | None = call.values["clusterId"]
    now = datetime.now(UTC)
    if (moment := await moment_of(call)) is not None:
        were = await clusters_at(call, moment, removed=False)
        clusters = [each for each in were if wanted in (None, each.cluster_id)]
        seq, headers, now = moment.seq, moment_headers(moment), moment.at or now
    else:
        headers = await directory_fresh(call)
        clusters = clusters_of(call) if wanted is None else [(await cluster_of(call, wanted)).state]
        seq = call.api.directory.seq
    found = [await _answer(call, cluster, each, now) for cluster in clusters for each in cluster.maintenance]
    return read_answer(answers.Maintenances(maintenance=found), seq, headers)


@reads(
    MAINTENANCE,
    tag="Clusters",
    summary="Get maintenance of nodes: the last one of this name",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_maintenance(call: Look) -> Answer[answers.Maintenance]:
    require_some_role(call)
    cluster_id, name = _named(call)
    now = datetime.now(UTC)
    if (moment := await moment_of(call)) is not None:
        chain = await cluster_at(call, moment, cluster_id)
        if chain is None:
            raise not_found("there was no such cluster then")
        cluster, seq, headers, now = chain.state, moment.seq, moment_headers(moment), moment.at or now
    else:
        headers = await directory_fresh(call)
        cluster, seq = (await cluster_of(call, cluster_id)).state, call.api.directory.seq
    found = [each for each in cluster.maintenance if each.name == name]
    if not found:
        raise not_found(f"cluster {cluster.name} has no maintenance {shown(name)}")
    return read_answer(await _answer(call, cluster, max(found, key=lambda each: each.starts_at), now), seq, headers)


@changes(
    "POST",
    MAINTENANCES,
    tag="Clusters",
    summary="Plan maintenance: nodes are drained when it begins, and take pods again when it is over",
    body=MaintenanceCreation,
    example={
        "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
        "name": "firmware",
        "startsAt": "2027-01-09T06:00:00Z",
        "endsAt": "2027-01-09T12:00:00Z",
        "nodePools": ["h100"],
    },
    errors=(403, 404, 409),
)
async def plan_maintenance(call: Call) -> Answer[answers.HttpResponse]:
    await directory_fresh(call)

    def unknown(asked: MaintenanceCreation) -> Iterator[Issue]:
        if call.api.directory.cluster(asked.cluster_id) is None:
            yield Issue(field="clusterId", details=f"there is no cluster {shown(asked.cluster_id)}")

    given = call.fields(MaintenanceCreation, issues_of_nodes, unknown)
    await cluster_of(call, given.cluster_id)
    told = (await check_nodes(call, given.cluster_id, given)).told
    reply = await call.send(_command(given.cluster_id, given.name, given, new=True), creation=True)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"maintenance {given.name} is planned{told}")


@changes(
    "PUT",
    MAINTENANCE,
    tag="Clusters",
    summary="Change maintenance that is planned or goes on. Once it has begun its beginning stays",
    body=MaintenanceFields,
    example={"startsAt": "2027-01-09T06:00:00Z", "endsAt": "2027-01-09T18:00:00Z", "nodePools": ["h100"]},
    errors=(403, 404),
)
async def change_maintenance(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _named(call)
    given = call.fields(MaintenanceFields, issues_of_nodes)
    await directory_fresh(call)
    await cluster_of(call, cluster_id)
    told = (await check_nodes(call, cluster_id, given)).told
    reply = await call.send(_command(cluster_id, name, given, new=False))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"maintenance {name} {'is changed' if reply.changed else 'was so already'}{told}")


@changes(
    "DELETE",
    MAINTENANCE,
    tag="Clusters",
    summary="Cancel maintenance that is planned or goes on. Nodes that it took out of service take pods again",
    errors=(403, 404),
)
async def cancel_maintenance(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _named(call)
    reply = await call.send(CancelMaintenance(cluster_id=cluster_id, name=name))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"maintenance {name} is cancelled")


def _named(call: Look) -> tuple[str, str]:
    return str(call.request.path_params["clusterId"]), call.request.path_params["name"]


def _command(cluster_id: str, name: str, given: MaintenanceFields, *, new: bool) -> PlanMaintenance:
    return PlanMaintenance(
        cluster_id=cluster_id,
        name=name,
        starts_at=parse_zoned(given.starts_at),
        ends_at=parse_zoned(given.ends_at),
        nodes=given.nodes,
        node_pools=given.node_pools,
        labels={each.name: each.value for each in given.labels},
        lead_seconds=given.lead_seconds,
        force=given.force,
        new=new,
    )


class NodesFound(NamedTuple):
    """What the tables have of a cluster's nodes."""

    told: str
    """That there are none yet of those that are meant, to go behind the answer; else empty."""
    nodes: tuple[Node, ...]
    """All that there are, with what says which are meant."""


async def check_nodes(call: Call, cluster_id: str, given: NodesFields) -> NodesFound:
    """Raises 400 where the cluster has no node of a name, as far as the tables can be read: a name with a typing error
    would do nothing, and say so to nobody.
    """
    found = await if_answered(call.queries.nodes(cluster_id=cluster_id))
    if found is None:
        return NodesFound("", ())
    there = {str(row["name"]) for row in found.rows}
    cluster = call.api.directory.cluster(cluster_id)
    of = cluster_id if cluster is None else cluster.name

    def unknown(asked: NodesFields) -> Iterator[Issue]:
        for index, name in enumerate(asked.nodes):
            if name not in there:
                yield Issue(field=f"nodes[{index}]", details=f"cluster {of} has no node {shown(name)}")

    call.fields(type(given), unknown)
    nodes = tuple(_node(row) for row in found.rows)
    labels = {each.name: each.value for each in given.labels}
    meant = MeantNodes(nodes=given.nodes, node_pools=given.node_pools, labels=labels)
    if any(is_about(meant, node) for node in nodes):
        return NodesFound("", nodes)
    return NodesFound("; no node of the cluster is meant now: none fits all of nodes, node pools and labels", nodes)


class MeantNodes(NamedTuple):
    """As AboutNodes."""

    nodes: tuple[str, ...]
    node_pools: tuple[str, ...]
    labels: dict[str, str]


def _node(row: RowMapping) -> Node:
    facts = NodeFacts(
        cpu_milli=0, memory_bytes=0, gpu_count=int(row["gpu_count"]), pool=row["pool"], labels=dict(row["labels"])
    )
    return Node(name=row["name"], present=True, facts=facts)


def issues_of_nodes(given: NodesFields) -> Iterator[Issue]:
    if not (given.nodes or given.node_pools or given.labels):
        details = "says of no node that it is meant: give nodes, nodePools or labels"
        yield Issue(field="body", details=details, rule="required")
    times: list[datetime] = []
    for field, text in (("startsAt", given.starts_at), ("endsAt", given.ends_at)):
        try:
            times.append(parse_zoned(text))
        except BadValueError as error:
            yield Issue(field=field, details=str(error))
    if len(times) == 2 and times[1] - times[0] <= timedelta(0):  # noqa: PLR2004 (both)
        yield Issue(field="endsAt", details=f"must be after startsAt; got {shown(given.ends_at)}")
    for index, label in enumerate(given.labels):
        yield from check_label_key(f"labels[{index}].name", label.name)
        yield from check_label_value(f"labels[{index}].value", label.value)


async def _answer(call: Look, cluster: Cluster, each: Maintenance, now: datetime) -> answers.Maintenance:
    by = await call.api.actors.subjects_of((each.planned_by,))
    return answers.Maintenance(
        id=each.id,
        cluster_id=cluster.cluster_id,
        cluster_name=cluster.name,
        name=each.name,
        state="Over" if each.is_over(now) else "InProgress" if each.is_on(now) else "Planned",
        starts_at=each.starts_at,
        ends_at=each.ends_at,
        nodes=list(each.nodes),
        node_pools=list(each.node_pools),
        labels=each.labels,
        lead_seconds=each.lead_seconds,
        force=each.force,
        planned_by=by[each.planned_by],
    )
