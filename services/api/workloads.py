"""Workloads of any kind: lists from the projections, one workload from the log, its history, pods and usage."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args

from msgspec.structs import replace

from events.actors import mentioned, with_names
from events.aggregate import Chain
from events.asset_specs import spec_node
from events.fields.declare import Body, Limits
from events.fields.values import Items
from events.webhooks import fits
from events.workload.commands import ChangeWorkload
from events.workload.fields.creation import AnyCreation
from events.workload.fields.metadata import Annotation, Label
from events.workload.fields.scheduling import PriorityClass
from events.workload.kinds import KINDS
from events.workload.kinds.kind import Kind
from events.workload.pod_sets import PodSet
from events.workload.spec import MAX_AUTO_DELETION_SECONDS, NO_SPEC, WorkloadSpec, preemptibility_of
from events.workload.state import Workload
from projections.filters import MAX_LIMIT, MAX_OFFSET, OPERATORS, Filter, WorkloadQuery, problems
from projections.history_query import HistoryQuery
from projections.queries import Queries
from projections.row_json import row_to_json
from projections.selectors import BadSelectorError, Requirement, parse_selector
from projections.usage import MAX_USAGE_SAMPLES, UsagePoint
from services.api.answers import (
    HISTORY,
    Count,
    History,
    HttpResponse,
    Measurement,
    Metrics,
    MetricType,
    MetricValue,
    Pods,
    WorkloadKind,
    WorkloadList,
    WorkloadRow,
    WorkloadTypes,
    fields_of,
)
from services.api.answers import Workload as WorkloadAnswer
from services.api.context import MIN_SEQ, Call, Look, if_answered, read_answer, rfc3339, sequence_headers
from services.api.errors import bad_request, not_found
from services.api.event_filters import read_uuid
from services.api.issues import BadValueError, Issue, none_of, shown
from services.api.kinds import EXPLAIN, act, load_workload, newest_workload, shown_workload, workload_at
from services.api.merge import merged
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of, parse_as_of, parse_moment, reading
from services.api.mount_paths import MasterChange, MountPaths, fixed_volumes, moved, moved_of_master
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import WORKLOAD, WORKLOAD_TYPES, WORKLOADS
from services.api.places import find_project
from services.api.policies_in_force import forbidden_changes, policies_in_force
from services.api.rules import check_marks
from services.api.shown_rows import history_record, people_in, pod_answer
from services.runtime.identity.actors import ActorNames

PAGE: Final = (
    Query(name="offset", type="integer", default=0, most=MAX_OFFSET, help="Rows to skip."),
    Query(name="limit", type="integer", default=50, least=1, most=MAX_LIMIT, help="Maximum number of rows, 1 to 500."),
)


def parse_filter(text: str) -> Filter:
    """`field==value` as a filter: the first operator that stands after a word. Raises BadValueError."""
    position, op = min(
        ((at, op) for op in OPERATORS if (at := text.find(op)) > 0), default=(0, ""), key=lambda found: found[0]
    )
    if not op:
        raise BadValueError(
            f"{shown(text)} is no filter; write field, operator and value, as phase==Running; operators are "
            f"{' '.join(OPERATORS)}"
        )
    return Filter(field=text[:position].strip(), op=op, value=text[position + len(op) :])


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Raises BadValueError."""
    try:
        return parse_selector(text)
    except BadSelectorError as error:
        raise BadValueError(str(error)) from error


SELECTION: Final = (
    Query(
        name="filterBy",
        type="texts",
        read=parse_filter,
        help=f"`field==value`, repeatable; operators {' '.join(OPERATORS)}.",
    ),
    Query(
        name="labelSelector",
        read=parse_labels,
        help="Labels, as Kubernetes selects by them: `team=vision,stage in (dev,test),!old`.",
    ),
    Query(name="search", help="Part of a name, id, owner, project, cluster, phase or image."),
    Query(name="deleted", type="boolean", default=False, help="Deleted workloads instead of living ones."),
)
ORDER: Final = (
    Query(
        name="sortBy",
        default="createdAt",
        help="A field of the rows, or several with commas; - before one turns its direction: `phase,-createdAt`.",
    ),
    Query(name="sortOrder", type="choice", options=("asc", "desc"), default="desc", help="Sort direction."),
)

