"""`python -m tests.mutants.show MODULE FUNCTION`: which code stands there, here and in a Python started from here."""

import importlib
import subprocess
import sys

module, name, *more = sys.argv[1:]
function = getattr(importlib.import_module(module), name)
print(function.__code__.co_qualname, flush=True)
if not more:
    subprocess.run([sys.executable, "-m", "tests.mutants.show", module, name, "again"], check=True)
