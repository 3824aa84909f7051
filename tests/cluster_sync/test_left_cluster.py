"""Pods that were left on a lost cluster: they are told to end, also by a WANTED that was made anew, and their news end
what they hold and nothing else (issue 14 section 2, ADR 0138).
"""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import CLUSTER, NODE, WORKLOAD
from events.cluster import AddCluster, Cluster, RemoveCluster
from events.cluster_protocol import ObservedPod, SettledPod, StartPod, StopPod
from events.ids import cluster_key, incarnation_id, node_key
from events.node import ReportNode, ReportNodeGone
from events.phases import Phase, PodPhase
from events.subjects import WANTED_STREAM, observed_pod_subject
from events.workload.commands import CreateWorkload, DeleteWorkload, LeaveCluster, PlacePods, PodFactKind
from events.workload.places import bindable
from events.workload.pod import Placement
from events.workload.spec import TrainingSpec
from events.workload.state import Workload
from services.cluster_sync.observe import place_lost
from services.runtime.log.latest import read_latest
from services.runtime.nats.streams import create_streams
from tests.cluster_sync.given import (
    CLUSTER_ID,
    FACTS,
    KEY,
    NODE_KEY,
    POD,
    PROJECT_ID,
    WANTED,
    World,
    eventually,
    serving,
)
from tests.cluster_sync.test_report import Followed

pytestmark = pytest.mark.anyio

OTHER_ID = incarnation_id(cluster_key("other"), "add-other")


async def there(world: World) -> None:
    await world.decide(CLUSTER, cluster_key("other"), AddCluster(name="other", kind="kubernetes"), "add-other")
    for cluster_id, name in ((CLUSTER_ID, "n1"), (OTHER_ID, "o1")):
        report = ReportNode(cluster_id=cluster_id, name=name, facts=FACTS)
        await world.decide(NODE, node_key(cluster_id, name), report, f"node-{name}")
    command = CreateWorkload(
        kind="Training",
        name="train",
        requested_name="train",
        project_id=PROJECT_ID,
        cluster_id="",
        among=(CLUSTER_ID, OTHER_ID),
        spec=TrainingSpec(image="i"),
    )
    await world.decide(WORKLOAD, KEY, command, "create")


async def bind(world: World, cluster_id: str, at: str, name: str) -> None:
    state: Workload = await world.workload()
    placements = tuple(
        Placement(pod=pod, node_key=at, node_name=name, pool="default") for pod in bindable(state, datetime.now(UTC))
    )
    command = PlacePods(workload_id=state.workload_id, placements=placements, cluster_id=cluster_id, cluster_name=name)
    await world.decide(WORKLOAD, KEY, command, f"bind-{datetime.now(UTC).isoformat()}")


async def leave(world: World) -> None:
    state: Workload = await world.workload()
    command = LeaveCluster(
        workload_id=state.workload_id,
        cluster_id=CLUSTER_ID,
        cluster_name="c",
        attempt=state.attempt,
        among=(CLUSTER_ID, OTHER_ID),
        lost_since=datetime.now(UTC),
        seconds=1,
    )
    await world.decide(WORKLOAD, KEY, command, "leave")


async def ran_and_left(world: World) -> StartPod:
    """A run on the first cluster, which its workload left; the word that started it."""
    await there(world)
    await bind(world, CLUSTER_ID, NODE_KEY, "n1")
    word: StartPod = await world.wanted_is(StartPod)
    await world.report(word, "running")
    await world.phase_is(Phase.RUNNING)
    await leave(world)
    return word


async def gone(world: World) -> Workload:
    """The workload, once nothing of it is left behind."""

    async def probe() -> Any:
        state = await world.workload()
        return None if state.left else state

    return await eventually(probe)


async def words(world: World) -> dict[str, Any]:
    """What WANTED says to both clusters."""
    found = await read_latest(world.nc, world.requests, WANTED_STREAM, "want.*.pod.>")
    return {subject: WANTED.decode(payload) for subject, payload in found.items()}


async def test_a_run_that_was_left_is_told_to_end_and_its_end_ends_only_what_it_holds(world: World) -> None:
    async with serving(world.server):
        word = await ran_and_left(world)
        stop: StopPod = await world.wanted_is(StopPod)
        assert (stop.token, stop.reason, stop.pod) == (word.token, "superseded", word.pod)
        await bind(world, OTHER_ID, node_key(OTHER_ID, "o1"), "o1")

        async def both() -> Any:
            said = await words(world)
            kinds = {type(each) for each in said.values()}
            return said if len(said) == 2 and kinds == {StopPod, StartPod} else None

        await eventually(both)
        await world.report(word, "succeeded")
        state = await gone(world)
        assert (state.phase, state.attempt, state.succeeded) == (Phase.INITIALIZING, 2, 0)
        assert [pod.node_name for pod in state.pods.live.values()] == ["o1"]
        assert isinstance(await world.wanted_is(SettledPod), SettledPod)


async def test_a_wanted_that_was_made_anew_has_it_end_again(world: World) -> None:
    async with serving(world.server):
        word = await ran_and_left(world)
        await world.wanted_is(StopPod)
    await world.nc.jetstream().delete_stream(WANTED_STREAM)
    await create_streams(world.nc, 1)
    async with serving(world.server):
        stop: StopPod = await world.wanted_is(StopPod)
        assert (stop.token, stop.pod_key) == (word.token, POD)
        await world.report(word, "stopped")
        state = await gone(world)
        assert (state.phase, state.attempt, len(state.pods.waiting)) == (Phase.PENDING, 2, 1)


