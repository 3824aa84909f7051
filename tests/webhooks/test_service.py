"""The service on a real log, FEED and Postgres: what is posted, what is tried again, and what survives."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs
from standardwebhooks import Webhook as PublicLibrary

from development.streams import delete_streams
from events.aggregate import LOG, draft
from events.commit import service_actor
from events.decision import Context
from events.installation import LOG_KEY, RestoreLog
from events.webhooks import ChangeWebhook, DeleteWebhook, RotateWebhookKey
from projections.postgres import create_pool
from services.runtime.identity.directory import Directory
from services.runtime.log.store import Committed
from services.runtime.nats.streams import create_streams
from services.runtime.webhooks.addresses import networks_of
from services.runtime.webhooks.protocol import AskAgain, AskDeliveries, AskKey, AskTest
from services.webhooks import due, feed, table
from services.webhooks.dispatch import Dispatcher
from services.webhooks.keys import WebhookKeys
from services.webhooks.post import Poster
from services.webhooks.table import Row, Table
from tests.support.subscribing import until
from tests.support.webhooks import KEY, Receiver, Scene

pytestmark = pytest.mark.anyio


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other within milliseconds."""
    monkeypatch.setattr(due, "PAUSES", tuple(timedelta(milliseconds=20) for _ in due.PAUSES))
    monkeypatch.setattr(due.Breaker, "LONGEST", timedelta(milliseconds=20))


async def test_events_are_posted_signed_and_in_order_to_those_that_want_them(scene: Scene, receiver: Receiver) -> None:
    await scene.start()
    every = await scene.webhook(f"{receiver.url}/ok")
    await scene.webhook(f"{receiver.url}/some", "Workload*", "PodEnded")
    other = await scene.given.project("other")
    ids = await scene.tell(5)
    pods = await scene.tell(1, type_="PodStarted")
    await scene.tell(1, project=other)
    ids += await scene.tell(1, type_="WorkloadFailed")

    await until(lambda: len(receiver.of("/ok")) == 7 and len(receiver.of("/some")) == 6, "all are posted")
    assert [request.id for request in receiver.of("/ok")] == [*ids[:5], *pods, *ids[5:]]
    assert [request.id for request in receiver.of("/some")] == ids
    first = receiver.of("/ok")[0]
    assert first.headers["content-type"].startswith("application/cloudevents+json")
    assert first.event | {"sequence": ""} == {
        "specversion": "1.0",
        "id": ids[0],
        "type": "muster.WorkloadSubmitted.v1",
        "source": f"/projects/{scene.project_id}",
        "sequence": "",
        "data": {"name": "train"},
    }
    key = await scene.ask(AskKey(webhook_id=every.id, number=1))
    PublicLibrary(key.text).verify(first.body, first.headers)


async def test_what_fails_is_tried_again_and_stands_in_the_log_of_deliveries(
    scene: Scene, receiver: Receiver, soon: None
) -> None:
    await scene.start()
    slow = await scene.webhook(f"{receiver.url}/slow")
    (id_,) = await scene.tell(1)
    await until(lambda: receiver.ids("/slow") == {id_: 3}, "the third try is taken")

    async def stored() -> bool:
        return (await scene.ask(AskDeliveries(webhook_id=slow.id))).deliveries[0].state == "delivered"

    await until(stored, "it is delivered")
    (delivery,) = (await scene.ask(AskDeliveries(webhook_id=slow.id))).deliveries
    assert [(one.status, one.excerpt) for one in delivery.tries] == [(503, "busy"), (503, "busy"), (204, "")]
    assert (delivery.event_id, delivery.type, delivery.due_at) == (id_, "WorkloadSubmitted", None)


async def test_what_was_tried_in_vain_for_days_is_parked_and_its_webhook_disabled(
    scene: Scene, receiver: Receiver, soon: None
) -> None:
    await scene.start()
    down = await scene.webhook(f"{receiver.url}/down")
    (id_,) = await scene.tell(1)

    async def disabled() -> bool:
        return (await scene.now(down.id)).disabled == "failing"

    await until(disabled, "it is disabled")
    assert receiver.ids("/down") == {id_: due.MAX_TRIES}
    (parked,) = (await scene.ask(AskDeliveries(webhook_id=down.id, state="parked"))).deliveries
    assert [one.excerpt for one in parked.tries] == ["out of order"] * due.MAX_TRIES


