"""A copy of the program with a few edits, seen in a process of its own: what a new field or event costs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("events", "projections", "services", "muster", "tools")


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


def see(folder: Path, script: str) -> None:
    """Run it with the copies first; what tests and development have comes from here."""
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )
    assert (ran.stdout, ran.returncode) == ("seen\n", 0), ran.stderr
