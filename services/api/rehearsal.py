"""`:rehearse`: what a policy would have made of workloads that were submitted, from the log. Nothing is stored."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from events.aggregate import POLICY, Chain
from events.asset_specs import spec_node
from events.authorize import Permission
from events.fields.node import item_key
from events.ids import ANY_CLUSTER
from events.policy import POLICY_SCOPES, Policy, PolicyScope, policy_key
from events.workload.kinds import KINDS
from events.workload.kinds.distributed import shown_master
from events.workload.kinds.kind import Kind
from events.workload.spec import beside_with_defaults
from events.workload.state import Workload
from projections.filters import Filter, WorkloadQuery
from services.api.answers import ComplianceIssue, Rehearsal, RehearsedWorkload
from services.api.check import FaultyCreation, check_creation
from services.api.context import Call
from services.api.errors import ApiError, bad_request
from services.api.explain import explained
from services.api.imposed import ids_of, imposing
from services.api.issues import Issue
from services.api.kinds import load_workload
from services.api.merge import Json, Layer, Merged, merged
from services.api.operations import Answer, Query
from services.api.places import CHAINS_AT_ONCE, find_project
from services.api.policies_in_force import InForce, broken_rules, master_layers, master_node, rules_of
from services.api.policy_core import PolicyPlace, which, wider_policies, wrong_with

MOST_REHEARSED: Final = 500
"""Workloads: a second or two."""
LIMIT: Final = Query(
    name="limit",
    type="integer",
    default=100,
    least=1,
    most=MOST_REHEARSED,
    help="How many of the newest workloads to look at, 1 to 500.",
)
_OF_POLICIES: Final = frozenset({"default", "tenant policy", "department policy", "project policy"})
"""Sources whose fields are made anew."""
_OF_TOKENS: Final = frozenset({"security.runAsUid", "security.runAsGid", "security.supplementalGroups"})
_GAP: Final = "submissions that were refused are not in the log, and are not looked at"
_IMPOSED: Final = "imposed data sources of one cluster are not looked at"
_LATER: Final = "workloads are looked at with the changes that were made to them later"


async def rehearse(call: Call, workload_type: str) -> Answer[Rehearsal]:
    """Raises ApiError."""
    place = which(call)
    if call.faults:
        raise bad_request(call.faults)
    call.require(Permission.MANAGE_POLICIES, place.project_id or None)
    data = call.json_object()
    if issues := await wrong_with(call, workload_type, place, data):
        raise bad_request(issues)
    policy = Policy(
        policy_id="rehearsed",
        workload_type=workload_type,
        project_id=place.project_id,
        department_id=place.department_id,
        defaults=data.get("defaults") or {},
        rules=data.get("rules") or {},
        imposed_assets=ids_of(data.get("imposedAssets")),
    )
    policy = (await imposing(call, policy)).policy
    ids, more = await _newest(call, workload_type, place)
    states = [state for state in await _states(call, ids) if state is not None]
    others = await _others(call, policy, {state.project_id for state in states})
    found = [_rehearsed(state, _in_force(policy, others[state.project_id])) for state in states]
    gaps = [_GAP, _LATER]
    if policy.imposed_assets or any(one.imposed_assets for each in others.values() for one in each):
        gaps.append(_IMPOSED)
    if more:
        gaps.insert(0, f"only the newest {len(ids)} are looked at; there are older ones")
    return Answer(
        Rehearsal(
            looked_at=len(found),
            refused=sum(1 for one in found if one.issues),
            changed=sum(1 for one in found if one.changed),
            workloads=[one for one in found if one.issues or one.changed],
            gaps=gaps,
        )
    )


async def _newest(call: Call, workload_type: str, place: PolicyPlace) -> tuple[list[str], bool]:
    """(ids of the newest workloads of this kind, the newest first; whether there are more)."""
    limit: int = call.values["limit"]
    filters = [Filter(field="type", op="==", value=workload_type)]
    for field, value in (("projectId", place.project_id), ("departmentId", place.department_id)):
        filters += [Filter(field=field, op="==", value=value)] if value else []
    rows: list[Any] = []
    more = False
    for deleted in (False, True):
        query = WorkloadQuery(
            projects=call.grants.readable_projects, deleted=deleted, filters=tuple(filters), limit=limit
        )
        page = await call.queries.workloads(query)
        rows += page.rows
        more = more or page.next is not None
    rows.sort(key=lambda row: row["created_at"], reverse=True)
    return [row["id"] for row in rows[:limit]], more or len(rows) > limit


async def _states(call: Call, ids: list[str]) -> list[Workload | None]:
    turns = asyncio.Semaphore(CHAINS_AT_ONCE)

    async def load(workload_id: str) -> Workload | None:
        async with turns:
            try:
                return (await load_workload(call, workload_id)).state
            except ApiError:
                return None

    return list(await asyncio.gather(*map(load, ids)))


async def _others(call: Call, policy: Policy, projects: set[str]) -> dict[str, list[Policy]]:
    """By project, the policies that hold beside this one now."""
    turns = asyncio.Semaphore(CHAINS_AT_ONCE)
    wider = [(await imposing(call, one)).policy for one in await wider_policies(call, policy)]
    known: dict[str, asyncio.Task[Policy]] = {}

    async def load(place: str) -> Policy:
        async with turns:
            found = (await call.api.store.load(POLICY, policy_key(policy.workload_type, place))).state
            return (await imposing(call, found)).policy

    async def narrower(project_id: str) -> list[Policy]:
        places = [] if policy.project_id else [project_id]
        project = await find_project(call, project_id) if policy.scope == "tenant" else None
        places += [] if project is None else [project.department_id]
        for place in places:
            if place not in known:
                known[place] = asyncio.ensure_future(load(place))
        return [found for place in places if (found := await known[place]).exists]

    order = sorted(projects)
    found = await asyncio.gather(*map(narrower, order))
    return {project_id: [*wider, *policies] for project_id, policies in zip(order, found, strict=True)}


def _in_force(policy: Policy, others: list[Policy]) -> InForce:
    """All of them, the widest first."""
    policies = sorted([policy, *others], key=lambda one: POLICY_SCOPES.index(one.scope))
    chains: dict[PolicyScope, Chain[Policy]] = {one.scope: Chain(state=one) for one in policies}
    rules = rules_of(policy.workload_type, policies)
    return InForce(workload_type=policy.workload_type, chains=chains, rules=rules, ever=True)


def _rehearsed(state: Workload, in_force: InForce) -> RehearsedWorkload:
    kind = KINDS[state.kind]
    again = _submitted_again(kind, state, in_force)
    checked = check_creation(kind.creation, again.data)
    issues, asked = (checked.issues, checked.sound) if isinstance(checked, FaultyCreation) else ([], checked)
    issues = [*issues, *broken_rules(kind, in_force, asked, again.whole, again.master)]
    changed: list[str] = []
    if not issues:
        spec, beside = asked.order()
        would = dict(
            _leaves(msgspec.to_builtins(kind.shown(kind.with_defaults(spec), beside_with_defaults(beside))), "")
        )
        was = dict(_leaves(msgspec.to_builtins(kind.shown(state.spec, state.beside)), ""))
        names = sorted({*would, *was} - _OF_TOKENS)
        changed = [f"spec.{name}" for name in names if would.get(name) != was.get(name)]
    assert state.created_at is not None, "it was submitted"
    return RehearsedWorkload(
        workload_id=state.workload_id,
        name=state.name,
        project_id=state.project_id,
        created_at=state.created_at,
        issues=[*map(_issue, issues)],
        changed=changed,
    )


def _issue(issue: Issue) -> ComplianceIssue:
    return ComplianceIssue(field=issue.field, details=issue.details, rule=UNSET if issue.rule is None else issue.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    data: Json
    whole: Merged
    master: Merged | None


def _submitted_again(kind: Kind, state: Workload, in_force: InForce) -> _Again:
    """The request that would make the workload, with the defaults of these policies in place of those it got."""
    given = _given(kind, state)
    node = spec_node(kind.name)
    whole = merged(node, [*in_force.layers, Layer(source="request", name="", spec=given)])
    data: Json = {
        "name": state.requested_name or state.name,
        "projectId": state.project_id,
        "clusterId": state.cluster_id or ANY_CLUSTER,
        "spec": whole.spec,
    }
    if state.distributed is None:
        return _Again(data=data, whole=whole, master=None)
    same, own = shown_master(state.spec, state.distributed)
    if own is None:
        return _Again(data=data | {"masterSpecSameAsWorker": same}, whole=whole, master=None)
    of_master = master_node(kind)
    values = cast("Json", msgspec.to_builtins(own))
    spec = {
        field.name: values[field.name]
        for field in of_master.fields
        if values.get(field.name) != msgspec.to_builtins(field.default)
    }
    layers = master_layers(in_force.layers, of_master, spec)
    master = merged(of_master, [*layers, Layer(source="request", name="", spec=spec)])
    return _Again(data=data | {"masterSpec": master.spec}, whole=whole, master=master)


def _given(kind: Kind, state: Workload) -> Json:
    """What of the spec neither a default nor a policy set."""
    values = cast("Json", msgspec.to_builtins(kind.shown(state.spec, state.beside)))
    of_token = state.spec.security.uid_gid_source == "fromIdpToken"
    above_others = _lies_above_others(state)
    given: Json = {}
    for path, source in explained(kind, state.spec, state.beside, state.made_from).items():
        holder, _, index = path.removeprefix("spec.").partition("[")
        if source in _OF_POLICIES or (of_token and holder in _OF_TOKENS):
            continue
        *above, name = holder.split(".")
        to, value = given, values
        for step in above:
            to = cast("Json", to.setdefault(step, {}))
            value = cast("Json", value.get(step) or {})
        if index:
            to.setdefault(name, []).append(value[name][int(index.rstrip("]"))])
        elif value.get(name) != []:
            to[name] = value.get(name)
        elif above_others or not _is_merged(kind, holder):
            # Of a list that is merged, an empty one would have changed nothing: it was cleared.
            to[name] = None
    return given


def _is_merged(kind: Kind, path: str) -> bool:
    """Whether a list is merged item by item with those below."""
    node = spec_node(kind.name)
    for name in path.split("."):
        node = node.by_name[name]
    return item_key(node) is not None


def _lies_above_others(state: Workload) -> bool:
    """Whether a policy, a template or an asset said something below its request."""
    made = state.made_from
    return made is not None and bool(
        made.template
        or made.environment
        or made.compute
        or made.data_sources
        or made.tenant_policy
        or made.department_policy
        or made.project_policy
    )


def _leaves(values: Json, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from _leaves(cast("Json", value), here)
        else:
            yield here, value
