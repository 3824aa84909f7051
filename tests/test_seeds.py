"""What a fault run draws follows from its seed: nothing there asks chance itself."""

import ast
import random
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DRAWING = sorted(
    [*(TESTS / "faults").glob("*.py"), *(TESTS / "kubernetes/faults").glob("*.py"), TESTS / "support/load.py"]
)


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_fault_run_draws_only_from_what_its_seed_made(path: Path) -> None:
    drawn = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"random", "secrets"}
    }
    assert drawn <= {"Random"}


def test_the_same_seed_draws_the_same(pytestconfig: pytest.Config, chance: random.Random) -> None:
    again = random.Random(f"{pytestconfig.option.seed}/test_the_same_seed_draws_the_same")
    assert [chance.random() for _ in range(3)] == [again.random() for _ in range(3)]
