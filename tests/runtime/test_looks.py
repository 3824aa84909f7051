"""Looks are shared by all who ask before they are sent, and by nobody who asks later.

Requirement rows: S1; docs/adr/0140.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.log.looks import Looks
from services.runtime.log.store import LogUnavailableError

pytestmark = pytest.mark.anyio

SECONDS = 5.0


class Place:
    """Something that is looked at: what it shows is counted, and shown only once it is let go."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[int]] = []
        self.looks = Looks(self._look)

    async def _look(self, _place: str, _seconds: float) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.sent.append(answer)
        return await answer

    def ask(self, place: str = "a", seconds: float = SECONDS) -> "asyncio.Task[int | None]":
        return asyncio.create_task(self.looks.at(place, seconds))


async def settle() -> None:
    """Everything that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_asks_while_a_look_is_under_way_shares_the_next_one() -> None:
    place = Place()
    first = place.ask()
    await settle()
    later = [place.ask() for _ in range(5)]
    await settle()
    assert len(place.sent) == 1, "the others wait until it is over"
    place.sent[0].set_result(1)
    await settle()
    assert first.result() == 1
    assert len(place.sent) == 2
    latest = place.ask()
    await settle()
    place.sent[1].set_result(2)
    await settle()
    assert [task.result() for task in later] == [2] * 5, "none has what was seen before they asked"
    place.sent[2].set_result(3)
    assert await latest == 3


async def test_other_places_wait_for_nobody() -> None:
    place = Place()
    first, other = place.ask("a"), place.ask("b")
    await settle()
    assert len(place.sent) == 2
    for number, answer in enumerate(place.sent):
        answer.set_result(number)
    assert [await first, await other] == [0, 1]


async def test_a_look_whose_answer_is_lost_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.runtime.log.looks.BEHIND_SECONDS", 0.0)
    place = Place()
    lost, later = place.ask(), place.ask()
    while len(place.sent) < 2:
        await asyncio.sleep(0)
    place.sent[1].set_result(2)
    assert await later == 2
    place.sent[0].set_result(1)
    assert await lost == 1


async def test_an_error_is_told_to_all_who_share() -> None:
    place = Place()
    first = place.ask()
    await settle()
    sharing = [place.ask() for _ in range(3)]
    await settle()
    place.sent[0].set_exception(LogUnavailableError("away"))
    await settle()
    place.sent[1].set_exception(LogUnavailableError("still away"))
    await settle()
    with pytest.raises(LogUnavailableError, match=r"^away"):
        await first
    for task in sharing:
        with pytest.raises(LogUnavailableError, match="still away"):
            await task


@pytest.mark.parametrize("sent", [False, True])
async def test_who_looks_for_others_may_be_cancelled(sent: bool) -> None:
    place = Place()
    first = place.ask()
    await settle()
    leads, shares = place.ask(), place.ask()
    await settle()
    if sent:
        place.sent[0].set_result(1)
        await settle()
    leads.cancel()
    await settle()
    if not sent:
        place.sent[0].set_result(1)
        await settle()
    place.sent[-1].set_result(7)
    assert await shares == 7
    assert await first == 1


async def test_who_has_less_time_waits_for_nobody_who_has_more() -> None:
    place = Place()
    first = place.ask()
    await settle()
    slow, quick = place.ask(seconds=5), place.ask(seconds=1)
    await settle()
    assert len(place.sent) == 2
    place.sent[1].set_result(2)
    assert await quick == 2
    place.sent[0].set_result(1)
    await settle()
    place.sent[2].set_result(3)
    assert [await first, await slow] == [1, 3]


@given(steps=st.lists(st.sampled_from(["ask", "answer", "change", "cancel", "turn"]), max_size=60))
def test_nobody_gets_what_was_there_before_they_asked(steps: list[str]) -> None:
    asyncio.run(_walk(steps))


async def _walk(steps: list[str]) -> None:
    now = 0
    under_way: list[tuple[int, asyncio.Future[int]]] = []

    async def look(_place: str, _seconds: float) -> int:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        under_way.append((now, answer))
        return await answer

    looks, asked = Looks(look), list[tuple[int, asyncio.Task[int | None]]]()

    def answer_one() -> None:
        seen, answer = under_way.pop(0)
        if not answer.done():
            answer.set_result(seen)

    acts: dict[str, Callable[[], Awaitable[None]]] = {"turn": settle}
    for step in steps:
        if step == "ask":
            asked.append((now, asyncio.create_task(looks.at("a", SECONDS))))
        elif step == "change":
            now += 1
        elif step == "cancel" and asked:
            asked[-1][1].cancel()
        elif step == "answer" and under_way:
            answer_one()
        elif step in acts:
            await acts[step]()
    for _ in range(2 * len(steps) + 2):
        await settle()
        if under_way:
            answer_one()
    for since, task in asked:
        if not task.cancelled():
            found = await task
            assert found is not None
            assert found >= since
