"""Pure modules take time and chance as arguments. A contract in pyproject.toml holds imports; this, what they call."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_SCHEDULER = ("batches", "candidates", "columns", "planning", "queue", "room", "snapshot")
PURE = sorted(
    [
        *(ROOT / "events").rglob("*.py"),
        *(ROOT / "projections").glob("*/*.py"),
        *(ROOT / "services" / "scheduler" / "policy").rglob("*.py"),
        *(ROOT / "services" / "scheduler" / f"{name}.py" for name in OF_SCHEDULER),
        *(path for name in ("decide", "plan", "reconcile", "due") for path in (ROOT / "services").glob(f"*/{name}.py")),
    ]
)
READS_THE_WORLD = {"now", "utcnow", "today", "uuid1", "uuid4", "uuid7", "getenv", "open", "print", "read_text"}


def calls(tree: ast.AST) -> set[str]:
    """The last part of the name of everything that is called."""
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {function.id for function in functions if isinstance(function, ast.Name)}
    return names | {function.attr for function in functions if isinstance(function, ast.Attribute)}


def test_a_pure_module_reads_no_clock_no_chance_and_no_file() -> None:
    read = {str(path.relative_to(ROOT)): calls(ast.parse(path.read_text())) & READS_THE_WORLD for path in PURE}
    assert len(read) > 100
    assert {path: found for path, found in read.items() if found} == {}


def test_every_folder_of_services_has_the_parts_of_a_service() -> None:
    for folder in (ROOT / "services").iterdir():
        if folder.is_dir() and folder.name not in {"runtime", "__pycache__"}:
            assert {"__init__.py", "__main__.py", "service.py"} <= {path.name for path in folder.iterdir()}, folder
