"""`/docs`: every operation with its parameters, the fields of its body and answer, and an example of each. Pure.

It is made from the OpenAPI document alone, so that it can say nothing else. No script, and nothing from elsewhere: a
browser folds and unfolds by itself, and the style is a file of ours (`docs.css`), as the page's policy wants it.
"""

import html
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from services.api.operations import JSON
from services.api.schemas import Schema

EXAMPLES_BY_FORMAT: Final = {
    "uuid": "0f8fad5b-d9cb-869f-a165-70867728950e",
    "date-time": "2026-01-31T12:00:00Z",
}
EXAMPLES_BY_PATTERN: Final = {"0[0-7]{3}": "0644"}
DEEPEST: Final = 20
"""Levels of an answer that an example shows: none of ours has as many, and it ends where one contains itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One field of a body or an answer, at whatever depth."""

    path: str
    """As people write it: `spec.image`, `spec.environmentVariables[].name`."""
    type: str
    required: bool
    default: str
    meaning: str
    limits: str


def docs_page(document: Schema) -> str:
    """The whole page, in HTML."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            section = _operation(method.upper(), path, operation, document)
            by_tag.setdefault(operation["tags"][0], []).append(section)
    contents = " · ".join(f'<a href="#{html.escape(tag)}">{html.escape(tag)}</a>' for tag in by_tag)
    sections = "".join(
        f'<section><h2 id="{html.escape(tag)}">{html.escape(tag)}</h2>{"".join(parts)}</section>'
        for tag, parts in by_tag.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Muster API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/docs.css"></head><body>'
        "<h1>Muster API</h1><p>Send a token with every request: <code>Authorization: Bearer …</code>. The examples "
        "take it from <code>MUSTER_TOKEN</code>, and the address of this API from <code>MUSTER_URL</code>. Choose an "
        "operation to see its parameters, the fields of its body and of its answer, and an example. The whole, for "
        'programs: <a href="/openapi.json">/openapi.json</a>. Events that programs subscribe to: '
        f'<a href="/asyncapi.json">/asyncapi.json</a>.</p><nav>{contents}</nav>{sections}</body></html>'
    )


def curl(method: str, path: str, operation: Schema) -> str:
    """The operation's example as a shell command. Parameters of the path are variables of the shell."""
    shown = re.sub(r"\{(\w+)\}", lambda found: "$" + _variable(found[1]), path)
    words = [f'curl{"" if method == "GET" else f" -X {method}"} "$MUSTER_URL{shown}"']
    if operation.get("security") != []:
        words.append('-H "Authorization: Bearer $MUSTER_TOKEN"')
    if "requestBody" in operation:
        example = operation["requestBody"]["content"][JSON]["example"]
        words += [f"-H 'Content-Type: {JSON}'", f"-d {shlex.quote(json.dumps(example, indent=2, ensure_ascii=False))}"]
    return " \\\n  ".join(words)


def fields_of(schema: Schema, document: Schema) -> Iterator[Row]:
    """Every field of an object and of the objects within it, each before its parts."""
    yield from _rows(schema, document, "", ())


def example_of(schema: Schema, document: Schema, name: str = "") -> Any:
    """A value that the schema allows, in which every field stands."""
    return _example(schema, document, name, 0)


def _operation(method: str, path: str, operation: Schema, document: Schema) -> str:
    parts = [_parameters(operation.get("parameters", ()))]
    if "requestBody" in operation:
        content = operation["requestBody"]["content"][JSON]
        needed = "" if operation["requestBody"]["required"] else " (may be left out)"
        parts.append(f"<h4>Body{needed}</h4>{_table(content['schema'], document)}")
    parts.append(f"<h4>Example</h4><pre>{html.escape(curl(method, path, operation))}</pre>")
    responses: dict[str, Schema] = operation["responses"]
    parts += [_answer(status, told, document) for status, told in responses.items() if status < "400"]
    parts.append("<h4>Errors</h4>" + _errors({status: told for status, told in responses.items() if status >= "400"}))
    return (
        f'<details id="{html.escape(operation["operationId"])}">'
        f"<summary><b>{method}</b> <code>{html.escape(path)}</code> "
        f"<span>{html.escape(operation['summary'])}</span></summary>{''.join(parts)}</details>"
    )


def _parameters(parameters: Sequence[Schema]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        _cells(
            one["name"],
            one["in"],
            _type(one["schema"], {}),
            "yes" if one.get("required") else "",
            _default(one["schema"]),
            one.get("description", ""),
            _limits(one["schema"]),
        )
        for one in parameters
    )
    head = _head("Parameter", "Where", "Type", "Required", "Default", "Meaning", "Limits")
    return f"<h4>Parameters</h4><table>{head}{rows}</table>"


def _answer(status: str, told: Schema, document: Schema) -> str:
    parts = [f"<h4>Answer {status}</h4>"]
    for media, content in told["content"].items():
        if media != JSON:
            parts.append(f"<p><code>{html.escape(media)}</code></p>")
            continue
        example = example_of(content["schema"], document)
        if "code" in example:
            example["code"] = int(status)
        shown = json.dumps(example, indent=2, ensure_ascii=False)
        parts.append(f"<pre>{html.escape(shown)}</pre>{_table(content['schema'], document)}")
    headers = "".join(_cells(name, one["description"]) for name, one in told["headers"].items())
    parts.append(f"<table>{_head('Header', 'Meaning')}{headers}</table>")
    return "".join(parts)


