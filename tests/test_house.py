"""The house is in order: what is shipped and what measures it import no tests, and a function fits a screen."""

import ast
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("events", "projections", "services", "muster")
MOST_LINES = 70
"""Of one function: a screen."""
LONGER = {"services/agent/backends/kubernetes/backend.py __init__"}
"""It puts the parts of the agent together. Of functions of one name in a module only the last was measured before."""
GENERATED = ROOT / "clients" / "python" / "muster_client" / "operations.py"
"""As long as what it lists, such as the names of all commands."""


def modules(*folders: str) -> Iterator[Path]:
    return itertools.chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in folders)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All within it, those of functions and branches, too. Expressions hold none, and are most of a module."""
    for held in (getattr(tree, part, ()) for part in ("body", "orelse", "finalbody", "handlers", "cases")):
        for one in held if isinstance(held, list) else ():
            if isinstance(one, ast.stmt):
                yield one
            yield from statements(one)


@cache
def read(path: Path) -> tuple[frozenset[str], dict[str, int]]:
    """The first part of the name of everything that a module imports; and how many lines each function has."""
    names: list[str] = []
    lengths: dict[str, int] = {}
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            lengths[node.name] = max(lines, lengths.get(node.name, 0))
    return frozenset(name.partition(".")[0] for name in names), lengths


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
    found = {str(path.relative_to(ROOT)): read(path)[0] & foreign for path in modules(*folders)}
    assert found
    assert {path: names for path, names in found.items() if names} == {}


def test_a_function_fits_a_screen() -> None:
    lengths = {
        f"{path.relative_to(ROOT)} {name}": lines
        for path in modules(*SHIPPED, "development", "benchmarks", "tools", "tests", "clients", "examples")
        if path != GENERATED
        for name, lines in read(path)[1].items()
    }
    assert len(lengths) > 1000
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES and name not in LONGER} == {}
