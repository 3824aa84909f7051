"""The checker shares no code with what it checks: it imports the standard library, itself, and two clients."""

import ast
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "development" / "checker"
CLIENTS = {"asyncpg", "nats"}
"""For reading what is stored, in one module."""


def imported(path: Path) -> set[str]:
    """Full names of all that a module imports, wherever it says so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_the_checker_imports_nothing_of_the_product(path: Path) -> None:
    foreign = {
        name
        for name in imported(path)
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("development.checker.")
    }
    allowed = CLIENTS if path.name == "reading.py" else set()
    assert {name.partition(".")[0] for name in foreign} <= allowed, foreign
