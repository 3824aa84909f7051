"""The log newest first: what is found, where a page ends, and that no page looks at the whole log."""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from typing import override

import pytest

from development.commands import carry_out
from events.commit import Actor, Commit
from events.ids import key_of_id
from events.project import CreateProject
from events.workload.commands import SuspendWorkload
from services.api.backwards import FIRST_STEP, MOST_SEARCHED, Found, Selection, newest_first
from services.runtime.log.memory import MemoryEventStore
from tests.support.lives import FIRST, World, feed

pytestmark = pytest.mark.anyio
BYTES = 1 << 20


async def log_of(projects: int) -> MemoryEventStore:
    store = MemoryEventStore()
    for number in range(projects):
        actor = Actor(id="ann" if number % 10 == 0 else "bob")
        await carry_out(store, str(number), CreateProject(name=f"p{number}"), actor=actor)
    return store


async def search(store: MemoryEventStore, before: int, limit: int, most_bytes: int = BYTES, **asked: object) -> Found:
    selection = Selection(**asked)  # pyright: ignore[reportArgumentType] - by name
    return await newest_first(store, selection, before=before, limit=limit, most_bytes=most_bytes)


def sequences(found: Found) -> list[int]:
    return [commit.seq for commit in found.commits]


async def test_a_page_is_newest_first_and_the_next_goes_on_before_it() -> None:
    store = await log_of(25)
    first = await search(store, 26, 10)
    assert sequences(first) == list(range(25, 15, -1))
    second = await search(store, first.next or 0, 100)
    assert sequences(second) == list(range(15, 0, -1))
    assert second.next is None


async def test_filters_find_what_they_name_across_steps() -> None:
    store = await log_of(2 * FIRST_STEP)
    found = await search(store, 2 * FIRST_STEP + 1, 1_000, actors=frozenset({"ann"}), type="ProjectCreated")
    assert sequences(found) == list(range(2 * FIRST_STEP - 9, 0, -10))
    assert found.next is None
    assert sequences(await search(store, 2 * FIRST_STEP + 1, 10, type="ProjectDeleted")) == []


async def test_what_is_older_than_asked_for_ends_the_search() -> None:
    store = await log_of(3)
    never = await search(store, 4, 10, since=datetime.now(UTC) + timedelta(days=3650))
    assert (sequences(never), never.next) == ([], None)


async def test_a_search_since_the_first_time_of_all_finds_everything() -> None:
    found = await search(await log_of(3), 4, 10, since=datetime.min.replace(tzinfo=UTC))
    assert sequences(found) == [3, 2, 1]


async def test_a_search_since_a_time_looks_at_nothing_that_was_stored_before_it() -> None:
    """Given one commit a minute, when the last three minutes are asked for, then older ones are not even followed."""
    world, store = World(), Followed()
    for number in range(3 * FIRST_STEP):
        world.project(f"p{number}")
        world.later(60)
    feed(store, world.commits)
    found = await search(store, len(world.commits) + 1, 1_000, since=world.now - timedelta(minutes=3))
    assert sequences(found) == [600, 599, 598]
    assert found.next is None
    assert min(store.followed) >= 595


class Followed(MemoryEventStore):
    """Notes after which sequences it was followed."""

    def __init__(self) -> None:
        super().__init__()
        self.followed: list[int] = []

    @override
    def follow(
        self, after_seq: int, *, aggregates: Sequence[str] = (), idle_seconds: float = 1.0
    ) -> AsyncGenerator[list[Commit], None]:
        self.followed.append(after_seq)
        return super().follow(after_seq, aggregates=aggregates, idle_seconds=idle_seconds)


async def test_a_search_that_finds_nothing_looks_at_so_many_and_says_where_to_go_on() -> None:
    store = await log_of(MOST_SEARCHED + 50)
    found = await search(store, MOST_SEARCHED + 51, 10, actors=frozenset({"nobody"}))
    assert (sequences(found), found.next) == ([], 51)
    assert (await search(store, 51, 10, actors=frozenset({"nobody"}))).next is None


async def test_a_page_ends_at_its_bytes_with_one_commit_at_least() -> None:
    store = await log_of(5)
    found = await search(store, 6, 5, most_bytes=1)
    assert (sequences(found), found.next) == ([5], 5)


async def test_a_workload_is_found_in_its_commits_and_in_those_of_its_nodes() -> None:
    world, store = World(), MemoryEventStore()
    cluster, project = world.cluster(), world.project()
    node = world.node(cluster, "n")
    key = world.training("w", project, cluster)
    other = world.training("other", project, cluster)
    world.place([(key, FIRST, node, 0)])
    id_ = world.state("workload", key).workload_id
    world.do("workload", other, SuspendWorkload(workload_id=world.state("workload", other).workload_id))
    assert key_of_id(id_) == key
    feed(store, world.commits)
    found = await search(store, len(world.commits) + 1, 100, workload_id=id_)
    assert {(commit.aggregate, commit.key) for commit in found.commits} == {("workload", key), ("node", node)}
