"""Reservations of capacity: nodes, or GPUs, that are kept for some, as this api's fold of the log has them."""

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

from events.calendar_entry import MOST_LABELS_NAMED
from events.capacity import MOST_GPUS, MOST_NODES, CancelCapacityReservation, ReserveCapacity, living
from events.cluster import Cluster
from events.department import DEFAULT_DEPARTMENT_ID
from events.fields.declare import Limits
from events.node import Node
from events.reserved import Reserved, Times
from events.reserved_shares import shared_out
from projections.found import Moment
from services.api import answers
from services.api.clusters import CLUSTER_FILTER, cluster_of, clusters_of, require_some_role
from services.api.context import MIN_SEQ, Call, Look, read_answer
from services.api.errors import not_found
from services.api.issues import Issue, shown
from services.api.label_rules import check_label_key, check_label_value
from services.api.maintenance import EntryName, NodesFields, check_nodes, issues_of_nodes
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of, parse_zoned
from services.api.operations import Answer, changes, reads
from services.api.paths import RESERVATION, RESERVATIONS
from services.api.places import cluster_at, clusters_at, directory_caught_up, directory_fresh, may_read_department
from services.api.simulated_nodes import NodeLabelFields

MOST_NAMED: Final = 3
"""Others, in one sentence."""


class ReservationFields(NodesFields, frozen=True, kw_only=True):
    """When, and which nodes: those to which all fits that is said of them."""

    project_id: str | None = None
    """Id of the project whose workloads alone may use the nodes meanwhile. Null: those of any project."""
    department_id: str | None = None
    """Id of the department whose projects' workloads alone may. Null: those of any department."""
    workload_labels: Annotated[tuple[NodeLabelFields, ...], Limits(longest=MOST_LABELS_NAMED)] = ()
    """Labels that a workload must have to use the nodes, all of them; empty: whatever labels it has."""
    weekly: bool = False
    """Whether it comes again 168 hours later, until it is cancelled."""
    gpus: Annotated[int, Limits(least=1, most=MOST_GPUS)] | None = None
    """How many GPUs: of these nodes, in the order of their names, as many as have so many together. Null: all of them.
    """
    node_count: Annotated[int, Limits(least=1, most=MOST_NODES)] | None = None
    """How many of these nodes, in the order of their names. Null: all of them. Not with `gpus`."""
    exact: bool = False
    """Whether of the last node no more GPUs are kept than are wanted, with their part of its CPU and memory; otherwise
    whole nodes. With `gpus` alone.
    """


class ReservationCreation(ReservationFields, frozen=True, kw_only=True):
    cluster_id: str
    """Id of the cluster."""
    name: EntryName
    """Unique in the cluster among those that are not over."""


