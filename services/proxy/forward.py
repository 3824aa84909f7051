"""Carries one request to a pod and its answer back, both piece by piece as they come; and then bytes, where both agree
to speak something else (websockets).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import h11

from services.proxy.headers import answer_headers
from services.proxy.routes import Target
from services.proxy.wire import PIECE_BYTES, Peer

CONNECT_SECONDS: Final = 5.0
_GONE: Final = "it closed the connection before its answer was whole"
_SWITCHING: Final = 101
_CONTINUE: Final = (100, 103)
"""Of answers before the answer, those that are passed on."""


class UnreachableError(Exception):
    """The pod does not take the connection."""


class BadAnswerError(Exception):
    """What the pod says is no HTTP, or ends too early."""


class StandsStillError(Exception):
    """Nothing moved for too long."""


class TooLargeError(Exception):
    """The body is larger than what is passed on."""


class ClientGoneError(Exception):
    """The client has closed its connection."""


class Exchange:
    """One request of a client.

    Args:
        idle_seconds: how long nothing may move in either direction.
        most_bytes: of the request's body.
    """

    def __init__(self, client: Peer, *, idle_seconds: float, most_bytes: int) -> None:
        self._client = client
        self._idle_seconds = idle_seconds
        self._most_bytes = most_bytes
        self._moved: Callable[[], None] = lambda: None
        self.begun = False
        """Whether any of the answer was sent to the client."""
        self.status = 0
        """Of the answer."""

    async def run(self, target: Target, head: h11.Request) -> None:
        """Until the answer is out, or the client has gone. Raises UnreachableError, BadAnswerError, StandsStillError,
        TooLargeError, and RemoteProtocolError where the client speaks no HTTP.
        """
        pod = await connect(target)
        try:
            async with asyncio.timeout(self._idle_seconds) as idle:
                loop = asyncio.get_running_loop()
                self._moved = lambda: idle.reschedule(loop.time() + self._idle_seconds)
                await self._carry(pod, head)
        except TimeoutError:
            pod.abort()  # it takes nothing of what is still to be sent
            raise StandsStillError(f"nothing moved for {self._idle_seconds:g} s") from None
        except ClientGoneError:
            self.begun = True
        finally:
            await pod.close()

    async def _carry(self, pod: Peer, head: h11.Request) -> None:
        try:
            await pod.send(head)
        except OSError as error:
            raise BadAnswerError(_words(error)) from error
        asking = asyncio.create_task(self._ask(pod))
        answering = asyncio.create_task(self._answer(pod))
        try:
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and not answering.done():
                asking.result()
            switched = await answering
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
        if switched:
            await self._tunnel(pod)

    async def _ask(self, pod: Peer) -> None:
        """The request's body; then watch whether the client stays."""
        passed, takes = 0, True
        while True:
            event = await self._client.next()
            self._moved()
            match event:
                case h11.Data():
                    passed += len(event.data)
                    if passed > self._most_bytes:
                        raise TooLargeError(f"the body is larger than {self._most_bytes} bytes")
                    takes = takes and await _send(pod, event)
                case h11.EndOfMessage():
                    if takes:
                        await _send(pod, h11.EndOfMessage())
                    break
                case _:
                    raise ClientGoneError
        if not await self._client.wait_for_more():
            raise ClientGoneError

    async def _answer(self, pod: Peer) -> bool:
        """Whether both speak something else from here on. Raises BadAnswerError, ClientGoneError."""
        while True:
            try:
                event = await pod.next()
            except (h11.RemoteProtocolError, OSError) as error:
                raise BadAnswerError(_GONE if pod.ended else _words(error)) from error
            self._moved()
            match event:
                case h11.InformationalResponse(status_code=code) if code == _SWITCHING:
                    await self._say(h11.InformationalResponse(status_code=code, headers=_passed(event, upgrade=True)))
                    self.status = code
                    return True
                case h11.InformationalResponse(status_code=code):
                    if code in _CONTINUE and self._client.http.their_http_version != b"1.0":
                        await self._say(h11.InformationalResponse(status_code=code, headers=_passed(event)))
                case h11.Response():
                    self.status = event.status_code
                    await self._say(
                        h11.Response(status_code=event.status_code, headers=_passed(event), reason=event.reason)
                    )
                case h11.Data():
                    await self._say(h11.Data(data=event.data))
                case h11.EndOfMessage():
                    await self._say(h11.EndOfMessage())
                    return False
                case _:
                    raise BadAnswerError(_GONE)

    async def _say(self, event: Any) -> None:
        self.begun = self.begun or not isinstance(event, h11.InformationalResponse)
        try:
            await self._client.send(event)
        except OSError as error:
            raise ClientGoneError from error
        except h11.LocalProtocolError as error:
            raise BadAnswerError(_words(error)) from error
        self._moved()

    async def _tunnel(self, pod: Peer) -> None:
        self.begun = True
        one = asyncio.create_task(self._pump(self._client, pod))
        other = asyncio.create_task(self._pump(pod, self._client))
        try:
            # The end of either direction is the end of both: websockets say goodbye before.
            await asyncio.wait((one, other), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (one, other):
                task.cancel()
            await asyncio.gather(one, other, return_exceptions=True)

    async def _pump(self, source: Peer, sink: Peer) -> None:
        data, _ = source.http.trailing_data
        try:
            while True:
                if data:
                    sink.writer.write(data)
                    await sink.writer.drain()
                    self._moved()
                data = await source.reader.read(PIECE_BYTES)
                if not data:
                    return
                self._moved()
        except OSError:
            return


async def connect(target: Target) -> Peer:
    """Raises UnreachableError. By address, so that no name is looked up."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(target.host, target.port)
    except TimeoutError:
        raise UnreachableError(f"no answer within {CONNECT_SECONDS:g} s") from None
    except OSError as error:
        raise UnreachableError(_words(error)) from error
    return Peer(h11.CLIENT, reader, writer)


async def takes(target: Target) -> bool:
    """Whether it takes a connection now."""
    try:
        pod = await connect(target)
    except UnreachableError:
        return False
    await pod.close()
    return True


async def _send(pod: Peer, event: Any) -> bool:
    """Whether the pod took it: one that answers early may not read what is left."""
    try:
        await pod.send(event)
    except OSError:
        return False
    return True


def _passed(event: Any, *, upgrade: bool = False) -> list[tuple[bytes, bytes]]:
    return answer_headers(list(event.headers), upgrade=upgrade)


def _words(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) else str(error)
    return said or type(error).__name__
