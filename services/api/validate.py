"""A request body against its model and its rules: the request, or everything that is wrong with it. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, cast

import msgspec
from pydantic import ValidationError, create_model
from pydantic_core import ErrorDetails

from events.workload.spec import TrainingSpec
from services.api.fields.about import NAME_PATTERN, OBJECT_NAME_PATTERN, PREFIX_PATTERN, FieldsModel
from services.api.fields.training import TrainingCreationRequest, TrainingSpecFields
from services.api.fields.unbuilt import UNBUILT_FIELDS, Default, asked_for
from services.api.issues import MAX_ISSUES, Issue, PolicyRule, shown
from services.api.rules import check_name, check_spec

Location = tuple[int | str, ...]
type Rules[M] = Callable[[M], Iterable[Issue]]
"""What is wrong with a well-formed request."""

_TYPES: Final = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "an object",
    "dict_type": "an object",
}
_JSON_TYPES: Final[dict[type[Any], str]] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def no_rules(_: object) -> Iterable[Issue]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyTraining:
    """A creation that cannot be taken as it is."""

    issues: list[Issue]
    """All that is wrong with it in itself, MAX_ISSUES at most."""
    sound: TrainingCreationRequest
    """What is left without its faults; an empty text where a mandatory field is missing or wrong."""


def check_training(data: dict[str, Any]) -> TrainingCreationRequest | FaultyTraining:
    """The creation as the person meant it, or all that is wrong with it. Faulty parts are taken out of `data`."""
    try:
        request = TrainingCreationRequest.model_validate(data)
    except ValidationError as error:
        return _wrong_training(data, error)
    issues = [*check_name(request.name, as_prefix=request.use_given_name_as_prefix)]
    issues += check_spec(request.spec or TrainingSpecFields())
    if not issues:
        return request
    named = all(issue.field != "name" for issue in issues)
    return FaultyTraining(issues=issues, sound=request if named else request.model_copy(update={"name": ""}))


def check[M: FieldsModel](
    model: type[M], data: dict[str, Any], rules: Rules[M] = no_rules, beside: Rules[M] = no_rules
) -> M | list[Issue]:
    """Any other body as its model, or all that is wrong with it. Faulty parts are taken out of `data`.

    Args:
        rules: what the model cannot say; of what is left without its faults, where no mandatory field is missing.
        beside: as `rules`, and told only where something else is wrong: alone, the decider tells it.
    """
    issues: list[Issue] = []
    try:
        request = model.model_validate(data)
    except ValidationError as error:
        issues = [*islice(_issues(error), MAX_ISSUES)]
        for location in _faulty(error):
            _prune(data, location)
        try:
            request = _without_mandatory(model, data).model_validate(data)
        except ValidationError:
            return issues
    broken = frozenset(issue.field for issue in issues)
    issues += [issue for issue in rules(request) if not _touches(issue, broken)]
    if not issues:
        return request
    return [*issues, *(issue for issue in beside(request) if not _touches(issue, broken))][:MAX_ISSUES]


def _without_mandatory[M: FieldsModel](model: type[M], data: dict[str, Any]) -> type[M]:
    """The model, with an empty text for every mandatory field that is not there: nothing is said of those again."""
    missing = {name: (Any, "") for name, of in model.model_fields.items() if of.is_required() and of.alias not in data}
    return create_model(model.__name__, __base__=model, **missing) if missing else model  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]


def to_spec(fields: TrainingSpecFields | None) -> TrainingSpec:
    """The spec as the log stores it: what was given, nothing filled in yet."""
    if fields is None:
        return TrainingSpec()
    return msgspec.convert(fields.model_dump(by_alias=True, exclude_none=True), TrainingSpec)


def _wrong_training(data: dict[str, Any], error: ValidationError) -> TrainingCreationRequest | FaultyTraining:
    """What the models found, and what the rules find in the fields that are sound."""
    # One more than is told is enough to know that there are more.
    issues = [*islice(_issues(error), MAX_ISSUES + 1)]
    for location in _faulty(error):
        _prune(data, location)
    if not issues:
        return check_training(data)
    sound = TrainingCreationRequest.model_construct(
        name=_text(data, "name"),
        use_given_name_as_prefix=data.get("useGivenNameAsPrefix") is True,
        project_id=_text(data, "projectId"),
        cluster_id=_text(data, "clusterId"),
        spec=TrainingSpecFields(),
    )
    if len(issues) >= MAX_ISSUES:
        return FaultyTraining(issues=issues[:MAX_ISSUES], sound=sound)
    broken = frozenset(issue.field for issue in issues)
    more = [*check_name(sound.name, as_prefix=sound.use_given_name_as_prefix)] if sound.name else []
    if more:
        sound = sound.model_copy(update={"name": ""})
    try:
        spec = TrainingSpecFields.model_validate(data.get("spec") or {})
    except ValidationError as again:
        # What pruning laid bare, such as an item that lacks something once its faulty field is gone.
        more += [replace(issue, field=f"spec.{issue.field}") for issue in islice(_issues(again), MAX_ISSUES)]
    else:
        more += check_spec(spec)
        sound = sound.model_copy(update={"spec": spec})
    issues += [issue for issue in more if not _touches(issue, broken)]
    return FaultyTraining(issues=issues[:MAX_ISSUES], sound=sound)


def _text(data: dict[str, Any], field: str) -> str:
    """The text of a field that is there and was not pruned, else an empty one."""
    value: object = data.get(field)
    return value if isinstance(value, str) else ""


def _touches(issue: Issue, broken: Iterable[str]) -> bool:
    looked_at = issue.involves | {issue.field}
    return any(f == b or f.startswith((f"{b}.", f"{b}[")) for b in broken for f in looked_at)


def _faulty(error: ValidationError) -> list[Location]:
    return [fault["loc"] for fault in error.errors(include_url=False, include_context=False)]


def _issues(error: ValidationError) -> Iterator[Issue]:
    for fault in error.errors(include_url=False):
        if fault["type"] == "extra_forbidden":
            yield from _unknown(fault["loc"], fault["input"])
        else:
            yield _issue(fault)


def _issue(fault: ErrorDetails) -> Issue:
    field, given, kind = field_path(fault["loc"]), fault["input"], fault["type"]
    context = fault.get("ctx") or {}
    if kind == "missing":
        return Issue(field=field, details="is required", rule="required")
    if kind in _TYPES:
        if given is None:
            return Issue(field=field, details=f"is null; give {_TYPES[kind]}", rule="required")
        return Issue(field=field, details=f"must be {_TYPES[kind]}, got {_described(given)}")
    if kind == "string_pattern_mismatch":
        rule = _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
        return Issue(field=field, details=f"{rule}, got {shown(given)}")
    if kind in {"string_too_short", "too_short"} and not given:
        return Issue(field=field, details="must not be empty", rule="min")
    for key, words, rule in _BOUNDS:
        if key in context:
            unit = _unit(kind) if key.endswith("_length") else ""
            return Issue(field=field, details=f"{words} {context[key]}{unit}, got {_given(kind, given)}", rule=rule)
    if kind == "literal_error":
        return Issue(field=field, details=f"{shown(given)} is none of {context['expected']}", rule="options")
    return Issue(field=field, details=f"{fault['msg']}, got {shown(given)}")


_BOUNDS: Final[tuple[tuple[str, str, PolicyRule], ...]] = (
    ("ge", "is at least", "min"),
    ("gt", "is more than", "min"),
    ("le", "is at most", "max"),
    ("lt", "is less than", "max"),
    ("min_length", "must be at least", "min"),
    ("max_length", "must be at most", "max"),
)
_PATTERNS: Final = {
    NAME_PATTERN: "must be letters, digits, `.`, `_` and `-`, with a letter or digit at both ends",
    PREFIX_PATTERN: "must be letters, digits, `.`, `_` and `-`, with a letter or digit at its beginning",
    OBJECT_NAME_PATTERN: "must be small letters, digits and `-`, with a letter or digit at both ends",
}
"""What the patterns of our fields say, in words."""


def _unit(kind: str) -> str:
    return " characters" if kind.startswith("string") else " items"


def _given(kind: str, given: Any) -> str:
    if kind.startswith("string"):
        return f"{len(given)} characters"
    if kind.startswith(("too_", "list")):
        return f"{len(given)} items" if isinstance(given, list) else "more"  # pyright: ignore[reportUnknownArgumentType]
    return shown(given)


def _described(given: Any) -> str:
    kind = next((words for json_type, words in _JSON_TYPES.items() if isinstance(given, json_type)), "something else")
    return f"{kind}: {shown(given)}"


def _unknown(location: Location, given: Any) -> Iterator[Issue]:
    """A field that is not in the model: of the contract and not built yet, or of nobody."""
    name, field = str(location[-1]), field_path(location)
    built_parent = field_path(tuple("" if isinstance(part, int) else part for part in location[:-1]))
    unbuilt = UNBUILT_FIELDS.get(built_parent, {})
    if name not in unbuilt:
        yield Issue(field=field, details="is unknown; check its spelling, or leave it out")
        return
    for path, default in asked_for(field, given, unbuilt[name]):
        value: Default = {} if isinstance(default, dict) else default
        instead = "" if value is None else f", or give its default, {json.dumps(value)}"
        details = f"is a field of the contract that is not built yet; leave it out{instead}"
        yield Issue(field=path if path.isprintable() else ascii(path), details=details)


def field_path(location: Location) -> str:
    """`spec.labels[0].name`; a part that is "" stands for any index."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part:
            path += "[]"
        else:
            path += f".{part}" if path else part
    return path if path.isprintable() else ascii(path)


def _prune(data: Any, location: Location) -> None:
    """Take a faulty value out, so that the rest can be looked at. A list keeps its length: a null is no item."""
    *parents, last = location
    for part in parents:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(data, dict):
        cast("dict[str, Any]", data).pop(str(last), None)
    elif isinstance(data, list) and isinstance(last, int) and last < len(cast("list[Any]", data)):
        data[last] = None
