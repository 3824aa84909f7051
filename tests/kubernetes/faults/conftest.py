"""How often each thing is broken: `--percent N` of the full counts, `--short`: a tenth, at least once, and one in so
many tests (tests/kubernetes/conftest.py); `--seed N` (tests/conftest.py): what it draws.
"""

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from development.kubernetes.checker import Recorder
from development.kubernetes.stack import running_stack
from tests.kubernetes.faults.scenario import HEAD, Row, World, foreign_pods, make_foreign_pods

ROWS: list[Row] = []
SHORT_PERCENT = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--percent", type=int, default=100, help="of the full counts")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ROWS:
        terminalreporter.write_sep("=", "what was broken, how often, and what was violated")
        terminalreporter.write_line(HEAD)
        for row in ROWS:
            terminalreporter.write_line(str(row))


@pytest.fixture(scope="session")
def times(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How often something is done whose full count is given."""
    options = request.config.option
    percent = SHORT_PERCENT if options.short else options.percent
    return lambda full: max(1, round(full * percent / 100))


class _Worlds:
    """The one that all tests use, and another after a test that left it broken."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self.world: World | None = None

    def take(self, chance: random.Random) -> World:
        if self.world is None:
            stack = self._open.enter_context(running_stack(nodes=4, gpus=4))
            recorder = self._open.enter_context(Recorder(stack.plane))
            self.world = World(stack, recorder, ROWS, chance, foreign=make_foreign_pods(stack))
        self.world.chance = chance
        return self.world

    def close(self) -> None:
        self._open.close()
        self._open, self.world = contextlib.ExitStack(), None


@pytest.fixture(scope="session")
def worlds() -> Iterator[_Worlds]:
    made = _Worlds()
    yield made
    made.close()


@pytest.fixture
def world(worlds: _Worlds, chance: random.Random) -> Iterator[World]:
    """Everything runs, and nothing is there but foreign pods."""
    taken = worlds.take(chance)
    before = len(ROWS)
    yield taken
    if any(row.violations != 0 for row in ROWS[before:]) or foreign_pods(taken.stack) != taken.foreign:
        worlds.close()
