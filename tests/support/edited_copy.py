"""A copy of the program with a few edits, seen in a process of its own: what a new field or event costs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 400
"""For all of it, where a machine has much else to do."""
PACKAGES = ("events", "projections", "services", "muster", "tools")
EACH = """
import json, sys, traceback
wrong = {}
for name, script in json.load(sys.stdin).items():
    wrong[name] = ""
    try:
        exec(compile(script, name, "exec"), {"__name__": name})
    except BaseException:
        wrong[name] = traceback.format_exc()
print(json.dumps(wrong))
"""
"""Copies come first in its path; what tests and development have comes from here."""


def copy(folder: Path) -> None:
    """With what is compiled already, but for what is being written this moment: to compile all of it takes seconds."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.pyc.*"))


def edit(file: Path, *replacements: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in replacements:
        assert text.count(old) == 1, f"{file.name} has not one {old!r}"
        text = text.replace(old, new)
    file.write_text(text)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What somebody adds to the program, and a script that sees it there: it raises where it does not."""

    make: Callable[[Path], None]
    """In a copy of the program."""
    seen: str


def see(folder: Path, changes: Mapping[str, Change]) -> dict[str, str]:
    """Make all of them in one copy, and see each in one process: what is wrong with each, by its name, or nothing."""
    copy(folder)
    for change in changes.values():
        change.make(folder)
    ran = subprocess.run(
        [sys.executable, "-c", EACH],
        input=json.dumps({name: change.seen for name, change in changes.items()}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
