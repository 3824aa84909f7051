"""Answers what the api asks: keys, deliveries, tests. Who may ask what, the api has looked at."""

import asyncio
from collections import Counter as Counts
from datetime import UTC, datetime
from typing import Final, assert_never

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.codec import UNDECODABLE
from services.runtime.identity.directory import Directory, KnownWebhook
from services.runtime.webhooks.protocol import (
    MAX_PAGE,
    Again,
    Answered,
    AskAgain,
    AskDeliveries,
    Asked,
    AskKey,
    AskTest,
    Away,
    Deliveries,
    Key,
    Tested,
)
from services.webhooks.dispatch import Dispatcher
from services.webhooks.feed import AWAY
from services.webhooks.keys import WebhookKeys
from services.webhooks.table import Row, Table

TEST_TYPE: Final = "WebhookTest"
TESTS_OF_PROJECT: Final = 4
"""Under way at once: each waits for a receiver that may hang, and whoever else asks must not wait for it."""
TESTS_IN_ALL: Final = 32
"""Half of the questions that are answered at once."""
KNOWN_SECONDS: Final = 2.0
"""Within which a webhook that was just created is known here."""
_DECODER: Final = msgspec.json.Decoder(Asked)
_ENCODER: Final = msgspec.json.Encoder()

log = structlog.get_logger(__name__)


class Desk:
    """Where the api asks."""

    def __init__(
        self, nc: Client, table: Table, keys: WebhookKeys, directory: Directory, dispatcher: Dispatcher
    ) -> None:
        self._nc = nc
        self._table = table
        self._keys = keys
        self._directory = directory
        self._dispatcher = dispatcher
        self._asked = Counts[str]()
        """Tests that are waited for, by project."""
        self._under_way: dict[str, asyncio.Task[None]] = {}
        """By the id of the test: one that is asked for again waits for the same request."""

    async def handle(self, message: Msg) -> None:
        try:
            asked = _DECODER.decode(message.data)
        except UNDECODABLE as error:
            log.warning("webhook_question_not_read", subject=message.subject, error=str(error))
            return
        try:
            answer = await self._answer(asked)
        except AWAY as error:
            log.warning("webhook_question_not_answered", subject=message.subject, error=str(error))
            answer = Away(reason="the deliveries of webhooks cannot be read or written now")
        try:
            await self._nc.publish(message.reply, _ENCODER.encode(answer))
        except (NatsError, OSError) as error:
            log.warning("reply_not_sent", subject=message.subject, error=str(error) or type(error).__name__)

    async def _answer(self, asked: Asked) -> Answered:
        match asked:
            case AskKey():
                return Key(text=self._keys.text(asked.webhook_id, asked.number))
            case AskDeliveries():
                limit = max(1, min(asked.limit, MAX_PAGE))
                found = await self._table.deliveries(asked.webhook_id, asked.state, asked.before, limit)
                return Deliveries(deliveries=found)
            case AskAgain():
                count = await self._table.again(asked.webhook_id, asked.numbers)
                self._dispatcher.wake()
                return Again(count=count)
            case AskTest():
                return await self._test(asked)
            case _:
                assert_never(asked)

    async def _test(self, asked: AskTest) -> Answered:
        known = await self._known(asked.webhook_id)
        if known is None:
            return Away(reason="the webhook is not known yet")
        project = known.project_id
        if self._asked[project] >= TESTS_OF_PROJECT or self._asked.total() >= TESTS_IN_ALL:
            return Away(reason="other tests of webhooks are under way")
        self._asked[project] += 1
        try:
            return await self._outcome(known, asked)
        finally:
            self._asked -= Counts((project,))

    async def _outcome(self, known: KnownWebhook, asked: AskTest) -> Answered:
        body = test_body(asked.test_id, known, datetime.now(UTC))
        held, delivery = await self._table.test(
            Row(
                webhook_id=asked.webhook_id,
                event_id=asked.test_id,
                type=TEST_TYPE,
                place="",
                about=asked.test_id,
                body=body,
            )
        )
        if held is not None:
            posting = asyncio.create_task(self._dispatcher.deliver_now(known, held))
            self._under_way[asked.test_id] = posting
            posting.add_done_callback(lambda _: self._under_way.pop(asked.test_id, None))
        if (under_way := self._under_way.get(asked.test_id)) is not None:
            await asyncio.shield(under_way)
            delivery = await self._table.delivery(asked.webhook_id, asked.test_id)
        return Tested(delivery=delivery)

    async def _known(self, webhook_id: str) -> KnownWebhook | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + KNOWN_SECONDS
        while (known := self._directory.webhooks.get(webhook_id)) is None and loop.time() < deadline:
            await self._directory.moved(deadline - loop.time())
        return known


def test_body(test_id: str, known: KnownWebhook, now: datetime) -> str:
    """A CloudEvent of its own type, which no public event has."""
    return _ENCODER.encode(
        {
            "specversion": "1.0",
            "id": test_id,
            "source": f"/projects/{known.project_id}",
            "type": f"muster.{TEST_TYPE}.v1",
            "subject": known.webhook.id,
            "time": now.isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": {"webhookId": known.webhook.id, "webhookName": known.webhook.name},
        }
    ).decode()
