"""The house is in order: what is shipped and what measures it import no tests, and a function fits a screen."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("events", "projections", "services", "muster")
MOST_LINES = 70
"""Of one function: a screen."""
GENERATED = ROOT / "clients" / "python" / "muster_client" / "operations.py"
"""As long as what it lists, such as the names of all commands."""


def modules(*folders: str) -> Iterator[Path]:
    return itertools.chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in folders)


def packages(path: Path) -> set[str]:
    """The first part of the name of everything that a module imports."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    ("folders", "foreign"),
    [
        (SHIPPED, {"tests", "benchmarks", "development", "tools"}),
        (("development",), {"tests", "benchmarks"}),
        (("benchmarks", "tools", "examples"), {"tests"}),
        (("clients", "examples"), {*SHIPPED, "tests", "benchmarks", "development", "tools"}),
    ],
    ids=["shipped", "development", "benchmarks", "clients"],
)
def test_nothing_imports_what_is_further_from_the_product(folders: tuple[str, ...], foreign: set[str]) -> None:
    found = {str(path.relative_to(ROOT)): packages(path) & foreign for path in modules(*folders)}
    assert found
    assert {path: names for path, names in found.items() if names} == {}


def test_a_function_fits_a_screen() -> None:
    lengths = {
        f"{path.relative_to(ROOT)} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in modules(*SHIPPED, "development", "benchmarks", "tools", "tests", "clients", "examples")
        if path != GENERATED
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