_RECORD_TYPES: Final = tuple(HISTORY)


def _record_type(given: str) -> str:
    if not any(fits(name, given) for name in _RECORD_TYPES):
        raise BadValueError(none_of(given, _RECORD_TYPES), "options")
    return given


RECORDS: Final = (
    Query(
        name="type",
        type="texts",
        read=_record_type,
        help="Only of this type, such as PodFailed; `*` and `?` stand for any characters. Repeatable.",
    ),
    Query(name="text", help="Only records whose sentence has this text, in any case."),
    Query(name="from", read=parse_as_of, help="Only from this time (RFC 3339) or sequence of the log on."),
    Query(name="to", read=parse_as_of, help="Only up to this time (RFC 3339) or sequence of the log."),
)
METRIC_TYPES: Final[tuple[MetricType, ...]] = get_args(MetricType)
TABLE_SECONDS: Final = 0.1
"""How long the tables may take to come as far as the log: mostly some milliseconds. Then the log alone answers."""
FIRST_WAIT_SECONDS: Final = 0.005


def _metric_types(given: str) -> tuple[MetricType, ...]:
    names = [name.strip() for name in given.split(",")]
    if unknown := [name for name in names if name not in METRIC_TYPES]:
        raise BadValueError(none_of(unknown[0], METRIC_TYPES), "options")
    return tuple(kind for kind in METRIC_TYPES if kind in names)


METRICS: Final = (
    Query(name="metricType", read=_metric_types, help=f"Some of {', '.join(METRIC_TYPES)}, with commas. Default: all."),
    Query(name="start", read=parse_moment, help="RFC 3339. Default: one hour before the end."),
    Query(name="end", read=parse_moment, help="RFC 3339. Default: now."),
    Query(
        name="numberOfSamples",
        type="integer",
        default=100,
        least=1,
        most=MAX_USAGE_SAMPLES,
        help="Intervals to average over.",
    ),
)


def selection_rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    """What filters, order and search ask for that no list can answer."""
    for problem in problems(_query(values, None)):
        yield Issue(field=problem.field, details=problem.message)


def metrics_rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    start, end = values["start"], values["end"] or datetime.now(UTC)
    if start is not None and start > end:
        which = "the end" if values["end"] else "now, which is the end where none is given"
        details = f"{rfc3339(start)} is after {which}: {rfc3339(end)}"
        yield Issue(field="start", details=details, rule="max", involves=frozenset({"end"}))


class WorkloadChange(Body, frozen=True, kw_only=True):
    """What may change after submission; what is left out stays."""

    priority_class: PriorityClass | None = None
    """The next decision of the scheduler goes by it."""
    auto_deletion_time_after_completion_seconds: (
        Annotated[int, Limits(least=0, most=MAX_AUTO_DELETION_SECONDS)] | None
    ) = None
    """Counted from the end; a workload that ended longer ago is deleted at once."""
    labels: Items[Label] | None = None
    """All labels that it has from then on; an empty list takes them off. Runs that begin later carry them."""
    annotations: Items[Annotation] | None = None
    """All annotations, likewise."""
    storage: MountPaths | None = None
    """Where runs that begin later find claims and Secrets. Runs that are there keep what they have."""
    master_spec: MasterChange | None = None
    """The same of the volumes of a master that has its own."""


_CHANGEABLE: Final = WorkloadChange.__struct_encode_fields__
_FIXED_FIELDS: Final = frozenset({*WorkloadSpec.__struct_encode_fields__, *AnyCreation.__struct_encode_fields__}) - {
    *_CHANGEABLE,
    "spec",
}
"""What a request to create one may say, and a change may not."""


