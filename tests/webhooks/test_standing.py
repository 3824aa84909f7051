"""How far all was delivered is kept beside the log: nothing that was not delivered is lost with Postgres."""

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from development.streams import delete_streams
from events.public.cloudevents import Place
from events.webhooks import Webhook
from services.runtime.identity.directory import KnownWebhook
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import create_streams
from services.webhooks import feed
from services.webhooks.standing import Open, Standing, Standings, standing_of
from services.webhooks.table import Stand, Undelivered
from tests.support.lives import BEGIN
from tests.support.subscribing import until
from tests.support.webhooks import Receiver, Scene, reply
from tests.webhooks.test_service import restored

pytestmark = pytest.mark.anyio


def at(*numbers: int) -> tuple[str, ...]:
    return tuple(Place(number, 0).text() for number in numbers)


(TEN,) = at(10)
STANDING = Standing(
    incarnation=0,
    place=TEN,
    webhooks={
        "clean": Open(),
        "behind": Open(waiting=at(4, 7), parked=at(2)),
        "far behind": Open(waiting=at(3), after=at(3)[0]),
    },
)


@pytest.mark.parametrize(
    ("webhook", "waiting", "parked"),
    [
        ("clean", [11], []),
        ("behind", [4, 7, 11], [2]),
        ("far behind", [3, 4, 5, 6, 7, 8, 9, 10, 11], []),
        ("new", list(range(1, 12)), []),
    ],
)
def test_only_what_was_delivered_is_not_due_again(webhook: str, waiting: list[int], parked: list[int]) -> None:
    due = {number: STANDING.due(webhook, at(number)[0]) for number in range(1, 12)}
    assert [number for number, state in due.items() if state == "waiting"] == waiting
    assert [number for number, state in due.items() if state == "parked"] == parked


def known(id_: str, since: int = 0) -> KnownWebhook:
    webhook = Webhook(id=id_, name=id_, url="https://example.com", created_by="alice", created_at=BEGIN)
    return KnownWebhook(webhook, "p", since)


def test_it_begins_before_the_first_that_may_not_have_been_delivered() -> None:
    assert STANDING.begin([known("clean")]) == TEN
    assert at(1)[0] < STANDING.begin([known("clean"), known("behind")]) < at(2)[0]
    assert STANDING.begin([known("new", since=6)]).startswith(at(6)[0].partition(".")[0])


def test_of_a_log_that_lost_its_end_it_says_nothing_of_what_is_lost() -> None:
    end = Place(5, 999_999).text()
    after = STANDING.in_log(1, end)
    assert (after.incarnation, after.place, after.webhooks["behind"].waiting) == (1, end, at(4))
    assert after.due("clean", at(6)[0]) == "waiting", "another event has this place now"
    assert STANDING.in_log(0, end) is STANDING


def test_of_very_many_that_wait_all_behind_the_last_one_listed_count_as_not_delivered() -> None:
    waits = [Undelivered("w", place, "waiting") for place in at(9, 3, 4, 6)]
    made = standing_of(Stand(0, TEN, waits), ["w", "idle"], most=3)
    assert made.webhooks == {"w": Open(waiting=at(3, 4, 6), after=at(6)[0]), "idle": Open()}


@pytest.mark.parametrize(
    "junk", [b"", b"[" * 100_000, b'{"incarnation":0,"place":"10","webhooks":{}}', b'{"incarnation":"x"}']
)
async def test_a_standing_that_cannot_be_read_counts_as_none_and_is_written_anew(scene: Scene, junk: bytes) -> None:
    await scene.given.nc.request("stand.webhooks", junk, timeout=60)
    standings = Standings(Requests(scene.given.nc))
    assert await standings.newest() == (None, 1)
    await standings.write(STANDING)
    assert await standings.newest() == (STANDING, 2)


async def test_in_one_log_a_standing_never_goes_back(scene: Scene) -> None:
    standings, nine = Standings(Requests(scene.given.nc)), Standing(incarnation=0, place=at(9)[0], webhooks={})
    for one in (STANDING, nine, STANDING):
        await standings.write(one)
    assert await standings.newest() == (STANDING, 1)


