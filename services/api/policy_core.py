"""What the operations on the policies of every kind of workload share: reading one, setting one, deleting one."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from events.aggregate import POLICY, Chain
from events.asset_specs import spec_node
from events.fields.node import Node, item_key, tree
from events.policy import POLICY_SCOPES, DeletePolicy, Policy, PolicyScope, SetPolicy, policy_key
from events.policy_specs import POLICIES
from services.api import answers
from services.api.asset_core import require_reader, spec_issues
from services.api.check import apart_from, fits, untouched, without_faults
from services.api.context import MAX_WAIT_SECONDS, MIN_SEQ, Call, Look, sequence_headers
from services.api.errors import bad_request, not_found
from services.api.event_filters import read_uuid
from services.api.imposed import ids_of, imposed_issues, imposing
from services.api.issues import MAX_ISSUES, Issue, fault, shown
from services.api.lent import named_in
from services.api.merge import Json, Merged, merged
from services.api.moments import AS_OF, moment_headers, moment_of
from services.api.operations import Answer, Query
from services.api.places import find_department, find_project, may_read_department
from services.api.policies_in_force import rules_of
from services.api.policy_rules import OBJECT_RULES, SOURCE_OF, Subject, broken, layer_of, number_of
from services.runtime.log.floors import StaleLogError

_RULES: Final = (
    "min", "max", "step", "options", "required", "canEdit", "canAdd", "locked", "lockedItems", "blocked"
)  # fmt: skip


WHICH: Final = (
    Query(
        name="scope",
        type="choice",
        options=POLICY_SCOPES,
        help="tenant: the one that holds everywhere. department, project: that of one. Must be given.",
    ),
    Query(name="departmentId", read=read_uuid, help="Id of the department, where the scope is department."),
    Query(name="projectId", read=read_uuid, help="Id of the project, where the scope is project."),
)
READ: Final = (*WHICH, AS_OF, MIN_SEQ)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPolicy:
    """A policy as answers give it."""

    meta: answers.PolicyMeta
    defaults: Mapping[str, Any]
    rules: Mapping[str, Any]
    imposed_assets: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        shown = {"meta": self.meta, "defaults": self.defaults, "rules": self.rules}
        return shown | {"imposed_assets": self.imposed_assets}


class PolicyPlace(NamedTuple):
    """For what a policy is; without ids it holds everywhere."""

    project_id: str = ""
    department_id: str = ""

    @property
    def key(self) -> str:
        """As `policy_key` takes it."""
        return self.project_id or self.department_id

    @property
    def ids(self) -> dict[str, str | None]:
        """As commands and answers take them."""
        return {"project_id": self.project_id or None, "department_id": self.department_id or None}


def which(call: Look) -> PolicyPlace:
    """The policy that the query names. Raises 400."""
    scope = call.values["scope"]
    issues: list[Issue] = []
    if scope is None:
        issues.append(fault("scope", f"is required: one of {', '.join(POLICY_SCOPES)}", "required"))
    else:
        for place, field in (("department", "departmentId"), ("project", "projectId")):
            if (scope == place) != (call.values[field] is not None):
                rule = "required" if scope == place else "canAdd"
                issues.append(fault(field, f"is given where scope is {place}, and only there", rule, "scope"))
    if issues:
        raise bad_request([*call.faults, *issues])
    return PolicyPlace(project_id=call.values["projectId"] or "", department_id=call.values["departmentId"] or "")


async def read(call: Look, workload_type: str) -> tuple[ShownPolicy, dict[str, str]]:
    """(a policy as it is, or was at a moment, headers). Raises 400 and 404."""
    place = which(call)
    _require_reader(call, place)
    moment = await moment_of(call)
    if moment is not None:
        headers = moment_headers(moment)
        chain = await call.api.store.load(POLICY, policy_key(workload_type, place.key), moment.seq)
        found = chain if moment.seq and chain.state.exists else None
    else:
        chain, headers = await _newest(call, workload_type, place)
        found = chain if chain.state.exists and await _place_lives(call, place) else None
    if found is None:
        raise _no_policy(workload_type, place)
    return await _shown(call, found.state), sequence_headers(found.version) | headers


def _require_reader(call: Look, place: PolicyPlace) -> None:
    """The policy of the tenant is everybody's who may read anything. Raises 403 and 404."""
    if not place.key:
        require_reader(call)
    elif place.project_id and not call.may_read(place.project_id):
        raise not_found("there is no such project")
    elif place.department_id and not may_read_department(call, place.department_id):
        raise not_found("there is no such department")


