"""How services are run: they end together, loudly, with an exit code, and say over HTTP whether they serve."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
import uvloop
from nats.aio.client import Client

from development.ports import free_port
from development.servers import EVERYTHING, NatsServer
from muster.embedded import up
from services.runtime.log import follower
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import ConnectionLostError, connect
from services.runtime.process.host import MOST_LOOKING, Health, Run, is_late, run_services, serve_health
from services.runtime.process.settings import Settings
from tests.support.drafts import grant

pytestmark = pytest.mark.anyio


async def serves(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    _ = settings
    health.ready()
    await stop.wait()


async def warns(_: Settings, health: Health, stop: asyncio.Event) -> None:
    health.ready()
    health.warnings["stream OBSERVED"] = "81 % are used"
    await stop.wait()


async def waits(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    _ = settings
    health.not_ready("the log is away")
    await stop.wait()


async def fails(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    _ = settings, health, stop
    raise ValueError("broken")


async def ends(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    _ = settings, health, stop


async def _served(port: int) -> None:
    """Until it listens, and the services had their turn."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                _, body = await _get(port, "/readyz")
                if "starting" not in body:
                    return
            await asyncio.sleep(0.02)


async def _get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split(" ", maxsplit=2)[1]), answer.split("\r\n\r\n", maxsplit=1)[1]


@pytest.mark.parametrize(
    ("services", "ready", "body"),
    [
        ({"one": serves, "two": serves}, 200, '"status": "ready"'),
        ({"one": serves, "two": waits}, 503, '"two": "the log is away"'),
        ({"one": serves, "two": warns}, 200, '"warnings": {"stream OBSERVED": "81 % are used"}'),
    ],
)
async def test_health_says_whether_all_services_serve_and_which_do_not(
    services: dict[str, Run], ready: int, body: str
) -> None:
    settings, stop = Settings(health_port=free_port()), asyncio.Event()
    assert settings.health_port is not None
    running = asyncio.ensure_future(run_services(services, settings, stop=stop))
    await _served(settings.health_port)
    status, answer = await _get(settings.health_port, "/readyz")
    assert (status, body in answer) == (ready, True), answer
    assert (await _get(settings.health_port, "/healthz"))[0] == 200
    assert (await _get(settings.health_port, "/metrics"))[0] == 404
    assert (await _get(settings.health_port, "/other"))[0] == 404
    stop.set()
    await running


async def test_a_process_that_starts_says_how_much_of_the_log_is_still_to_be_read(
    fresh_log: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "HANDED_OUT_COMMITS", 10)
    monkeypatch.setattr(up, "FEW_UNREAD", 10)
    settings, stop = fresh_log.settings(EVERYTHING, health_port=free_port()), asyncio.Event()
    assert settings.health_port is not None
    has_read_some, goes_on = asyncio.Event(), asyncio.Event()

    async def reads_slowly(settings: Settings, health: Health, stop: asyncio.Event) -> None:
        nc = await connect(settings, EVERYTHING)
        store = JetStreamEventStore(nc)
        for batch in range(10):
            await store.append_batch([grant(f"a{batch}-{number}", 0) for number in range(10)])
        async with contextlib.aclosing(store.follow(0)) as following:
            async for commits in following:
                has_read_some.set()
                await goes_on.wait()
                if commits and commits[-1].seq == 100:
                    break
        health.ready()
        await stop.wait()
        await nc.close()

    running = asyncio.ensure_future(run_services({"one": reads_slowly}, settings, stop=stop))
    try:
        await asyncio.wait_for(has_read_some.wait(), 60)
        assert await up.reading_log(settings.health_port) == "90 messages of the log are still to be read"
        goes_on.set()
        async with asyncio.timeout(60):
            while not await up.serves(settings.health_port):
                await asyncio.sleep(0.05)
        assert await up.reading_log(settings.health_port) == ""
    finally:
        goes_on.set()
        stop.set()
        await running


async def test_who_keeps_many_connections_to_the_health_port_open_loses_the_oldest() -> None:
    settings, request = Settings(health_port=free_port()), b"GET /healthz HTTP/1.1\r\n\r\n"
    assert settings.health_port is not None
    server = await serve_health([], settings)
    assert server is not None
    async with server:
        held = [await asyncio.open_connection("127.0.0.1", settings.health_port) for _ in range(MOST_LOOKING + 8)]
        assert (await _get(settings.health_port, "/healthz"))[0] == 200
        answers: list[bytes] = []
        for reader, writer in held:
            answer = b""
            with contextlib.suppress(ConnectionError):
                writer.write(request)
                answer = await reader.read()
            answers.append(answer[:12])
            writer.close()
    assert answers == [b""] * 9 + [b"HTTP/1.1 200"] * (MOST_LOOKING - 1)


