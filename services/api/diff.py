"""What differs between two moments, and what happened between them: bounded, from the tables and the log."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from events.actors import mentioned, with_names
from events.ids import key_of_id
from events.project import Project
from projections.found import Moment
from projections.row_json import row_to_json
from services.api import answers
from services.api.answers.diff import Difference
from services.api.clusters import require_some_role
from services.api.context import Look, read_answer
from services.api.errors import bad_request
from services.api.happenings import happenings
from services.api.issues import Issue, shown
from services.api.moments import moment_of, parse_as_of
from services.api.operations import Answer, Query, reads
from services.api.paths import DIFF
from services.api.places import projects_at
from services.api.shown_rows import node_answer

MOST_WORKLOADS: Final = 500
"""That are compared; as many as a page holds."""
MOST_EVENTS: Final = 500
WHICH: Final = (
    Query(name="from", read=parse_as_of, help="The earlier moment: a time (RFC 3339) or a sequence of the log."),
    Query(name="to", read=parse_as_of, help="The later moment. Default: now."),
    Query(name="projectId", help="Only workloads and the quota of this project, and no nodes."),
)


@reads(
    DIFF,
    tag="Log",
    summary="Compare two moments: workloads, quotas and nodes, and what happened between them",
    query=WHICH,
    errors=(403,),
)
async def get_diff(call: Look) -> Answer[answers.Diff]:
    require_some_role(call)
    earlier, later = await _moments(call)
    project_id: str | None = call.values["projectId"]
    span, queries = (earlier.seq, later.seq), call.queries
    ids = await queries.changed_workloads(*span, project_id=project_id, limit=MOST_WORKLOADS + 1)
    told = (await queries.happened(*span, project_id=project_id, limit=MOST_EVENTS + 1)).rows
    workloads = await _workloads(call, earlier, later, ids[:MOST_WORKLOADS])
    others = await happenings(call, *span, project_id=project_id, most=MOST_EVENTS + 1)
    people = set[str]().union(*(mentioned(row["message"]) | {row["actor_id"]} for row in told))
    subjects = await call.api.actors.subjects_of(people)
    # A prefix of all that happened: where the search ended early, what comes later is left out altogether.
    of_workloads = (_happening(row, subjects) for row in told)
    events = [one for one in (*of_workloads, *others.happenings) if one.sequence <= others.upto]
    events.sort(key=lambda one: one.sequence)
    diff = answers.Diff(
        earlier=answers.DiffMoment(sequence=earlier.seq, at=earlier.at),
        later=answers.DiffMoment(sequence=later.seq, at=later.at),
        workloads=workloads,
        quotas=list(_quotas(await projects_at(call, earlier), await projects_at(call, later), project_id)),
        nodes=[] if project_id is not None else await _nodes(call, earlier, later),
        events=events[:MOST_EVENTS],
        more_workloads=len(ids) > MOST_WORKLOADS,
        more_events=len(events) > MOST_EVENTS or others.upto < later.seq,
    )
    return read_answer(diff, later.seq, {})


async def _moments(call: Look) -> tuple[Moment, Moment]:
    """Raises 400 where one is missing, of the future, or not the earlier one; and of an unknown project."""
    project_id: str | None = call.values["projectId"]
    if call.values["from"] is None:
        raise bad_request([Issue(field="from", details="is required: the earlier moment", rule="required")])
    if project_id is not None and (key_of_id(project_id) is None or not call.may_read(project_id)):
        details = f"there is no project {shown(project_id)} that you may read; give its id"
        raise bad_request([Issue(field="projectId", details=details)])
    earlier = await moment_of(call, "from")
    later = await moment_of(call, "to")
    assert earlier is not None, "it was given"
    if later is None:
        later = (await call.queries.moment(await call.queries.reached())).moment
    if earlier.seq > later.seq:
        details = f"must be the earlier moment: it is {earlier.seq} in the log, and the later one is {later.seq}"
        raise bad_request([Issue(field="from", details=details, rule="max", involves=frozenset({"to"}))])
    return earlier, later


async def _workloads(call: Look, earlier: Moment, later: Moment, ids: list[str]) -> list[answers.WorkloadDiff]:
    before = {row["id"]: row for row in (await call.queries.as_of(earlier).workloads_with(ids)).rows}
    after = {row["id"]: row for row in (await call.queries.as_of(later).workloads_with(ids)).rows}
    messages = {row["phase_message"] for row in (*before.values(), *after.values())}
    subjects = await call.api.actors.subjects_of(set[str]().union(*map(mentioned, messages)))

    def then(row: Mapping[Any, Any] | None) -> answers.WorkloadThen | None:
        if row is None or row["deleted_at"] is not None:
            return None
        shown_row = row_to_json(row)
        return answers.WorkloadThen(
            phase=shown_row["phase"],
            phase_message=with_names(row["phase_message"], subjects.__getitem__) or None,
            priority_class_name=shown_row["priorityClassName"],
            running_pods=shown_row["runningPods"],
            gpu_allocated=shown_row["gpuAllocated"],
            nodes=list(shown_row["currentNodes"]),
        )

    return [
        answers.WorkloadDiff(
            id=row["id"],
            name=row["name"],
            project_name=row["project_name"],
            difference=_difference(was, is_),
            before=was,
            after=is_,
        )
        for row in after.values()
        if (was := then(before.get(row["id"]))) != (is_ := then(row))
    ]


def _quotas(were: Iterable[Project], are: Iterable[Project], only: str | None) -> Iterator[answers.QuotaDiff]:
    before, after = ({project.project_id: project for project in projects} for projects in (were, are))
    for project in sorted((before | after).values(), key=lambda project: project.name):
        id_ = project.project_id
        was, is_ = _quota(before.get(id_)), _quota(after.get(id_))
        if was != is_ and only in {None, id_}:
            yield answers.QuotaDiff(
                project_id=id_, name=project.name, difference=_difference(was, is_), before=was, after=is_
            )


def _quota(project: Project | None) -> answers.QuotaThen | None:
    if project is None:
        return None
    quota = project.gpu_quota_milli
    budget = project.budget
    return answers.QuotaThen(
        gpu_quota=None if quota is None else quota / 1000,
        budget=None if budget is None else f"{budget.told(budget.limit)} per {budget.per}",
        node_pools=list(project.node_pools),
    )


async def _nodes(call: Look, earlier: Moment, later: Moment) -> list[answers.NodeDiff]:
    before = {row["key"]: row for row in (await call.queries.as_of(earlier).nodes()).rows}
    after = {row["key"]: row for row in (await call.queries.as_of(later).nodes()).rows}
    found: list[answers.NodeDiff] = []
    for key, row in sorted((before | after).items(), key=lambda one: (one[1]["cluster_name"] or "", one[1]["name"])):
        was, is_ = _node(call, before.get(key)), _node(call, after.get(key))
        if was != is_:
            found.append(
                answers.NodeDiff(
                    name=row["name"],
                    cluster_name=row["cluster_name"],
                    difference=_difference(was, is_),
                    before=was,
                    after=is_,
                )
            )
    return found


def _node(call: Look, row: Mapping[Any, Any] | None) -> answers.NodeThen | None:
    if row is None:
        return None
    node = node_answer(row, call.api.actors.person)
    return answers.NodeThen(
        node_pool=node.node_pool,
        ready=node.ready,
        schedulable=node.schedulable,
        gpus=node.capacity.gpus,
        reserved_gpus=node.reserved.gpus,
        reserved_pods=node.reserved.pods,
    )


def _difference(before: object, after: object) -> Difference:
    if before is None:
        return "appeared"
    return "gone" if after is None else "changed"


def _happening(row: Mapping[Any, Any], subjects: Mapping[str, str]) -> answers.Happening:
    actor = row["actor_id"]
    message = row["message"].replace(actor, subjects[actor]) if actor else row["message"]
    return answers.Happening(
        sequence=row["seq"],
        at=row["at"],
        about="workload",
        id=row["workload_id"],
        name=row["workload_name"],
        type=row["type"],
        message=with_names(message, lambda id_: subjects.get(id_, id_)),
    )
