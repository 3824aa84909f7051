"""How long a fault run is: `--rounds N`, or `--short` for CI. `--seed N` (tests/conftest.py): what it draws."""

import random
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=20, help="kills of each kind")
    parser.addoption("--short", action="store_true", help="two kills of each kind, and one in N of tests that are many")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.short:
        return
    many: dict[tuple[Path, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is not None:
            many[item.path, marker.args[0]].append(item)
    chance = random.Random(config.option.seed)
    left = {
        id(item)
        for (_, n), alike in many.items()
        for item in chance.sample(alike, len(alike) - max(1, len(alike) // n))
    }
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
    items[:] = [item for item in items if id(item) not in left]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    options = request.config.option
    return 2 if options.short else options.rounds
