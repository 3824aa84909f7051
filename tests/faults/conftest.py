"""How many rounds a fault run has: `--rounds N`, or `--short` for CI. `--seed N` (tests/conftest.py): what it draws."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=20, help="kills of each kind")
    parser.addoption("--short", action="store_true", help="two kills of each kind")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    options = request.config.option
    return 2 if options.short else options.rounds