async def heard(world: World, *, protection: bool) -> Cluster:
    """The first cluster, once all was heard that its agent said before this heartbeat, which tells something new."""
    await world.heartbeat(protection)

    async def probe() -> Any:
        state = (await world.store.load(CLUSTER, cluster_key("c"))).state
        return state if state.protection_reported is protection else None

    return await eventually(probe)


@pytest.mark.parametrize("kind", ["starting", "running", "unreachable"])
async def test_an_agent_that_is_back_may_say_that_a_run_that_was_left_still_lives(
    world: World, kind: PodFactKind
) -> None:
    """It ends within its grace. Nothing is refused of an agent that says so, and its order to end it stands."""
    async with serving(world.server):
        word = await ran_and_left(world)
        stop: StopPod = await world.wanted_is(StopPod)
        await heard(world, protection=True)
        said = await world.wanted_seq()
        await world.report(word, kind)
        assert (await heard(world, protection=False)).refused == ()
        assert (await world.wanted(), await world.wanted_seq()) == (stop, said)
        assert (await world.workload()).left
        await world.report(word, "stopped")
        await gone(world)


async def test_with_its_token_nothing_but_the_run_that_was_left_is_spoken_of(world: World) -> None:
    async with serving(world.server):
        word = await ran_and_left(world)
        await world.wanted_is(StopPod)
        await heard(world, protection=True)
        await world.report(replace(word, pod=replace(word.pod, try_=word.pod.try_ + 1)), "stopped")
        (refused,) = (await heard(world, protection=False)).refused
        assert (refused.about, refused.rule) == ("pod", "the run that its token was given to")
        assert (await world.workload()).left


async def test_the_end_of_what_was_left_waits_for_no_budget_but_that_of_its_own_cluster(world: World) -> None:
    """The cluster where the workload is now says too much: that holds up none of the old one's nodes."""
    await there(world)
    await bind(world, CLUSTER_ID, NODE_KEY, "n1")
    await leave(world)
    await bind(world, OTHER_ID, node_key(OTHER_ID, "o1"), "o1")
    followed = Followed(world)
    await followed.follow()
    state, far = followed.state, 10**9
    ((of_old, old),) = state.left[CLUSTER_ID].items()
    ((of_new, new),) = state.pods.live.items()
    followed.limits.facts.take(OTHER_ID, far, time.monotonic())
    lost = place_lost(state, of_new, new, "node_lost", datetime.now(UTC))
    followed.reporter.pods(KEY, state.workload_id, (lost,), cluster_id=OTHER_ID)
    ended = place_lost(state, of_old, old, "node_lost", datetime.now(UTC))
    followed.reporter.pods(KEY, state.workload_id, (ended,), cluster_id=CLUSTER_ID, left=True)
    assert (await gone(world)).pods.live, "what the other cluster said waits"

    async def waits() -> bool:
        return followed.waited == {OTHER_ID}

    await eventually(waits)
    await followed.reporter.close()


async def test_what_was_left_is_told_from_the_budget_of_its_own_cluster(world: World) -> None:
    await there(world)
    await bind(world, CLUSTER_ID, NODE_KEY, "n1")
    await leave(world)
    await bind(world, OTHER_ID, node_key(OTHER_ID, "o1"), "o1")
    followed = Followed(world)
    await followed.follow()
    state = followed.state
    ((id_, pod),) = state.left[CLUSTER_ID].items()
    followed.limits.facts.take(CLUSTER_ID, 10**9, time.monotonic())
    ended = place_lost(state, id_, pod, "node_lost", datetime.now(UTC))
    followed.reporter.pods(KEY, state.workload_id, (ended,), cluster_id=CLUSTER_ID, left=True)

    async def waits() -> bool:
        return followed.waited == {CLUSTER_ID}

    await eventually(waits)
    assert (await world.workload()).left
    await followed.reporter.close()


async def test_news_of_the_old_run_and_of_the_new_one_at_once_are_both_told(world: World) -> None:
    async with serving(world.server):
        word = await ran_and_left(world)
        await bind(world, OTHER_ID, node_key(OTHER_ID, "o1"), "o1")

        async def started() -> Any:
            return next((each for each in (await words(world)).values() if isinstance(each, StartPod)), None)

        new: StartPod = await eventually(started)
        await world.report(word, "failed", exit_code=3)
        observed = ObservedPod(
            pod_key=new.pod_key,
            token=new.token,
            workload_id=new.workload_id,
            pod=new.pod,
            kind="running",
            at=datetime.now(UTC),
        )
        await world.say(observed_pod_subject(OTHER_ID, new.pod_key), observed)
        state = await world.phase_is(Phase.RUNNING)
        assert (await gone(world)).failures == 0
        assert {pod.phase for pod in state.pods.live.values()} == {PodPhase.RUNNING}


@pytest.mark.parametrize("what", ["node", "cluster"])
async def test_a_run_that_was_left_is_given_up_with_its_node_or_its_cluster(world: World, what: str) -> None:
    async with serving(world.server):
        await ran_and_left(world)
        if what == "node":
            await world.decide(NODE, NODE_KEY, ReportNodeGone(), "gone")
        else:
            await world.decide(CLUSTER, cluster_key("c"), RemoveCluster(cluster_id=CLUSTER_ID), "remove")
        assert (await gone(world)).phase is Phase.PENDING


async def test_a_deleted_workload_is_kept_until_its_old_pods_are_gone(world: World) -> None:
    async with serving(world.server):
        word = await ran_and_left(world)
        id_ = (await world.workload()).workload_id
        await world.decide(WORKLOAD, KEY, DeleteWorkload(workload_id=id_), "delete")
        assert (await world.workload()).phase is Phase.DELETING
        await world.wanted_is(StopPod)
        await world.report(word, "stopped")

        async def deleted() -> bool:
            return not (await world.workload()).living

        await eventually(deleted)