def check_change(change: WorkloadChange) -> Iterator[Issue]:
    """What is wrong with labels and annotations, as in a creation."""
    spec = replace(NO_SPEC, labels=change.labels or (), annotations=change.annotations or ())
    for issue in check_marks(spec):
        yield Issue(field=issue.field.removeprefix("spec."), details=issue.details, rule=issue.rule)


@reads(
    WORKLOADS,
    tag="Workloads",
    summary="List workloads of all kinds",
    query=(*PAGE, *ORDER, *SELECTION, AS_OF, MIN_SEQ),
    rules=selection_rules,
    headers=MOMENT_HEADERS,
)
async def list_workloads(call: Look) -> Answer[WorkloadList]:
    tables = await reading(call)
    page = await tables.queries.workloads(workload_query(call))
    rows = [WorkloadRow(**row) for row in await named_rows(call.api.actors, page.rows)]
    return read_answer(WorkloadList(workloads=rows, next=page.next), page.seq, tables.headers)


@reads(
    f"{WORKLOADS}/count",
    tag="Workloads",
    summary="Count workloads",
    query=(*SELECTION, AS_OF, MIN_SEQ),
    rules=selection_rules,
    headers=MOMENT_HEADERS,
)
async def count_workloads(call: Look) -> Answer[Count]:
    tables = await reading(call)
    counted = await tables.queries.count(workload_query(call))
    return read_answer(Count(count=counted.count), counted.seq, tables.headers)


