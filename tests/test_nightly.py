"""tools/nightly: all suites run, whatever one of them does, and what each said is told at the end."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = """
test-faults: ; @echo given "$(ARGS)"; echo 3 passed
bench: ; @echo 1 failed; exit 1
mutants: ; @echo begun; exec sh -c 'trap "echo took down; exit 1" INT; for i in 1 2 3 4 5 6; do sleep 10; done'
again: ; @exec tools/nightly $(ARGS)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The script with a Makefile of suites that take no time."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "nightly", tmp_path / "tools" / "nightly")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def ran(project: Path, *command: str) -> tuple[int, str]:
    environment = {**os.environ, "NIGHTLY_SEED": "7", "NIGHTLY_SECONDS": "2"}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def summary(said: str) -> list[list[str]]:
    """Suite, seconds, "s", and the rest, of each line of the end."""
    return [line.split(maxsplit=3) for line in said.partition("== nightly, seed 7,")[2].splitlines()[1:]]


def test_a_suite_that_fails_or_hangs_stops_none_of_the_others_and_fails_the_night(project: Path) -> None:
    code, said = ran(project, "tools/nightly", "bench", "mutants", "test-faults")
    assert code == 1
    assert [(line[0], line[3]) for line in summary(said)] == [
        ("bench", "FAILED (2)               1 failed"),
        ("mutants", "took more than 2 s       took down"),
        ("test-faults", "passed                   3 passed"),
    ]
    assert (project / "out" / "nightly" / "bench.log").read_text().startswith("1 failed\n")


def test_fault_runs_draw_by_the_seed_of_the_night_and_a_good_night_ends_with_0(project: Path) -> None:
    code, said = ran(project, "make", "--no-print-directory", "again", "ARGS=test-faults")
    assert code == 0, said
    assert "given --seed 7" in said


def test_the_last_words_of_a_suite_are_its_own_and_not_those_of_make(project: Path) -> None:
    code, said = ran(project, "make", "--no-print-directory", "again", "ARGS=bench")
    assert code != 0
    assert summary(said)[0][3].endswith("1 failed")


def test_a_suite_that_nobody_has_is_refused_before_any_runs(project: Path) -> None:
    code, said = ran(project, "tools/nightly", "test-faults", "no-such-suite")
    assert code != 0
    assert "no-such-suite" in said
    assert "3 passed" not in said


def test_every_suite_of_a_night_is_a_target_of_the_makefile_and_no_slow_one_is_left_out(project: Path) -> None:
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ": venv" in line}
    (project / "Makefile").write_text("%: ; @echo ran $@\n")
    _, said = ran(project, "tools/nightly")
    slow = {target for target in targets if target.startswith("test-")}
    assert {line[0] for line in summary(said)} == {"bench", "explore", "mutants", *slow}
