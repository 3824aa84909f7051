"""Evaluate and submit agree on ten thousand generated requests, under a hundred policies; `--short` takes a hundred."""

import random
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.any_request import agree_on_any
from tests.support.api import serving
from tests.support.requests import agree

pytestmark = pytest.mark.faults


def test_what_evaluates_well_is_accepted_and_nothing_else(
    nats_server: NatsServer,
    postgres_server: PostgresServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    chance: random.Random,
) -> None:
    policies = 5 if request.config.option.short else 100
    with serving(nats_server, postgres_server, tmp_path) as served, served.client() as admin:
        agree(admin, served, chance, policies=policies, requests=20 if policies == 5 else 100)


def test_requests_of_any_kind_with_any_fields_evaluate_as_they_are_accepted_and_are_read_back_as_they_were_asked(
    nats_server: NatsServer,
    postgres_server: PostgresServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    chance: random.Random,
) -> None:
    """All fields of all four kinds: five thousand requests, of every second something small is changed."""
    count = 100 if request.config.option.short else 5_000
    with serving(nats_server, postgres_server, tmp_path) as served, served.client() as admin:
        agree_on_any(admin, served, chance, requests=count)
