"""Answers the servers' question whether a subscriber is let in.

Every instance answers, and the server takes the first answer: one that hangs holds up nobody.
"""

import asyncio
import time
from typing import Final

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Counter

from events.subscriptions import Subscription
from services.runtime.identity.directory import Directory
from services.runtime.nats.jetstream_api import JetStreamError
from services.runtime.nats.nkeys import KeyPair
from services.runtime.nats.requests import UnansweredError
from services.runtime.process.buckets import Buckets
from services.subscriptions.admit import (
    SignIn,
    UnreadableRequestError,
    admission,
    read_sign_in,
    refusal,
    subscriber_of,
)
from services.subscriptions.connections import Connection, Connections
from services.subscriptions.feed import Feed

ASKED_ON: Final = "$SYS.REQ.USER.AUTH"
REFUSE_SECONDS: Final = 0.3
"""Who is unknown is looked for once more after this: another instance may have heard of a new subscription sooner."""
MAX_CONNECTIONS: Final = 32
"""Of one subscription, on all servers."""
KNOCKS: Final = 5
KNOCKS_PER_SECOND: Final = 0.1
"""Refusals of one key. More are not answered: then the server keeps whoever knocks waiting, and nobody here works."""
SIGN_INS: Final = 2 * MAX_CONNECTIONS
SIGN_INS_PER_SECOND: Final = 1.0
"""Of one subscription: all its connections may come back at once after a server's restart."""
MAX_REFUSALS: Final = 1_000
"""Under way at once."""

_SIGN_INS: Final = Counter("muster_subscription_sign_ins", "Sign-ins of subscribers", ["outcome"])

log = structlog.get_logger(__name__)


class Callout:
    """Answers on its own connection, once started."""

    def __init__(self, nc: Client, issuer: KeyPair, directory: Directory, connections: Connections, feed: Feed) -> None:
        self._nc = nc
        self._issuer = issuer
        self._directory = directory
        self._connections = connections
        self._feed = feed
        self._knocks = Buckets(size=KNOCKS, per_second=KNOCKS_PER_SECOND)
        self._sign_ins = Buckets(size=SIGN_INS, per_second=SIGN_INS_PER_SECOND)
        self._refusals: set[asyncio.Task[None]] = set()
        self._admissions: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._nc.subscribe(ASKED_ON, cb=self._on_message)  # pyright: ignore[reportUnknownMemberType]
        await self._nc.flush()

    async def close(self) -> None:
        under_way = [*self._refusals, *self._admissions]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._nc.close()

    async def _on_message(self, message: Msg) -> None:
        try:
            sign_in = read_sign_in(message.data)
        except UnreadableRequestError as error:
            log.warning("sign_in_not_read", error=str(error))
            return
        subscription = subscriber_of(sign_in, self._directory.subscriber)
        if subscription is not None:
            self._let_in(message, sign_in, subscription)
        elif self._knocks.wait_seconds(sign_in.who, time.monotonic()) or len(self._refusals) >= MAX_REFUSALS:
            _SIGN_INS.labels("ignored").inc()
        else:
            self._knocks.take(sign_in.who, 1, time.monotonic())
            task = asyncio.create_task(self._refuse(message, sign_in))
            self._refusals.add(task)
            task.add_done_callback(self._refusals.discard)

    def _let_in(self, message: Msg, sign_in: SignIn, subscription: Subscription) -> None:
        now = time.monotonic()
        busy = self._connections.count(subscription.id) >= MAX_CONNECTIONS
        if busy or self._sign_ins.wait_seconds(subscription.id, now):
            _SIGN_INS.labels("too_many").inc()
            log.warning("too_many_connections", subscription_id=subscription.id)
            return  # the server keeps it waiting, and then says no
        self._sign_ins.take(subscription.id, 1, now)
        self._connections.admitted(subscription.id, Connection(sign_in.server_id, sign_in.connection_id))
        task = asyncio.create_task(self._admit(message, sign_in, subscription))
        self._admissions.add(task)
        task.add_done_callback(self._admissions.discard)

    async def _admit(self, message: Msg, sign_in: SignIn, subscription: Subscription) -> None:
        """What it was told before, and has not acknowledged, comes first, and not after 30 s behind what is newer: a
        program that was killed goes on in the order of the log.
        """
        try:
            await self._feed.rewind(subscription.id)
        except (UnansweredError, JetStreamError) as error:
            # It is there to be made yet, or away for a moment: nobody is kept out for that.
            log.warning("subscription_not_rewound", subscription_id=subscription.id, error=str(error))
        await self._nc.publish(message.reply, admission(sign_in, subscription, self._issuer, int(time.time())))
        _SIGN_INS.labels("admitted").inc()

    async def _refuse(self, message: Msg, sign_in: SignIn) -> None:
        if sign_in.key:
            await asyncio.sleep(REFUSE_SECONDS)
            subscription = subscriber_of(sign_in, self._directory.subscriber)
            if subscription is not None:
                self._let_in(message, sign_in, subscription)
                return
        await self._nc.publish(message.reply, refusal(sign_in, self._issuer, int(time.time())))
        _SIGN_INS.labels("refused").inc()
