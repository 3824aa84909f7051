"""Receivers and backlogs that would keep everybody else waiting."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import asyncpg
import pytest

from events.webhooks import Webhook
from projections.postgres import create_pool
from services.runtime.identity.directory import KnownWebhook
from services.runtime.webhooks import protocol
from services.runtime.webhooks.protocol import AskDeliveries, AskKey, AskTest, Away
from services.webhooks import answers, bounded, feed, post, table
from services.webhooks.feed import Message, taken_in_at_once
from services.webhooks.table import Table
from tests.support.subscribing import until
from tests.support.webhooks import Receiver, Scene

pytestmark = pytest.mark.anyio


async def test_tests_that_hang_keep_nobody_waiting_and_one_asked_for_again_is_the_same(
    scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine: none of them ends before it is let go, and all are about what the service knows.
    monkeypatch.setattr(post, "TRY_SECONDS", 600.0)
    monkeypatch.setattr(table, "CLAIM_SECONDS", 600)
    await scene.start()
    hangs, other = [await scene.webhook(f"{receiver.url}/{path}") for path in ("hangs", "ok")]
    await until(lambda: is_known(scene, other.id), "both webhooks are known")
    refused, answered = 70 - answers.TESTS_OF_PROJECT, list[int]()
    asked = [AskTest(webhook_id=hangs.id, test_id=f"t{n % 3}") for n in range(70)]
    tests = asyncio.create_task(scene.ask_all(asked, answered.append))
    await until(lambda: len(answered) >= refused, "those that are too many are refused")
    assert isinstance(await scene.ask(AskKey(webhook_id=other.id, number=1)), protocol.Key)
    assert isinstance(await scene.ask(AskDeliveries(webhook_id=other.id)), protocol.Deliveries)
    await until(lambda: len(receiver.ids("/hangs")) == len({one.test_id for one in asked}), "all hang")
    for task in receiver.serving:
        task.cancel()
    told = await tests
    assert sum(isinstance(one, Away) for one in told) == refused
    assert {one.delivery.state for one in told if isinstance(one, protocol.Tested)} == {"failed"}
    assert set(receiver.ids("/hangs").values()) == {1}
    tested = await scene.ask(AskTest(webhook_id=other.id, test_id="later"))
    assert tested.delivery.state == "delivered"


async def is_known(scene: Scene, webhook_id: str) -> bool:
    """So are those that were created before it."""
    return isinstance(await scene.ask(AskTest(webhook_id=webhook_id, test_id="known")), protocol.Tested)


@pytest.mark.parametrize(
    ("endless", "status", "error"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, None, f"the answer is longer than {bounded.MOST_BYTES} bytes"),
        (
            b"HTTP/1.1 500 X\r\ntransfer-encoding: chunked\r\n\r\n" + (b"1;" + b"e" * 9_000 + b"\r\nz\r\n") * 100,
            500,
            "",
        ),
    ],
)
async def test_an_answer_without_an_end_is_read_up_to_a_bound(
    scene: Scene, receiver: Receiver, endless: bytes, status: int | None, error: str
) -> None:
    receiver.answers["/endless"] = lambda _: endless + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    await scene.start()
    webhook = await scene.webhook(f"{receiver.url}/endless")
    tested = await scene.ask(AskTest(webhook_id=webhook.id, test_id="t"))
    tried = tested.delivery.tries[0]
    assert (tried.status, tried.error, len(tried.excerpt) < 100) == (status, error, True)


async def test_names_that_nobody_answers_for_take_two_threads_of_a_project(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, asked = threading.Event(), list[str]()

    def hangs(host: str, _port: int) -> list[str]:
        asked.append(host)
        answered.wait(60)
        return []

    monkeypatch.setattr(post, "_look_up", hangs)
    monkeypatch.setattr(post, "TRY_SECONDS", 0.1)
    poster = post.Poster((), ())
    try:
        for number in range(5):
            outcome = await poster.post(f"https://n{number}.example/", {}, b"", project_id="p")
            assert outcome.error.startswith("no answer within")
        assert asked == ["n0.example", "n1.example"]
        answered.set()
        monkeypatch.setattr(post, "TRY_SECONDS", 20.0)
        outcome = await poster.post("https://later.example/", {}, b"", project_id="p")
        assert outcome.error == "not sent: the URL stands for no address"
    finally:
        answered.set()
        await poster.close()


# -- backlogs ----------------------------------------------------------------------------------------------------------

SECONDS = 30.0
"""For a statement: one that looks at every pair of what waits takes minutes."""


@pytest.fixture
async def deliveries(prepared_database: str) -> AsyncGenerator[Table]:
    pool = await create_pool(
        prepared_database,
        min_size=1,
        max_size=2,
        timeout_seconds=5,
        command_timeout_seconds=SECONDS,
        server_settings={"application_name": "test"},
    )
    made = Table(pool)
    await made.begin("0", 0)
    yield made
    pool.terminate()


async def add_waiting(url: str, webhooks: int, events: int) -> None:
    """All about one workload."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "INSERT INTO muster.webhook_deliveries (webhook_id, event_id, type, place, about, body) "
        "SELECT 'w' || w, 'e' || e, 'T', lpad(e::text, 8, '0'), 'same', '{}' "
        "FROM generate_series(1, $1) w, generate_series(1, $2) e",
        webhooks,
        events,
    )
    await connection.close()


