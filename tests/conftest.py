"""Fixtures for every test: real servers, started once per session, and a fresh log or database per test.

`make test` is several sessions side by side, each in a process of its own: they share nothing, servers included.

`nats_server`      one JetStream server with our configuration and permissions (session)
`fresh_log`        the same server with empty streams, for a test that writes (per test)
`nats_cluster`     three servers in a cluster (session)
`postgres_url`     a Postgres server (session)
`postgres_database` a new empty database on it (per test)
`chance`           what a test draws by: the same for the same test and `--seed`, which is printed (per test)
"""

import asyncio
import os
import random
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from tests.support.servers import EVERYTHING, NatsCluster, NatsServer, PostgresServer
from tests.support.streams import recreate_streams

# No assertion on how long something took: a draw is no worse where the machine has much else to do.
settings.register_profile(
    "patient", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="draw as that run did which printed it")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        # A process of a run takes the run's own.
        config.option.seed = getattr(config, "workerinput", {}).get("seed", secrets.randbelow(2**32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of the run is about to be started."""
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: in how many processes: one for each processor, as tests run programs beside themselves.

    In this one alone where a part of the suite is asked for, which need not pay for their start, and where a person
    looks on (`-s`; xdist itself sees to `--pdb`).
    """
    part = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword
    return 0 if part or config.option.capture == "no" else min(os.cpu_count() or 1, 8)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (--seed {config.option.seed} draws the same again)"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = f"{request.config.option.seed}/{request.node.name}"
    print(f"\ndraws by --seed {request.config.option.seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """A short path that other users may enter, unlike pytest's own: Postgres never runs as root."""
    with tempfile.TemporaryDirectory(prefix="muster-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def nats_server(server_folder: Path) -> Iterator[NatsServer]:
    server = NatsServer(server_folder / "nats")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def fresh_log(nats_server: NatsServer) -> NatsServer:
    asyncio.run(recreate_streams(nats_server.settings(EVERYTHING)))
    return nats_server


@pytest.fixture(scope="session")
def nats_cluster(server_folder: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(server_folder / "nats-cluster")
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def postgres_server(server_folder: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(server_folder / "postgres")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    return postgres_server.url()


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of a new empty database."""
    name = f"test_{secrets.token_hex(6)}"
    asyncio.run(_execute(postgres_server.url(), f'CREATE DATABASE "{name}"'))
    yield postgres_server.url(name)
    asyncio.run(_execute(postgres_server.url(), f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