def _errors(errors: dict[str, Schema]) -> str:
    if not errors:
        return "<p>None of its own.</p>"
    rows = "".join(_cells(status, told["description"]) for status, told in errors.items())
    return f"<table>{_head('Status', 'Meaning')}{rows}</table>"


def _table(schema: Schema, document: Schema) -> str:
    rows = "".join(
        _cells(row.path, row.type, "yes" if row.required else "", row.default, row.meaning, row.limits)
        for row in fields_of(schema, document)
    )
    head = _head("Field", "Type", "Required", "Default", "Meaning", "Limits")
    return f"<details><summary>Fields</summary><table>{head}{rows}</table></details>"


def _head(*names: str) -> str:
    return f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"


def _cells(first: str, *others: str) -> str:
    shown = "".join(f"<td>{html.escape(text)}</td>" for text in others)
    return f"<tr><td><code>{html.escape(first)}</code></td>{shown}</tr>"


def _rows(schema: Schema, document: Schema, prefix: str, within: tuple[str, ...]) -> Iterator[Row]:
    whole, names = _resolved(schema, document)
    if set(names) & set(within):
        return
    for option in whole.get("oneOf", ()):
        yield from _rows(option, document, prefix, (*within, *names))
    for name, field in whole.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        resolved, _ = _resolved(field, document)
        yield Row(
            path=path,
            type=_type(field, document),
            required=name in whole.get("required", ()),
            default=_default(field),
            meaning=field.get("description", resolved.get("description", "")),
            limits=_limits(resolved),
        )
        yield from _rows(field, document, path, (*within, *names))
    if "items" in whole:
        yield from _rows(whole["items"], document, f"{prefix}[]", (*within, *names))
    if isinstance(whole.get("additionalProperties"), dict):
        yield from _rows(whole["additionalProperties"], document, f"{prefix}.*", (*within, *names))


def _resolved(schema: Schema, document: Schema) -> tuple[Schema, tuple[str, ...]]:
    """The schema with what it refers to, and the names of that. What stands beside a reference wins."""
    whole: Schema = {}
    names: tuple[str, ...] = ()
    for part in (*schema.get("allOf", ()), *([{"$ref": schema["$ref"]}] if "$ref" in schema else ())):
        inner = part
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            names = (*names, name)
            inner = document["components"]["schemas"][name]
        resolved, more = _resolved(inner, document)
        whole |= resolved
        names = (*names, *more)
    return whole | {key: value for key, value in schema.items() if key not in {"allOf", "$ref"}}, names


def _type(schema: Schema, document: Schema, within: tuple[str, ...] = ()) -> str:
    whole, names = _resolved(schema, document)
    if set(names) & set(within):
        return "the same"
    within = (*within, *names)
    match whole:
        case {"oneOf": options}:
            told = " or ".join(dict.fromkeys(_type(option, document, within) for option in options))
        case {"enum": words}:
            told = "one of " + ", ".join(map(str, words))
        case {"type": "array", "items": items}:
            told = f"list of: {_type(items, document, within)}"
        case {"type": "object", "additionalProperties": dict()}:
            told = f"object, each value: {_type(whole['additionalProperties'], document, within)}"
        case {"type": "string", "format": form}:
            told = f"string, {form}"
        case _:
            told = str(whole.get("type", "any value"))
    return f"{told}, or null" if whole.get("nullable") else told


def _default(schema: Schema) -> str:
    return json.dumps(schema["default"], ensure_ascii=False) if "default" in schema else ""


def _limits(schema: Schema) -> str:
    words = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "minLength": "length at least {}",
        "maxLength": "length at most {}",
        "minItems": "number of entries at least {}",
        "maxItems": "number of entries at most {}",
        "pattern": "matches {}",
    }
    told = [text.format(schema[key]) for key, text in words.items() if key in schema]
    unit = schema.get("x-muster", {}).get("unit")
    return ", ".join([*told, *([f"in {unit}"] if unit else [])])


def _example(schema: Schema, document: Schema, name: str, depth: int) -> Any:
    whole, _ = _resolved(schema, document)
    if depth >= DEEPEST:
        return None
    match whole:
        case {"oneOf": [first, *_]}:
            return _example(first, document, name, depth + 1)
        case {"enum": [first, *_]}:
            return first
        case {"type": "array", "items": items}:
            return [_example(items, document, name.removesuffix("s"), depth + 1)]
        case {"type": "object", "properties": fields}:
            return {key: _example(field, document, key, depth + 1) for key, field in fields.items()}
        case {"type": "object", "additionalProperties": dict()}:
            return {"key": _example(whole["additionalProperties"], document, "value", depth + 1)}
        case {"type": "object"}:
            return {}
        case {"type": "integer" | "number"}:
            return max(whole.get("minimum", 1), min(1, whole.get("maximum", 1)))
        case {"type": "boolean"}:
            return True
        case {"type": "string", "pattern": pattern} if pattern in EXAMPLES_BY_PATTERN:
            return EXAMPLES_BY_PATTERN[pattern]
        case {"type": "string"}:
            return EXAMPLES_BY_FORMAT.get(whole.get("format", ""), name or "text")
        case _:
            return name or "anything"


def _variable(name: str) -> str:
    """`workloadId` as variables of a shell are written: WORKLOAD_ID."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
