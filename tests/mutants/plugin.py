"""For pytest (`-p tests.mutants.plugin`): the mutant in this process, and in every Python that it starts.

Tests that try many examples come last, as the others are quicker to see a bug.

Everything that tests and services start names its interpreter `sys.executable`. That becomes a small program which puts
the mutant in its place first (interpreter.py); so nothing that is shipped knows of mutants.
"""

import atexit
import importlib
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mutants.hook import activate
from tests.mutants.mutant import ROOT, VARIABLE

INTERPRETER = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.mutants.interpreter import main
main({python!r})
"""
"""The kernel starts it by its first line."""


def write_interpreter(folder: Path) -> Path:
    path = folder / "python"
    path.write_text(INTERPRETER.format(python=sys.executable, root=str(ROOT)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


if os.environ.get(VARIABLE):
    activate()
    linux = importlib.import_module("muster.embedded.linux")
    # A gate that is interrupted leaves no suite behind.
    linux.child_die_with(os.getppid())
    _folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    _folder.chmod(0o755)
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    sys.executable = str(write_interpreter(_folder))