@pytest.mark.parametrize("lost", ["the end of the log, and Postgres", "Postgres"])
async def test_what_was_not_delivered_is_delivered_after_postgres_is_lost_and_nothing_else_again(
    scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(feed, "WRITE_SECONDS", 0.05)
    ok, down = await scene.webhook(f"{receiver.url}/ok"), await scene.webhook(f"{receiver.url}/down")
    service, seqs = await scene.start(), list[int]()
    for _ in range(6):
        await scene.webhook("https://example.com/another", "BudgetWarned")
        seqs.append(await scene.given.store.last_seq())
    ids = await tell(scene, seqs)
    standings = Standings(Requests(scene.given.nc))

    async def all_is_kept() -> bool:
        newest, _ = await standings.newest()
        return (
            newest is not None
            and newest.webhooks[ok.id] == Open()
            and len(newest.webhooks[down.id].waiting) == len(ids)
            and newest.place > at(seqs[-1] - 1)[0]
        )

    await until(lambda: len(receiver.of("/ok")) == len(ids), "they are posted")
    async with asyncio.timeout(60):
        while not await all_is_kept():
            await asyncio.sleep(0.05)
    await scene.kill(service)
    connection = await asyncpg.connect(scene.settings("webhooks").database_url)
    await connection.execute("TRUNCATE muster.webhook_position, muster.webhook_deliveries")
    await connection.close()
    if lost != "Postgres":
        seqs.append(await restored(scene))
        await delete_streams(scene.given.nc, "FEED")
        await create_streams(scene.given.nc, 1)
        assert (await tell(scene, seqs))[: len(ids)] == ids
    receiver.requests.clear()
    receiver.answers["/down"] = lambda _: reply(204)
    await scene.start()
    new = await scene.tell_at(await scene.given.store.last_seq() + 1)
    await until(lambda: new in receiver.ids("/down") and new in receiver.ids("/ok"), "the new one is posted")
    await until(lambda: set(ids) <= set(receiver.ids("/down")), "what waited is posted")
    assert not set(ids) & set(receiver.ids("/ok")), "what was delivered is not posted again"


@pytest.mark.parametrize("put_back", ["empty", "to an older place"])
async def test_tables_that_are_put_back_beside_a_running_service_lose_no_event(
    scene: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, put_back: str
) -> None:
    """As by an administrator, from a copy of Postgres' own: what the service knew of before is not what they have."""
    monkeypatch.setattr(feed, "WRITE_SECONDS", 0.05)
    down = await scene.webhook(f"{receiver.url}/down")
    await scene.start()
    seqs = list[int]()
    for _ in range(3):
        await scene.webhook("https://example.com/another", "BudgetWarned")
        seqs.append(await scene.given.store.last_seq())
    ids = await tell(scene, seqs)
    standings = Standings(Requests(scene.given.nc))
    async with asyncio.timeout(60):
        while (newest := (await standings.newest())[0]) is None or len(newest.webhooks[down.id].waiting) < len(ids):
            await asyncio.sleep(0.05)
    connection = await asyncpg.connect(scene.settings("webhooks").database_url)
    async with connection.transaction():
        await connection.execute("DELETE FROM muster.webhook_deliveries")
        if put_back == "empty":
            await connection.execute("DELETE FROM muster.webhook_position")
        else:
            await connection.execute("UPDATE muster.webhook_position SET place = $1", at(seqs[0] - 1)[0])
    await connection.close()
    receiver.requests.clear()
    receiver.answers["/down"] = lambda _: reply(204)
    new = await scene.tell_at(await scene.given.store.last_seq() + 1)
    await until(lambda: {*ids, new} <= set(receiver.ids("/down")), "what waited is posted, and what is new")


async def test_from_its_first_moment_on_nothing_is_lost_with_postgres(scene: Scene, receiver: Receiver) -> None:
    """Given tables that are lost before the time of the first standing has come."""
    await scene.webhook(f"{receiver.url}/down")
    service = await scene.start()
    await scene.webhook("https://example.com/another", "BudgetWarned")
    ids = await tell(scene, [await scene.given.store.last_seq()])
    await until(lambda: receiver.of("/down"), "it is taken in")
    await scene.kill(service)
    connection = await asyncpg.connect(scene.settings("webhooks").database_url)
    await connection.execute("TRUNCATE muster.webhook_position, muster.webhook_deliveries")
    await connection.close()
    receiver.requests.clear()
    receiver.answers["/down"] = lambda _: reply(204)
    await scene.start()
    await until(lambda: set(ids) <= set(receiver.ids("/down")), "what waited is posted")


async def tell(scene: Scene, seqs: Sequence[int]) -> list[str]:
    return [await scene.tell_at(seq) for seq in seqs]
