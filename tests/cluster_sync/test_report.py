"""News of pods on their way into the log: cut into commits that fit, and never told of another workload than theirs."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import ASSET, NODE, WORKLOAD
from events.asset import CreateAsset, MarkDataSource, asset_key
from events.asset_specs import volume_spec
from events.cluster_protocol import ObservedPod, pod_key
from events.commit import Commit
from events.node import ReportNode, ReportNodeGone
from events.phases import Phase, PodPhase
from events.workload.commands import DeleteWorkload, PodFact, PodFactKind, ReportPods
from events.workload.state import Workload
from services.cluster_sync.budget import BURST_MINUTES, CHANGES_AT_ONCE, changes_budget, facts_budget
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.observe import facts_of, place_lost
from services.cluster_sync.report import FACTS_PER_COMMIT, Limits, Reporter
from services.runtime.log.folding import take
from tests.cluster_sync.given import CLUSTER_ID, FACTS, KEY, NODE_KEY, World, eventually
from tests.events.given import ref

pytestmark = pytest.mark.anyio

PODS = 10_000


def cpu_of(fold: DesiredState) -> int | None:
    node = fold.nodes.get(NODE_KEY)
    return None if node is None else node.state.facts.cpu_milli


async def soon(test: Callable[[], bool]) -> None:
    """Until the test holds, or a moment later: what has to wait for its budget does not."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            while not test():
                await asyncio.sleep(0.001)


class Followed:
    """A reporter, and the fold that it decides on, which follows the log when it is told to."""

    def __init__(self, world: World) -> None:
        self._store = world.store
        self.fold = DesiredState()
        self.waited: set[str] = set()
        self.limits = Limits(facts_budget(6_000), changes_budget())
        self.reporter = Reporter(world.store, self.fold, lambda: None, limits=self.limits, on_wait=self.waited.add)

    async def unread(self) -> list[Commit]:
        """What the log has and the fold does not know yet."""
        last, read = await self._store.last_seq(), list[Commit]()
        async with contextlib.aclosing(self._store.follow(self.fold.seq, idle_seconds=0.05)) as follower:
            while not read or read[-1].seq < last:
                read += await anext(follower)
        return read

    async def follow(self) -> None:
        assert take(self.fold, await self.unread()) is None

    async def reporter_is_idle(self) -> bool:
        return self.reporter.idle

    @property
    def state(self) -> Workload:
        return self.fold.workloads[KEY].state

    def saw(self, kind: PodFactKind, index: int, **more: Any) -> None:
        """News of the run as the log has it now."""
        state = self.state
        pod = state.pods["main", index]
        observed = ObservedPod(
            pod_key=pod_key(KEY, "main", index),
            token=pod.token,
            workload_id=state.workload_id,
            pod=ref(index, pod.attempt, pod.try_),
            kind=kind,
            at=datetime.now(UTC),
            **more,
        )
        self.reporter.pods(KEY, state.workload_id, facts_of(observed, pod), cluster_id=CLUSTER_ID)


@pytest.fixture
async def followed(world: World) -> AsyncIterator[Followed]:
    made = Followed(world)
    yield made
    await made.reporter.close()


async def test_ten_thousand_pods_that_end_in_the_same_second_are_all_recorded(world: World, followed: Followed) -> None:
    await world.create(command="true", completions=PODS, parallelism=PODS)
    await world.bind()
    await followed.follow()
    bound_at = followed.fold.seq
    for index in range(PODS):
        followed.saw("succeeded", index)

    async def completed() -> bool:
        return KEY not in followed.fold.workloads

    await eventually(completed, seconds=60)
    state = await world.workload()
    assert (state.phase, state.succeeded) == (Phase.COMPLETED, PODS)
    assert await world.store.last_seq() - bound_at == PODS / FACTS_PER_COMMIT


async def test_what_two_clusters_find_of_one_data_source_takes_no_place_of_the_other_s(
    world: World, followed: Followed
) -> None:
    """An agent that marks and unmarks without end would keep all others from saying what they find."""
    key = asset_key("nfs", "tenant", "", "sets")
    spec = volume_spec("nfs", "sets", {"server": "nfs", "path": "/e", "mountPath": "/a"})
    await world.decide(ASSET, key, CreateAsset(kind="nfs", name="sets", scope="tenant", spec=spec), "sets")
    await followed.follow()
    source = followed.fold.sources[key].state
    spec_at = source.spec_at
    assert spec_at is not None

    def mark(cluster_id: str, issue: str) -> None:
        command = MarkDataSource(asset_id=source.asset_id, cluster_id=cluster_id, spec_at=spec_at, issue=issue)
        followed.reporter.source(key, command)

    mark("quiet", "gone")
    for number in range(2 * CHANGES_AT_ONCE):
        mark("noisy", "gone" if number % 2 == 0 else "")
        await soon(lambda: followed.reporter.idle)

    async def told() -> bool:
        return "quiet" in followed.fold.sources[key].state.issues

    await eventually(told, seconds=10)