async def test_a_receiver_that_is_gone_gets_nothing_more_until_its_webhook_is_enabled(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.start()
    gone = await scene.webhook(f"{receiver.url}/gone")
    (id_,) = await scene.tell(1)

    async def disabled() -> bool:
        return (await scene.now(gone.id)).disabled == "gone"

    await until(disabled, "it is disabled")
    receiver.answers.pop("/gone")
    enable = ChangeWebhook(project_id=scene.project_id, webhook_id=gone.id, enabled=True)
    await scene.do(enable)
    assert (await scene.ask(AskAgain(webhook_id=gone.id))).count == 1
    await until(lambda: receiver.ids("/gone") == {id_: 2}, "it is delivered again")
    # It may be disabled a second time.
    receiver.answers["/gone"] = lambda _: b"HTTP/1.1 410 X\r\ncontent-length: 0\r\n\r\n"
    await scene.tell(1)
    await until(disabled, "it is disabled again")


async def test_one_that_hangs_keeps_no_others_waiting(scene: Scene, receiver: Receiver) -> None:
    await scene.start()
    for path in ("hangs", "hangs", "hangs", "ok", "also"):
        await scene.webhook(f"{receiver.url}/{path}")
    ids = await scene.tell(100)
    await until(lambda: len(receiver.of("/ok")) == len(receiver.of("/also")) == 100, "the others got theirs")
    assert set(receiver.ids("/ok")) == set(ids)


async def test_two_services_post_everything_once(scene: Scene, receiver: Receiver) -> None:
    await scene.start()
    await scene.start()
    await scene.webhook(f"{receiver.url}/ok")
    for workload in range(10):
        await scene.tell(10, workload=f"w{workload}")
    await until(lambda: len(receiver.of("/ok")) >= 100, "all are posted")
    assert set(receiver.ids("/ok").values()) == {1}
    assert len(receiver.ids("/ok")) == 100


async def test_one_that_is_killed_is_followed_by_one_that_loses_nothing(
    scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "CLAIM_SECONDS", 1)
    service = await scene.start()
    await scene.webhook(f"{receiver.url}/ok")
    ids: list[str] = []
    for _ in range(4):
        ids += await scene.tell(25)
        await scene.kill(service)
        service = await scene.start()
    await until(lambda: set(receiver.ids("/ok")) == set(ids), "nothing is lost")


async def test_a_feed_that_is_written_again_is_read_on_and_nothing_is_posted_twice(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.start()
    await scene.webhook(f"{receiver.url}/ok")
    await scene.tell(3)
    await until(lambda: len(receiver.of("/ok")) == 3, "those before it are posted")
    await delete_streams(scene.given.nc, "FEED")
    await create_streams(scene.given.nc, 1)
    for number in range(1, 4):
        await scene.tell_again(number)
    (id_,) = await scene.tell(1)
    await until(lambda: id_ in receiver.ids("/ok"), "the new one is posted")
    assert set(receiver.ids("/ok").values()) == {1}


async def test_a_test_is_posted_once_and_answered_with_what_came_of_it(scene: Scene, receiver: Receiver) -> None:
    await scene.start()
    taken, refused = [await scene.webhook(f"{receiver.url}/{path}") for path in ("ok", "down")]
    for _ in range(2):
        tested = await scene.ask(AskTest(webhook_id=taken.id, test_id="t1"))
        assert (tested.delivery.state, tested.delivery.type) == ("delivered", "WebhookTest")
    assert [request.event["type"] for request in receiver.of("/ok")] == ["muster.WebhookTest.v1"]
    tested = await scene.ask(AskTest(webhook_id=refused.id, test_id="t2"))
    assert (tested.delivery.state, tested.delivery.tries[0].status) == ("failed", 500)


async def test_a_rotated_key_signs_beside_the_old_one_and_a_deleted_webhook_is_forgotten(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.start()
    made = await scene.webhook(f"{receiver.url}/ok")
    await scene.do(RotateWebhookKey(project_id=scene.project_id, webhook_id=made.id))
    await scene.tell(1)
    await until(lambda: len(receiver.of("/ok")) == 1, "it is posted")
    (request,) = receiver.of("/ok")
    for number in (1, 2):
        key = await scene.ask(AskKey(webhook_id=made.id, number=number))
        PublicLibrary(key.text).verify(request.body, request.headers)
    await scene.do(DeleteWebhook(project_id=scene.project_id, webhook_id=made.id))
    await scene.tell(1)
    last = await scene.webhook(f"{receiver.url}/last")
    await scene.tell(1)
    await until(lambda: receiver.of("/last"), "the last one is told")
    assert len(receiver.of("/ok")) == 1
    assert last.id != made.id


@pytest.mark.parametrize("length", [100, 10**6])
async def test_a_status_counts_although_the_rest_of_the_answer_does_not_come(
    scene: Scene, receiver: Receiver, length: int
) -> None:
    cut = f"HTTP/1.1 410 X\r\ncontent-length: {length}\r\n\r\ngone for".encode()
    receiver.answers["/cut"] = lambda _: cut
    await scene.start()
    hook = await scene.webhook(f"{receiver.url}/cut")
    await scene.tell(1)

    async def disabled() -> bool:
        return (await scene.now(hook.id)).disabled == "gone"

    await until(disabled, "it is disabled")
    (parked,) = (await scene.ask(AskDeliveries(webhook_id=hook.id))).deliveries
    assert [(one.status, one.excerpt) for one in parked.tries] == [(410, "gone for")]


async def test_many_webhooks_of_one_project_are_told_of_the_same_in_parts(
    scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "ROWS_AT_ONCE", 5)
    for number in range(4):
        await scene.webhook(f"{receiver.url}/{number}")
    ids = await scene.tell(10)
    await scene.start()
    paths = [f"/{number}" for number in range(4)]
    await until(lambda: all(len(receiver.of(path)) == 10 for path in paths), "all are posted")
    assert [[request.id for request in receiver.of(path)] for path in paths] == [ids] * 4


async def test_who_does_not_hear_the_log_deletes_and_parks_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a service that was cut off from NATS, or stood still, before a webhook was made: Postgres it still has."""
    monkeypatch.setattr(feed, "CATCH_UP_SECONDS", 0.1)
    other = await scene.webhook("http://127.0.0.1:9/other")
    async with tidying(scene) as (table, directory, dispatcher):
        await directory.close()
        hook = await scene.webhook("http://127.0.0.1:9/")
        assert (other.id in directory.webhooks, hook.id in directory.webhooks) == (True, False)
        await table.begin("0", 0)
        row = Row(webhook_id=hook.id, event_id="e", type="T", place="1", about="w", body="{}")
        await table.take_in([row], "1", since="0")
        stop = asyncio.Event()
        task = asyncio.create_task(dispatcher.tidy(stop))
        await asyncio.sleep(0.3)
        task.cancel()
        assert [one.event_id for one in await table.claim([(hook.id, 1, "p", 1)], 1)] == ["e"]


async def test_what_a_service_has_held_for_too_long_is_left_to_others(scene: Scene, receiver: Receiver) -> None:
    """It stood still between its claim and the request: by now another service may have posted it."""
    hook = await scene.webhook(f"{receiver.url}/ok")
    async with tidying(scene) as (table, directory, dispatcher):
        await table.begin("0", 0)
        row = Row(webhook_id=hook.id, event_id="e", type="T", place="1", about="w", body="{}")
        await table.take_in([row], "1", since="0")
        (held,) = await table.claim([(hook.id, 1, "p", 1)], 1)
        await dispatcher.deliver_now(directory.webhooks[hook.id], structs.replace(held, post_by=time.monotonic() - 1))
        assert receiver.of("/ok") == []
        await dispatcher.deliver_now(directory.webhooks[hook.id], held)
        assert receiver.ids("/ok") == {"e": 1}


@pytest.mark.parametrize("tables", ["empty", "of before"])
async def test_after_a_restore_webhooks_are_told_of_it_and_of_what_came_after_it(
    scene: Scene, receiver: Receiver, tables: str
) -> None:
    """Given tables that are new, or those of the log that was lost, which had come much further."""
    await scene.webhook(f"{receiver.url}/ok")
    await scene.tell(5)
    if tables == "of before":
        service = await scene.start()
        await until(lambda: len(receiver.of("/ok")) == 5, "they are posted")
        await scene.kill(service)
    seq = await restored(scene)
    await delete_streams(scene.given.nc, "FEED")
    await create_streams(scene.given.nc, 1)
    ids = [await scene.tell_at(seq + number) for number in range(3)]
    await scene.start()
    await until(lambda: set(ids) <= set(receiver.ids("/ok")), "they are posted")
    assert [request.id for request in receiver.of("/ok")][-3:] == ids


async def test_tables_that_are_lost_long_after_a_restore_begin_with_what_is_new(
    scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "RESTORED_WITHIN", timedelta())
    await scene.webhook(f"{receiver.url}/ok")
    seq = await restored(scene)
    await scene.tell_at(seq)
    await scene.start()
    ids = [await scene.tell_at(seq + number) for number in (1, 2)]
    await until(lambda: len(receiver.of("/ok")) == 2, "the new ones are posted")
    assert [request.id for request in receiver.of("/ok")] == ids


async def restored(scene: Scene) -> int:
    """Have the log say that it was restored; the sequence of that commit."""
    store, now = scene.given.store, datetime.now(UTC)
    chain = await store.load(LOG, LOG_KEY)
    command = RestoreLog(seq=await store.last_seq(), chain="0" * 64, backed_up_at=now)
    actor = service_actor("restore")
    events = LOG.decide(command, chain.state, Context(now=now, actor=actor, command_id="restored"))
    assert isinstance(events, tuple)
    made = draft(LOG, LOG_KEY, chain, events, command_id="restored", actor=actor, now=now)
    outcome = await store.append(made)
    assert isinstance(outcome, Committed)
    return outcome.commits[0].seq


@contextlib.asynccontextmanager
async def tidying(scene: Scene) -> AsyncGenerator[tuple[Table, Directory, Dispatcher]]:
    """A service's parts, of which none runs."""
    store = scene.given.store
    directory = Directory(store)
    await directory.start()
    pool = await create_pool(
        scene.settings("webhooks").database_url,
        min_size=0,
        max_size=2,
        timeout_seconds=5,
        command_timeout_seconds=5,
        server_settings={},
    )
    poster = Poster(networks_of("127.0.0.0/8"), ())

    async def disable(*_: object) -> None:
        pass

    table = Table(pool)
    dispatcher = Dispatcher(
        table,
        poster,
        WebhookKeys(KEY),
        directory,
        catch_up=lambda: feed.catch_up(store, directory),
        disable=disable,
    )
    try:
        yield table, directory, dispatcher
    finally:
        await poster.close()
        await pool.close()
        await directory.close()
