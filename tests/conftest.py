"""Fixtures for every test: real servers, started once per session, and a fresh log or database per test.

`make test` is several sessions side by side, each in a process of its own: they share nothing, servers included.

`nats_server`      one JetStream server with our configuration and permissions (session)
`fresh_log`        the same server with empty streams, for a test that writes (per test)
`nats_cluster`     three servers in a cluster (session)
`postgres_url`     a Postgres server (session)
`postgres_database` a new empty database on it (per test)
`prepared_database` a new database on it with all tables (per test)
`chance`           what a test draws by: the same for the same test and `--seed`, which is printed (per test)
"""

import asyncio
import contextlib
import faulthandler
import functools
import gc
import importlib
import inspect
import os
import random
import secrets
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import asyncpg
import pytest
import structlog
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from development.servers import EVERYTHING, NatsCluster, NatsServer, PostgresServer
from development.streams import recreate_streams
from services.runtime.process.host import is_late
from tests.support.draws import draws, draws_all

TESTS: Final = Path(__file__).parent
GRACE_SECONDS: Final = 30
"""After a test's deadline, for its end and that of its fixtures."""
# Nobody's own keyring is written or asked; tests/cli/test_login.py has one of its own.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
STDERR: Final = pytest.StashKey[TextIO]()
"""This process's own: what a test writes there is captured, and lost where the process ends."""

# No assertion on how long something took: a draw is no worse where the machine has much else to do.
settings.register_profile(
    "patient",
    parent=settings.default,
    max_examples=draws(settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")
if settings().derandomize or not draws_all():
    # Where each run is to draw the same, it draws no constants that stand in modules which happen to be imported. To
    # look for them, each process would read and parse all that the tests import. `make explore` draws these, too.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="draw as that run did which printed it")


def pytest_runtest_teardown() -> None:
    """A command that ran in this process has its log go to a stream that ends with the test."""
    structlog.reset_defaults()


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        # A process of a run takes the run's own.
        config.option.seed = getattr(config, "workerinput", {}).get("seed", secrets.randbelow(2**32))
    config.stash[STDERR] = os.fdopen(os.dup(2), "w")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[STDERR].close()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of the run is about to be started."""
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: in how many processes: four for two processors, as a test waits at least as long as it computes.

    In this one alone where a part of the suite is asked for, which need not pay for their start, and where a person
    looks on (`-s`; xdist itself sees to `--pdb`).
    """
    part = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.keyword
    return 0 if part or config.option.capture == "no" else min((os.cpu_count() or 1) * 2, 8)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed} (--seed {config.option.seed} draws the same again)"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """All that is imported and collected stays for the whole run. To look through it for garbage, while it grows and in
    every test after that, takes each process of a run a third of the time of its start.
    """
    gc.disable()
    try:
        _share_the_compiling(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _share_the_compiling(config: pytest.Config) -> None:
    """Each process of a run imports all modules of tests, in the same order. In a new checkout each would compile every
    one, which takes twice as long as all else before the first test. So each begins with some that are its own, and
    then finds compiled what others began with.
    """
    process = getattr(config, "workerinput", None)
    if process is None or [Path(one).resolve() for one in config.args] != [TESTS]:
        return
    left_out = [Path(one).resolve() for one in config.getoption("ignore") or ()]
    modules = [one for one in sorted(TESTS.rglob("test_*.py")) if not any(map(one.is_relative_to, left_out))]
    number, count = int(process["workerid"].removeprefix("gw")), process["workercount"]
    for module in modules[number::count]:
        # What cannot be imported is told when it is collected.
        with contextlib.suppress(Exception):
            importlib.import_module(".".join(module.relative_to(TESTS.parent).with_suffix("").parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends this process, with every thread's stack, where a test's own deadline did not end it, as in a fixture."""
    limit = _limit_seconds(item)
    if limit:
        faulthandler.dump_traceback_later(limit + GRACE_SECONDS, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """No signal for async tests: what its handler raises is lost in the event loop, or ends the task that runs all
    tests, and the test hangs for ever. They end as `pytest_pyfunc_call` says.
    """
    return True if "anyio_backend" in getattr(item, "fixturenames", ()) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """An async test ends at pytest-timeout's limit from within its event loop, with the stack of what it waited for."""
    limit = _limit_seconds(pyfuncitem)
    test = pyfuncitem.obj
    if limit and inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def within_limit(*arguments: Any, **named: Any) -> None:
            deadline = asyncio.timeout(limit)
            try:
                async with deadline:
                    await test(*arguments, **named)
            except TimeoutError:
                if deadline.expired():
                    pytest.fail(f"Timeout (>{limit}s): what it waited for stands above")
                raise

        pyfuncitem.obj = within_limit
    return (yield)


def _limit_seconds(item: pytest.Item) -> float:
    """Of pytest-timeout, for this test; 0 for none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0])
    given = item.config.getoption("timeout")
    return float(item.config.getini("timeout") or 0) if given is None else float(given)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    seed = f"{request.config.option.seed}/{request.node.name}"
    print(f"\ndraws by --seed {request.config.option.seed}")
    return random.Random(seed)


class _Loop(uvloop.Loop):
    """As Muster's processes run on, and as forgiving: anyio fails a test for every word to the loop's handler."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not is_late(context.get("exception")):
            super().call_exception_handler(context)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": _Loop}


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


@pytest.fixture
def prepared_database(postgres_server: PostgresServer) -> Iterator[str]:
    """URL of a new database with all tables, in which nothing stands."""
    from tests.support.databases import create_prepared  # what it imports takes long, and most tests need none of it

    name = f"test_{secrets.token_hex(6)}"
    yield asyncio.run(create_prepared(postgres_server, name))
    asyncio.run(_execute(postgres_server.url(), f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