@reads(
    RESERVATIONS,
    tag="Clusters",
    summary="List reservations of capacity: what is planned, goes on, or was over less than 30 days ago",
    query=(CLUSTER_FILTER, AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def list_reservations(call: Look) -> Answer[answers.CapacityReservations]:
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
    there = await _there(call, moment)
    found = [await _answer(call, cluster, each, now, there) for cluster in clusters for each in cluster.reserved]
    return read_answer(answers.CapacityReservations(reservations=found), seq, headers)


@reads(
    RESERVATION,
    tag="Clusters",
    summary="Get a reservation of capacity: the last one of this name",
    query=(AS_OF, MIN_SEQ),
    errors=(403, 404),
    headers=MOMENT_HEADERS,
)
async def get_reservation(call: Look) -> Answer[answers.CapacityReservation]:
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
    found = [each for each in cluster.reserved if each.name == name]
    if not found:
        raise not_found(f"cluster {cluster.name} has no reservation {shown(name)}")
    last, there = max(found, key=lambda each: each.starts_at), await _there(call, moment)
    return read_answer(await _answer(call, cluster, last, now, there), seq, headers)


@changes(
    "POST",
    RESERVATIONS,
    tag="Clusters",
    summary="Reserve nodes, or GPUs of them, for a project, a department or workloads with labels",
    body=ReservationCreation,
    example={
        "clusterId": "5e6f7a8b-0000-8000-8000-000000000000",
        "name": "benchmark",
        "projectId": "6f7a8b9c-0000-8000-8000-000000000000",
        "startsAt": "2027-01-09T06:00:00Z",
        "endsAt": "2027-01-09T12:00:00Z",
        "nodePools": ["h100"],
        "gpus": 16,
    },
    errors=(403, 404, 409),
)
async def reserve_capacity(call: Call) -> Answer[answers.HttpResponse]:
    await directory_fresh(call)

    def unknown(asked: ReservationCreation) -> Iterator[Issue]:
        if call.api.directory.cluster(asked.cluster_id) is None:
            yield Issue(field="clusterId", details=f"there is no cluster {shown(asked.cluster_id)}")

    given = call.fields(ReservationCreation, lambda asked: _wrong(call, asked), unknown)
    await cluster_of(call, given.cluster_id)
    found = await check_nodes(call, given.cluster_id, given)
    reply = await call.send(_command(call, given.cluster_id, given.name, given, new=True), creation=True)
    await directory_caught_up(call, reply)
    told = found.told or _what_it_keeps(call, given.cluster_id, given.name, found.nodes)
    return call.accepted(reply, f"reservation {given.name} is made{told}")


@changes(
    "PUT",
    RESERVATION,
    tag="Clusters",
    summary="Change a reservation of capacity that is planned or goes on",
    body=ReservationFields,
    example={
        "projectId": "6f7a8b9c-0000-8000-8000-000000000000",
        "startsAt": "2027-01-09T06:00:00Z",
        "endsAt": "2027-01-09T18:00:00Z",
        "nodePools": ["h100"],
    },
    errors=(403, 404),
)
async def change_reservation(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _named(call)
    await directory_fresh(call)

    given = call.fields(ReservationFields, lambda asked: _wrong(call, asked))
    await cluster_of(call, cluster_id)
    found = await check_nodes(call, cluster_id, given)
    reply = await call.send(_command(call, cluster_id, name, given, new=False))
    await directory_caught_up(call, reply)
    told = found.told or _what_it_keeps(call, cluster_id, name, found.nodes)
    return call.accepted(reply, f"reservation {name} {'is changed' if reply.changed else 'was so already'}{told}")


@changes(
    "DELETE",
    RESERVATION,
    tag="Clusters",
    summary="Cancel a reservation of capacity that is planned or goes on. Everybody may use its nodes again",
    errors=(403, 404),
)
async def cancel_reservation(call: Call) -> Answer[answers.HttpResponse]:
    cluster_id, name = _named(call)
    gone = _gone(call, cluster_id)
    reply = await call.send(CancelCapacityReservation(cluster_id=cluster_id, name=name, gone_projects=gone))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"reservation {name} is cancelled")


def _named(call: Look) -> tuple[str, str]:
    return str(call.request.path_params["clusterId"]), call.request.path_params["name"]


def _issues(asked: ReservationFields) -> Iterator[Issue]:
    yield from issues_of_nodes(asked)
    if not (asked.project_id or asked.department_id or asked.workload_labels):
        details = "says of nobody that it is for them: give projectId, departmentId or workloadLabels"
        yield Issue(field="body", details=details, rule="required")
    if asked.project_id and asked.department_id:
        yield Issue(field="departmentId", details="is not given beside projectId: a project stands in one department")
    if asked.gpus is not None and asked.node_count is not None:
        yield Issue(field="nodeCount", details="is not given beside gpus: count GPUs or nodes")
    if asked.exact and asked.gpus is None:
        yield Issue(field="exact", details="is given with gpus only: otherwise whole nodes are kept")
    for index, label in enumerate(asked.workload_labels):
        yield from check_label_key(f"workloadLabels[{index}].name", label.name)
        yield from check_label_value(f"workloadLabels[{index}].value", label.value)


def _wrong(call: Call, asked: ReservationFields) -> Iterator[Issue]:
    """With what no decider of the cluster can tell: it knows no projects."""
    yield from _issues(asked)
    if asked.project_id and call.api.directory.project(asked.project_id) is None:
        yield Issue(field="projectId", details=f"there is no project {shown(asked.project_id)}")
    if asked.department_id and asked.department_id not in call.api.directory.departments:
        yield Issue(field="departmentId", details=f"there is no department {shown(asked.department_id)}")


def _command(call: Call, cluster_id: str, name: str, given: ReservationFields, *, new: bool) -> ReserveCapacity:
    directory = call.api.directory
    project = directory.project(given.project_id) if given.project_id else None
    department = directory.departments.get(given.department_id or "")
    return ReserveCapacity(
        cluster_id=cluster_id,
        name=name,
        project_id=given.project_id or "",
        project_name="" if project is None else project.name,
        department_id=given.department_id or "",
        department_name="" if department is None else department.name,
        workload_labels={each.name: each.value for each in given.workload_labels},
        starts_at=parse_zoned(given.starts_at),
        ends_at=parse_zoned(given.ends_at),
        weekly=given.weekly,
        nodes=given.nodes,
        node_pools=given.node_pools,
        labels={each.name: each.value for each in given.labels},
        gpus=given.gpus,
        node_count=given.node_count,
        exact=given.exact,
        lead_seconds=given.lead_seconds,
        new=new,
        gone_projects=_gone(call, cluster_id),
    )


def _gone(call: Call, cluster_id: str) -> tuple[str, ...]:
    """Ids of deleted projects and departments for which the cluster has reservations."""
    directory = call.api.directory
    cluster = directory.cluster(cluster_id)
    reserved = () if cluster is None else cluster.reserved
    gone = {each.project_id for each in reserved if each.project_id and directory.project(each.project_id) is None}
    gone |= {each.department_id for each in reserved} - {"", *directory.departments}
    return tuple(sorted(gone))


def _is_gone(call: Look, entry: Reserved) -> bool:
    """Whether its project or department is deleted."""
    directory = call.api.directory
    gone = bool(entry.project_id) and directory.project(entry.project_id) is None
    return gone or (bool(entry.department_id) and entry.department_id not in directory.departments)


def _what_it_keeps(call: Call, cluster_id: str, name: str, nodes: Iterable[Node]) -> str:
    """That it keeps fewer than it wants, to go behind the answer; else nothing, also where nothing is known of nodes.

    Args:
        nodes: all of the cluster.
    """
    by_name, cluster = {node.name: node for node in nodes}, call.api.directory.cluster(cluster_id)
    entry = None if cluster is None else living(cluster.reserved, name, datetime.now(UTC))
    if cluster is None or entry is None or not entry.counted or not by_name:
        return ""
    forms = (*cluster.reserved, *cluster.formerly_reserved)
    about = {each.about: each for each in forms}
    nodes_of = {of: {key: node for key, node in by_name.items() if each.fits(node)} for of, each in about.items()}
    fitting = {each.form: nodes_of[each.about] for each in forms}
    gone = {each.form for each in cluster.reserved if _is_gone(call, each)}
    shares = shared_out(forms, fitting, gone)
    meant, kept = fitting[entry.form], shares[entry.form]
    if entry.gpus is not None:
        wanted, noun, there = entry.gpus, "GPU", sum(node.facts.gpu_count for node in meant.values())
        have = sum(meant[key].facts.gpu_count if of is None else len(of) for key, of in kept.items())
    else:
        wanted, noun, there, have = entry.node_count or 0, "node", len(meant), len(kept)
    if have >= wanted:
        return ""
    others = [each for each in cluster.reserved if each.form not in gone and entry.meets(each)]
    others = [each.name for each in others if shares[each.form].keys() & meant.keys()]
    why = [f"{there} {'is' if there == 1 else 'are'} there"] if there < wanted else []
    why += [f"others have theirs then ({', '.join(others[:MOST_NAMED])})"] if others else []
    told = f"; it keeps {have or 'none'} of {wanted} {noun}{'s' if wanted != 1 else ''} now"
    return f"{told}: {', and '.join(why)}" if why else told


def reserved_for(clusters: Iterable[Cluster], id_: str, now: datetime) -> list[str]:
    """What is reserved for a project or department, for a person."""
    return [
        f"{each.name} (cluster {cluster.name})"
        for cluster in clusters
        for each in cluster.reserved
        if id_ in (each.project_id, each.department_id) and each.times(now) is not None
    ]


class _There(NamedTuple):
    """Ids of what there is, or was; what was reserved for others is over."""

    projects: Collection[str]
    departments: Collection[str]


async def _there(call: Look, moment: Moment | None) -> _There:
    if moment is None:
        return _There(call.api.directory.projects.keys(), call.api.directory.departments.keys())
    queries = call.queries.as_of(moment)
    departments = {DEFAULT_DEPARTMENT_ID, *await queries.department_ids()}
    return _There({*await queries.project_ids()}, departments)


async def _answer(
    call: Look, cluster: Cluster, each: Reserved, now: datetime, there: _There
) -> answers.CapacityReservation:
    by = await call.api.actors.subjects_of((each.reserved_by,))
    times = each.times(now)
    starts_at, ends_at = times or Times(each.starts_at, each.ends_at)
    over = times is None or (each.project_id and each.project_id not in there.projects)
    over = over or (each.department_id and each.department_id not in there.departments)
    seen = not each.project_id or call.may_read(each.project_id)
    seen_too = not each.department_id or may_read_department(call, each.department_id)
    return answers.CapacityReservation(
        id=each.id,
        cluster_id=cluster.cluster_id,
        cluster_name=cluster.name,
        name=each.name,
        project_id=(each.project_id or None) if seen else None,
        project_name=each.project_name if seen else "another project",
        department_id=(each.department_id or None) if seen_too else None,
        department_name=each.department_name if seen_too else "another department",
        workload_labels=each.workload_labels,
        state="Over" if over else "InProgress" if starts_at <= now else "Planned",
        starts_at=starts_at,
        ends_at=ends_at,
        weekly=each.weekly,
        nodes=list(each.nodes),
        node_pools=list(each.node_pools),
        labels=each.labels,
        gpus=each.gpus,
        node_count=each.node_count,
        exact=each.exact,
        lead_seconds=each.lead_seconds,
        reserved_by=by[each.reserved_by],
    )
