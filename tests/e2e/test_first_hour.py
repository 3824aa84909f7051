"""docs/first-hour.md: every command on the page is typed, in its order, and prints what the page says.

`python -m tests.e2e.test_first_hour` writes what is printed into the page.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from development.stack import Stack, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_in(2)]

PAGE: Final = Path(__file__).parents[2] / "docs" / "first-hour.md"
SETTLED_SECONDS: Final = 2.0
"""After which a recording may read what came of the command before."""
GPUS: Final = ("--gpus", "2")
_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MASKS: Final = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)?(ms| ?s| min| h|m|h|d)\b( ago)?"), "SPAN"),
    (re.compile(r"\bjust now\b"), "SPAN"),
    (re.compile(r"'python3' is .+ of this machine"), "'python3' is PROGRAM of this machine"),
    (re.compile(r"/\S*/(?=[a-z]+\.py)"), "FOLDER/"),
    (re.compile(r" (on|to) node \S+?(?=[:;,\s]|$)"), r" \1 node NODE"),
    (re.compile(r"[ \t]+"), " "),
)
"""What is another each time. Columns are as wide as what stands in them, so one space is as good as several."""

_PASSED: Final = re.compile(r"\w+: (Creating|Pending|Initializing|Running|Resuming|Stopping|Deleting)$")
"""A phase that a workload may go through too fast to be seen."""
READS: Final = tuple(f"muster {words}" for words in ("workload ", "training logs"))
"""What is as new as the tables, and as the machine, which follow within moments."""


class Step:
    """A command as it is typed, and what it prints."""

    def __init__(self, command: str, output: str) -> None:
        self.command = command
        self.output = output

    def __repr__(self) -> str:
        return self.command.partition("\n")[0]


def steps(block: str) -> Iterator[Step]:
    command, output = "", ""
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield Step(command, output)
            command, output = line[2:], ""
        elif line.startswith("> ") or line == ">\n":
            command += line[2:]
        else:
            output += line
    yield Step(command, output)


def typed(stack: Stack, folder: Path, command: str) -> str:
    """What a terminal shows of a command: what it prints and what it tells, in this order."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{stack.environment['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=stack.environment | {"PATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ran.stdout + ran.stderr


def masked(output: str) -> list[str]:
    for pattern, word in _MASKS:
        output = pattern.sub(word, output)
    return [line.strip() for line in output.splitlines() if not _PASSED.match(line)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("hour"), *GPUS) as stack:
        yield stack


def test_every_command_of_the_first_hour_prints_what_the_page_says(stack: Stack, tmp_path: Path) -> None:
    for block in _BLOCK.findall(PAGE.read_text()):
        for step in steps(block):
            seen: list[str] = []

            def as_told(step: Step = step, seen: list[str] = seen) -> bool | None:
                seen[:] = masked(typed(stack, tmp_path, step.command))
                return True if seen == masked(step.output) else None

            if step.command.startswith(READS):
                with contextlib.suppress(AssertionError):
                    until(as_told, 60)
            else:
                as_told()
            assert seen == masked(step.output), step.command


def record() -> None:
    """Write what the commands print into the page."""
    with tempfile.TemporaryDirectory() as home, running(Path(home), *GPUS) as stack:
        folder = Path(home) / "first-hour"
        folder.mkdir()

        def again(block: re.Match[str]) -> str:
            told: list[str] = []
            for step in steps(block[1]):
                if step.command.startswith(READS):
                    time.sleep(SETTLED_SECONDS)
                first, *more = step.command.splitlines()
                shown = [f"$ {first}\n", *(f"> {line}".rstrip() + "\n" for line in more)]
                told += [*shown, typed(stack, folder, step.command).rstrip()]
                told[-1] += "\n" if told[-1] else ""
            return f"```console\n{''.join(told)}```"

        PAGE.write_text(_BLOCK.sub(again, PAGE.read_text()))


if __name__ == "__main__":
    record()
