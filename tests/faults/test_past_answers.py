"""Every list and item as of hundreds of moments is what the checker's own books say of it."""

import itertools
import random
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import serving
from tests.support.past_answers import differences_at, wide_log

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

SHOWN = 20


def test_answers_of_200_moments_are_those_of_the_checker(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options = request.config.option
    moments, length = (5, 150) if options.short else (200, 300)
    commits = wide_log(options.seed, commits=length)
    with serving(nats_server, postgres_server, tmp_path, "", commits) as served, served.client() as admin:
        found = list(itertools.islice(differences_at(admin, commits, moments, random.Random(options.seed)), SHOWN))
    assert not found, "\n".join(found)
