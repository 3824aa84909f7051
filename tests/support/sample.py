"""Short forms of long suites: of tests that are alike, one in so many, others in each run; `--seed` takes the same."""

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import pytest

_short: list[random.Random] = []
"""One where this run is a short form."""


def begin(config: pytest.Config) -> None:
    """Before tests are collected: what `some_of` keeps to."""
    _short[:] = [random.Random(config.option.seed)] if config.option.short else []


def some_of[T](many: Sequence[T], one_in: int) -> list[T]:
    """All; in a short form, as many as `keep_some` keeps. For tests that take long to be collected."""
    return _short[0].sample(many, max(1, len(many) // one_in)) if _short else list(many)


def keep_some(
    config: pytest.Config,
    items: list[pytest.Item],
    one_in: Callable[[pytest.Item], int],
    of: Callable[[pytest.Item], Hashable] = lambda item: item.path,
) -> None:
    """Deselects the others.

    Args:
        one_in: of how many tests like this one, one stays; 1: it stays.
        of: what tests that are alike have in common besides; at least one of them stays.
    """
    many: dict[tuple[Hashable, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        many[of(item), one_in(item)].append(item)
    chance = random.Random(config.option.seed)
    left = {
        id(item)
        for (_, n), alike in many.items()
        for item in chance.sample(alike, len(alike) - max(1, len(alike) // n))
    }
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
    items[:] = [item for item in items if id(item) not in left]
