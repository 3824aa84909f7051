"""A request body against its model and its rules: the request, or everything that is wrong with it. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, cast

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from events.workload.spec import TrainingSpec
from services.api.fields.about import FieldsModel
from services.api.fields.training import UNBUILT_FIELDS, TrainingCreationRequest, TrainingSpecFields
from services.api.issues import MAX_ISSUES, Issue, PolicyRule, shown
from services.api.rules import check_name, check_spec

Location = tuple[int | str, ...]

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


def check_training(data: dict[str, Any]) -> TrainingCreationRequest | list[Issue]:
    """The creation as the person meant it, or all that is wrong with it."""
    try:
        request = TrainingCreationRequest.model_validate(data)
    except ValidationError as error:
        return _wrong_training(data, error)
    issues = [*check_name(request.name, as_prefix=request.use_given_name_as_prefix)]
    issues += check_spec(request.spec or TrainingSpecFields())
    return issues or request


def check[M: FieldsModel](model: type[M], data: dict[str, Any]) -> M | list[Issue]:
    """Any other body: the model's own constraints only."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        return [issue for _, issue in _issues(error)]


def to_spec(fields: TrainingSpecFields | None) -> TrainingSpec:
    """The spec as the log stores it: what was given, nothing filled in yet."""
    if fields is None:
        return TrainingSpec()
    return msgspec.convert(fields.model_dump(by_alias=True, exclude_none=True), TrainingSpec)


def _wrong_training(data: dict[str, Any], error: ValidationError) -> TrainingCreationRequest | list[Issue]:
    """What the models found, and what the rules find in the fields that are sound."""
    found = list(_issues(error))
    issues = [issue for _, issue in found]
    for location in _faulty(error):
        _prune(data, location)
    if not issues:
        return check_training(data)
    if len(issues) >= MAX_ISSUES:
        return issues[:MAX_ISSUES]
    broken = frozenset(issue.field for issue in issues)
    name: object = data.get("name")
    spec: object = data.get("spec") or {}
    more: list[Issue] = []
    if "name" not in broken and isinstance(name, str):
        more += check_name(name, as_prefix=data.get("useGivenNameAsPrefix") is True)
    try:
        more += check_spec(TrainingSpecFields.model_validate(spec))
    except ValidationError as again:
        # What pruning laid bare, such as an item that lacks something once its faulty field is gone.
        more += [replace(issue, field=f"spec.{issue.field}") for _, issue in _issues(again)]
    issues += [issue for issue in more if not _touches(issue, broken)]
    return issues[:MAX_ISSUES]


def _touches(issue: Issue, broken: Iterable[str]) -> bool:
    looked_at = issue.involves | {issue.field}
    return any(f == b or f.startswith((f"{b}.", f"{b}[")) for b in broken for f in looked_at)


def _faulty(error: ValidationError) -> list[Location]:
    return [fault["loc"] for fault in error.errors(include_url=False, include_context=False)]


def _issues(error: ValidationError) -> Iterable[tuple[Location, Issue]]:
    for fault in error.errors(include_url=False)[: MAX_ISSUES + 1]:
        issue = _issue(fault)
        if issue is not None:
            yield fault["loc"], issue


def _issue(fault: ErrorDetails) -> Issue | None:
    field, given, kind = field_path(fault["loc"]), fault["input"], fault["type"]
    context = fault.get("ctx") or {}
    if kind == "missing":
        return Issue(field=field, details="is required", rule="required")
    if kind == "extra_forbidden":
        return _unknown(fault["loc"], given)
    if kind in _TYPES:
        if given is None:
            return Issue(field=field, details=f"is null; give {_TYPES[kind]}", rule="required")
        return Issue(field=field, details=f"must be {_TYPES[kind]}, got {_described(given)}")
    for key, words, rule in _BOUNDS:
        if key in context:
            return Issue(field=field, details=f"{words} {context[key]}, got {_given(kind, given)}", rule=rule)
    if kind == "literal_error":
        return Issue(field=field, details=f"{shown(given)} is none of {context['expected']}", rule="options")
    return Issue(field=field, details=f"{fault['msg']}, got {shown(given)}")


_BOUNDS: Final[tuple[tuple[str, str, PolicyRule], ...]] = (
    ("ge", "is at least", "min"),
    ("gt", "is more than", "min"),
    ("le", "is at most", "max"),
    ("lt", "is less than", "max"),
    ("min_length", "has a length of at least", "min"),
    ("max_length", "has a length of at most", "max"),
)


def _given(kind: str, given: Any) -> str:
    if kind.startswith("string"):
        return f"{len(given)} characters"
    if kind.startswith(("too_", "list")):
        return f"{len(given)} items" if isinstance(given, list) else "more"  # pyright: ignore[reportUnknownArgumentType]
    return shown(given)


def _described(given: Any) -> str:
    kind = next((words for json_type, words in _JSON_TYPES.items() if isinstance(given, json_type)), "something else")
    return f"{kind}: {shown(given)}"


def _unknown(location: Location, given: Any) -> Issue | None:
    """A field that is not in the model: of the contract and not built yet, or of nobody."""
    name = str(location[-1])
    built_parent = field_path(tuple("" if isinstance(part, int) else part for part in location[:-1]))
    unbuilt = name in UNBUILT_FIELDS.get(built_parent, frozenset[str]())
    if unbuilt and given is None:
        return None
    field = field_path(location)
    if unbuilt:
        return Issue(field=field, details="is a field of the contract that is not built yet; leave it out")
    return Issue(field=field, details="is unknown; check its spelling, or leave it out")


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