async def test_news_whose_words_would_not_fit_one_record_go_into_several(world: World, followed: Followed) -> None:
    pods = 300
    await world.create(command="true", completions=pods, parallelism=pods, backoff_limit=1_000)
    await world.bind()
    await followed.follow()
    for index in range(pods):
        followed.saw("failed", index, exit_code=1, reason="cannot_start", message="x" * 4_000)

    async def all_recorded() -> bool:
        return not followed.state.pods.live

    await eventually(all_recorded)
    assert (await world.workload()).failures == pods


async def test_news_of_a_deleted_workload_never_touch_its_successor_of_the_same_name(
    world: World, followed: Followed
) -> None:
    """Attempt and try begin again at the same numbers: only the id and the token tell the two apart."""
    first = await world.create(command="true")
    await world.bind()
    await followed.follow()
    run = followed.state.pods["main", 0]
    await world.decide(WORKLOAD, KEY, DeleteWorkload(workload_id=first), "delete")
    stopped = PodFact(pod=ref(0, run.attempt, run.try_), kind="stopped", at=datetime.now(UTC))
    await world.decide(WORKLOAD, KEY, ReportPods(workload_id=first, facts=(stopped,)), "stopped")
    second = await world.create(command="true")
    await world.bind()
    meanwhile = await followed.unread()
    followed.saw("succeeded", 0)
    assert take(followed.fold, meanwhile) is None
    await eventually(followed.reporter_is_idle)
    state = await world.workload()
    assert (state.workload_id, state.phase) == (second, Phase.INITIALIZING)
    followed.saw("succeeded", 0)
    await eventually(followed.reporter_is_idle)
    assert (await world.workload()).phase is Phase.COMPLETED


async def test_what_exceeds_a_clusters_budget_waits_and_none_is_dropped(world: World, followed: Followed) -> None:
    await world.create(command="true", completions=3, parallelism=3)
    await world.bind()
    await followed.follow()
    # As though it had said more than its 20 minutes' worth: in debt for the next half second.
    followed.limits.facts.take(CLUSTER_ID, 6_000 * BURST_MINUTES + 50, time.monotonic())
    before = await world.store.last_seq()
    for index in range(3):
        followed.saw("running", index)
        followed.saw("succeeded", index)

    async def waits() -> bool:
        return CLUSTER_ID in followed.waited

    await eventually(waits)
    assert await world.store.last_seq() == before
    await eventually(followed.reporter_is_idle)
    assert (await world.workload()).phase is Phase.COMPLETED


async def test_a_state_that_flaps_becomes_few_commits_and_its_newest_word_is_told(
    world: World, followed: Followed
) -> None:
    await world.create(command="sleep 60")
    await world.bind()
    await followed.follow()
    followed.saw("running", 0)
    await eventually(followed.reporter_is_idle)
    before = await world.store.last_seq()
    flaps: list[tuple[PodFactKind, PodPhase]] = [("unreachable", PodPhase.UNKNOWN), ("running", PodPhase.RUNNING)]
    for _ in range(CHANGES_AT_ONCE):
        for kind, phase in flaps:
            followed.saw(kind, 0)
            await soon(lambda phase=phase: followed.state.pods["main", 0].phase is phase)
    # Of forty changes; what the budget gives back in the seconds of a slow machine comes on top.
    assert await world.store.last_seq() - before <= CHANGES_AT_ONCE + 3
    assert not followed.reporter.idle, "the newest word waits for its turn"
    # An end is no flap: it is told at once, and with the run's budget used up.
    followed.saw("succeeded", 0)
    await eventually(followed.reporter_is_idle)
    assert (await world.workload()).phase is Phase.COMPLETED


async def test_a_node_that_changes_all_the_time_becomes_few_commits(world: World, followed: Followed) -> None:
    await followed.follow()
    before = await world.store.last_seq()
    for cpu in range(2 * CHANGES_AT_ONCE):
        facts = replace(FACTS, cpu_milli=cpu)
        followed.reporter.node(NODE_KEY, ReportNode(cluster_id=CLUSTER_ID, name="n1", facts=facts))
        await soon(lambda cpu=cpu: cpu_of(followed.fold) == cpu)
    assert await world.store.last_seq() - before <= CHANGES_AT_ONCE + 3
    assert not followed.reporter.idle, "the newest word waits for its turn"


