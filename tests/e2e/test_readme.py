"""What the README tells a person to type works, and answers what it promises; so do the examples."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from development.stack import Stack, running

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]

ANSWERS = {
    "muster training submit hello": r"^hello +\S+ +Creating",
    "muster training logs hello": r"^333333283333335000000$",
    "muster workload history hello": r"(?s)submitted.*completed",
    "muster training submit mine": r"^mine +\S+ +Creating",
    "muster training submit -f examples/sweep.yaml": r"^sweep +\S+ +Creating",
    "muster workload list": r"(?m)^sweep .* Completed ",
    "muster log verify": r"no difference",
}
"""A beginning of every command in the section, and what its output must hold."""


def commands(title: str) -> list[str]:
    """The `muster` lines of a section, as they stand there."""
    section = (ROOT / "README.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^    (muster .+)$", section, re.MULTILINE)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("readme")) as stack:
        yield stack


def typed(stack: Stack, line: str) -> subprocess.CompletedProcess[str]:
    """A line as a person types it, in a shell where .venv is active."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{stack.environment['PATH']}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env=stack.environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_every_command_of_the_readme_does_what_it_says(stack: Stack) -> None:
    lines = commands("Try it")
    assert [next((known for known in ANSWERS if line.startswith(known)), line) for line in lines] == list(ANSWERS)
    for line, expected in zip(lines, ANSWERS.values(), strict=True):
        ran = typed(stack, line)
        told = f"{line}\n{ran.stdout}\n{ran.stderr}"
        assert ran.returncode == 0, told
        assert re.search(expected, ran.stdout + ran.stderr, re.MULTILINE), told


@pytest.mark.parametrize(
    ("name", "code", "output"),
    [
        ("primes", 0, "primes below 40000000 2433654"),
        ("failing", 8, "no such dataset"),
        ("volumes", 0, "run 1 of pod 1"),
    ],
)
def test_every_example_ends_as_it_says(stack: Stack, name: str, code: int, output: str) -> None:
    ran = typed(stack, f"muster training submit -f examples/{name}.yaml --wait")
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert output in typed(stack, f"muster training logs {name}").stdout


def test_the_examples_of_assets_say_how_they_are_used(stack: Stack) -> None:
    for name in ("environment", "compute", "template"):
        text = (ROOT / f"examples/{name}.yaml").read_text()
        create, submit = re.findall(r"^#   (muster .+)$", text, re.MULTILINE)
        for line in (create, submit.replace(" -- ", " --wait -- ")):
            ran = typed(stack, line)
            assert ran.returncode == 0, f"{line}: {ran.stdout}{ran.stderr}"
        assert typed(stack, f"muster training logs {submit.split()[3]}").stdout == "42\n"


def test_the_example_of_a_policy_is_kept_to(stack: Stack) -> None:
    line = (ROOT / "examples/policy.yaml").read_text().splitlines()[0].removeprefix("# ")
    assert typed(stack, line).returncode == 0
    ran = typed(stack, "muster training submit greedy -i python:3.13 --gpu-devices-request 3")
    assert ran.returncode == 6, ran.stdout + ran.stderr
    assert "spec.compute.gpuDevicesRequest" in ran.stderr
    assert typed(stack, "muster policy delete trainings -y").returncode == 0


def test_no_example_is_forgotten_here() -> None:
    assert {path.stem for path in (ROOT / "examples").iterdir()} == {
        "primes",
        "failing",
        "sweep",
        "own-script",
        "webhook",
        "notify",
        "subscriber",
        "volumes",
        "environment",
        "compute",
        "template",
        "policy",
        # These four are submitted in tests/api/test_credentials.py.
        "datasource",
        "credential",
        "private",
        "with-credential",
        # This one is played in tests/cli/test_simulate.py.
        "simulate",
        # These seven run in test_kinds.py.
        "workspace",
        "distributed",
        "all-reduce",
        "mpi",
        "tensorflow",
        "xgboost",
        "jax",
        # And these in test_inference.py and test_ports.py.
        "inference",
        "served",
    }