async def _newest(call: Look, workload_type: str, place: PolicyPlace) -> tuple[Chain[Policy], dict[str, str]]:
    """With all up to `min_seq`, where it was asked for."""
    key, wanted = policy_key(workload_type, place.key), call.min_seq
    if wanted:
        try:
            return await call.api.store.load(POLICY, key, min_seq=wanted, seconds=MAX_WAIT_SECONDS), {}
        except StaleLogError:
            return await call.api.store.load(POLICY, key), {"X-Log-Stale": "true"}
    return await call.api.store.load(POLICY, key), {}


async def _place_lives(call: Look, place: PolicyPlace) -> bool:
    if place.department_id:
        return await find_department(call, place.department_id) is not None
    return not place.project_id or await find_project(call, place.project_id) is not None


def _no_policy(workload_type: str, place: PolicyPlace) -> Any:
    where = "that holds everywhere"
    if place.key:
        where = f"in {'project' if place.project_id else 'department'} {place.key}"
    return not_found(f"there is no policy for {workload_type} {where}")


async def set_policy(call: Call, workload_type: str) -> tuple[ShownPolicy, dict[str, str]]:
    """(the policy as it is set, headers). Raises ApiError."""
    place = which(call)
    data = call.json_object()
    issues = await wrong_with(call, workload_type, place, data)
    # Whoever may not read there learns nothing of it: the gate refuses.
    if place.key and call.may_read(place.project_id) and not await _place_lives(call, place):
        field, called = ("projectId", "project") if place.project_id else ("departmentId", "department")
        issues = [fault(field, f"there is no {called} {shown(place.key)}"), *issues]
    if issues:
        raise bad_request(issues[:MAX_ISSUES])
    command = SetPolicy(
        workload_type=workload_type,
        **place.ids,
        defaults=data.get("defaults") or {},
        rules=data.get("rules") or {},
        imposed_assets=ids_of(data.get("imposedAssets")),
    )
    reply = await call.send(command)
    chain = await call.api.store.load(POLICY, command.key, reply.seq)
    return await _shown(call, chain.state), sequence_headers(reply.seq)


async def delete(call: Call, workload_type: str) -> Answer[answers.HttpResponse]:
    reply = await call.send(DeletePolicy(workload_type=workload_type, **which(call).ids))
    return call.accepted(reply, f"the policy for {workload_type} is deleted; workloads stay as they are")


async def _shown(call: Look, policy: Policy) -> ShownPolicy:
    assert policy.set_at is not None, "a policy that exists was set"
    subjects = await call.api.actors.subjects_of((policy.set_by,))
    meta = answers.PolicyMeta(
        workload_type=policy.workload_type,
        scope=policy.scope,
        project_id=policy.project_id or None,
        department_id=policy.department_id or None,
        set_by=subjects[policy.set_by],
        set_at=policy.set_at,
    )
    return ShownPolicy(meta=meta, defaults=policy.defaults, rules=policy.rules, imposed_assets=policy.imposed_assets)


# -- what is wrong with one ------------------------------------------------------------------------------------------


async def wrong_with(call: Look, workload_type: str, place: PolicyPlace, data: Json) -> list[Issue]:
    """Everything that is wrong with what a policy is to be, MAX_ISSUES at most."""
    sound, faults = without_faults(tree(POLICIES[workload_type]), data)
    node = spec_node(workload_type)
    faults = [_named(node, issue) for issue in faults]
    defaults, rules = cast("Json", sound.get("defaults") or {}), cast("Json", sound.get("rules") or {})
    found = [
        fault(f"defaults.{issue.field.removeprefix('spec.')}", issue.details, issue.rule)
        for issue in spec_issues("template", defaults, workload_type)
    ]
    found += rule_issues(node, rules, defaults, "rules")
    found += named_in(defaults, "defaults")
    forbidden: list[Issue] = []
    if not (faults or found):
        own = Policy(
            workload_type=workload_type,
            project_id=place.project_id,
            department_id=place.department_id,
            defaults=defaults,
            rules=rules,
            imposed_assets=ids_of(sound.get("imposedAssets")),
        )
        if own.imposed_assets:
            project = await find_project(call, place.project_id) if place.project_id else None
            department_id = place.department_id if project is None else project.department_id
            forbidden += await imposed_issues(call, own, department_id, "imposedAssets")
        if not forbidden:
            forbidden += await _forbidden_defaults(call, own)
    return [*faults, *apart_from(found, faults), *untouched(forbidden, sound, faults)][:MAX_ISSUES]


def _named(spec: Node, issue: Issue) -> Issue:
    """Of a rule that does not fit its field, which would."""
    holder, _, rule = issue.field.rpartition(".")
    if rule not in _RULES or not issue.field.startswith("rules.") or not issue.details.startswith("is unknown"):
        return issue
    node = _field_at(spec, holder.removeprefix("rules."))
    if node is None:
        return issue
    possible = sorted(OBJECT_RULES) if node.kind == "object" else _possible(node)
    called = "an object" if node.kind == "object" else _CALLED.get(node.kind, node.kind)
    return fault(issue.field, f"is no rule of {called}; possible are {', '.join(possible)}")


