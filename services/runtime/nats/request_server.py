"""Request and reply over NATS: how commands are served.

Subscriptions are FastStream's; each message comes from them straight to us, to be decoded by us, in a task of ours.
FastStream's own way to a handler costs 37 µs per message, with `max_workers` 205: context, middlewares and parsing, of
which nothing is used here (docs/adr/0057-straight-to-the-handler.md). Apart from `bus.py`, because those who only send
need none of it, and importing it is a third of their start. Nothing here knows what a command means.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.envelope import BatchReply, CommandReply, OutcomeUnknown
from services.runtime.nats.inboxes import inbox_prefix, is_inbox

MAX_IN_FLIGHT: Final = 256
"""Requests worked on at once; the rest waits in the subscription. Four times the load that is measured (64), and small
enough that what waits behind a slow disk is answered within REPLY_SECONDS."""
STOP_SECONDS: Final = 5.0
"""What is in flight gets this long to be answered when the service stops."""

_ENCODER: Final = msgspec.json.Encoder()

log = structlog.get_logger(__name__)


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
        handle: answers a message itself (`reply`); what it raises is logged and answered with OutcomeUnknown. It gets
            none whose answer should go anywhere but to an inbox of who may ask, or nowhere.
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
        self._subscribers = [self._broker.subscriber(subject, queue, no_reply=True) for subject in subjects]
        for subscriber in self._subscribers:
            subscriber(self._receive)
            setattr(subscriber, "consume", self._receive)  # noqa: B010 (the callback of its subscription)

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

    async def _receive(self, message: Msg) -> None:
        # What a stream gives out has no reply subject, or none of ours: with its answer sent here, it is no request.
        subject, answer_to = message.subject, message.reply
        if not is_inbox(answer_to, inbox_prefix(_asker(subject))):
            log.error("request_refused", subject=subject, reply=answer_to, reason="its reply subject is no inbox")
            return
        await self._slots.acquire()
        task = asyncio.create_task(self._serve(message))
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


def _asker(subject: str) -> str:
    """Who asks on this subject; the server lets nobody else."""
    match subject.split("."):
        case ["cmd", "system", service, *_]:
            return service
        case _:
            return "api"


async def reply(connection: Client, message: Msg, answer: CommandReply | BatchReply) -> None:
    """Answer a request. An answer that cannot be sent is the asker's OutcomeUnknown anyway."""
    try:
        await connection.publish(message.reply, _ENCODER.encode(answer))
    except (NatsError, OSError) as error:
        log.warning("reply_not_sent", subject=message.subject, error=str(error) or type(error).__name__)
