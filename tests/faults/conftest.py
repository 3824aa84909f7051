"""How long a fault run is: `--rounds N`, or `--short` for CI, which also takes one in ONE_IN of all tests. `--seed N`
(tests/conftest.py): what it draws.
"""

from typing import Final

import pytest

from tests.support.sample import begin, keep_some

ONE_IN: Final = 4
SHORT_SECONDS: Final = 900
"""After which one of CI's runs has hung."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=20, help="kills of each kind")
    parser.addoption("--short", action="store_true", help="for CI: a part of them, with two kills of each kind")


def pytest_sessionstart(session: pytest.Session) -> None:
    begin(session.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.short:
        long = [item for item in items if item.get_closest_marker("in_full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
        keep_some(config, items, one_in)
        keep_some(config, items, lambda _: ONE_IN, of=lambda _: None)
        for item in items:
            item.add_marker(pytest.mark.timeout(SHORT_SECONDS), append=False)


def one_in(item: pytest.Item) -> int:
    marker = item.get_closest_marker("one_in")
    return 1 if marker is None else marker.args[0]


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    options = request.config.option
    return 2 if options.short else options.rounds
