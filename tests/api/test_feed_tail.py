"""FEED as the api reads it, with the rights of the api: followed, read in pages, away, written anew, and cut short."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from development.servers import NatsServer
from development.streams import delete_streams
from events.public.cloudevents import Place
from events.subjects import FEED_STREAM, feed_filter
from services.api.feed_frames import UnreadableEventError
from services.api.feed_ring import Wanted
from services.api.feed_tail import PAGE_EVENTS, FeedTail, Listener
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED, NANOSECONDS
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import create_streams
from tests.support.subscribing import Given, given_on, until

pytestmark = pytest.mark.anyio
ALL = Wanted()


class Scene:
    """A FEED that the test writes, and the tail of it."""

    def __init__(self, given: Given, tail: FeedTail) -> None:
        self.given = given
        self.tail = tail
        self.listener = Listener()

    async def write(self, first: int, last: int, project: str = "p") -> None:
        for seq in range(first, last + 1):
            await self.given.publish(project, "{}", seq=seq)

    def seen(self, behind: int = 0) -> list[int]:
        ring = self.tail.ring
        return [] if ring is None else [e.place.seq for e in ring.behind(Place(behind, 0), None, ALL)]

    async def sees(self, *seqs: int, behind: int = 0) -> None:
        await until(lambda: self.seen(behind) == list(seqs), f"the ring holds {seqs}")

    async def remake(self, **settings: object) -> None:
        await delete_streams(self.given.nc, FEED_STREAM)
        (declared,) = (one for one in DECLARED if one.name == FEED_STREAM)
        await create_streams(self.given.nc, 1, [replace(declared, settings={**declared.settings, **settings})])

    async def everything(self, place: Place, subject: str) -> tuple[list[int], int]:
        """Sequences behind a place, page by page, and how many pages those are."""
        seqs: list[int] = []
        cursor, pages = None, 0
        while True:
            page = await self.tail.page(place, cursor, subject)
            seqs += [entry.place.seq for entry in page.entries]
            place, cursor, pages = page.reached, page.next, pages + 1
            if page.at_end:
                return seqs, pages


@pytest.fixture
async def scene(fresh_log: NatsServer) -> AsyncGenerator[Scene]:
    nc = await connect(fresh_log.settings("api"), "api")
    tail = FeedTail(Requests(nc))
    try:
        async with given_on(fresh_log) as given:
            yield Scene(given, tail)
    finally:
        await tail.close()
        await nc.close()


async def test_what_comes_while_somebody_listens_is_in_the_ring(scene: Scene) -> None:
    await scene.write(1, 3)
    with scene.tail.listening(scene.listener, None):
        await until(lambda: scene.tail.ring is not None, "it follows")
        await scene.write(4, 6)
        await scene.sees(4, 5, 6)
        assert scene.tail.ring is not None
        assert not scene.tail.ring.covers(Place(2, 0), None)
    await until(lambda: scene.tail.ring is None, "nothing is kept for nobody")


async def test_a_listener_is_woken_by_its_projects_alone(scene: Scene) -> None:
    other = Listener()
    with (
        scene.tail.listening(scene.listener, frozenset({"p"})),
        scene.tail.listening(other, frozenset({"q"})),
    ):
        await until(lambda: scene.tail.ring is not None, "it follows")
        other.woken.clear()
        scene.listener.woken.clear()
        await scene.write(1, 1)
        await asyncio.wait_for(scene.listener.woken.wait(), 60)
        assert not other.woken.is_set()


async def test_a_feed_that_is_written_anew_is_gone_on_with_where_it_was(scene: Scene) -> None:
    """Given one that is deleted, and written again from its beginning: nothing twice, nothing left out."""
    await scene.write(1, 2)
    with scene.tail.listening(scene.listener, None):
        await until(lambda: scene.tail.ring is not None, "it follows")
        await scene.write(3, 5)
        await scene.sees(3, 4, 5)
        scene.listener.woken.clear()
        await delete_streams(scene.given.nc, FEED_STREAM)
        await until(lambda: bool(scene.tail.away), "it is said to be away")
        await scene.remake()
        await scene.write(1, 4)
        assert scene.tail.away
        assert scene.listener.woken.is_set()
        await scene.write(5, 8)
        await scene.sees(3, 4, 5, 6, 7, 8)
        assert not scene.tail.away


async def test_pages_hold_all_behind_a_place_of_the_subject_in_order(scene: Scene) -> None:
    for seq in range(1, 2 * PAGE_EVENTS + 3):
        await scene.given.publish("p" if seq % 2 else "q", "{}", seq=seq)
    count = 2 * PAGE_EVENTS + 2
    every, pages = await scene.everything(Place(10, 0), feed_filter("*"))
    assert (every, pages) == (list(range(11, count + 1)), 2)
    odd, _ = await scene.everything(Place(10, 0), feed_filter("p"))
    assert odd == list(range(11, count + 1, 2))
    page = await scene.tail.page(Place(0, 0), None, feed_filter("nobody"))
    assert (page.entries, page.reached, page.at_end, page.gone) == ([], Place(count, 0), True, False)


async def test_what_is_of_others_is_not_even_read(scene: Scene) -> None:
    await scene.write(1, 2)
    where = {"ce-sequence": Place(3, 0).text()}
    await scene.given.nc.jetstream().publish("feed.q.-.Odd", b"without an id", headers=where)
    page = await scene.tail.page(Place(0, 0), None, feed_filter("*"), lambda project, *_: project == "p")
    assert [entry.place.seq for entry in page.entries] == [1, 2]
    assert (page.reached, page.at_end) == (Place(3, 0), True)
    with pytest.raises(UnreadableEventError):
        await scene.tail.page(Place(0, 0), None, feed_filter("*"))


async def test_where_feed_no_longer_holds_what_was_asked_for_the_page_says_so(scene: Scene) -> None:
    await scene.remake(max_msgs=4)
    await scene.write(1, 10)
    page = await scene.tail.page(Place(2, 0), None, feed_filter("p"))
    assert (page.gone, [entry.place.seq for entry in page.entries]) == (True, [7, 8, 9, 10])
    page = await scene.tail.page(Place(8, 0), None, feed_filter("p"))
    assert (page.gone, [entry.place.seq for entry in page.entries]) == (False, [9, 10])
    behind = page.next
    await scene.write(11, 20)
    page = await scene.tail.page(Place(10, 0), behind, feed_filter("p"))
    assert (page.gone, [entry.place.seq for entry in page.entries]) == (True, [17, 18, 19, 20])


async def test_where_all_of_feed_has_gone_by_its_age_the_page_says_so(scene: Scene) -> None:
    await scene.remake(max_age=NANOSECONDS)
    assert not (await scene.tail.page(Place(2, 0), None, feed_filter("p"))).gone, "nothing was ever there"
    await scene.write(1, 3)

    async def empty() -> bool:
        return (await scene.given.nc.jetstream().stream_info(FEED_STREAM)).state.messages == 0

    await until(empty, "all has gone")
    page = await scene.tail.page(Place(2, 0), None, feed_filter("p"))
    assert (page.gone, page.entries, page.at_end) == (True, [], True)
    assert not (await scene.tail.page(Place(2, 0), page.next, feed_filter("p"))).gone, "it is said once"
