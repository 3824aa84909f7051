"""`:evaluate`: what a submission would be, field by field, by the very code that submits. Nothing is stored."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET

from events.asset_specs import spec_node
from events.authorize import Permission
from events.budgets import exhausted_refusal
from events.fields.node import Node, item_key
from events.workload.kinds import KINDS
from events.workload.kinds.kind import Kind
from events.workload.spec import OF_WORKERS, Beside, Distributed, MasterSpec, beside_with_defaults, shown
from services.api.answers import ComplianceIssue, EvaluatedField, Evaluation
from services.api.context import Call
from services.api.creation import misfits
from services.api.errors import bad_request
from services.api.explain import explained, sources_of
from services.api.issues import PATH_STEPS, Issue, fault
from services.api.kinds import Examined, examined
from services.api.merge import Layer, Merged, alone, merged
from services.api.not_yet import not_yet_in_force
from services.api.operations import Answer, Query
from services.api.outlook import outlook
from services.api.places import find_project
from services.api.policies_in_force import master_layers, master_node
from services.api.policy_rules import FieldRules, comparable, value_at

_ITEM: Final = re.compile(r"(?:spec|masterSpec)\.([\w.]+)\[(\d+)\]")


async def evaluate(call: Call, kind: Kind) -> Answer[Evaluation]:
    """Raises ApiError, where the body is none or the caller may not submit there."""
    if call.faults:
        raise bad_request(call.faults)
    command_id = call.command_id()
    found = await examined(call, kind, call.json_object(), command_id)
    asked = found.checked
    # Faulty in any case: that the name is taken is told here, too, where alone the decider would.
    more = await misfits(call, asked, command_id, faulty=True, nowhere=found.nowhere)
    wrong = found.told(more)
    issues = [*wrong, *await _exhausted(call, asked.project_id)]
    ordered, beside = asked.order()
    spec, beside = kind.with_defaults(ordered), beside_with_defaults(beside)
    told = explained(kind, spec, beside, found.made.made_from(kind, spec, beside))
    places = [*zip(found.places(more), wrong, strict=True)]
    fields = _fields_of_spec(found, places, msgspec.to_builtins(kind.shown(spec, beside)))
    of_master = [*_fields_of_master(found, places, beside)]
    placement = UNSET if issues or not call.values["placement"] else await outlook(call, found)
    return Answer(
        Evaluation(
            placement=placement,
            accepted=not issues,
            fields=[*(fields.field(path, source) for path, source in told.items()), *of_master],
            issues=[*map(_issue, issues)],
            not_yet_in_force=not_yet_in_force(spec),
        )
    )


PLACEMENT: Final = Query(
    name="placement",
    type="boolean",
    default=False,
    help="Whether the scheduler is asked, too, where it would run and why it would wait; takes up to a second longer.",
)


async def _exhausted(call: Call, project_id: str) -> list[Issue]:
    """Raises 403 where the caller may not submit there, as a submission does."""
    project = await find_project(call, project_id) if project_id else None
    if project is None:
        return []
    call.require(Permission.SUBMIT, project_id)
    refusal = exhausted_refusal(project.budget, project.name, datetime.now(UTC))
    return [] if refusal is None else [fault("projectId", refusal.message)]


def _issue(issue: Issue) -> ComplianceIssue:
    return ComplianceIssue(field=issue.field, details=issue.details, rule=UNSET if issue.rule is None else issue.rule)


type _Places = Sequence[tuple[str, Issue]]
"""Of each issue: its field in the spec with all that others set."""


def _fields_of_spec(found: Examined, places: _Places, values: Any) -> "_Fields":
    in_force = found.made.in_force
    below = merged(spec_node(found.kind.name), in_force.layers)
    whole = found.made.merged or Merged(spec={}, origin={})
    return _Fields("spec", found.kind.name, in_force.rules, places, values, whole=whole, below=below)


def _fields_of_master(found: Examined, places: _Places, beside: Beside) -> Iterator[EvaluatedField]:
    """Of a master that is made otherwise than its workers; but for those in which it is as they are."""
    given = found.made.data.get("masterSpec")
    if not (isinstance(beside, Distributed) and beside.master is not None and isinstance(given, dict)):
        return
    kind, in_force, asked = found.kind, found.made.in_force, cast("dict[str, Any]", given)
    node = master_node(kind)
    whole = found.made.master or alone(node, Layer(source="request", name="", spec=asked))
    below = merged(node, master_layers(in_force.layers, node, asked))
    values = msgspec.to_builtins(shown(MasterSpec, kind.with_defaults(beside.master)))
    fields = _Fields("masterSpec", kind.name, in_force.rules, places, values, whole=whole, below=below)
    for path, source in sources_of(node, whole, values):
        if asked.get(top := path.partition(".")[0]) is not None or top not in OF_WORKERS:
            yield fields.field(f"masterSpec.{path}", source)


class _Fields:
    """What is told of each field of one spec of a request."""

    def __init__(
        self,
        prefix: Literal["spec", "masterSpec"],
        kind: str,
        rules: Mapping[str, FieldRules],
        places: _Places,
        values: Any,
        *,
        whole: Merged,
        below: Merged,
    ) -> None:
        """Args: values, of all fields; whole, what was given of it, by whomever; below, what policies say."""
        self._prefix, self._kind, self._rules, self._values = prefix, kind, rules, values
        self._whole, self._below = whole, below
        self._issues: dict[str, list[Issue]] = {}
        for place, issue in places:
            if place.startswith(f"{prefix}.") or place == prefix:
                self._issues.setdefault(self._shown(place), []).append(issue)

    def _shown(self, place: str) -> str:
        """The path of an issue among the items that are left when the excluded ones are dropped."""
        match = _ITEM.match(place)
        if match is None:
            return place
        items, index = value_at(self._whole, match[1]), int(match[2])
        if not isinstance(items, list):
            return place
        before = cast("list[Any]", items)[:index]
        dropped = sum(1 for item in before if isinstance(item, dict) and cast("dict[str, Any]", item).get("exclude"))
        return f"{self._prefix}.{match[1]}[{index - dropped}]"

    def field(self, path: str, set_by: str) -> EvaluatedField:
        inner = path.removeprefix(f"{self._prefix}.")
        holder, _, index = inner.partition("[")
        node, own_default = _declared(self._prefix, self._kind, holder)
        rules = self._rules.get(holder)
        value = _value_at(self._values, inner)
        issues = [issue for place, told in self._issues.items() if _within(place, path) for issue in told]
        if issues and not index and (given := value_at(self._whole, holder)) is not None:
            value = given  # what is wrong is shown as it was given
        told: dict[str, Any] = {"default": None, "locked": False}
        item: Any = value
        if index and isinstance(item, dict):
            item = cast("dict[str, Any]", item)
            told |= self._ruled_item(node, rules, holder, item)
            told |= {"instructions": item["description"]} if item.get("description") else {}
        elif not index:
            default = value_at(self._below, holder)
            told["default"] = own_default if default is None else default
            told |= {"locked": rules is not None and rules.is_fixed} | _bounds(node, rules)
        return EvaluatedField(
            field=path,
            value=cast("object", value),
            set_by=set_by,
            blocked=rules is not None and bool(rules.blocked),
            required=node.mandatory or (rules is not None and rules.required is not None),
            issues=[_issue(issue) for issue in issues],
            **told,
        )

    def _ruled_item(self, node: Node, rules: FieldRules | None, holder: str, item: Mapping[str, Any]) -> dict[str, Any]:
        key = item_key(node) or ""
        items = cast("list[dict[str, Any]]", value_at(self._below, holder) or [])
        default = next((one for one in items if one.get(key) == item.get(key)), None)
        if rules is None or default is None:
            return {"default": default}
        names = frozenset[str]().union(*(names for _, names in rules.locked_items))
        return {"default": default, "locked": rules.is_fixed or item.get(key) in names}


def _within(place: str, path: str) -> bool:
    return place == path or place.startswith((f"{path}.", f"{path}["))


@cache
def _declared(prefix: Literal["spec", "masterSpec"], kind: str, path: str) -> tuple[Node, Any]:
    """(the field of a kind's spec, or master's, at a path; its own default as answers give it)."""
    node = spec_node(kind) if prefix == "spec" else master_node(KINDS[kind])
    for name in path.split("."):
        node = node.by_name[name]
    return node, msgspec.to_builtins(node.default)


_steps: Final = lru_cache(4096)(PATH_STEPS.findall)
"""Of a path: nearly all are those of every other evaluation."""


def _value_at(values: Any, path: str) -> Any:
    here = values
    for index, name in _steps(path):
        if here is None:
            return None
        here = here[int(index)] if index else here.get(name)
    return here


def _bounds(node: Node, rules: FieldRules | None) -> dict[str, Any]:
    """Range and options, of the rules, and where they say nothing of the field itself."""
    told: dict[str, Any] = {}
    if node.kind in ("integer", "number"):
        limits = (("min", node.limits.least), ("max", node.limits.most))
        told |= {name: limit for name, limit in limits if limit is not None}
        if node.about is not None and node.about.between is not None:
            told.pop("min", None)  # it is not possible itself, and a range has no other word for that
            told["max"] = node.about.between[1]
    if node.options:
        told["options"] = list(node.options)
    if node.kind == "list":
        told["can_add"] = rules is None or not (rules.closed or rules.locked or rules.blocked)
    if rules is None:
        return told
    told |= {} if rules.least is None else {"min": rules.least.text}
    told |= {} if rules.most is None else {"max": rules.most.text}
    told |= {"step": rules.steps[0].text} if rules.steps else {}
    if rules.options:
        element = node.item if node.item is not None else node
        first, *others = rules.options
        told["options"] = [
            option for option in first.given if all(comparable(element, option) in one.values for one in others)
        ]
    return told
