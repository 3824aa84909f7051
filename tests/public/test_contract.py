"""The published documents: valid, true of what is written, and only ever added to."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from events.public.registry import PUBLIC_EVENTS
from services.api.asyncapi import document

ROOT = Path(__file__).parent
COMMITTED = ROOT / "asyncapi.json"
"""What was published before. Add to it (the test says what); change nothing in it."""


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    return document()


def resolved(root: Any, pointer: str) -> Any:
    for part in pointer.removeprefix("#/").split("/"):
        root = root[part]
    return root


def references(node: Any) -> list[str]:
    match node:
        case dict():
            found = [node["$ref"]] if "$ref" in node else []
            return found + [ref for inner in node.values() for ref in references(inner)]
        case list():
            return [ref for inner in node for ref in references(inner)]
        case _:
            return []


def test_every_reference_leads_somewhere(published: dict[str, Any]) -> None:
    assert all(resolved(published, ref) is not None for ref in references(published))


def test_every_event_has_channel_operation_message_and_schema(published: dict[str, Any]) -> None:
    names = set(PUBLIC_EVENTS)
    assert set(published["channels"]) == names
    assert set(published["operations"]) == {f"send{name}" for name in names}
    assert set(published["components"]["messages"]) == names
    assert set(published["components"]["schemas"]) >= names


@pytest.mark.parametrize("name", sorted(PUBLIC_EVENTS))
def test_what_is_written_is_as_its_schemas_say(name: str, published: dict[str, Any]) -> None:
    golden = json.loads((ROOT / "goldens" / f"{name}.json").read_text())
    message = published["components"]["messages"][name]
    for said, written in ((message["payload"], golden["data"]), (message["headers"], golden["headers"])):
        schema = {**said, "components": published["components"]}
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.Draft202012Validator(schema).validate(written)
    address = published["channels"][name]["address"].split(".")
    subject = golden["subject"].split(".")
    assert len(address) == len(subject)
    assert all(said.startswith("{") or said == is_ for said, is_ in zip(address, subject, strict=True))


def taken_away(before: Any, after: Any, where: str = "") -> list[str]:
    """What of the committed document holds no more. Descriptions may change; lists and objects may grow."""
    match before, after:
        case dict(), dict():
            found: list[str] = []
            for key, value in before.items():
                if key in ("description", "summary", "version"):
                    continue
                if key not in after:
                    found.append(f"{where}/{key} is gone")
                else:
                    found += taken_away(value, after[key], f"{where}/{key}")
            return found
        case list(), list():
            return [f"{where} lost {item}" for item in before if item not in after]
        case _:
            return [] if before == after else [f"{where} was {before}, and is {after}"]


def test_nothing_is_taken_away_from_what_was_published(published: dict[str, Any]) -> None:
    """And what was added is committed, so that it stays from now on."""
    committed = json.loads(COMMITTED.read_text())
    assert taken_away(committed, published) == []
    assert taken_away(published, committed) == [], "add it to tests/public/asyncapi.json"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": {"type": "string"}}, {}),
        ({"a": {"type": "string"}}, {"a": {"type": "integer"}}),
        ({"required": ["a"]}, {"required": []}),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    ],
)
def test_what_is_taken_away_is_seen(before: Any, after: Any) -> None:
    assert taken_away(before, after)
    assert not taken_away(before, {**before, "more": 1})
