"""What an agent is told of runs that are over, on a real NATS: never in the place of a newer run, and not for ever."""

import contextlib
from datetime import UTC, datetime

import msgspec
import pytest

from events.aggregate import WORKLOAD
from events.cluster_protocol import ObservedPod, SettledPod, StartPod, StopPod, WantedCluster
from events.subjects import WANTED_STREAM, observed_pod_subject, wanted_cluster_subject, wanted_subject
from events.workload.commands import PodFact, ReportPods
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.wanted import Wanted, WantedLostError
from services.runtime.log.folding import take
from services.runtime.nats.streams import create_streams
from tests.cluster_sync.given import CLUSTER_ID, KEY, POD, WANTED, World, serving
from tests.events.given import ref
from tests.support.poison import UNDECODABLE_JSON

pytestmark = pytest.mark.anyio

SUBJECT = wanted_subject(CLUSTER_ID, POD)


async def folded(world: World) -> DesiredState:
    fold, last = DesiredState(), await world.store.last_seq()
    async with contextlib.aclosing(world.store.follow(0, idle_seconds=0.05)) as follower:
        while fold.seq < last:
            assert take(fold, await anext(follower)) is None
    return fold


async def test_a_word_about_a_run_that_is_over_never_takes_the_place_of_a_newer_run(world: World) -> None:
    """An agent spoke of the old run a moment before the pod was bound anew."""
    workload_id = await world.create(command="true")
    await world.bind()
    old = (await folded(world)).desired[SUBJECT]
    ended = PodFact(pod=ref(), kind="interrupted", at=datetime.now(UTC))
    await world.decide(WORKLOAD, KEY, ReportPods(workload_id=workload_id, facts=(ended,)), "ended")
    await world.bind()
    fold = await folded(world)
    said = ObservedPod(
        pod_key=POD, token=old.token, workload_id=workload_id, pod=ref(), kind="running", at=datetime.now(UTC)
    )
    wanted = Wanted(world.nc, world.requests)
    await wanted.answer(fold, {SUBJECT: said})
    await wanted.tell_pods(fold, {SUBJECT})
    word = await world.wanted()
    assert isinstance(word, StartPod)
    assert word.token == fold.desired[SUBJECT].token > old.token


async def test_a_stream_that_was_emptied_is_told_from_one_that_is_as_it_was_left(world: World) -> None:
    await world.create(command="true")
    await world.bind()
    fold, wanted = await folded(world), Wanted(world.nc, world.requests)
    await wanted.tell_all(fold)
    await wanted.check()
    await world.nc.jetstream().delete_stream(WANTED_STREAM)
    await create_streams(world.nc, 1)
    with pytest.raises(WantedLostError, match="it ends at 0, and went up to 2"):
        await wanted.check()


async def test_the_answer_about_a_run_that_never_was_expires(world: World) -> None:
    """An agent may speak of very many of them; WANTED is shared by all clusters."""
    async with serving(world.server):
        workload_id = await world.create(command="true")
        unknown = ObservedPod(
            pod_key=POD, token=1, workload_id=workload_id, pod=ref(), kind="running", at=datetime.now(UTC)
        )
        await world.say(observed_pod_subject(CLUSTER_ID, POD), unknown)
        await world.wanted_is(StopPod)
        stored = await world.nc.jetstream().get_last_msg(WANTED_STREAM, SUBJECT)
        assert isinstance(WANTED.decode(stored.data), StopPod)
        assert stored.headers["Nats-TTL"] == "600s"
        # The room it took is there again for the pod's real run.
        await world.bind()
        word = await world.wanted_is(StartPod)
        stored = await world.nc.jetstream().get_last_msg(WANTED_STREAM, SUBJECT)
        assert stored.headers is None
        assert msgspec.json.decode(stored.data)["token"] == word.token


@pytest.mark.parametrize("payload", UNDECODABLE_JSON.values(), ids=UNDECODABLE_JSON.keys())
async def test_a_word_that_nobody_can_read_is_replaced_by_what_the_log_says(world: World, payload: bytes) -> None:
    """The stream outlives its readers: one that ended at such a word would end at it at every start."""
    await world.create(command="true")
    await world.bind()
    stray = wanted_subject(CLUSTER_ID, "stray")
    for subject in (SUBJECT, stray, wanted_cluster_subject(CLUSTER_ID), "want.a.word.of.no.form"):
        await world.nc.request(subject, payload, timeout=60)
    async with serving(world.server):
        await world.wanted_is(StartPod)
        assert isinstance(await world.wanted_is(SettledPod, "stray"), SettledPod)
        told = await world.nc.jetstream().get_last_msg(WANTED_STREAM, wanted_cluster_subject(CLUSTER_ID))
        assert msgspec.json.decode(told.data, type=WantedCluster).name == "c"
