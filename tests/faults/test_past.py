"""Rows as of hundreds of moments are those of the log up to there, and those of the checker."""

import pytest

from projections.migrate import prepare
from tests.support.past import rows_are_those_of_the_checker, rows_are_those_of_the_log

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.one_in(5)]


@pytest.fixture
async def database(postgres_database: str) -> str:
    await prepare(postgres_database)
    return postgres_database


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_rows_of_40_moments_are_those_of_the_log_up_to_there(database: str, seed: int) -> None:
    await rows_are_those_of_the_log(database, seed, moments=40)


async def test_rows_of_200_moments_are_those_of_the_checker(database: str) -> None:
    await rows_are_those_of_the_checker(database, moments=200)