async def test_what_could_not_be_decided_on_is_told_once_it_can_be(world: World, followed: Followed) -> None:
    """Nobody says again that a node is gone, or that a run's place is."""
    await world.create(command="true")
    await world.bind()
    await world.decide(NODE, NODE_KEY, ReportNode(cluster_id=CLUSTER_ID, name="n1", facts=FACTS), "here")
    await followed.follow()
    workload, node = followed.fold.workloads[KEY], followed.fold.nodes[NODE_KEY]
    pod = workload.state.pods["main", 0]
    broken: Any = None
    followed.fold.workloads[KEY] = replace(workload, state=broken)
    followed.fold.nodes[NODE_KEY] = replace(node, state=broken)
    lost = place_lost(workload.state, ("main", 0), pod, "node_lost", datetime.now(UTC))
    followed.reporter.pods(KEY, workload.state.workload_id, (lost,), cluster_id=CLUSTER_ID)
    followed.reporter.node(NODE_KEY, ReportNodeGone())
    await asyncio.sleep(0.2)
    followed.fold.workloads[KEY], followed.fold.nodes[NODE_KEY] = workload, node
    await eventually(followed.reporter_is_idle)
    assert not (await world.store.load(NODE, NODE_KEY)).state.present
    assert not (await world.workload()).pods.live


async def test_the_same_words_are_told_again_where_they_have_an_effect_again(world: World, followed: Followed) -> None:
    """A run that is out of sight and back runs since the same moment as before."""
    await world.create(command="true")
    await world.bind()
    await followed.follow()
    state = followed.state
    pod = state.pods["main", 0]
    began = datetime.now(UTC)
    told: list[tuple[PodFactKind, PodPhase]] = [("running", PodPhase.RUNNING), ("unreachable", PodPhase.UNKNOWN)]
    for kind, phase in told * 2:
        fact = PodFact(pod=ref(0, pod.attempt, pod.try_), kind=kind, at=began, token=pod.token)
        followed.reporter.pods(KEY, state.workload_id, (fact,), cluster_id=CLUSTER_ID)
        await eventually(followed.reporter_is_idle)
        assert followed.state.pods["main", 0].phase is phase


async def test_runs_on_a_node_that_is_gone_have_lost_their_place(world: World, followed: Followed) -> None:
    await world.create(command="true")
    await world.decide(NODE, NODE_KEY, ReportNode(cluster_id=CLUSTER_ID, name="n1", facts=FACTS), "here")
    await world.bind()
    await followed.follow()
    assert followed.fold.runs_without_place() == []
    await world.decide(NODE, NODE_KEY, ReportNodeGone(), "gone")
    await followed.follow()
    pod = followed.state.pods["main", 0]
    assert followed.fold.runs_without_place() == [(KEY, CLUSTER_ID, ("main", 0), pod, "node_lost")]


async def test_an_end_that_waits_to_be_told_is_not_taken_back_by_a_later_word(world: World, followed: Followed) -> None:
    """An agent that still speaks of a run on a node that was removed: nobody finds out a second time that it is."""
    await world.create(command="true")
    await world.bind()
    await followed.follow()
    state = followed.state
    lost = place_lost(state, ("main", 0), state.pods["main", 0], "node_lost", datetime.now(UTC))
    followed.reporter.pods(KEY, state.workload_id, (lost,), cluster_id=CLUSTER_ID)
    followed.saw("running", 0)
    await eventually(followed.reporter_is_idle)
    assert not (await world.workload()).pods.live


async def test_one_pods_news_that_cannot_be_decided_on_keep_no_others_from_the_log(
    world: World, followed: Followed
) -> None:
    await world.create(command="true", completions=3, parallelism=3)
    await world.bind()
    await followed.follow()
    pod = followed.state.pods["main", 0]
    unfit: Any = "no time at all"
    bad = PodFact(pod=ref(0, pod.attempt, pod.try_), kind="succeeded", at=unfit, token=pod.token)
    followed.reporter.pods(KEY, followed.state.workload_id, (bad,), cluster_id=CLUSTER_ID)
    for index in (1, 2):
        followed.saw("succeeded", index)

    async def others_told() -> bool:
        return (await world.workload()).succeeded == 2

    await eventually(others_told, seconds=60)
    assert not followed.reporter.idle
    followed.saw("succeeded", 0)
    await eventually(followed.reporter_is_idle, seconds=60)
    assert (await world.workload()).phase is Phase.COMPLETED
