"""For pytest (`-p tests.mutants.plugin`): the mutant in this process, and in every Python that it starts.

Everything that tests and services start names its interpreter `sys.executable`. That becomes a small program which puts
the mutant in its place first (interpreter.py); so nothing that is shipped knows of mutants.
"""

import atexit
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

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


if os.environ.get(VARIABLE):
    activate()
    _folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    _folder.chmod(0o755)
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    sys.executable = str(write_interpreter(_folder))
