"""How a service is run: event loop, logs, signals, health over HTTP, and an end that is loud.

A service is `async run(settings, health, stop)`: it works until `stop` is set. One that raises ends the whole process
with exit code 1, because a process that half works helps nobody: its supervisor restarts it.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NoReturn, TextIO, cast

import structlog
import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from services.runtime.log.log_fold import STEPS, Steps
from services.runtime.log.readings import READINGS, Readings
from services.runtime.log.store import OnStanding, UnreadableMessageError
from services.runtime.nats.connection import ConnectionLostError
from services.runtime.process import failpoints
from services.runtime.process.settings import Settings

STOP_SECONDS: Final = 8.0
"""What services get for cleaning up after `stop` is set; the process tree must be gone within 10 s."""
MOST_LOOKING: Final = 32
"""Connections to the port of health and metrics: more would only keep files and memory of a service."""
REQUEST_SECONDS: Final = 5.0
"""A health request that takes longer to arrive is cut off."""
REQUEST_BYTES: Final = 8 * 1024
GC_ALLOCATIONS: Final = 20_000
"""Objects made between two looks for cycles: ours make few, and a look walks all that is young."""

_READERS: Final = itertools.count()

log = structlog.get_logger(__name__)


class Health:
    """Whether a service serves, and if not, why. Its service writes it, the health server reads it."""

    __slots__ = ("_standing", "name", "reason", "serving", "warnings")

    def __init__(self, name: str) -> None:
        self.name = name
        self._standing: dict[int, UnreadableMessageError] = {}
        """By reader: the message of the log that it stands before."""
        self.serving = False
        self.reason = "starting"
        self.warnings: dict[str, str] = {}
        """What a person must see to soon, although it serves: what it is about, and how it is with it."""

    def ready(self) -> None:
        self.serving = True
        self.reason = ""

    def not_ready(self, reason: str) -> None:
        """Alive, but not serving, such as while something it needs is away."""
        self.serving = False
        self.reason = reason

    @property
    def alarm(self) -> str:
        """What a person must mend, while the service goes on with what it can do; empty where there is nothing."""
        told = {error.seq: f"{error}; {error.todo}" for error in self._standing.values()}
        return ". ".join(told[seq] for seq in sorted(told))

    def reader(self) -> OnStanding:
        """For one reader of the log, to tell what it stands before: what it knows from before that still serves."""
        number = next(_READERS)

        def tell(unreadable: UnreadableMessageError | None) -> None:
            if unreadable is None:
                self._standing.pop(number, None)
            else:
                self._standing[number] = unreadable

        return tell

    def reading(self, seq: int, target_seq: int) -> None:
        """Not serving yet: the log is being read, and how far."""
        self.not_ready(f"reading the log: {seq:,} of {target_seq:,}")


type Run = Callable[[Settings, Health, asyncio.Event], Awaitable[None]]


def main(name: str, run: Run) -> NoReturn:
    """Run one service as this process, with settings from the environment."""
    settings = Settings()
    configure_logging(settings.log_level)
    sys.exit(run_process({name: run}, settings))


def run_process(services: Mapping[str, Run], settings: Settings) -> int:
    """Run services as this process until SIGTERM or SIGINT; the exit code."""
    failpoints.arm(settings.failpoint)
    try:
        run_loop(run_services(services, settings))
    except Exception:
        log.exception("process_failed", services=sorted(services))
        return 1
    return 0


def run_loop[T](work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end as services run: on uvloop, and looking for garbage seldom."""
    # What was imported stays for ever: without this, looking through it for garbage costs 6 % of all commands.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    return uvloop.run(work)


