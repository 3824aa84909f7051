"""Requests over NATS with one inbox of their own: fewer allocations than the client's, answers of several messages,
and one error for every way of getting no answer. Knows nothing of what is asked.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, ConnectionDrainingError, OutboundBufferLimitError

from services.runtime.log.store import LogUnavailableError
from services.runtime.nats.connection import ServiceClient
from services.runtime.nats.wire import SteadyClient, Taken, is_last

_NO_RESPONDERS: Final = "503"
_STATUS: Final = "Status"


class UnansweredError(LogUnavailableError):
    """No answer: it may have been received, and may even still be under way."""


class NobodyListensError(UnansweredError):
    """Nobody received it."""


@dataclass(slots=True, eq=False)
class _Question:
    on_answer: Callable[[Taken], None]
    done: asyncio.Future[Any]
    deadline: float
    """By the clock of the event loop."""


class Requests:
    """Asks over one connection; for one event loop."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._numbers = itertools.count(1)
        self._waiting: dict[str, _Question] = {}
        if isinstance(nc, ServiceClient):
            nc.on_cut_off.append(self._on_cut_off)
        self._bell: asyncio.TimerHandle | None = None
        """At the first deadline of those that wait, or before it: a timer for each would be a tenth of their cost."""
        self._prefix = ""
        self._subscribing = asyncio.Lock()

    async def ask(
        self, subject: str, payload: bytes, *, seconds: float, headers: dict[str, str] | None = None
    ) -> bytes:
        """The answer's payload. Raises UnansweredError."""
        return (await self.ask_message(subject, payload, seconds=seconds, headers=headers)).data

    async def ask_message(
        self, subject: str, payload: bytes, *, seconds: float, headers: dict[str, str] | None = None
    ) -> Taken:
        """The answer with its headers. Raises UnansweredError; NobodyListensError where the server says so."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Taken] = loop.create_future()

        def on_answer(message: Taken) -> None:
            if not future.done():
                future.set_result(message)

        question = _Question(on_answer, future, loop.time() + seconds)
        token = await self._send(subject, payload, question, headers)
        try:
            message = await future
        except TimeoutError:
            raise UnansweredError(f"no answer from {subject} within {seconds:.1f} s") from None
        finally:
            del self._waiting[token]
        if not message.data and (message.headers or {}).get(_STATUS) == _NO_RESPONDERS:
            raise NobodyListensError(f"nobody listens on {subject}")
        return message

    async def ask_many(self, subject: str, payload: bytes, *, seconds: float) -> list[Taken]:
        """All messages of an answer that ends with a status message, which is the last of the list."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        messages: list[Taken] = []

        def on_answer(message: Taken) -> None:
            messages.append(message)
            if is_last(message) and not finished.done():
                finished.set_result(None)

        question = _Question(on_answer, finished, loop.time() + seconds)
        token = await self._send(subject, payload, question, None)
        try:
            await finished
        except TimeoutError:
            raise UnansweredError(f"no whole answer from {subject} within {seconds:.1f} s") from None
        finally:
            del self._waiting[token]
        if (messages[-1].headers or {}).get(_STATUS) == _NO_RESPONDERS:
            raise NobodyListensError(f"nobody listens on {subject}")
        return messages

    async def _send(self, subject: str, payload: bytes, question: _Question, headers: dict[str, str] | None) -> str:
        if not self._prefix:
            await self._subscribe()
        token = str(next(self._numbers))
        self._waiting[token] = question
        try:
            await self._nc.publish(subject, payload, reply=self._prefix + token, headers=headers)
        except (ConnectionClosedError, ConnectionDrainingError, OutboundBufferLimitError) as error:
            del self._waiting[token]
            raise UnansweredError(f"{subject} could not be reached: {error}") from error
        except BaseException:
            del self._waiting[token]
            raise
        self._ring_at(question.deadline)
        return token

    def _ring_at(self, deadline: float) -> None:
        bell = self._bell
        if bell is None or deadline < bell.when():
            if bell is not None:
                bell.cancel()
            self._bell = asyncio.get_running_loop().call_at(deadline, self._end_late)

    def _end_late(self) -> None:
        """Those whose deadline has come get no answer; ring again at the next one."""
        self._bell = None
        now = asyncio.get_running_loop().time()
        for question in self._waiting.values():
            if question.deadline <= now and not question.done.done():
                question.done.set_exception(TimeoutError())
        left = [question.deadline for question in self._waiting.values() if not question.done.done()]
        if left:
            self._ring_at(min(left))

    async def _subscribe(self) -> None:
        """Once, whoever comes first; the others wait."""
        async with self._subscribing:
            if not self._prefix:
                prefix = f"{self._nc.new_inbox()}."
                assert isinstance(self._nc, SteadyClient), "answers come on connections of ours"
                await self._nc.take(f"{prefix}*", self._on_message)
                self._prefix = prefix

    def _on_message(self, message: Taken) -> None:
        question = self._waiting.get(message.subject[len(self._prefix) :])
        if question is not None:
            question.on_answer(message)

    def _on_cut_off(self) -> None:
        """What was asked may have been received; its answer will not come."""
        for question in self._waiting.values():
            if not question.done.done():
                question.done.set_exception(UnansweredError("the connection was lost before the answer came"))