async def named_rows(actors: ActorNames, rows: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """Rows of `Queries.workloads` as the API shows them, with names in the place of ids."""
    people = {row["submitted_by"] for row in rows}.union(*(mentioned(row["phase_message"]) for row in rows))
    subjects = await actors.subjects_of(people)
    return [
        row_to_json(row)
        | {
            "submittedBy": subjects[row["submitted_by"]],
            "phaseMessage": with_names(row["phase_message"], subjects.__getitem__) or None,
        }
        for row in rows
    ]


def workload_query(call: Look) -> WorkloadQuery:
    """The query that the parameters ask for, within what the caller may read."""
    return _query(call.values, call.grants.readable_projects, call.api.actors.subjects)


def _query(
    values: Mapping[str, Any], projects: frozenset[str] | None, subjects: Mapping[str, str] = MappingProxyType({})
) -> WorkloadQuery:
    return WorkloadQuery(
        projects=projects,
        subjects=subjects,
        deleted=values["deleted"],
        filters=values["filterBy"] or (),
        labels=values["labelSelector"] or (),
        search=values["search"],
        sort_by=values.get("sortBy", "createdAt"),
        descending=values.get("sortOrder", "desc") == "desc",
        offset=values.get("offset", 0),
        limit=values.get("limit", MAX_LIMIT),
    )


async def whole_workload(call: Look, chain: Chain[Workload]) -> tuple[Chain[Workload], dict[str, Any]]:
    """The workload's fold, this or a newer one, and all that its row says, as of the same commit; it has the actor id
    of who submitted it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TABLE_SECONDS
    wait = FIRST_WAIT_SECONDS
    while (found := await if_answered(call.queries.workload(call.id))) is not None:
        version = found.rows[0]["version"] if found.rows else 0
        if version > chain.version:
            chain = await load_workload(call, call.id)
        if version == chain.version:
            return chain, row_to_json(found.rows[0])
        if loop.time() >= deadline:
            break
        await asyncio.sleep(wait)
        wait *= 2
    return chain, await call.api.rows.of(chain)


@reads(
    WORKLOAD,
    tag="Workloads",
    summary="Get a workload",
    query=(EXPLAIN, AS_OF, MIN_SEQ),
    errors=(404,),
    headers=MOMENT_HEADERS,
)
async def get_workload(call: Look) -> Answer[WorkloadAnswer]:
    """As of the log's newest commit of it, so that a read after a 202 sees it; all of it as of that one commit. Of the
    past, as of its last commit up to the moment.
    """
    moment = await moment_of(call)
    if moment is None:
        chain, headers = await newest_workload(call)
        chain, row = await whole_workload(call, chain)
    else:
        chain, headers = await workload_at(call, moment), moment_headers(moment)
        row = await call.api.rows.of(chain, now=moment.at)
    found = await shown_workload(call, chain.state)
    if message := row["phaseMessage"]:
        subjects = await call.api.actors.subjects_of(mentioned(message))
        row["phaseMessage"] = with_names(message, subjects.__getitem__)
    owner = await call.api.actors.subjects_of((chain.state.owner,))
    row |= {"submittedBy": owner[chain.state.owner]} | fields_of(found)
    return Answer(WorkloadAnswer(**row), headers=sequence_headers(chain.version) | headers)


@changes(
    "PATCH",
    WORKLOAD,
    tag="Workloads",
    summary="Change priority, labels, annotations, mount paths or the automatic deletion of a workload",
    body=WorkloadChange,
    example={
        "priorityClass": "high",
        "autoDeletionTimeAfterCompletionSeconds": 86400,
        "labels": [{"name": "team", "value": "vision"}],
    },
    errors=(403, 404),
)
async def change_workload(call: Call) -> Answer[HttpResponse]:
    if fixed := [name for name in call.json_object() if name in _FIXED_FIELDS]:
        details = f"cannot be changed once a workload is submitted; submit another. Can be: {', '.join(_CHANGEABLE)}"
        raise bad_request([Issue(field=name, details=details, rule="canEdit") for name in fixed])
    if issues := [*fixed_volumes(call.json_object())]:
        raise bad_request(issues)
    change = call.fields(WorkloadChange, check_change)
    given = {name: value for name in change.__struct_fields__ if (value := getattr(change, name)) is not None}
    places = None if change.master_spec is None else change.master_spec.storage
    given.pop("master_spec", None)
    if not given and places is None:
        details = f"names nothing to change; give one of {', '.join(_CHANGEABLE)}"
        raise bad_request([Issue(field="body", details=details, rule="required")])
    state = (await load_workload(call, call.id)).state
    done = "is changed"
    issues: list[Issue] = []
    if change.storage is not None:
        given["storage"], issues = moved(state.spec, change.storage, state.distributed)
    if places is not None:
        given["master_storage"], found = moved_of_master(state.spec, places, state.distributed)
        issues += found
    if {"storage", "master_storage"} & given.keys():
        done += "; runs that begin later find its volumes there, and runs that are there keep what they have"
    if issues := issues or await forbidden_changes(call, state, given):
        raise bad_request(issues)
    command = ChangeWorkload(workload_id=call.id, **given)
    return await act(call, command, done, "is like that already")


@reads(
    f"{WORKLOAD}/history",
    tag="Workloads",
    summary="Get what happened to a workload, in sentences",
    query=(*RECORDS, *PAGE, AS_OF, MIN_SEQ),
    errors=(404,),
    headers=MOMENT_HEADERS,
)
async def workload_history(call: Look) -> Answer[History]:
    moment = await moment_of(call)
    if moment is None:
        headers = await call.fresh((await load_workload(call, call.id)).version)
    else:
        await workload_at(call, moment)
        headers = moment_headers(moment)
    offset, limit = call.values["offset"], call.values["limit"]
    queries = call.queries.as_of(moment)
    page = await queries.history(call.id, await _records(call, queries), offset=offset, limit=limit)
    await call.api.actors.subjects_of(set[str]().union(*(people_in(row) for row in page.rows)))
    records = [history_record(row, call.api.actors.person) for row in page.rows]
    return read_answer(History(records=records, next=page.next), page.seq, headers)


async def _records(call: Look, queries: Queries) -> HistoryQuery:
    patterns: Sequence[str] = call.values["type"] or ()
    text: str = call.values["text"] or ""
    people = await queries.people_in_history(call.id) if text else ()
    return HistoryQuery(
        types=[name for name in _RECORD_TYPES if any(fits(name, pattern) for pattern in patterns)],
        text=text,
        names=await call.api.actors.subjects_of(people),
        begin=call.values["from"],
        end=call.values["to"],
    )


@reads(
    f"{WORKLOAD}/pods",
    tag="Workloads",
    summary="List every run of every pod of a workload",
    query=(AS_OF, MIN_SEQ),
    errors=(404,),
    headers=MOMENT_HEADERS,
)
async def workload_pods(call: Look) -> Answer[Pods]:
    moment = await moment_of(call)
    if moment is not None:
        then = await workload_at(call, moment)
        runs, sets = await call.api.rows.runs_of(then), _sets(then.state)
        return read_answer(Pods(pods=[pod_answer(row, sets) for row in runs]), moment.seq, moment_headers(moment))
    chain = await load_workload(call, call.id)
    headers = await call.fresh(chain.version)
    found, sets = await call.queries.pods(call.id), _sets(chain.state)
    return read_answer(Pods(pods=[pod_answer(row, sets) for row in found.rows]), found.seq, headers)


def _sets(state: Workload) -> dict[str, PodSet]:
    return {pod_set.name: pod_set for pod_set in state.pod_sets}


@reads(
    f"{WORKLOAD}/metrics",
    tag="Workloads",
    summary="Get what a workload's pods used over time",
    query=METRICS,
    rules=metrics_rules,
    errors=(404,),
)
async def workload_metrics(call: Call) -> Answer[Metrics]:
    wanted: tuple[MetricType, ...] = call.values["metricType"] or METRIC_TYPES
    start, end = call.values["start"], call.values["end"]
    created = (await load_workload(call, call.id)).state.created_at
    end = end or datetime.now(UTC)
    start = start or end - min(timedelta(hours=1), end - datetime.min.replace(tzinfo=UTC))
    # Its first interval begins with it: one that began earlier would tell of a time when there was none.
    start = max(start, created) if created else start
    samples: int = call.values["numberOfSamples"]
    measurements: list[Measurement] = []
    for series in await call.queries.usage(call.id, start, end, samples=samples):
        for kind in wanted:
            values = [
                MetricValue(timestamp=point.at.astimezone(UTC), value=value)
                for point in series.points
                if (value := _measured(kind, point)) is not None
            ]
            if values:
                measurements.append(Measurement(type=kind, pod=series.pod, values=values))
    return Answer(Metrics(measurements=measurements))


def _measured(kind: MetricType, point: UsagePoint) -> float | None:
    match kind:
        case "CPU_USAGE_CORES":
            return point.cpu_milli / 1000
        case "CPU_MEMORY_USAGE_BYTES":
            return point.memory_bytes
        case "GPU_UTILIZATION":
            return point.gpu_utilization_percent
        case "GPU_MEMORY_USAGE_BYTES":
            return point.gpu_memory_bytes


@reads(
    WORKLOAD_TYPES,
    tag="Workloads",
    summary="List the kinds of workloads, each with its default priority, also as the policies of a project have it",
    query=(Query(name="projectId", read=read_uuid, help="As policies have it for workloads of this project."),),
    errors=(404,),
)
async def list_workload_types(call: Look) -> Answer[WorkloadTypes]:
    project_id: str | None = call.values["projectId"]
    if project_id is not None and (not call.may_read(project_id) or await find_project(call, project_id) is None):
        raise not_found("there is no such project")
    kinds = await asyncio.gather(*(_kind_in(call, kind, project_id) for kind in KINDS.values()))
    return Answer(WorkloadTypes(workload_types=list(kinds)))


async def _kind_in(call: Look, kind: Kind, project_id: str | None) -> WorkloadKind:
    """Of the defaults that policies set, those of the narrower one count, and null stands for the kind's own."""
    in_force = await policies_in_force(call, kind.name, project_id)
    said = merged(spec_node(kind.name), in_force.layers).spec
    priority: PriorityClass = said.get("priorityClass") or kind.priority
    return WorkloadKind(
        name=kind.name,
        kubernetes_type=kind.kubernetes_name,
        path=f"{WORKLOADS}/{kind.collection}",
        priority_class=priority,
        preemptibility=said.get("preemptibility") or preemptibility_of(priority),
    )