async def claimed(deliveries: Table, *webhooks: str) -> set[tuple[str, str]]:
    found = await deliveries.claim([(one, 8, "p", 32) for one in webhooks], 256)
    return {(held.webhook_id, held.event_id) for held in found}


async def test_a_long_row_of_events_about_one_workload_is_claimed_one_after_the_other(
    deliveries: Table, prepared_database: str
) -> None:
    await add_waiting(prepared_database, webhooks=6, events=10_000)
    names = [f"w{number}" for number in range(1, 7)]
    assert await claimed(deliveries, *names) == {(name, "e1") for name in names}
    assert await claimed(deliveries, *names) == set()


async def test_redelivering_what_is_old_holds_up_nothing_that_is_new(
    deliveries: Table, prepared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "LOOKED_AT", 10)
    await add_waiting(prepared_database, webhooks=1, events=50)
    (first,) = await deliveries.claim([("w1", 1, "p", 1)], 1)
    tried = protocol.Try(at=datetime.now(UTC), status=410)
    assert await deliveries.finish(first, tried, "parked", None, free=True)
    assert await deliveries.again("w1", [first.id]) == 1
    (next_,) = await deliveries.claim([("w1", 1, "p", 1)], 1)
    assert next_.event_id == "e2"
    assert await claimed(deliveries, "w1") == {("w1", "e1")}


async def test_a_backlog_is_parked_and_delivered_again_in_bounded_steps(
    deliveries: Table, prepared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "AT_ONCE", 20)
    await add_waiting(prepared_database, webhooks=1, events=50)
    assert [await deliveries.park(["w1"], 50) for _ in range(4)] == [20, 20, 10, 0]
    assert await deliveries.again("w1", None) == 50
    assert len(await deliveries.deliveries("w1", "waiting", None, 100)) == 50


async def test_events_that_many_webhooks_want_are_taken_in_little_by_little() -> None:
    webhooks = [
        KnownWebhook(Webhook(id=f"w{number}", name="n", url="u", created_by="c", created_at=datetime.now(UTC)), "p", 0)
        for number in range(100)
    ]
    headers = {"ce-specversion": "1.0"}
    messages = [
        Message("p", "w", "T", f"{number:016d}.000000", f"e{number}", headers, b"{}") for number in range(1, 201)
    ]
    parts = list(taken_in_at_once(messages, {"p": webhooks}))
    assert all(len(rows) == feed.ROWS_AT_ONCE for rows, _ in parts)
    assert [place for _, place in parts] == [message.place for message in messages[9::10]]
    assert len({(row.webhook_id, row.event_id) for rows, _ in parts for row in rows}) == 20_000
    nobodys = list(taken_in_at_once(messages, {}))
    assert nobodys == [([], messages[-1].place)]
