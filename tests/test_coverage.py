"""Every requirement has its tests: what docs/coverage.md says is so."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "coverage.md"
ROWS = [*(f"S{n:03}" for n in range(1, 97)), *(f"R{n}" for n in range(1, 41)), *(f"C{n}" for n in range(1, 24))]
WITHOUT_TESTS = {
    "the console's": {"S006"},
    "an older form's; not built": {"S012", "S079"},
}
"""What the page may say of a row instead."""

_ROW = re.compile(r"^\| ([SRC]\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
_PROOF = re.compile(r"`([^`]+)`")
FOUND = _ROW.findall(PAGE.read_text())


def test_every_requirement_stands_there_once() -> None:
    assert [row for row, _ in FOUND] == ROWS


def test_only_rows_that_are_known_have_no_tests() -> None:
    said: dict[str, set[str]] = {}
    for row, words in FOUND:
        if not _PROOF.findall(words):
            said.setdefault(words, set()).add(row)
    assert said == WITHOUT_TESTS


def test_the_tests_that_it_names_exist() -> None:
    missing: list[str] = []
    for row, words in FOUND:
        for proof in _PROOF.findall(words):
            path, _, name = proof.partition("::")
            defined = _tests_of(TESTS / path)
            if not defined or (name and name not in defined):
                missing.append(f"{row}: {proof}")
    assert missing == []


@cache
def _tests_of(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name for node in functions if node.name.startswith("test_")}
