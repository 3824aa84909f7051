"""`/docs`, from the document that it is made from: every operation can be tried as it stands there."""

import asyncio
import html
import json
import re
import shlex
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft4Validator

from services.api.application import OPERATIONS
from services.api.docs_page import curl, docs_page, example_of, fields_of
from services.api.openapi import document
from services.api.operations import JSON
from services.api.pages import made_once


@cache
def whole() -> dict[str, Any]:
    return document(OPERATIONS)


@cache
def page() -> str:
    return docs_page(whole())


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each with its method and its path."""
    for path, of_path in whole()["paths"].items():
        for method, operation in of_path.items():
            yield method.upper(), path, operation


@cache
def sections() -> dict[str, str]:
    """What the page says of each operation, as text."""
    found = re.findall(r'<details id="(\w+)">(.*?)(?=<details id=|</section>)', page(), re.DOTALL)
    return {name: html.unescape(text) for name, text in found}


def nullable(schema: Any) -> Any:
    """OpenAPI 3.0's mark for null, as JSON Schema writes it."""
    if isinstance(schema, list):
        return [nullable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: nullable(value) for key, value in schema.items() if key not in {"nullable", "pattern"}}
    return {"anyOf": [{"type": "null"}, inner]} if schema.get("nullable") is True else inner


def test_an_example_is_a_command_that_sends_the_example_of_the_body(subtests: pytest.Subtests) -> None:
    for method, path, operation in operations():
        with subtests.test(operation["operationId"]):
            assert curl(method, path, operation) in sections()[operation["operationId"]]
            words = shlex.split(curl(method, path, operation).replace("\\\n", ""))
            assert words[0] == "curl"
            assert (words[words.index("-X") + 1] if "-X" in words else "GET") == method
            (address,) = [word for word in words if word.startswith("$MUSTER_URL")]
            assert "{" not in address, "curl would take braces for a list"
            assert len(address.split("/")) == len(f"$MUSTER_URL{path}".split("/"))
            body = operation.get("requestBody")
            assert (json.loads(words[words.index("-d") + 1]) if "-d" in words else None) == (
                body["content"][JSON]["example"] if body else None
            )


def test_the_example_of_an_answer_is_what_its_schema_allows(subtests: pytest.Subtests) -> None:
    components = nullable({"components": whole()["components"]})
    for _, _, operation in operations():
        shown = sections()[operation["operationId"]]
        contents = [
            (status, content["schema"])
            for status, answer in operation["responses"].items()
            for media, content in answer["content"].items()
            if status < "400" and media == JSON
        ]
        for status, schema in contents:
            with subtests.test(operation["operationId"], status=status):
                example = example_of(schema, whole())
                example |= {"code": int(status)} if "code" in example else {}
                assert json.dumps(example, indent=2, ensure_ascii=False) in shown
                validator = Draft4Validator(nullable(schema) | components)
                assert [str(error.message) for error in validator.iter_errors(example)] == []


def test_every_parameter_error_and_field_of_a_body_stands_there(subtests: pytest.Subtests) -> None:
    for _, _, operation in operations():
        with subtests.test(operation["operationId"]):
            shown = sections()[operation["operationId"]]
            for parameter in operation.get("parameters", ()):
                assert f"<code>{parameter['name']}</code>" in shown
            for status, answer in operation["responses"].items():
                assert status in shown
                assert answer["description"] in shown
            body = operation.get("requestBody")
            rows = list(fields_of(body["content"][JSON]["schema"], whole())) if body else []
            assert {row.path for row in rows} >= set(body["content"][JSON]["example"] if body else ())
            for row in rows:
                assert row.meaning, row.path
                assert f"<td><code>{row.path}</code></td><td>{row.type}</td>" in shown


def test_a_field_of_a_training_is_told_with_type_default_meaning_and_limits() -> None:
    operation = whole()["paths"]["/api/v1/workloads/trainings"]["post"]
    rows = {row.path: row for row in fields_of(operation["requestBody"]["content"][JSON]["schema"], whole())}
    assert (rows["name"].required, rows["name"].type, rows["spec.image"].required) == (True, "string", False)
    assert "length at least 1" in rows["name"].limits
    retries = rows["spec.backoffLimit"]
    assert (retries.type, retries.required) == ("integer, or null", False)
    assert "0 to 100. Default: 6." in retries.meaning
    assert rows["useGivenNameAsPrefix"].default == "false"
    assert rows["spec.environmentVariables"].type.startswith("list of: object")
    assert "spec.environmentVariables[].name" in rows


def test_the_page_has_no_script_no_style_of_its_own_and_nothing_from_elsewhere() -> None:
    assert "<script" not in page()
    assert not re.search(r"<style|\sstyle=|\son\w+=", re.sub(r"<pre>.*?</pre>", "", page(), flags=re.DOTALL))
    assert set(re.findall(r'(?:src|href)="([^"#][^"]*)"', page())) == {"/docs.css", "/openapi.json", "/asyncapi.json"}


@pytest.mark.anyio
async def test_what_takes_long_to_make_is_made_once_and_holds_up_nobody() -> None:
    """Anybody may ask for it, also while it is made."""
    go, made = threading.Event(), list[int]()

    def make() -> str:
        assert go.wait(60), "the event loop stands still"
        made.append(1)
        return "a page"

    made_page = made_once(make)
    asking = [asyncio.ensure_future(made_page()) for _ in range(3)]
    await asyncio.sleep(0.05)
    go.set()
    assert await asyncio.gather(*asking) == ["a page"] * 3
    assert (await made_page(), made) == ("a page", [1])
