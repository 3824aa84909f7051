"""What stands in for Python where a mutant is active: `-m module` with the bug; everything else as it is."""

import os
import runpy
import sys
from pathlib import Path

from tests.mutants.hook import activate


def main(python: str) -> None:
    """Be what the command line asks for. `python`: the real one."""
    interpreter, *arguments = sys.argv
    if arguments[:1] != ["-m"]:
        # Programs in a file or in words: pods, and what holds them.
        os.execv(python, [python, *arguments])
    sys.executable = interpreter
    sys.argv = arguments[1:]
    sys.path[:2] = [str(Path.cwd())]
    activate()
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