async def run_services(services: Mapping[str, Run], settings: Settings, *, stop: asyncio.Event | None = None) -> None:
    """Run services in this event loop until `stop` or a signal. Raises what the first failing one raised, after the
    others were given their time to clean up.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    lost: list[BaseException] = []

    def on_unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if is_late(error):
            log.info("late", error=str(error))
            return
        log.error("unhandled", message=context.get("message"), exc_info=error)
        if isinstance(error, ConnectionLostError):
            lost.append(error)
            stop.set()

    loop.set_exception_handler(on_unhandled)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    READINGS.set(Readings())
    STEPS.set(Steps())
    healths = [Health(name) for name in services]
    server = await serve_health(healths, settings)
    try:
        await _supervise(services, healths, settings, stop)
    finally:
        if server is not None:
            server.close()
    if lost:
        raise lost[0]


def is_late(error: BaseException | None) -> bool:
    """Whether it is of a connection that has just ended, in a place where nobody waits for it; who uses the connection
    is told of its end by the connection itself.

    uvloop's TLS writes to one that its peer has cut. And asyncpg gives one back in a task of its own where its user was
    cancelled: where the pool ends meanwhile, as at the end of a service, that task fails.
    """
    if isinstance(error, RuntimeError):
        return "TCPTransport closed=True" in str(error)
    return type(error).__name__ == "ConnectionDoesNotExistError"  # of asyncpg, which not every process has


async def _supervise(
    services: Mapping[str, Run], healths: list[Health], settings: Settings, stop: asyncio.Event
) -> None:
    tasks: list[asyncio.Task[None]] = []
    for health, run in zip(healths, services.values(), strict=True):
        tasks.append(asyncio.create_task(_run_one(health, run, settings, stop), name=health.name))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    stop.set()
    _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for task in late:
        log.error("service_did_not_stop", service=task.get_name(), waited_seconds=STOP_SECONDS)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _run_one(health: Health, run: Run, settings: Settings, stop: asyncio.Event) -> None:
    log.info("service_starting", service=health.name)
    try:
        await run(settings, health, stop)
    except Exception as error:
        health.not_ready(f"failed: {error}")
        log.exception("service_failed", service=health.name)
        raise
    if not stop.is_set():
        raise RuntimeError(f"service {health.name} ended without being asked to")
    health.not_ready("stopped")
    log.info("service_stopped", service=health.name)


class _Forgiving:
    """A stream that loses what it cannot write: a disk that is full of other things may end no service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def configure_logging(level: str) -> None:
    """JSON lines on stderr, for our own loggers and for the libraries' alike."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _Forgiving(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


async def serve_health(healths: list[Health], settings: Settings) -> asyncio.Server | None:
    """Serve `/healthz` (alive), `/readyz` (every service serves) and, where wanted, `/metrics`, where a port is set."""
    if settings.health_port is None:
        return None

    open_now: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now[writer] = None
        if len(open_now) > MOST_LOOKING:
            # The one that is open longest: whoever keeps many open does not keep others from looking.
            longest = next(iter(open_now))
            del open_now[longest]
            longest.transport.abort()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1].decode("ascii", "replace").split("?")[0]
                writer.write(_health_answer(path, healths, metrics=settings.metrics))
                await writer.drain()
        except (TimeoutError, OSError, EOFError, IndexError, asyncio.LimitOverrunError):
            return
        finally:
            open_now.pop(writer, None)
            writer.close()

    return await asyncio.start_server(answer, settings.health_host, settings.health_port, limit=REQUEST_BYTES)


def _health_answer(path: str, healths: list[Health], *, metrics: bool) -> bytes:
    content_type = "application/json"
    match path:
        case "/healthz":
            status, body = "200 OK", b'{"status":"alive"}'
        case "/readyz":
            # One with an alarm does not hold up the others: they are needed for the repair.
            away = {health.name: health.reason for health in healths if not health.serving and not health.alarm}
            alarms = {health.name: health.alarm for health in healths if health.alarm}
            status = "503 Service Unavailable" if away else "200 OK"
            warnings = {what: how for health in healths for what, how in health.warnings.items()}
            status_word = "waiting" if away else "alarm" if alarms else "ready"
            readings = READINGS.get()
            told = {
                "status": status_word,
                "waiting": away,
                "alarms": alarms,
                "warnings": warnings,
                "unread": 0 if readings is None else readings.unread,
            }
            body = json.dumps(told).encode()
        case "/metrics" if metrics:
            status, body, content_type = "200 OK", generate_latest(), CONTENT_TYPE_LATEST
        case _:
            status, body = (
                "404 Not Found",
                b'{"code":"not_found","message":"try /healthz or /readyz; MUSTER_METRICS adds /metrics"}',
            )
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
