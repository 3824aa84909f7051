"""Rules of policies, and what of a merged spec breaks them. Pure.

Rules are put together once for each version of the policies, field by field: of two bounds the stricter one counts, and
who set it is kept. They are run on the merged spec: bounds on the values that hold in the end, with the kind's
defaults; canEdit, canAdd, locked and blocked on what layers above the policy say.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from events.fields.node import Node, item_key
from events.policy import Policy, PolicyScope
from events.policy_specs import is_quantity
from events.quantities import QuantityError, parse_quantity
from events.workload.made_from import SOURCES, Source
from services.api.issues import Issue, PolicyRule, fault, shown
from services.api.merge import Item, Json, Layer, Merged, Place

SOURCE_OF: Final[dict[PolicyScope, Source]] = {
    "tenant": "tenant policy",
    "department": "department policy",
    "project": "project policy",
}
_RANK: Final[dict[Source, int]] = {source: rank for rank, source in enumerate(reversed(SOURCES))}
"""The lowest layer first."""
OBJECT_RULES: Final = frozenset({"locked", "blocked"})
"""Of an object: they hold for all fields in it."""
_MOST_OPTIONS_TOLD: Final = 10


class Bound(NamedTuple):
    """A bound of a value, and whose it is."""

    value: Decimal
    text: Any
    """As it was given."""
    scope: PolicyScope


class Step(NamedTuple):
    """Between two values that are possible."""

    size: Decimal
    base: Decimal
    text: Any
    scope: PolicyScope


class Options(NamedTuple):
    """The only values that are possible."""

    values: frozenset[Any]
    """In the form in which they are compared."""
    given: tuple[Any, ...]
    scope: PolicyScope


@dataclass(slots=True, kw_only=True)
class FieldRules:
    """All rules of one field, of all policies."""

    path: str
    """In the spec."""
    node: Node
    value: Callable[[Any], Any]
    """What holds in the end, of a spec in the form of its kind; None where an object around it is null."""
    key: str | None
    """Of the items of a list that is merged item by item."""
    least: Bound | None = None
    most: Bound | None = None
    steps: list[Step] = field(default_factory=list[Step])
    options: list[Options] = field(default_factory=list[Options])
    required: PolicyScope | None = None
    blocked: list[PolicyScope] = field(default_factory=list[PolicyScope])
    locked: list[PolicyScope] = field(default_factory=list[PolicyScope])
    fixed: list[PolicyScope] = field(default_factory=list[PolicyScope])
    """Whose canEdit is false; likewise below for canAdd."""
    closed: list[PolicyScope] = field(default_factory=list[PolicyScope])
    locked_items: list[tuple[PolicyScope, frozenset[str]]] = field(
        default_factory=list[tuple[PolicyScope, frozenset[str]]]
    )

    @property
    def is_fixed(self) -> bool:
        """Whether nobody may change what the policies set."""
        return bool(self.blocked or self.locked or self.fixed)


def compiled(spec: Node, policies: Iterable[Policy]) -> dict[str, FieldRules]:
    """The rules of all policies, the tenant's first, by the path of the field."""
    found: dict[str, FieldRules] = {}
    for policy in policies:
        for ruled, rules in _leaves(spec, policy.rules, "", ()):
            path, node, attributes = ruled
            known = found.get(path)
            if known is None:
                known = found[path] = FieldRules(path=path, node=node, value=_getter(attributes), key=item_key(node))
            _add(known, rules, policy.scope)
    return found


def _leaves(
    spec: Node, rules: Mapping[str, Any], path: str, attributes: tuple[str, ...]
) -> Iterator[tuple[tuple[str, Node, tuple[str, ...]], Mapping[str, Any]]]:
    """Fields with their rules; those of an object are pushed down to all fields in it."""
    pushed = {name: True for name in OBJECT_RULES if path and rules.get(name)}
    for node in spec.fields:
        own: Any = rules.get(node.name)
        given: Json = cast("Json", own) if isinstance(own, dict) else {}
        here = f"{path}.{node.name}" if path else node.name
        names = (*attributes, node.attribute)
        if node.kind == "object":
            if given or pushed:
                yield from _leaves(node, given | pushed, here, names)
        elif given or pushed:
            yield (here, node, names), given | pushed