async def test_figures_are_served_on_the_health_port_where_they_are_wanted() -> None:
    settings, stop = Settings(health_port=free_port(), metrics=True), asyncio.Event()
    assert settings.health_port is not None
    running = asyncio.ensure_future(run_services({"one": serves}, settings, stop=stop))
    await _served(settings.health_port)
    assert "python_info" in (await _get(settings.health_port, "/metrics?x=1"))[1]
    stop.set()
    await running


@pytest.mark.parametrize(("bad", "message"), [(fails, "broken"), (ends, "ended without being asked")])
async def test_a_service_that_fails_or_just_ends_takes_the_others_with_it(bad: Run, message: str) -> None:
    cleaned: list[str] = []

    async def other(settings: Settings, health: Health, stop: asyncio.Event) -> None:
        await serves(settings, health, stop)
        cleaned.append("other")

    with pytest.raises((ValueError, RuntimeError), match=message):
        await run_services({"bad": bad, "other": other}, Settings())
    assert cleaned == ["other"]


async def test_a_connection_closed_for_good_ends_the_process_with_an_error(nats_server: NatsServer) -> None:
    opened: list[Client] = []

    async def service(settings: Settings, health: Health, stop: asyncio.Event) -> None:
        opened.append(await connect(settings, EVERYTHING))
        await serves(settings, health, stop)

    running = asyncio.ensure_future(run_services({"one": service}, nats_server.settings(EVERYTHING)))
    while not opened:
        await asyncio.sleep(0.02)
    await Client.close(opened[0])  # as the library does by itself, not by our own close()
    with pytest.raises(ConnectionLostError):
        await running


@pytest.mark.parametrize(
    ("body", "number", "code"),
    [
        ("health.ready(); print('up', flush=True); await stop.wait()", signal.SIGTERM, 0),
        ("health.ready(); print('up', flush=True); await stop.wait()", signal.SIGINT, 0),
        ("print('up', flush=True); raise ValueError('broken')", None, 1),
    ],
)
def test_a_process_ends_cleanly_on_a_signal_and_with_one_on_an_error(
    tmp_path: Path, body: str, number: signal.Signals | None, code: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from services.runtime.process.host import main\n"
        f"async def run(settings, health, stop):\n    {body}\n"
        "main('example', run)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "MUSTER_LOG_LEVEL": "info"}
    process = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    if number is not None:
        process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    lines = errors.decode().splitlines()
    assert all(line.startswith("{") for line in lines), errors  # JSON, one line each
    assert any(("service_stopped" if code == 0 else "broken") in line for line in lines)


def test_passwords_come_from_a_folder_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "api").write_text("of-api\n")
    (tmp_path / "one").write_text("of-all\n")
    assert Settings(nats_password_dir=tmp_path).password_of("api") == "of-api"
    assert Settings(nats_password_file=tmp_path / "one").password_of("api") == "of-all"
    assert Settings(nats_password="plain").password_of("api") == "plain"
    with pytest.raises(FileNotFoundError):
        Settings(nats_password_dir=tmp_path).password_of("scheduler")


def test_a_log_that_cannot_be_written_ends_no_service() -> None:
    """Where it goes to a file on a disk that is full."""
    code = (
        "import structlog; from services.runtime.process.host import configure_logging; configure_logging('info');"
        "log = structlog.get_logger('x'); [log.warning('lost', text='x' * 5000) for _ in range(3)]; print('went on')"
    )
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert ran.stdout == "went on\n"


async def test_a_write_to_a_connection_that_was_cut_is_told_apart_from_faults() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    transport.abort()
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError) as late:
        transport.write(b"as TLS does where its peer has cut the connection")
    server.close()
    assert is_late(late.value)
    assert not is_late(RuntimeError("another"))


def test_a_connection_to_postgres_that_is_given_back_while_its_pool_ends_is_nobodys_failure(postgres_url: str) -> None:
    told: list[BaseException] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=1)
        giving_back = asyncio.create_task(pool.release(await pool.acquire()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        giving_back.cancel()  # its user; what asyncpg does about it goes on
        await asyncio.wait({giving_back})
        pool.terminate()
        async with asyncio.timeout(60):
            while not told:
                await asyncio.sleep(0.01)
                gc.collect()

    uvloop.run(story())  # the loop of other tests hides just this
    assert all(is_late(error) for error in told)
    assert not is_late(asyncpg.PostgresError("another"))
