"""Evaluate and submit agree on ten thousand generated requests, under a hundred policies; `--short` takes a hundred."""

import random
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
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