def _getter(attributes: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(attributes) == 1:
        return attrgetter(attributes[0])

    def get(form: Any) -> Any:
        for name in attributes:
            if form is None:
                return None
            form = getattr(form, name)
        return form

    return get


def _add(to: FieldRules, rules: Mapping[str, Any], scope: PolicyScope) -> None:
    least, most, step = (rules.get(name) for name in ("min", "max", "step"))
    low = None if least is None else number_of(to.node, least)
    if low is not None and (to.least is None or low > to.least.value):
        to.least = Bound(low, least, scope)
    high = None if most is None else number_of(to.node, most)
    if high is not None and (to.most is None or high < to.most.value):
        to.most = Bound(high, most, scope)
    size = None if step is None else number_of(to.node, step)
    if size:
        to.steps.append(Step(size, low or Decimal(0), step, scope))
    options = rules.get("options")
    if options is not None:
        given = tuple(option for option in options if option is not None)
        to.options.append(Options(frozenset(comparable(_element(to.node), option) for option in given), given, scope))
    if rules.get("required") and to.required is None:
        to.required = scope
    for name, whose in (("blocked", to.blocked), ("locked", to.locked)):
        if rules.get(name):
            whose.append(scope)
    for name, whose in (("canEdit", to.fixed), ("canAdd", to.closed)):
        if rules.get(name) is False:
            whose.append(scope)
    if names := frozenset(name for name in rules.get("lockedItems") or () if name is not None):
        to.locked_items.append((scope, names))


def _element(node: Node) -> Node:
    """What options are options of."""
    return node.item if node.item is not None else node


def number_of(node: Node, value: Any) -> Decimal | None:
    """A number or quantity as it is compared; None where it is none."""
    if is_quantity(node):
        if not isinstance(value, str):
            return None
        try:
            return parse_quantity(value)
        except QuantityError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def comparable(node: Node, value: Any) -> Any:
    """A value in a form in which two that mean the same are equal, and that can be hashed."""
    if node.kind in ("integer", "number") or is_quantity(node):
        number = number_of(node, value)
        return value if number is None and not isinstance(value, list | dict) else number
    return _frozen(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("Json", value).items()
        return frozenset((name, _frozen(inner)) for name, inner in fields if inner is not None and inner is not False)
    if isinstance(value, list | tuple):
        return tuple(_frozen(inner) for inner in cast("Sequence[Any]", value) if inner is not None)
    return value


# -- running them ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What rules are run on: the spec of a workload, or of its master."""

    whole: Merged
    below: Mapping[PolicyScope, Merged]
    """What the layers up to each policy say together."""
    form: Any
    """The values that hold in the end, in the form of the kind; None: only what is given is looked at."""
    prefix: str
    """Of paths in the request, such as `spec`."""


def broken(rules: Mapping[str, FieldRules], subject: Subject, fields: Node) -> Iterator[Issue]:
    """All that breaks a rule, with paths in the merged spec.

    Args:
        fields: of the spec; rules of fields that it does not have say nothing.
    """
    for of in rules.values():
        if of.path.partition(".")[0] in fields.by_name:
            yield from _broken(of, subject)


def _broken(of: FieldRules, subject: Subject) -> Iterator[Issue]:
    if of.key is not None:
        yield from _broken_items(of, of.key, subject)
        return
    changed = [*_changed(of, subject)]
    yield from changed
    if any(issue.rule == "blocked" for issue in changed):
        return
    if subject.form is not None:
        yield from value_issues(of, of.value(subject.form), f"{subject.prefix}.{of.path}")
        return
    given = value_at(subject.whole, of.path)
    if given is not None:
        yield from value_issues(of, given, f"{subject.prefix}.{of.path}", required=False)


def value_at(whole: Merged, path: str) -> Any:
    """Of the merged spec; None where it or an object around it is null or absent."""
    here: Any = whole.spec
    if not here:
        return None
    for name in path.split("."):
        here = cast("Json", here).get(name) if isinstance(here, dict) else None
    return here


def _above(place: Place | None, scope: PolicyScope) -> bool:
    return place is not None and _RANK[place.layer.source] > _RANK[SOURCE_OF[scope]]


def _place(of: FieldRules, subject: Subject) -> Place | None:
    found = subject.whole.place(of.path)
    return None if found is None else found[0]


def _changed(of: FieldRules, subject: Subject) -> Iterator[Issue]:
    """blocked, locked, canEdit and canAdd of a field that is one value. The value that is there anyway may be given: a
    workload that is submitted again says all of its fields.
    """
    node = of.node
    rules: list[tuple[PolicyRule, PolicyScope]] = [
        *(("blocked", scope) for scope in of.blocked),
        *(("locked", scope) for scope in of.locked),
        *(("canEdit", scope) for scope in of.fixed),
        *(("canAdd", scope) for scope in of.closed),
    ]
    for rule, scope in rules:
        if not _above(_place(of, subject), scope):
            continue
        given = _or_default(node, value_at(subject.whole, of.path))
        before = _or_default(node, value_at(subject.below[scope], of.path))
        if rule == "canAdd":
            kept = {comparable(_element(node), item) for item in before or ()}
            added = [item for item in given or () if comparable(_element(node), item) not in kept | {None}]
            if added:
                details = f"may have no items beside those of {whose(scope)}, got {shown(added[0])}"
                yield _issue(of, subject, rule, details)
                return
        elif comparable(node, given) != comparable(node, before):
            held = "unset" if before in (None, [], "") else shown(before)
            said = (
                f"is blocked by {whose(scope)}" if rule == "blocked" else f"must stay as {whose(scope)} has it, {held}"
            )
            details = f"{said}, got {shown(given)}; leave it out"
            yield _issue(of, subject, rule, details)
            return


def _or_default(node: Node, value: Any) -> Any:
    if value is not None:
        return value
    return [*cast("Sequence[Any]", node.default)] if isinstance(node.default, tuple) else node.default


def _issue(of: FieldRules, subject: Subject, rule: PolicyRule, details: str, path: str = "") -> Issue:
    return fault(f"{subject.prefix}.{path or of.path}", details, rule)


def whose(scope: PolicyScope) -> str:
    return f"the {scope}'s policy"


# -- values ----------------------------------------------------------------------------------------------------------


def value_issues(of: FieldRules, value: Any, field: str, *, required: bool = True) -> Iterator[Issue]:
    """required, min, max, step and options: of a value that holds in the end; None, an empty text or list is none."""
    if value is None or value == "" or (isinstance(value, list | tuple) and not value):
        if required and of.required is not None:
            yield fault(field, f"is required by {whose(of.required)}", "required")
        return
    yield from _range_issues(of, value, field)
    for options in of.options:
        items = cast("Sequence[Any]", value) if isinstance(value, list | tuple) else [value]
        wrong = [item for item in items if comparable(_element(of.node), item) not in options.values]
        if wrong:
            told = [str(option) for option in options.given[:_MOST_OPTIONS_TOLD]]
            more = ", …" if len(options.given) > _MOST_OPTIONS_TOLD else ""
            details = f"{shown(wrong[0])} is none of {', '.join(told)}{more}, which {whose(options.scope)} allows"
            yield fault(field, details, "options")
            break


def _range_issues(of: FieldRules, value: Any, field: str) -> Iterator[Issue]:
    if of.least is None and of.most is None and not of.steps:
        return
    number = number_of(of.node, value)
    if number is None:
        return
    if of.least is not None and number < of.least.value:
        yield fault(field, f"must be at least {of.least.text} by {whose(of.least.scope)}, got {shown(value)}", "min")
    if of.most is not None and number > of.most.value:
        yield fault(field, f"must be at most {of.most.text} by {whose(of.most.scope)}, got {shown(value)}", "max")
    for step in of.steps:
        # Exact for numbers of any size; decimals have only so many digits.
        if (Fraction(number) - Fraction(step.base)) % Fraction(step.size):
            start = f"{step.base} plus " if step.base else ""
            details = f"must be {start}a multiple of {step.text} by {whose(step.scope)}, got {shown(value)}"
            yield fault(field, details, "step")
            break


# -- lists that are merged item by item ------------------------------------------------------------------------------


def _broken_items(of: FieldRules, key: str, subject: Subject) -> Iterator[Issue]:
    told: set[str] = set()
    rules = [
        *(_ItemRule("blocked", scope) for scope in of.blocked),
        *(_ItemRule("locked", scope) for scope in of.locked),
        *(_ItemRule("locked", scope, names) for scope, names in of.locked_items),
        *(_ItemRule("canEdit", scope) for scope in of.fixed),
        *(_ItemRule("canAdd", scope) for scope in of.closed),
    ]
    for rule in rules:
        for issue in _items_against(of, key, subject, rule):
            if issue.field not in told:
                told.add(issue.field)
                yield issue
    if subject.form is not None and of.required is not None and not of.value(subject.form):
        yield _issue(of, subject, "required", f"is required by {whose(of.required)}")


class _ItemRule(NamedTuple):
    rule: PolicyRule
    scope: PolicyScope
    names: frozenset[str] | None = None
    """Of the items that it is about; None: all."""


def _items_against(of: FieldRules, key: str, subject: Subject, against: _ItemRule) -> Iterator[Issue]:
    """What of the items breaks one rule. Only those are looked at that can: a list has up to a thousand."""
    rule, scope, names = against
    before = _by_key(value_at(subject.below[scope], of.path), key)
    kept = before if names is None else {name: item for name, item in before.items() if name in names}
    given, came_from = value_at(subject.whole, of.path), _layers(subject.whole, of.path)
    if not isinstance(given, list) or came_from is None:
        if kept and rule != "canAdd" and _above(_place(of, subject), scope):
            yield _issue(of, subject, rule, f"has items of {whose(scope)}, which must stay; leave it out")
        return
    items = cast("list[Any]", given)
    adds = rule != "canEdit" and names is None
    if not (adds or kept):
        return
    layers = _layers_above(scope)
    for index, item in enumerate(items):
        if came_from[index].source not in layers or not isinstance(item, dict):
            continue
        name = cast("Json", item).get(key)
        if isinstance(name, str) and name in before:
            if rule != "canAdd" and name in kept and _frozen(item) != _frozen(before[name]):
                details = f"{shown(name)} must stay as {whose(scope)} has it; leave it out"
                yield _issue(of, subject, rule, details, f"{of.path}[{index}]")
        elif adds and not cast("Json", item).get("exclude"):
            told = "nothing may be given here" if rule == "blocked" else "no items may be added here"
            details = f"{told} by {whose(scope)}; leave {shown(name) if name else 'it'} out"
            yield _issue(of, subject, rule, details, f"{of.path}[{index}]")


def _layers_above(scope: PolicyScope) -> frozenset[Source]:
    least = _RANK[SOURCE_OF[scope]]
    return frozenset[Source](source for source, rank in _RANK.items() if rank > least)


def _by_key(items: Any, key: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for item in cast("list[Any]", items) if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(name := cast("Json", item).get(key), str):
            found.setdefault(name, cast("Json", item))
    return found


def _layers(whole: Merged, path: str) -> list[Layer] | None:
    """Where each item comes from; None where the list was taken whole, or there is none."""
    here: Any = whole.origin
    for name in path.split("."):
        here = cast("dict[str, Any]", here).get(name) if isinstance(here, dict) else None
    return [layer for _, layer, _, _ in cast("list[Item]", here)] if isinstance(here, list) else None


# -- policies as layers ----------------------------------------------------------------------------------------------


def layer_of(policy: Policy) -> Layer:
    return Layer(source=SOURCE_OF[policy.scope], name="", spec=policy.defaults)
