"""Clients that are generated from the served OpenAPI: without a warning, fully typed, and at work on a real API."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, serving
from tests.support.lacking import lacking

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

HERE = Path(__file__).parents[1] / "clients"
BESIDE_PYTHON = str(Path(sys.executable).parent)
UNTYPED = re.compile(r"^    (?!additional_properties)\w+: .*\b(Any|object)\b", re.MULTILINE)
"""A field of a generated model that says nothing; `additional_properties` are what no schema names."""


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest.fixture
def openapi(served: Served, tmp_path: Path) -> Path:
    with served.client() as client:
        answer = client.get("/openapi.json")
    assert answer.status_code == 200, answer.text
    path = tmp_path / "openapi.json"
    path.write_text(answer.text)
    return path


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"PATH": BESIDE_PYTHON + os.pathsep + os.environ["PATH"]}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def arguments(served: Served, name: str) -> tuple[str, ...]:
    return served.url, served.token("admin"), name, served.project, served.cluster


def test_a_client_in_python_is_generated_typed_and_submits_and_lists(
    served: Served, openapi: Path, tmp_path: Path
) -> None:
    # The generator knows no lines of JSON; they are text to it.
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"content_type_overrides": {"application/jsonl": "text/plain"}}))
    told = run(
        tmp_path, "openapi-python-client", "generate", "--path", str(openapi), "--meta", "none",
        "--output-path", "generated", "--fail-on-warning", "--config", str(config),
    )  # fmt: skip
    assert "warning" not in told.lower()
    models = sorted((tmp_path / "generated/models").glob("*.py"))
    assert models
    untyped = [(path.name, found.group()) for path in models for found in UNTYPED.finditer(path.read_text())]
    # Of a field of whatever kind, as it is evaluated or would have to be, nothing says more of its values.
    assert {name for name, _ in untyped} == {"evaluated_field.py", "change_step.py"}
    shutil.copy(HERE / "python/program.py", tmp_path)
    # The generator's own client.py is the same for every document, and is not what is looked at.
    checked = {"include": ["program.py", "generated/models", "generated/api"], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(checked))
    run(tmp_path, "basedpyright", "--pythonpath", sys.executable)
    assert run(tmp_path, sys.executable, "program.py", *arguments(served, "in-python")) == "in-python\n"


def test_a_client_in_typescript_is_generated_typed_and_submits_and_lists(
    served: Served, openapi: Path, tmp_path: Path
) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        lacking("Node and npm are not installed")
    for name in ("package.json", "package-lock.json", "program.ts"):
        shutil.copy(HERE / "typescript" / name, tmp_path)
    reached = subprocess.run(
        ["npm", "ping", "--fetch-retries=2", "--fetch-timeout=10000"], cwd=tmp_path, capture_output=True, check=False
    )
    if reached.returncode != 0:
        lacking("the npm registry is not reached")
    run(tmp_path, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    # A property with a default may be left out of a request.
    run(
        tmp_path, "node_modules/.bin/openapi-typescript", str(openapi), "-o", "schema.d.ts",
        "--default-non-nullable", "false",
    )  # fmt: skip
    run(tmp_path, "node_modules/.bin/tsc", "--strict", "--module", "nodenext", "--target", "es2022", "program.ts")
    assert run(tmp_path, "node", "program.js", *arguments(served, "in-typescript")) == "in-typescript\n"
