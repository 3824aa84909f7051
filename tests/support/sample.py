"""Short forms of long suites: of tests that are alike, one in so many, others in each run; `--seed` takes the same."""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest


def keep_some(config: pytest.Config, items: list[pytest.Item], one_in: Callable[[pytest.Item], int]) -> None:
    """Deselects the others: of each file at least one of those that are alike stays. `one_in` 1: it stays."""
    many: dict[tuple[Path, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        many[item.path, one_in(item)].append(item)
    chance = random.Random(config.option.seed)
    left = {
        id(item)
        for (_, n), alike in many.items()
        for item in chance.sample(alike, len(alike) - max(1, len(alike) // n))
    }
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
    items[:] = [item for item in items if id(item) not in left]