_CALLED: Final = {
    "text": "a text",
    "choice": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "a field that is true or false",
    "list": "this list",
}


def _possible(node: Node) -> list[str]:
    from events.policy_specs import leaf_rules

    return [field.name for field in tree(leaf_rules(node)).fields]


def _field_at(spec: Node, path: str) -> Node | None:
    here: Node | None = spec
    for name in path.split("."):
        here = None if here is None else here.by_name.get(name)
    return here


def rule_issues(node: Node, rules: Json, defaults: Json, path: str) -> Iterator[Issue]:
    """What the declarations of rules cannot say. Rules are well-formed; a field without any is null or absent."""
    for field in node.fields:
        own: Any = rules.get(field.name)
        if not isinstance(own, dict):
            continue
        here = f"{path}.{field.name}"
        given: Any = defaults.get(field.name)
        if field.kind == "object":
            below = cast("Json", given) if isinstance(given, dict) else {}
            yield from rule_issues(field, cast("Json", own), below, here)
        else:
            yield from _leaf_issues(field, cast("Json", own), given, here)


def _leaf_issues(field: Node, rules: Json, default: Any, path: str) -> Iterator[Issue]:
    numbers = {name: number_of(field, rules[name]) for name in ("min", "max", "step") if rules.get(name) is not None}
    for name, number in numbers.items():
        if number is None:
            yield fault(f"{path}.{name}", f"must be a quantity such as 512Mi, got {shown(rules[name])}")
        elif name == "step" and number <= 0:
            yield fault(f"{path}.step", f"is more than 0, got {shown(rules[name])}", "min")
    least, most = numbers.get("min"), numbers.get("max")
    if least is not None and most is not None and least > most:
        details = f"must be at least min, {shown(rules['min'])}, got {shown(rules['max'])}"
        yield fault(f"{path}.max", details, "min", f"{path}.min")
    options = rules.get("options")
    if options is not None:
        element = field.item if field.item is not None else field
        if not any(option is not None for option in options):
            yield fault(f"{path}.options", "must not be empty; to forbid the field, use blocked", "min")
        for index, option in enumerate(options):
            if option is not None and not fits(element, option):
                told = f"; possible are {', '.join(element.options)}" if element.options else ""
                yield fault(f"{path}.options[{index}]", f"{shown(option)} is no value of {field.path}{told}", "options")
    if rules.get("required") and rules.get("blocked") and default is None:
        details = "contradicts blocked: nobody could give it, and the defaults do not set it"
        yield fault(f"{path}.required", details, None, f"{path}.blocked")
    yield from _item_issues(field, rules, default, path)


def _item_issues(field: Node, rules: Json, default: Any, path: str) -> Iterator[Issue]:
    """Locked items are items of the defaults."""
    key = item_key(field)
    items = cast("list[Any]", default) if isinstance(default, list) else []
    names = [cast("Json", item).get(key or "") for item in items if isinstance(item, dict)]
    for index, name in enumerate(rules.get("lockedItems") or ()):
        if name is not None and name not in names:
            details = f"{shown(name)} is none of the items that defaults set here; add it there"
            yield fault(f"{path}.lockedItems[{index}]", details)


async def wider_policies(call: Look, policy: Policy) -> list[Policy]:
    """Those that hold beside one in all of its place now, the widest first."""
    places = [""] if policy.scope != "tenant" else []
    if policy.project_id and (project := await find_project(call, policy.project_id)) is not None:
        places.append(project.department_id)
    keys = (policy_key(policy.workload_type, place) for place in places)
    chains = await asyncio.gather(*(call.api.store.load(POLICY, key) for key in keys))
    return [chain.state for chain in chains if chain.state.exists]


async def _forbidden_defaults(call: Look, own: Policy) -> list[Issue]:
    """What of the defaults this policy's own rules forbid, or those of the wider ones that there are now."""
    policies = [(await imposing(call, one)).policy for one in (*await wider_policies(call, own), own)]
    node = spec_node(own.workload_type)
    layers = [layer_of(policy) for policy in policies]
    whole = merged(node, layers)
    below: dict[PolicyScope, Merged] = {
        policy.scope: merged(node, layers[: index + 1]) for index, policy in enumerate(policies)
    }
    subject = Subject(whole=whole, below=below, form=None, prefix="spec")
    issues: list[Issue] = []
    for issue in broken(rules_of(own.workload_type, policies), subject, node):
        found = whole.place(issue.field.removeprefix("spec."))
        # What the tenant set stood before; a default of its own that this policy forbids is told at the rule.
        if found is not None and found[0].layer.source == SOURCE_OF[own.scope]:
            issues.append(fault(f"defaults.{found[1]}", issue.details, issue.rule))
    return issues
