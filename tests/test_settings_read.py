"""Nothing is declared that nothing reads: settings, variables of the deployments, options of commands."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from muster.embedded.datadir import DataDir, Ports
from muster.embedded.environment import NO_SETTINGS, SET_BY_UP, agent_environment
from muster.embedded.up import ADMIN_SUBJECT
from services.runtime.process.settings import Settings

ROOT = Path(__file__).parents[1]
PRODUCT = ("events", "projections", "services", "muster")
SETTINGS = ROOT / "services" / "runtime" / "process" / "settings.py"
COMPOSE = sorted(ROOT.glob("docker-compose*.yml"))
EXAMPLE = ROOT / "deploy" / "env.example"
VARIABLE = re.compile(r"\bMUSTER_[A-Z0-9_]*[A-Z0-9]\b")
READS = re.compile(r"settings(\(\))?\s*\.", re.IGNORECASE)
OTHERS = frozenset({"GOMEMLIMIT", "GOGC", "POSTGRES_USER", "POSTGRES_DB", "PATH", "HOME", "NATS_URL", "NATS_CA"})
"""Of programs that are not ours."""


@cache
def sources() -> dict[Path, str]:
    return {file: file.read_text() for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(sources()[file])


def named(holder: ast.expr) -> str:
    """The last word of what is read of: of `self._settings`, `_settings`."""
    match holder:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=called, args=[], keywords=[]):
            return named(called)
        case _:
            return ""


@cache
def read_of_settings() -> frozenset[str]:
    """Names that are read of something called settings; within its own module, of itself."""
    found: set[str] = set()
    for file, text in sources().items():
        # To parse those that read nothing takes seconds.
        for node in ast.walk(parsed(file)) if file == SETTINGS or READS.search(text) else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                holder = named(node.value).lower()
                if holder.endswith("settings") or (file == SETTINGS and holder == "self"):
                    found.add(node.attr)
    return frozenset(found)


def is_a_word(variable: str) -> bool:
    """Whether it is a whole text somewhere in the product."""
    return any(f'"{variable}"' in text for text in sources().values())


def is_read(variable: str) -> bool:
    setting = variable.removeprefix("MUSTER_").lower()
    return setting in Settings.model_fields or is_a_word(variable) or variable in OTHERS


def test_every_setting_is_read() -> None:
    assert Settings.model_fields.keys() - read_of_settings() == set()


def test_every_setting_is_either_taken_by_up_or_set_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {f"MUSTER_{name.upper()}" for name in Settings.model_fields}
    for variable in variables:
        monkeypatch.setenv(variable, "of the user")
    data = DataDir(root=Path("/nowhere"))
    passed = agent_environment(data, Ports(nats=1, postgres=2, control_health=3, workers_health=4), "c1", 5)
    taken = {variable for variable in variables if passed.get(variable) == "of the user"}
    assert taken == variables - SET_BY_UP.keys()


def test_what_up_sets_itself_are_settings_and_what_pods_are_told_are_none() -> None:
    settings = {f"MUSTER_{name.upper()}" for name in Settings.model_fields}
    assert settings >= SET_BY_UP.keys()
    assert Settings.model_fields["admin_subject"].default == ADMIN_SUBJECT
    assert {"MUSTER_DATA_DIR"} == settings & NO_SETTINGS
    environment = ROOT / "services" / "agent" / "backends" / "local" / "environment.py"
    assert {*VARIABLE.findall(environment.read_text())} <= NO_SETTINGS


@pytest.mark.parametrize("tool", ["python-env", "kube/kube-tools"])
def test_what_our_tools_read_does_not_keep_up_from_starting(tool: str) -> None:
    """`make up` runs with it."""
    assert {*VARIABLE.findall((ROOT / "tools" / tool).read_text())} <= NO_SETTINGS


def given_in_compose(file: Path) -> Iterator[tuple[str, str]]:
    for name, service in yaml.safe_load(file.read_text())["services"].items():
        for variable in service.get("environment", {}):
            yield name, variable


def given_on_kubernetes() -> Iterator[tuple[str, str]]:
    for file in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] == "ConfigMap":
                yield from ((file.name, variable) for variable in document["data"])
            spec = document.get("spec", {}).get("template", {}).get("spec", {}) if "spec" in document else {}
            for container in spec.get("containers", ()):
                yield from ((file.name, variable["name"]) for variable in container.get("env", ()))


def given_in_image() -> Iterator[tuple[str, str]]:
    yield from (("Dockerfile", name) for name in VARIABLE.findall((ROOT / "deploy" / "Dockerfile").read_text()))


def test_every_variable_of_a_deployment_is_read() -> None:
    given = {pair for file in COMPOSE for pair in given_in_compose(file)}
    given |= {*given_on_kubernetes(), *given_in_image()}
    assert len(given) > 50
    assert [pair for pair in sorted(given) if not is_read(pair[1])] == []


def test_what_the_example_of_compose_sets_is_taken_and_what_is_taken_stands_there() -> None:
    taken = {name for file in COMPOSE for name in re.findall(r"\$\{([A-Z0-9_]+)", file.read_text())}
    shown = set(re.findall(r"^#? ?([A-Z0-9_]+)=", EXAMPLE.read_text(), re.MULTILINE))
    assert taken == shown


def options_of_commands() -> Iterator[tuple[str, ast.FunctionDef]]:
    for file in (ROOT / "muster" / "cli").glob("*.py"):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(mark, ast.Call) and ast.unparse(mark.func) == "command" for mark in node.decorator_list
            ):
                yield f"{file.stem}.{node.name}", node


def test_every_option_of_a_command_is_read() -> None:
    functions = dict(options_of_commands())
    assert len(functions) > 30
    for name, function in functions.items():
        given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
        read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        assert given <= read, name


def test_every_option_of_the_supervisor_is_read() -> None:
    module = parsed(ROOT / "muster" / "embedded" / "up.py")
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    flags = {
        ast.literal_eval(call.args[0]).removeprefix("--").replace("-", "_")
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
    }
    read = {node.attr for node in ast.walk(module) if isinstance(node, ast.Attribute)}
    assert len(flags) > 5
    assert flags <= read
