"""How long a fault run is: `--rounds N`, or `--short` for CI. `--seed N` (tests/conftest.py): what it draws."""

import pytest

from tests.support.sample import keep_some


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=20, help="kills of each kind")
    parser.addoption("--short", action="store_true", help="two kills of each kind, and one in N of tests that are many")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.short:
        keep_some(config, items, one_in)


def one_in(item: pytest.Item) -> int:
    marker = item.get_closest_marker("one_in")
    return 1 if marker is None else marker.args[0]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    options = request.config.option
    return 2 if options.short else options.rounds
