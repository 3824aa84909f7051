"""A request body against the fields that are declared for it and the rules beside them: the request as it was meant, or
everything that is wrong with it. Pure.

msgspec has the word on every value. Only where it refuses, the body is walked: down to what is at fault, which is left
out, so that the rules can look at the rest.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from events.fields.declare import Body
from events.fields.node import EACH, Kind, Node, Patterned, bounds, tree
from events.nearest import did_you_mean
from events.workload.fields.creation import Creation, TrainingCreation
from events.workload.kinds import KINDS
from events.workload.spec import DistributedSpec, MasterSpec
from events.workload.sweeps import runs_of
from services.api.issues import MAX_ISSUES, PATH_STEPS, Issue, none_of, shown
from services.api.rules import check_given, check_name, check_order
from services.api.unbuilt import Default, asked_for, instead_of, unbuilt_fields

type Json = dict[str, Any]
type Rules[B] = Callable[[B], Iterable[Issue]]
"""What is wrong with a well-formed request."""

_CALLED: Final[dict[Kind, str]] = {
    "text": "a text",
    "choice": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "list": "a list",
    "object": "an object",
    "map": "an object",
}
_JSON_TYPES: Final[dict[type[Any], str]] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}
_TYPES: Final[dict[Kind, type | tuple[type, ...]]] = {
    "text": str,
    "choice": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "list": list,
    "object": dict,
    "map": dict,
}
_EMPTY: Final[dict[Kind, Any]] = {"text": "", "integer": 0, "number": 0.0, "boolean": False, "list": [], "map": {}}
_FAULTY: Final = object()
"""Stands for a value that is left out."""


def no_rules(_: object) -> Iterable[Issue]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCreation[C: Creation]:
    """A creation that cannot be taken as it is."""

    issues: list[Issue]
    """All that is wrong with it in itself, MAX_ISSUES at most."""
    sound: C
    """What is left without its faults; an empty text where a mandatory field is missing or wrong."""


def check_training(data: Json) -> TrainingCreation | FaultyCreation[TrainingCreation]:
    """As `check_creation`, of a training."""
    return check_creation(TrainingCreation, data)


def check_creation[C: Creation](body: type[C], data: Json) -> C | FaultyCreation[C]:
    """The creation as the person meant it, or all that is wrong with it."""
    sound, issues = without_faults(tree(body), data if data.get("spec") is not None else data | {"spec": {}})
    request = _as_declared(body, sound)
    if len(issues) < MAX_ISSUES:
        told = [
            *check_name(request.name, as_prefix=request.use_given_name_as_prefix),
            *check_given(sound.get("spec", {}), runs=runs_of(request.order()[0].sweep)),
            *check_given(sound.get("masterSpec") or {}, "masterSpec"),
        ]
        issues += untouched([*told, *check_order(request)], sound, issues)
    if not issues:
        return request
    if any(issue.field == "name" for issue in issues):
        request = replace(request, name="")
    return FaultyCreation(issues=issues[:MAX_ISSUES], sound=request)


def check[B: Body](
    body: type[B], data: Json, rules: Rules[B] = no_rules, beside: Rules[B] = no_rules
) -> B | list[Issue]:
    """Any other body as it is declared, or all that is wrong with it.

    Args:
        rules: what the declarations cannot say; of what is left without its faults.
        beside: as `rules`, and told only where something else is wrong: alone, the decider tells it.
    """
    sound, issues = without_faults(tree(body), data)
    request = _as_declared(body, sound)
    issues += untouched(rules(request), sound, issues)
    if not issues:
        return request
    return [*issues, *untouched(beside(request), sound, issues)][:MAX_ISSUES]


def without_faults(node: Node, data: Json) -> tuple[Json, list[Issue]]:
    """(the object without its faults, what they are: MAX_ISSUES at most). A mandatory field that is missing or wrong
    has an empty value, an item that is wrong is null.
    """
    if fits(node, data):
        return data, []
    found: list[Issue] = []
    return _object(node, data, "", found), found


def _as_declared[B: Body](body: type[B], data: Json) -> B:
    try:
        return msgspec.convert(data, body)
    except msgspec.ValidationError:
        return msgspec.convert(_without_nulls(data), body)


def _without_nulls(value: Any) -> Any:
    """Null is absent, and no item of a list."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in cast("Json", value).items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in cast("list[Any]", value) if inner is not None]
    return value


# -- the walk --------------------------------------------------------------------------------------------------------


