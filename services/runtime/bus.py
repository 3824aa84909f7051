"""Request and reply over NATS: how commands are sent, and how they are served.

Serving is FastStream's, in its leanest form: bytes in, our own decoding, no injection, no log line per message, and our
own tasks. Its `max_workers` costs 205 µs per message where this costs 37: a fifth of what a whole command may take
(docs/adr/0008-commands-by-request-and-reply.md). Nothing here knows what a command means.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog
from faststream.nats import NatsBroker, NatsMessage
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from events.envelope import AdmittedCommand, CommandReply, CommandRequest, OutcomeUnknown
from events.subjects import request_subject, system_subject

REPLY_SECONDS: Final = 5.0
"""How long the api waits for an answer (architecture.md section 4); who works on one must be done before."""
MAX_IN_FLIGHT: Final = 256
"""Requests worked on at once; the rest waits in the subscription. Four times the load that is measured (64), and small
enough that what waits behind a slow disk is answered within REPLY_SECONDS."""
STOP_SECONDS: Final = 5.0
"""What is in flight gets this long to be answered when the service stops."""

_ENCODER: Final = msgspec.json.Encoder()
_REPLY_DECODER: Final = msgspec.json.Decoder(CommandReply)

log = structlog.get_logger(__name__)


class GateAwayError(Exception):
    """Nobody takes requests: nothing was done, and nothing is until somebody does (fail closed)."""


class CommandClient:
    """Sends commands and waits for the truth about them."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection

    async def send(self, request: CommandRequest, *, timeout_seconds: float = REPLY_SECONDS) -> CommandReply:
        """From the api to the gate. Raises GateAwayError where no gate runs; no answer in time is OutcomeUnknown."""
        return await self._send(request_subject(type(request.command).__name__), request, timeout_seconds)

    async def send_system(
        self, service: str, command: AdmittedCommand, *, timeout_seconds: float = REPLY_SECONDS
    ) -> CommandReply:
        """From a service to commands, past the gate. Raises GateAwayError where nobody decides commands."""
        return await self._send(system_subject(service, type(command.command).__name__), command, timeout_seconds)

    async def _send(self, subject: str, message: msgspec.Struct, timeout_seconds: float) -> CommandReply:
        try:
            answer = await self._connection.request(subject, _ENCODER.encode(message), timeout=timeout_seconds)
        except NoRespondersError as error:
            raise GateAwayError(f"nobody listens on {subject}") from error
        except (NatsError, NatsTimeoutError, TimeoutError, OSError):
            # Also a connection that broke: what was sent may have arrived.
            return OutcomeUnknown()
        return _REPLY_DECODER.decode(answer.data)


class _Broker(NatsBroker):
    """FastStream on the connection that the service has already, with its user and inbox."""

    def __init__(self, connection: Client) -> None:
        super().__init__(apply_types=False, logger=None)
        self._given = connection

    async def _connect(self) -> Client:
        self.config.connect(self._given)
        return self._given


class RequestServer:
    """Serves requests on subjects, in a queue group: each goes to one of the service's replicas.

    Args:
        handle: answers a message itself (`reply`); what it raises is logged and answered with OutcomeUnknown.
    """

    def __init__(
        self,
        connection: Client,
        handle: Callable[[Msg], Awaitable[None]],
        *,
        subjects: Sequence[str],
        queue: str,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._connection = connection
        self._handle = handle
        self._slots = asyncio.Semaphore(max_in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broker = _Broker(connection)
        self._subscribers = [
            self._broker.subscriber(subject, queue, decoder=_undecoded, no_reply=True) for subject in subjects
        ]
        for subscriber in self._subscribers:
            subscriber(self._receive)

    async def start(self) -> None:
        await self._broker.start()
        # The server has heard of the subscriptions before anybody is told that this service is ready.
        await self._connection.flush()

    async def stop(self) -> None:
        """Take nothing new, and let what was taken be answered."""
        for subscriber in self._subscribers:
            subscription = subscriber.subscription
            if subscription is not None:
                # FastStream would drop what waits; drained, it is still served.
                await subscription.drain()
                subscriber.subscription = None
            await subscriber.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        for task in self._tasks:
            task.cancel()

    async def _receive(self, message: NatsMessage) -> None:
        await self._slots.acquire()
        task = asyncio.create_task(self._serve(message.raw_message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, message: Msg) -> None:
        try:
            await self._handle(message)
        except Exception:
            log.exception("request_failed", subject=message.subject)
            await reply(self._connection, message, OutcomeUnknown())
        finally:
            self._slots.release()


async def reply(connection: Client, message: Msg, answer: CommandReply) -> None:
    """Answer a request, where it wants an answer. One that cannot be sent is the asker's OutcomeUnknown anyway."""
    if not message.reply:
        return
    try:
        await connection.publish(message.reply, _ENCODER.encode(answer))
    except (NatsError, OSError) as error:
        log.warning("reply_not_sent", subject=message.subject, error=str(error) or type(error).__name__)


async def _undecoded(message: NatsMessage) -> NatsMessage:
    return message
