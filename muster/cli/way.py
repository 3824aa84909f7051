"""One session with the API, as a WebSocket: what `exec`, `attach` and `port-forward` send and are sent.

Loaded only by these: its library takes longer to import than most commands take.
"""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty as terminals
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from dataclasses import dataclass
from http.client import HTTPMessage
from json import dumps, loads
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from events.channels import END, FRAME_BYTES, RESIZE, STATUS, STDERR, STDIN, STDOUT, SUBPROTOCOL
from muster.cli.client import problem_of
from muster.cli.exits import ExitCode, Problem
from muster.cli.http import Response, TlsError, proxy_of, tls_error, trusted
from services.runtime.forwarding import Forwarding

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from muster.cli.command import Session

OPEN_SECONDS: Final = 20.0
"""The API takes 10 s at most to open a way, or to say why not."""
PING_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 60.0
"""After which a server that answers no ping is taken for gone."""
READ_BYTES: Final = FRAME_BYTES - 1
_FDS: Final = {STDOUT: 1, STDERR: 2}
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, as its last frame says it."""

    reason: str
    message: str = ""
    exit_code: int | None = None


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def window() -> tuple[int, int]:
    """(columns, rows) of the terminal here."""
    return shutil.get_terminal_size()


async def carry(
    session: "Session", path: str, parameters: Sequence[tuple[str, Any]], *, stdin: bool, tty: bool
) -> Ended:
    """Pass on what is typed and written, until the session is over. Raises Problem."""
    async with _connected(session, path, parameters) as socket:
        with _raw() if tty else contextlib.nullcontext(), _interrupted(tty=tty) as left:
            typing = asyncio.create_task(_type(socket)) if stdin else None
            resizing = asyncio.create_task(_resize(socket)) if tty else None
            writing = asyncio.create_task(_write(socket))
            try:
                await asyncio.wait({writing, left}, return_when=asyncio.FIRST_COMPLETED)
                return writing.result() if writing.done() else Ended("interrupted")
            finally:
                tasks: list[asyncio.Task[Any]] = [task for task in (typing, resizing, writing) if task is not None]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _write(socket: "ClientConnection") -> Ended:
    """What comes, to where it belongs. In a thread: whoever reads it may stand still."""
    async for frame in _frames(socket):
        if frame[0] == STATUS:
            return _ended(frame)
        if (descriptor := _FDS.get(frame[0])) is not None:
            try:
                await asyncio.to_thread(_write_all, descriptor, frame[1:])
            except BrokenPipeError:
                return Ended("ended", exit_code=128 + signal.SIGPIPE)
    return Ended("lost", "the connection broke")


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _ended(frame: bytes) -> Ended:
    said = loads(frame[1:])
    return Ended(said.get("reason", ""), said.get("message", ""), said.get("exitCode"))


async def _frames(socket: "ClientConnection") -> AsyncIterator[bytes]:
    with contextlib.suppress(ConnectionClosed):
        async for frame in socket:
            if isinstance(frame, bytes) and frame:
                yield frame


async def _type(socket: "ClientConnection") -> None:
    """What is typed or piped in, as bytes; read in a thread, since it may be a file, a pipe or a terminal."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(1)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            if not select.select([0], [], [], _LOOK_SECONDS)[0]:
                continue
            try:
                piece = os.read(0, READ_BYTES)
            except OSError:
                piece = b""
            with contextlib.suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()
            if not piece:
                return

    # A daemon: nobody waits for what is never typed.
    threading.Thread(target=read, daemon=True).start()
    with contextlib.suppress(ConnectionClosed):
        try:
            while piece := await pieces.get():
                await socket.send(bytes((STDIN,)) + piece)
            await socket.send(bytes((END,)))
        finally:
            over.set()