def fits(node: Node, value: Any) -> bool:
    """Whether a field can have this value, by its declaration."""
    try:
        msgspec.convert(value, node.request)
    except msgspec.ValidationError:
        return False
    return all(one.pattern.match(_texts(value, one)) for one in node.patterns)


def _texts(value: Any, of: Patterned) -> list[str]:
    """Of the items of a list within a value that fits but for their patterns."""
    name, found = of.name, list[str]()
    for items in _lists(value, of.way):
        found += [text for item in items if item is not None and (text := item.get(name)) is not None]
    return found


def _lists(value: Any, way: Sequence[str]) -> Iterator[list[Json | None]]:
    """Those to which a way leads."""
    if value is None or not way:
        yield value or []
    elif way[0] == EACH:
        for one in cast("Json", value).values() if isinstance(value, dict) else cast("list[Any]", value):
            yield from _lists(one, way[1:])
    else:
        yield from _lists(cast("Json", value).get(way[0]), way[1:])


def _sound(node: Node, value: Any, path: str, found: list[Issue]) -> Any:
    """A value without its faults; _FAULTY where nothing of it is left."""
    if fits(node, value):
        return value
    if node.kind == "object" and isinstance(value, dict):
        return _object(node, cast("Json", value), path, found)
    if node.kind == "list" and isinstance(value, list) and not _wrong_length(node, cast("list[Any]", value), path):
        return _items(node, cast("list[Any]", value), path, found)
    _add(found, _issue(node, value, path))
    return _FAULTY


def _object(node: Node, given: Json, path: str, found: list[Issue]) -> Json:
    sound: Json = {}
    for name, value in given.items():
        below = f"{path}.{name}" if path else name
        field = node.by_name.get(name)
        if field is None and len(found) >= MAX_ISSUES:
            continue
        if field is None:
            for issue in _unknown(node, name, value, below):
                _add(found, issue)
        elif value is None and (field.nullable or field.mandatory):
            if not field.nullable:
                _add(found, Issue(field=below, details=f"is null; give {_CALLED[field.kind]}", rule="required"))
        else:
            left = _sound(field, value, below, found)
            if left is not _FAULTY:
                sound[name] = left
    for field in node.fields:
        if field.mandatory and field.name not in sound:
            if given.get(field.name) is None and (field.nullable or field.name not in given):
                example = f", such as {field.about.example}" if field.about and field.about.example else ""
                below = f"{path}.{field.name}" if path else field.name
                _add(found, Issue(field=below, details=f"is required{example}", rule="required"))
            sound[field.name] = _empty(field)
    return sound


def _items(node: Node, given: list[Any], path: str, found: list[Issue]) -> list[Any]:
    item = node.item
    assert item is not None
    sound: list[Any] = []
    for index, value in enumerate(given):
        left = None if value is None and item.nullable else _sound(item, value, f"{path}[{index}]", found)
        sound.append(None if left is _FAULTY else left)
    return sound


def _empty(node: Node) -> Any:
    if node.kind == "object":
        return {field.name: _empty(field) for field in node.fields if field.mandatory}
    return node.options[0] if node.kind == "choice" else _EMPTY[node.kind]


def _add(found: list[Issue], issue: Issue) -> None:
    if len(found) < MAX_ISSUES:
        printable = issue.field if issue.field.isprintable() else ascii(issue.field)
        found.append(Issue(field=printable, details=issue.details, rule=issue.rule))


# -- what is said of a fault -----------------------------------------------------------------------------------------


def _issue(node: Node, given: Any, path: str) -> Issue:
    """Why msgspec refuses a value."""
    if given is None:
        return Issue(field=path, details=f"is null; give {_CALLED[node.kind]}", rule="required")
    if not isinstance(given, _TYPES[node.kind]) or (isinstance(given, bool) and node.kind != "boolean"):
        return Issue(field=path, details=f"must be {_CALLED[node.kind]}, got {_described(given)}")
    if node.kind == "choice":
        text = cast("str", given)
        instead = node.about.instead.get(text.upper()) if node.about is not None else None
        told = f"{shown(text)} is none of {', '.join(node.options)}; {instead}" if instead else ""
        return Issue(field=path, details=told or none_of(text, node.options), rule="options")
    if not isinstance(given, int | float):
        return _wrong_length(node, given, path) or Issue(field=path, details=f"{node.limits.words}, got {shown(given)}")
    least, most = bounds(node.kind, node.limits)
    if least is not None and given < least:
        return Issue(field=path, details=f"must be at least {_number(least)}, got {shown(given)}", rule="min")
    if most is not None and given > most:
        return Issue(field=path, details=f"must be at most {_number(most)}, got {shown(given)}", rule="max")
    return Issue(field=path, details=f"must be a finite number, got {shown(given)}")


