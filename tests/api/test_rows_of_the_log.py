"""Rows made from the log, for a workload of very many pods: nobody else waits for them, and no work is done twice."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import pytest

from events.aggregate import Aggregate
from events.commit import Commit
from events.ids import project_key
from events.project import DeleteProject
from events.workload.commands import PlacePods, PodFact, ReportPods
from events.workload.places import bindable
from events.workload.pod import Placement
from events.workload.spec import TrainingSpec
from services.api.rows import LoggedRows
from services.runtime.identity.directory import Directory
from services.runtime.log.memory import MemoryEventStore
from services.runtime.process import turn
from tests.events.given import ref
from tests.support.lives import CLUSTER_SYNC, SCHEDULER, World, feed

pytestmark = pytest.mark.anyio

PODS = 2_000
AT_ONCE = 100
PAGE = 5


def cut[T](all_of_it: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (all_of_it[start : start + size] for start in range(0, len(all_of_it), size))


class Paged(MemoryEventStore):
    """One that gives a chain in small pages, and notes from where it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_after: list[int] = []
        self.pages = 0

    async def commits(
        self, aggregate: Aggregate[Any], key: str, *, after_seq: int, until_seq: int
    ) -> AsyncGenerator[list[Commit], None]:
        self.asked_after.append(after_seq)
        async for commits in super().commits(aggregate, key, after_seq=after_seq, until_seq=until_seq):
            for piece in cut(commits, PAGE):
                self.pages += 1
                yield list(piece)


def wide() -> tuple[World, str]:
    """A workload of many pods that all run, and its key."""
    world = World()
    spec = TrainingSpec(image="x", completions=PODS, parallelism=PODS)
    key = world.training("wide", world.project(), world.cluster(), spec)
    workload_id = world.state("workload", key).workload_id
    waiting = bindable(world.state("workload", key), world.now)
    for part in cut(waiting, AT_ONCE):
        placements = tuple(Placement(pod=pod, node_key="n", node_name="n1", pool="default") for pod in part)
        assert world.do("workload", key, PlacePods(workload_id=workload_id, placements=placements), SCHEDULER) is None
    pods = world.state("workload", key).pods
    for indexes in cut(range(PODS), AT_ONCE):
        facts = tuple(
            PodFact(pod=ref(index, 1, 0), kind="running", at=world.now, token=pods["main", index].token)
            for index in indexes
        )
        assert world.do("workload", key, ReportPods(workload_id=workload_id, facts=facts), CLUSTER_SYNC) is None
    return world, key


@pytest.fixture(scope="module")
def world() -> tuple[World, str]:
    return wide()


async def test_others_have_their_turns_while_the_row_of_a_wide_workload_is_made(
    world: tuple[World, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A turn is over at once, so that their number does not depend on how fast this machine is.
    monkeypatch.setattr(turn, "TURN_SECONDS", 0.0)
    lives, key = world
    store = MemoryEventStore()
    feed(store, lives.commits)
    making = asyncio.create_task(LoggedRows(store, Directory(store)).of(lives.chain("workload", key)))
    turns = 0
    while not making.done():
        turns += 1
        await asyncio.sleep(0)
    assert making.result()["runningPods"] == PODS
    assert turns >= 2 * PODS // AT_ONCE


async def test_who_asks_again_goes_on_where_the_one_before_gave_up(world: tuple[World, str]) -> None:
    lives, key = world
    store = Paged()
    feed(store, lives.commits)
    rows = LoggedRows(store, Directory(store))
    given_up = asyncio.create_task(rows.of(lives.chain("workload", key)))
    while store.pages < 3:
        await asyncio.sleep(0)
    given_up.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await given_up
    row = await rows.of(lives.chain("workload", key))
    assert row["runningPods"] == PODS
    first, second = store.asked_after
    assert first == 0 < second


async def test_what_stood_in_a_project_that_was_made_anew_keeps_its_name() -> None:
    world, store = World(), MemoryEventStore()
    project = world.project("vision")
    key = world.training("old", project, world.cluster())
    world.do("project", project_key("vision"), DeleteProject(project_id=project))
    assert world.project("vision") != project
    feed(store, world.commits)
    row = await LoggedRows(store, Directory(store)).of(world.chain("workload", key))
    assert row["projectName"] == "vision"