async def _resize(socket: "ClientConnection") -> None:
    """The terminal's size, whenever it changes."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await changed.wait()
                changed.clear()
                columns, rows = window()
                await socket.send(bytes((RESIZE,)) + dumps({"columns": columns, "rows": rows}).encode())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _raw() -> Generator[None]:
    """The terminal passes on every key as it is, until the end of this, whatever that is."""
    before = termios.tcgetattr(0)
    try:
        terminals.setraw(0, termios.TCSADRAIN)  # and what was typed ahead stays
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _interrupted(*, tty: bool) -> "Generator[asyncio.Future[None]]":
    """A future that is done once somebody wants to leave. With a terminal, Ctrl-C is for the command."""
    loop = asyncio.get_running_loop()
    left: asyncio.Future[None] = loop.create_future()

    def leave() -> None:
        if not left.done():
            left.set_result(None)

    signals = [signal.SIGTERM, signal.SIGHUP, *([] if tty else [signal.SIGINT])]
    for number in signals:
        loop.add_signal_handler(number, leave)
    try:
        yield left
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


# -- ports -------------------------------------------------------------------------------------------------------------


async def forward(
    session: "Session",
    path: str,
    parameters: Sequence[tuple[str, Any]],
    pairs: Sequence[tuple[int, int]],
    address: str,
) -> Ended:
    """Listen, and pass on what connects, until somebody leaves or the session is over. Raises Problem."""
    async with contextlib.AsyncExitStack() as held:
        forwarding = Forwarding()
        held.push_async_callback(forwarding.close)
        listening = [await _listen(held, session, forwarding, pair, address) for pair in pairs]
        socket = await held.enter_async_context(_connected(session, path, parameters))
        pod = "" if socket.response is None else socket.response.headers.get("X-Pod", "")
        for here, remote in listening:
            session.out.talk(f"{here} leads to port {remote} of {pod or 'the pod'}")
        left = held.enter_context(_interrupted(tty=False))
        sending, taking = asyncio.create_task(_send(socket, forwarding)), asyncio.create_task(_take(socket, forwarding))
        try:
            await asyncio.wait({taking, left}, return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() else Ended("interrupted")
        finally:
            for task in (sending, taking):
                task.cancel()
            await asyncio.gather(sending, taking, return_exceptions=True)


async def _listen(
    held: contextlib.AsyncExitStack, session: "Session", forwarding: Forwarding, pair: tuple[int, int], address: str
) -> tuple[str, int]:
    """Where it listens, and the port that this leads to. Raises Problem."""
    here, remote = pair

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if why := await forwarding.open(remote, reader, writer):
            session.out.talk(f"a connection to port {remote} ended: {why}")

    try:
        server = await asyncio.start_server(connected, address, here)
    except OSError as error:
        what = f"cannot listen on {address}:{here}: {error.strerror or error}"
        raise Problem(what, code=ExitCode.CONFLICT, todo=f"another port here: OTHER:{remote}") from error
    held.callback(server.close)
    host, port = server.sockets[0].getsockname()[:2]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), remote


async def _send(socket: "ClientConnection", forwarding: Forwarding) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for frame in forwarding.frames():
            await socket.send(frame)


async def _take(socket: "ClientConnection", forwarding: Forwarding) -> Ended:
    async for frame in _frames(socket):
        if frame[0] == STATUS:
            return _ended(frame)
        await forwarding.take(frame)
    return Ended("lost", "the connection broke")


# -- the connection ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _connected(
    session: "Session", path: str, parameters: Sequence[tuple[str, Any]]
) -> "AsyncGenerator[ClientConnection]":
    """Raises Problem with what the API refused it with."""
    target = session.target
    parts = urlsplit(target.url)
    secure = parts.scheme == "https"
    whole = f"{parts.path.rstrip('/')}/api/v1{path}"
    url = f"{'wss' if secure else 'ws'}://{parts.netloc.rpartition('@')[2]}{whole}"
    url += f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    proxy = proxy_of(parts)
    more: dict[str, Any] = {"ssl": trusted(target.ca_file)} if secure else {}
    try:
        socket = await connect(
            url,
            additional_headers={"Authorization": f"Bearer {session.token}"} if session.token else {},
            subprotocols=[SUBPROTOCOL],  # pyright: ignore[reportArgumentType] (a text by another name)
            compression=None,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=SILENT_SECONDS,
            max_size=FRAME_BYTES,
            proxy=None if proxy is None else proxy.geturl(),
            user_agent_header="muster",
            **more,
        )
    except InvalidStatus as error:
        raise problem_of(_response(error, target.url, whole)) from error
    except (OSError, InvalidHandshake, TimeoutError) as error:
        told = tls_error(error, parts) if secure else None
        todo = told.todo if isinstance(told, TlsError) else "`muster doctor` looks for the cause"
        what = f"Muster at {target.url} cannot be reached: {told or error or type(error).__name__}"
        raise Problem(what, code=ExitCode.UNREACHABLE, todo=todo) from error
    try:
        yield socket
    finally:
        await socket.close()


def _response(error: InvalidStatus, base: str, path: str) -> Response:
    headers = HTTPMessage()
    for name, value in error.response.headers.raw_items():
        headers[name] = value
    return Response(
        method="GET",
        base=base,
        path=path,
        status=error.response.status_code,
        reason=error.response.reason_phrase,
        headers=headers,
        content=bytes(error.response.body or b""),
    )
