"""What every event store promises: the one in memory, one JetStream server, and three in a cluster.

Guards behave differently on one server and on three (log.md section 2.1), so that each is held to the same suite.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from development.servers import EVERYTHING
from development.streams import recreate_streams
from events.aggregate import TENANT
from services.runtime.log.floors import StaleLogError
from services.runtime.log.store import Committed, Conflict, EventStore, LogGapError
from tests.support.drafts import grant, of_incarnation, project_grant, subjects_of
from tests.support.stores import Log, collect, flat, jetstream_log, memory_log, seqs

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "one server", "three servers"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    if request.param == "memory":
        async for made in memory_log():
            yield made
        return
    server = request.getfixturevalue("nats_server" if request.param == "one server" else "nats_cluster")
    await recreate_streams(server.settings(EVERYTHING))
    async for made in jetstream_log(request.param, server.settings("commands")):
        yield made


@pytest.fixture
async def store(log: Log) -> EventStore:
    return await log.open()


async def test_a_commit_gets_its_sequence_and_is_the_guard_of_the_next(store: EventStore) -> None:
    assert seqs(await store.append(grant("a", 0))) == [1]
    assert seqs(await store.append(grant("b", 0))) == [2]
    assert seqs(await store.append(grant("a", 1))) == [3]
    assert await store.last_seq() == 3


async def test_the_newest_sequence_of_some_kinds_is_known(store: EventStore) -> None:
    assert await store.last_seq(aggregates=["tenant", "project"]) == 0
    await store.append(grant("a", 0))
    await store.append(project_grant("b", 0))
    await store.append(project_grant("c", 0))
    await store.append(grant("a", 1))
    assert await store.last_seq(aggregates=["tenant", "project"]) == 4
    assert await store.last_seq(aggregates=["project"]) == 3
    assert await store.last_seq(aggregates=["cluster"]) == 0


@pytest.mark.parametrize("guard", [0, 1, 3, 4, 999])
async def test_a_guard_that_is_not_the_chains_end_is_a_conflict_and_stores_nothing(
    store: EventStore, guard: int
) -> None:
    await store.append(grant("a", 0))
    await store.append(grant("a", 1))
    await store.append(grant("b", 0))
    assert await store.append(grant("a", guard)) == Conflict()
    assert await store.last_seq() == 3


async def test_one_append_twice_is_stored_once(store: EventStore) -> None:
    again = grant("a", 0)
    first = await store.append(again)
    second = await store.append(again)
    assert seqs(first) == [1]
    assert second == Conflict() or seqs(second) == [1]
    assert await store.last_seq() == 1


async def test_a_batch_is_stored_whole_side_by_side_and_numbered(store: EventStore) -> None:
    await store.append(grant("a", 0))
    outcome = await store.append_batch([grant("a", 1), grant("b", 0), project_grant("c", 0)])
    assert seqs(outcome) == [2, 3, 4]
    assert isinstance(outcome, Committed)
    parts = [commit.record.batch for commit in outcome.commits]
    assert [(part.index, part.count) for part in parts if part is not None] == [(1, 3), (2, 3), (3, 3)]
    assert len({part.id for part in parts if part is not None}) == 1


@pytest.mark.parametrize("conflicting", [0, 1, 2])
async def test_a_batch_with_one_stale_guard_stores_nothing(store: EventStore, conflicting: int) -> None:
    await store.append(grant("a", 0))
    drafts = [grant(key, 7 if n == conflicting else 0) for n, key in enumerate("xyz")]
    assert await store.append_batch(drafts) == Conflict()
    assert await store.last_seq() == 1
    assert (await store.load(TENANT, "x")).version == 0


async def test_a_batch_of_the_largest_size_is_one_fact(store: EventStore) -> None:
    outcome = await store.append_batch([grant(f"k{n}", 0) for n in range(1_000)], deadline_seconds=60)
    assert seqs(outcome) == list(range(1, 1_001))
    handed = await collect(store, 0, 1_000)
    assert [len(commits) for commits in handed] == [1_000]


async def test_a_batch_of_one_is_no_batch(store: EventStore) -> None:
    outcome = await store.append_batch([grant("a", 0)])
    assert isinstance(outcome, Committed)
    assert outcome.commits[0].record.batch is None


async def test_what_cannot_be_a_batch_is_refused_before_anything_is_sent(store: EventStore) -> None:
    with pytest.raises(ValueError, match="1 to 1000 commits, not 0"):
        await store.append_batch([])
    with pytest.raises(ValueError, match="not 1001"):
        await store.append_batch([grant(f"k{n}", 0) for n in range(1_001)])
    with pytest.raises(ValueError, match="one commit per aggregate"):
        await store.append_batch([grant("a", 0), grant("a", 1)])


async def test_a_fold_is_what_was_appended_by_whichever_store(log: Log) -> None:
    one, other = await log.open(), await log.open()
    assert (await one.load(TENANT, "a")).version == 0
    await one.append(grant("a", 0, subject="s1"))
    assert subjects_of(await other.load(TENANT, "a")) == {"s1"}
    await other.append(grant("a", 1, subject="s2"))
    assert subjects_of(await one.load(TENANT, "a")) == {"s1", "s2"}
    for parent in (2, 3, 4):
        await other.append(grant("a", parent, subject=f"s{parent + 1}"))
    chain = await one.load(TENANT, "a")
    assert chain.version == 5
    assert subjects_of(chain) == {"s1", "s2", "s3", "s4", "s5"}
    assert (await one.load(TENANT, "a")) == chain


async def test_a_fold_remembers_its_last_commands(store: EventStore) -> None:
    await store.append(grant("a", 0, command_id="first"))
    await store.append(grant("a", 1, command_id="second"))
    chain = await store.load(TENANT, "a")
    remembered = chain.remembered("first")
    assert remembered is not None
    assert remembered.seq == 1
    assert chain.remembered("third") is None


async def test_an_earlier_incarnation_is_folded_up_to_its_own_end(store: EventStore) -> None:
    for parent, incarnation in enumerate(["one", "one", "two", "two", "three"]):
        await store.append(of_incarnation(grant("a", parent, subject=f"s{parent}"), incarnation))
    versions = {}
    for incarnation in ("one", "two", "three"):
        chain = await store.load_at(TENANT, "a", incarnation)
        assert chain is not None
        versions[incarnation] = chain.version
    assert versions == {"one": 2, "two": 4, "three": 5}
    assert await store.load_at(TENANT, "a", "never") is None
    assert await store.load_at(TENANT, "b", "one") is None


async def test_a_follower_sees_everything_in_order_from_any_place(store: EventStore) -> None:
    for n in range(20):
        await store.append(grant(f"k{n}", 0, subject=f"s{n}"))
    for after in (0, 1, 7, 19):
        seen = flat(await collect(store, after, 20 - after))
        assert [commit.seq for commit in seen] == list(range(after + 1, 21))
        assert [commit.events[0].actor for commit in seen] == [f"s{n}" for n in range(after, 20)]


async def test_a_follower_is_handed_what_comes_later_and_nothing_while_nothing_comes(store: EventStore) -> None:
    following = store.follow(0, idle_seconds=0.1)
    assert await anext(following) == []
    await store.append(grant("a", 0))
    async with asyncio.timeout(60):
        seen = []
        while not seen:
            seen = await anext(following)
    assert [commit.seq for commit in seen] == [1]
    assert await anext(following) == []
    await following.aclose()


async def test_a_follower_is_never_handed_part_of_a_batch(store: EventStore) -> None:
    for n in range(12):
        await store.append_batch([grant(f"k{n}-{m}", 0) for m in range(1 + n * 3)])
    total = await store.last_seq()
    for commits in await collect(store, 0, total):
        assert commits[-1].ends_batch
        assert commits[0].record.batch is None or commits[0].record.batch.index == 1


async def test_a_follower_of_some_kinds_sees_only_those_and_its_part_of_a_batch_at_once(store: EventStore) -> None:
    await store.append(grant("a", 0))
    await store.append(project_grant("p", 0))
    await store.append_batch([project_grant("p", 2), project_grant("q", 0), grant("a", 1), grant("b", 0)])
    await store.append_batch([grant("c", 0), project_grant("r", 0)])
    await store.append(grant("d", 0))
    handed = await collect(store, 0, 4, aggregates=["project"])
    assert [commit.seq for commit in flat(handed)] == [2, 3, 4, 8]
    both = next(commits for commits in handed if any(commit.seq == 3 for commit in commits))
    assert 4 in [commit.seq for commit in both]


async def test_the_end_of_a_batch_that_is_of_another_kind_does_not_keep_a_follower_waiting(store: EventStore) -> None:
    await store.append_batch([project_grant("p", 0), grant("a", 0)])
    handed = await collect(store, 0, 1, aggregates=["project"])
    assert [commit.seq for commit in flat(handed)] == [1]


async def test_a_position_after_the_end_of_the_log_is_a_gap(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.runtime.log.follower.SHORT_LOG_SECONDS", 0.1)
    await store.append(grant("a", 0))
    following = store.follow(2, idle_seconds=10)
    with pytest.raises(LogGapError, match="ends at 1, before position 2"):
        await anext(following)


async def test_no_update_is_lost_under_contention(log: Log) -> None:
    stores = [await log.open() for _ in range(4)]
    per_writer = 4

    async def write(number: int) -> int:
        store, tries = stores[number % len(stores)], 0
        for n in range(per_writer):
            while True:
                tries += 1
                version = (await store.load(TENANT, "hot")).version
                outcome = await store.append(grant("hot", version, subject=f"w{number}-{n}"))
                if isinstance(outcome, Committed):
                    break
                assert outcome == Conflict()
                await asyncio.sleep(random.random() * 0.01)
        return tries

    writers = 12
    async with asyncio.timeout(60):
        await asyncio.gather(*(write(number) for number in range(writers)))
    chain = await stores[0].load(TENANT, "hot")
    assert subjects_of(chain) == {f"w{number}-{n}" for number in range(writers) for n in range(per_writer)}
    seen = flat(await collect(stores[1], 0, writers * per_writer))
    assert [commit.record.parent_seq for commit in seen] == [0, *(commit.seq for commit in seen[:-1])]


async def test_batches_that_share_an_aggregate_never_both_win_and_never_half(log: Log) -> None:
    stores = [await log.open() for _ in range(3)]
    for round_number in range(5):
        hot = (await stores[0].load(TENANT, "hot")).version
        batches = [
            [grant(f"own-{round_number}-{n}", 0), grant("hot", hot), grant(f"also-{round_number}-{n}", 0)]
            for n in range(6)
        ]
        outcomes = await asyncio.gather(*(stores[n % 3].append_batch(drafts) for n, drafts in enumerate(batches)))
        won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        assert len(won) == 1
        assert [outcome for n, outcome in enumerate(outcomes) if n not in won] == [Conflict()] * 5
    assert await stores[0].last_seq() == 5 * 3


@pytest.mark.parametrize("seed", range(4))
async def test_any_sequence_of_appends_ends_as_the_guards_say(store: EventStore, seed: int) -> None:
    """The model: a chain's end per key; an append succeeds where all its guards are that."""
    chance = random.Random(seed)
    ends: dict[str, int] = {}
    last = 0
    for _ in range(60):
        keys = chance.sample("abcdef", chance.choice([1, 1, 2, 4]))
        drafts = [grant(key, ends.get(key, 0) if chance.random() < 0.8 else chance.randrange(last + 2)) for key in keys]
        outcome = await store.append_batch(drafts)
        if all(draft.record.parent_seq == ends.get(draft.key, 0) for draft in drafts):
            assert seqs(outcome) == list(range(last + 1, last + 1 + len(drafts)))
            for number, draft in enumerate(drafts, start=1):
                ends[draft.key] = last + number
            last += len(drafts)
        else:
            assert outcome == Conflict()
    assert {key: (await store.load(TENANT, key)).version for key in ends} == ends
    assert [commit.seq for commit in flat(await collect(store, 0, last))] == list(range(1, last + 1))


