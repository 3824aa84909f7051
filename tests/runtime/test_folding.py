"""Followers that keep a fold: they stand before a commit that cannot be applied, and take nothing in behind it."""

import asyncio
import contextlib

import pytest
from nats.aio.client import Client

from events.aggregate import BrokenChainError
from events.commit import Commit
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import Committed, UnreadableMessageError
from tests.support.drafts import grant

pytestmark = pytest.mark.anyio


class Picky:
    """A fold to which one aggregate's commits do not fit."""

    def __init__(self, *, from_snapshot: bool) -> None:
        self.seq = 0
        self.from_snapshot = from_snapshot
        self.applied: list[str] = []

    def apply(self, commit: Commit) -> None:
        if commit.key == "bad":
            raise BrokenChainError("it does not fit", seq=commit.seq)
        self.applied.append(commit.key)


async def three_with_a_bad_one(store: JetStreamEventStore) -> None:
    for key in ("before", "bad", "behind"):
        await store.append(grant(key, 0, subject="ada"))


async def test_a_follower_stands_before_what_cannot_be_applied_and_says_so(client: Client) -> None:
    store, fold = JetStreamEventStore(client), Picky(from_snapshot=False)
    told: list[UnreadableMessageError | None] = []
    await three_with_a_bad_one(store)

    async def follow() -> None:
        async with contextlib.aclosing(follow_into(store, fold, on_standing=told.append, idle_seconds=0.1)) as followed:
            async for _ in followed:
                pass

    following = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        while not any(told):
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)  # it goes no further
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert (fold.applied, fold.seq) == (["before"], 1)
    assert [(one.seq, one.subject) for one in told if one is not None] == [(2, "ev.tenant.bad")]


async def test_a_fold_that_began_from_a_snapshot_begins_again_without_it(client: Client) -> None:
    """What does not fit may be the snapshot's fault, and no reason to stand still."""
    store, fold = JetStreamEventStore(client), Picky(from_snapshot=True)
    await three_with_a_bad_one(store)
    async with contextlib.aclosing(follow_into(store, fold, on_standing=lambda _: None)) as followed:
        with pytest.raises(BrokenChainError):
            await anext(followed)


async def test_who_takes_in_much_lets_others_work_in_between_but_never_within_an_atomic_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a log of batches and of single commits, when a follower takes in all of it at once, then others have their
    turn on the way, and see a fold that ends with a whole batch each time.
    """
    monkeypatch.setattr("services.runtime.process.turn.TURN_SECONDS", 0.0)
    store, fold, seen = MemoryEventStore(), Picky(from_snapshot=False), list[int]()
    whole = {0}
    for number in range(20):
        drafts = [grant(f"t{number}-{part}", 0, subject="ada") for part in range(1 + number % 3 * 20)]
        outcome = await store.append_batch(drafts)
        assert isinstance(outcome, Committed)
        whole.add(outcome.commits[-1].seq)

    async def look() -> None:
        while True:
            assert len(fold.applied) == fold.seq
            seen.append(fold.seq)
            await asyncio.sleep(0)

    async with contextlib.aclosing(follow_into(store, fold, on_standing=None)) as followed:
        looking = asyncio.create_task(look())
        while fold.seq < max(whole):
            await anext(followed)
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
    assert set(seen) <= whole
    assert len(set(seen)) > 3
