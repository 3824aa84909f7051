"""`--short`, for CI: one in ONE_IN of the tests of each file, and of the long stories one in two."""

import contextlib
from collections.abc import Hashable

import pytest

from tests.support.sample import keep_some

ONE_IN = 3
TIMEOUT_SECONDS = 300
"""The first test of a module starts all of Muster, which takes over a minute where a machine has much else to do."""


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # where tests/faults or tests/kubernetes is run along, it is there already
        parser.addoption("--short", action="store_true", help="for CI: a part of it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("e2e") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
    if config.option.short:
        keep_some(config, items, one_in, of=alike)


def one_in(item: pytest.Item) -> int:
    if item.get_closest_marker("e2e") is None:
        return 1
    marker = item.get_closest_marker("one_in")
    return ONE_IN if marker is None else marker.args[0]


def alike(item: pytest.Item) -> Hashable:
    return item.path if item.get_closest_marker("one_in") is None else "a story that takes a minute or more"