async def test_a_fold_can_be_loaded_as_of_any_sequence_of_the_log(store: EventStore) -> None:
    """Whether the aggregate has a commit there, before it, behind it, or none at all."""
    await store.append(grant("a", 0, subject="ann"))
    await store.append(grant("b", 0, subject="bob"))
    await store.append(grant("a", 1, subject="cid"))
    await store.append(grant("b", 2, subject="dan"))
    versions = [(await store.load(TENANT, "a", until)).version for until in range(5)]
    assert versions == [0, 1, 1, 3, 3]
    assert subjects_of(await store.load(TENANT, "a", 2)) == {"ann"}
    assert subjects_of(await store.load(TENANT, "a", 4)) == {"ann", "cid"}
    assert (await store.load(TENANT, "never", 4)).version == 0


async def test_a_fold_as_of_what_the_log_has_not_come_to_is_not_made_up(store: EventStore) -> None:
    await store.append(grant("a", 0))
    with pytest.raises(StaleLogError):
        await store.load(TENANT, "a", 2, seconds=0.5)


async def test_a_time_is_where_the_log_stood_then(store: EventStore) -> None:
    began = datetime.now(UTC)
    assert await store.sequence_at(datetime.now(UTC)) == 0
    between = [began - timedelta(days=1)]
    for n in range(6):
        await asyncio.sleep(0.02)
        await store.append(grant(f"k{n}", 0))
        await asyncio.sleep(0.02)
        between.append(datetime.now(UTC))
    between.append(datetime.now(UTC) + timedelta(days=1))
    assert [await store.sequence_at(time) for time in between] == [0, 1, 2, 3, 4, 5, 6, 6]
    then = await store.sequence_at(between[2])
    assert [(await store.load(TENANT, f"k{n}", then)).version for n in range(3)] == [1, 2, 0]


async def test_a_time_never_stands_within_an_atomic_batch(store: EventStore) -> None:
    await store.append(grant("a", 0))
    await store.append_batch([grant(f"k{n}", 0) for n in range(300)])
    await store.append(grant("a", 1))
    end = datetime.now(UTC)
    first = random.randrange(4)
    stood = {await store.sequence_at(end - timedelta(milliseconds=n)) for n in range(first, 400, 4)}
    assert stood <= {0, 1, 301, 302}
    assert await store.sequence_at(end + timedelta(seconds=1)) == 302