def _wrong_length(node: Node, given: str | list[Any] | dict[str, Any], path: str) -> Issue | None:
    unit = {"list": "items", "map": "keys"}.get(node.kind, "characters")
    shortest, longest = node.limits.shortest, node.limits.longest
    if shortest is not None and len(given) < shortest:
        few = f"must be at least {shortest} {unit}, got {len(given)} {unit}" if given else "must not be empty"
        return Issue(field=path, details=few, rule="min")
    if longest is not None and len(given) > longest:
        return Issue(field=path, details=f"must be at most {longest} {unit}, got {len(given)} {unit}", rule="max")
    return None


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _described(given: Any) -> str:
    kind = next((words for json_type, words in _JSON_TYPES.items() if isinstance(given, json_type)), "something else")
    return f"{kind}: {shown(given)}"


def _unknown(parent: Node, name: str, given: Any, path: str) -> Iterator[Issue]:
    """A field that is not declared: of the contract and not built yet, or of nobody."""
    of_creation = parent.path or (parent.struct is not None and issubclass(parent.struct, Creation))
    unbuilt = unbuilt_fields(parent) if of_creation else {}
    if parent.struct is MasterSpec and name in DistributedSpec.__struct_encode_fields__:
        yield Issue(field=path, details=f"holds for the whole training; give it as spec.{name}")
        return
    if name not in unbuilt and (other := _of_another_kind(parent, name)):
        yield Issue(field=path, details=other)
        return
    if name not in unbuilt:
        hint = did_you_mean(name, parent.by_name)
        yield Issue(field=path, details=f"is unknown; {hint or 'check its spelling, or leave it out'}")
        return
    for field, default in asked_for(path, given, unbuilt[name]):
        value: Default = {} if isinstance(default, dict) else default
        instead = "" if value is None else f", or give its default, {json.dumps(value)}"
        rather = f"{words}; or " if (words := instead_of(field)) else ""
        yield Issue(
            field=field, details=f"is a field of the contract that is not built yet; {rather}leave it out{instead}"
        )


def _of_another_kind(parent: Node, name: str) -> str:
    """That a field of a spec is one of other kinds of workloads alone; empty where it is not."""
    specs = {kind.name: tree(kind.creation).by_name["spec"] for kind in KINDS.values()}
    own = next((kind for kind, spec in specs.items() if spec.struct is parent.struct), "")
    others = [kind for kind, spec in specs.items() if own and name in spec.by_name]
    if not others:
        return ""
    return f"is a field of {', '.join(others)}, and this is of kind {own}; leave it out"


# -- rules beside faults ---------------------------------------------------------------------------------------------


def untouched(issues: Iterable[Issue], sound: Json, faults: Iterable[Issue]) -> list[Issue]:
    """What rules say, where no field that they looked at is faulty itself; with the request's own indexes."""
    return apart_from((_of_the_request(issue, sound) for issue in issues), faults)


def apart_from(issues: Iterable[Issue], faults: Iterable[Issue]) -> list[Issue]:
    """As `untouched`, of issues that have the request's own indexes already."""
    broken = [fault.field for fault in faults]
    return [issue for issue in issues if not _touches(issue, broken)]


def _touches(issue: Issue, broken: Iterable[str]) -> bool:
    looked_at = issue.involves | {issue.field}
    return any(f == b or f.startswith((f"{b}.", f"{b}[")) for b in broken for f in looked_at)


def _of_the_request(issue: Issue, sound: Json) -> Issue:
    """An issue with the indexes of the request, whose lists may have nulls among their items."""
    if "[" not in issue.field:
        return issue
    fields = {field: _own_path(field, sound) for field in issue.involves | {issue.field}}
    return Issue(field=fields[issue.field], details=issue.details, rule=issue.rule, involves=frozenset(fields.values()))


def _own_path(field: str, sound: Json) -> str:
    place: Any = sound
    path = ""
    for index, name in PATH_STEPS.findall(field):
        if name:
            path += f".{name}" if path else name
            place = cast("Json", place).get(name) if isinstance(place, dict) else None
        else:
            items = cast("list[Any]", place)
            own = [at for at, item in enumerate(items) if item is not None][int(index)]
            path, place = f"{path}[{own}]", items[own]
    return path
