"""cluster_sync on a real NATS, with an agent that this test plays: WANTED follows the log, OBSERVED becomes facts."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from events.aggregate import CLUSTER, NODE, WORKLOAD
from events.cluster import AddCluster, Cluster, NodePool, RemoveCluster, SetNodePool, StorageClass
from events.cluster_protocol import (
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    SettledPod,
    StartPod,
    StopPod,
    WantedCluster,
    pod_key,
)
from events.ids import cluster_key, incarnation_id, node_key
from events.phases import Phase
from events.simulated import AddSimulatedNodes, RemoveSimulatedNodes, SimulatedNodes
from events.subjects import (
    OBSERVED_STREAM,
    WANTED_STREAM,
    observed_cluster_subject,
    observed_node_subject,
    observed_pod_subject,
    wanted_cluster_subject,
    wanted_filter,
)
from events.workload.commands import DeleteWorkload, PodFactKind, SuspendWorkload
from events.workload.places import bindable
from services.cluster_sync.fold import FOLDED, SNAPSHOT_SHAPE
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.latest import read_latest
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import create_streams
from tests.cluster_sync.given import (
    CLUSTER_ID,
    FACTS,
    KEY,
    NODE_KEY,
    WANTED,
    World,
    eventually,
    serving,
    when,
)
from tests.support.people import in_flight

pytestmark = pytest.mark.anyio


async def test_a_bound_pod_is_told_to_its_cluster_and_its_end_is_settled(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        await world.report(word, "running")
        await world.phase_is(Phase.RUNNING)
        await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)
        settled = await world.wanted_is(SettledPod)
        assert settled.token == word.token


async def test_an_end_whose_start_was_never_reported_becomes_both(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        await world.report(word, "succeeded", started_at=datetime.now(UTC))
        await world.phase_is(Phase.COMPLETED)
    seen = [type(event).__name__ async for event in events_of(world)]
    assert seen[-3:] == ["PodRunning", "PodSucceeded", "WorkloadCompleted"]


async def events_of(world: World) -> AsyncIterator[Any]:
    last = await world.store.last_seq()
    async for commits in world.store.follow(0):
        for commit in commits:
            for event in commit.events if commit.aggregate == "workload" else ():
                yield event
            if commit.seq >= last:
                return


async def test_suspend_and_delete_become_stops_with_their_reasons(world: World) -> None:
    async with serving(world.server):
        id_ = await world.create(command="sleep 60")
        await world.bind()
        await world.wanted_is(StartPod)
        await world.decide(WORKLOAD, KEY, SuspendWorkload(workload_id=id_), "s")
        stop = await world.wanted_is(StopPod)
        assert stop.reason == "suspended"
        await world.report(stop, "stopped")
        await world.phase_is(Phase.STOPPED)
        await world.wanted_is(SettledPod)
        await world.decide(WORKLOAD, KEY, DeleteWorkload(workload_id=id_), "d")
        assert (await world.workload()).deleted_at is not None


async def test_an_agent_that_still_speaks_of_an_old_run_is_told_again(world: World) -> None:
    async with serving(world.server):
        await world.create(command="false", backoff_limit=0)
        await world.bind()
        word = await world.wanted_is(StartPod)
        await world.report(word, "failed", exit_code=1)
        await world.phase_is(Phase.FAILED)
        await world.wanted_is(SettledPod)
        await world.report(word, "running")
        stop = await world.wanted_is(StopPod)
        assert (stop.reason, stop.token) == ("superseded", word.token)
        await world.report(word, "stopped")
        await world.wanted_is(SettledPod)


async def test_an_agent_is_not_believed_about_a_pod_that_another_cluster_has(world: World) -> None:
    await world.decide(CLUSTER, cluster_key("d"), AddCluster(name="d", kind="kubernetes"), "add-d")
    other = incarnation_id(cluster_key("d"), "add-d")
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        lie = ObservedPod(
            pod_key=word.pod_key,
            token=word.token,
            workload_id=word.workload_id,
            pod=word.pod,
            kind="succeeded",
            at=datetime.now(UTC),
        )
        await world.say(observed_pod_subject(other, word.pod_key), lie)
        await asyncio.sleep(0.5)
        await world.report(word, "running")
        begun = {Phase.RUNNING, Phase.COMPLETED}
        state = await eventually(lambda: when(world.workload, lambda state: state.phase in begun))
        assert state.phase is Phase.RUNNING


@pytest.mark.parametrize("lie", ["another attempt", "a run that was never bound"])
async def test_whatever_an_agent_says_of_other_runs_what_is_desired_stays_its_last_word(world: World, lie: str) -> None:
    async def cluster() -> Any:
        return (await world.store.load(CLUSTER, cluster_key("c"))).state

    async with serving(world.server):
        await world.heartbeat()
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        await world.report(word, "running")
        await world.phase_is(Phase.RUNNING)
        if lie == "another attempt":
            await world.report(replace(word, pod=replace(word.pod, attempt=9)), "failed", exit_code=1)
            state = await eventually(lambda: when(cluster, lambda state: state.refused))
            assert (state.refused[0].field, state.refused[0].value) == ("pod", "9.0")
        else:
            said = await world.wanted_seq()
            await world.report(replace(word, token=word.token + 1), "running")
            await eventually(lambda: when(world.wanted_seq, lambda seq: seq > said + 1))
        assert (await world.wanted_is(StartPod)).token == word.token
        await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)


async def test_wanted_that_was_lost_is_told_again(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60")
        await world.bind()
        first = await world.wanted_is(StartPod)
        await world.nc.jetstream().purge_stream(WANTED_STREAM)
        await world.nc.jetstream().delete_stream(WANTED_STREAM)
        await create_streams(world.nc, 1)
        assert (await world.wanted_is(StartPod)) == first
        found = await read_latest(world.nc, world.requests, WANTED_STREAM, wanted_filter(CLUSTER_ID))
        word = msgspec.json.decode(found[wanted_cluster_subject(CLUSTER_ID)], type=WantedCluster)
        assert (word.name, word.kind, word.removed) == ("c", "kubernetes", False)


async def test_what_happened_while_it_was_away_is_caught_up_with(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60")
        await world.bind()
        word = await world.wanted_is(StartPod)
    await world.report(word, "succeeded")
    async with serving(world.server):
        await world.phase_is(Phase.COMPLETED)
        await world.wanted_is(SettledPod)


async def test_a_restart_with_a_snapshot_knows_what_it_knew(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60", completions=2, parallelism=2)
        await world.bind()
        await world.wanted_is(StartPod, pod_key(KEY, "main", 1))
    snapshots = FoldSnapshots(world.store.snapshots, "cluster_sync", shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)
    found = await snapshots.load()
    assert found is not None
    assert KEY in found[1]["workload"]
    async with serving(world.server):
        for index in range(2):
            word = await world.wanted_is(StartPod, pod_key(KEY, "main", index))
            await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)


async def test_a_snapshot_of_an_older_shape_is_dropped_and_the_log_read_from_its_beginning(world: World) -> None:
    older = FoldSnapshots(
        world.store.snapshots, "cluster_sync", shape_version=SNAPSHOT_SHAPE - 1, aggregates=(WORKLOAD, NODE, CLUSTER)
    )
    await world.create(command="true")
    await world.bind()
    newest = await world.store.last_seq()
    await older.save(newest, {name: {} for name in ("workload", "node", "cluster")}, datetime.now(UTC))
    async with serving(world.server):
        assert (await world.recipe(await world.wanted_is(StartPod))).project_name == "nlp"


async def test_nodes_are_registered_in_the_pool_of_their_labels_and_follow_a_change_of_pools(world: World) -> None:
    async def pool() -> str:
        return (await world.store.load(NODE, NODE_KEY)).state.facts.pool

    async with serving(world.server):
        await world.say(observed_node_subject(CLUSTER_ID, NODE_KEY), ObservedNode(name="n1", facts=FACTS))

        async def registered() -> bool:
            return (await world.store.load(NODE, NODE_KEY)).state.present

        await eventually(registered)
        assert await pool() == "default"
        a100 = NodePool(name="fast", label_key="gpu", label_value="a100")
        await world.decide(CLUSTER, cluster_key("c"), SetNodePool(cluster_id=CLUSTER_ID, pool=a100), "pool")

        async def moved() -> bool:
            return await pool() == "fast"

        await eventually(moved)


async def test_runs_on_a_node_that_is_gone_are_interrupted_and_may_run_elsewhere(world: World) -> None:
    async with serving(world.server):
        await world.say(observed_node_subject(CLUSTER_ID, NODE_KEY), ObservedNode(name="n1", facts=FACTS))
        await world.create(command="sleep 60", backoff_limit=0)
        await world.bind()
        word = await world.wanted_is(StartPod)
        await world.report(word, "running")
        await world.phase_is(Phase.RUNNING)
        gone = ObservedNode(name="n1", facts=FACTS, gone=True)
        await world.say(observed_node_subject(CLUSTER_ID, NODE_KEY), gone)
        state = await world.phase_is(Phase.PENDING)
        assert (state.failures, [pod.try_ for pod in bindable(state, datetime.now(UTC))]) == (0, [1])


async def test_runs_of_a_removed_cluster_are_interrupted(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60")
        await world.bind()
        await world.wanted_is(StartPod)
        await world.decide(CLUSTER, cluster_key("c"), RemoveCluster(cluster_id=CLUSTER_ID), "remove")
        await world.phase_is(Phase.PENDING)


async def test_a_heartbeat_connects_the_cluster_and_brings_its_own_settings(world: World) -> None:
    """S084."""
    async with serving(world.server):
        await world.heartbeat(protection=True)

        async def protected() -> bool:
            state = (await world.store.load(CLUSTER, cluster_key("c"))).state
            return state.connected and state.ownership_protection

        await eventually(protected)


async def test_the_storage_classes_of_a_cluster_are_those_that_its_agent_told_last(world: World) -> None:
    """R29. An agent that does not know them takes none away."""
    fast, slow = StorageClass(name="fast", default=True, attributes=("tier",)), StorageClass(name="slow")
    async with serving(world.server):
        for told, known in (((fast, slow), (fast, slow)), (None, (fast, slow)), ((), ())):
            await world.heartbeat(storage_classes=told)

            async def reported(known: tuple[StorageClass, ...] = known) -> bool:
                return (await world.store.load(CLUSTER, cluster_key("c"))).state.storage_classes == known

            await eventually(reported)


async def test_a_cluster_that_its_agent_cannot_work_with_is_disconnected_until_it_can(world: World) -> None:
    async def cluster() -> Any:
        return (await world.store.load(CLUSTER, cluster_key("c"))).state

    async with serving(world.server):
        await world.heartbeat()
        await eventually(lambda: when(cluster, lambda state: state.connected))
        beat = ObservedCluster(at=datetime.now(UTC), problem="the API server cannot be reached")
        await world.say(observed_cluster_subject(CLUSTER_ID), beat)
        state = await eventually(lambda: when(cluster, lambda state: not state.connected))
        assert state.problem == "the API server cannot be reached"
        await world.heartbeat()
        state = await eventually(lambda: when(cluster, lambda state: state.connected))
        assert state.problem == ""


async def test_a_run_that_is_out_of_sight_and_back_with_the_same_start_is_told_both_times(world: World) -> None:
    started = datetime.now(UTC)
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        assert (await world.recipe(word)).project_name == "nlp"
        steps: list[tuple[PodFactKind, Phase]] = [("running", Phase.RUNNING), ("unreachable", Phase.UNKNOWN)]
        for kind, phase in (*steps, steps[0]):
            await world.report(word, kind, at=started)
            await world.phase_is(phase)
        assert isinstance(await world.wanted(), StartPod)


async def test_nonsense_from_an_agent_stops_nobody(world: World) -> None:
    async with serving(world.server):
        await world.requests.ask(observed_pod_subject(CLUSTER_ID, "x"), b"{nonsense", seconds=3)
        await world.requests.ask(f"obs.{CLUSTER_ID}.surprise", b"{}", seconds=3)
        await world.create(command="true")
        await world.bind()
        await world.report(await world.wanted_is(StartPod), "succeeded")
        await world.phase_is(Phase.COMPLETED)


async def test_an_absurd_report_of_one_node_is_named_and_touches_no_other(world: World) -> None:
    async def cluster() -> Any:
        return (await world.store.load(CLUSTER, cluster_key("c"))).state

    async def nodes() -> list[Any]:
        keys = [node_key(CLUSTER_ID, name) for name in ("n0", "n1", "n2")]
        return [(await world.store.load(NODE, key)).state for key in keys]

    async with serving(world.server):
        await world.heartbeat()
        for name, cpu in (("n0", 4000), ("n1", 2**63), ("n2", -1)):
            absurd = ObservedNode(name=name, facts=replace(FACTS, cpu_milli=cpu))
            await world.say(observed_node_subject(CLUSTER_ID, node_key(CLUSTER_ID, name)), absurd)
        state = await eventually(lambda: when(cluster, lambda state: state.refused and state.connected))
        assert [(told.about, told.field, told.rule) for told in state.refused] == [
            ("node", "facts.cpu_milli", "0 to 100,000,000")
        ]
        assert (state.refused[0].name, state.refused[0].value) in {("n1", str(2**63)), ("n2", "-1")}
        found = await eventually(lambda: when(nodes, lambda found: found[0].present))
        assert [node.present for node in found] == [True, False, False]


async def test_an_agent_can_say_nothing_of_another_clusters_node(world: World) -> None:
    """The keys of nodes can be computed by anybody."""

    async def there() -> Any:
        return await world.store.load(NODE, NODE_KEY)

    async def theirs() -> Any:
        return (await world.store.load(NODE, node_key(other, "n9"))).state

    await world.decide(CLUSTER, cluster_key("d"), AddCluster(name="d", kind="kubernetes"), "add-d")
    other = incarnation_id(cluster_key("d"), "add-d")
    async with serving(world.server):
        await world.say(observed_node_subject(CLUSTER_ID, NODE_KEY), ObservedNode(name="n1", facts=FACTS))
        before = await eventually(lambda: when(there, lambda node: node.state.present))
        gone = ObservedNode(name="n1", facts=FACTS, gone=True)
        for forged in (ObservedNode(name="n1", facts=replace(FACTS, gpu_count=1)), gone):
            await world.say(observed_node_subject(other, NODE_KEY), forged)
        # What is said later, and twice, is in the log by when those would be.
        for cpu in (1, 2):
            own = ObservedNode(name="n9", facts=replace(FACTS, cpu_milli=cpu))
            await world.say(observed_node_subject(other, node_key(other, "n9")), own)
            await eventually(lambda cpu=cpu: when(theirs, lambda node: node.facts.cpu_milli == cpu))
        assert await there() == before, "not one commit"


async def test_a_node_that_went_while_its_agent_was_away_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that was restarted never knew it, so it cannot say that it is gone."""
    monkeypatch.setattr("services.cluster_sync.observe.UNSAID_SECONDS", 3.0)

    async def present() -> list[bool]:
        keys = [node_key(CLUSTER_ID, name) for name in ("n1", "n2")]
        return [(await world.store.load(NODE, key)).state.present for key in keys]

    async def say(*names: str) -> None:
        for name in names:
            subject = observed_node_subject(CLUSTER_ID, node_key(CLUSTER_ID, name))
            await world.say(subject, ObservedNode(name=name, facts=FACTS))
        beat = ObservedCluster(at=datetime.now(UTC), nodes=len(names))
        await world.say(observed_cluster_subject(CLUSTER_ID), beat)

    async with serving(world.server):
        await say("n1", "n2")
        await eventually(lambda: when(present, all))

        async def only_the_second() -> bool:
            await say("n2")
            await asyncio.sleep(0.2)
            return await present() == [False, True]

        await eventually(only_the_second, seconds=30)


async def test_times_without_a_zone_stop_nobody(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(StartPod)
        naive = datetime.now(UTC).replace(tzinfo=None)
        await world.report(word, "succeeded", started_at=naive)
        await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)


async def test_two_instances_do_no_harm(world: World) -> None:
    async with serving(world.server), serving(world.server):
        await world.create(command="true", completions=3, parallelism=3)
        await world.bind()
        for index in range(3):
            word = await world.wanted_is(StartPod, pod_key(KEY, "main", index))
            await world.report(word, "running")
            await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)
    seen = [type(event).__name__ async for event in events_of(world)]
    assert (seen.count("PodSucceeded"), seen.count("WorkloadCompleted")) == (3, 1)


async def test_five_hundred_pods_at_once_are_told_and_their_ends_recorded(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true", completions=500, parallelism=500)
        await world.bind()
        await world.wanted_is(StartPod, pod_key(KEY, "main", 499))

        async def report(index: int) -> None:
            await world.report(await world.wanted(pod_key(KEY, "main", index)), "succeeded")

        found = await read_latest(world.nc, world.requests, WANTED_STREAM, wanted_filter(CLUSTER_ID))
        words = [WANTED.decode(payload) for subject, payload in found.items() if ".pod." in subject]
        assert len(words) == 500
        await asyncio.gather(*(world.report(word, "succeeded") for word in words if isinstance(word, StartPod)))
        await world.phase_is(Phase.COMPLETED)


async def test_nodes_of_a_removed_cluster_are_gone_with_it(world: World) -> None:
    async with serving(world.server):
        await world.say(observed_node_subject(CLUSTER_ID, NODE_KEY), ObservedNode(name="n1", facts=FACTS))

        async def present() -> bool:
            return (await world.store.load(NODE, NODE_KEY)).state.present

        async def absent() -> bool:
            return not await present()

        await eventually(present)
        await world.decide(CLUSTER, cluster_key("c"), RemoveCluster(cluster_id=CLUSTER_ID), "remove")
        await eventually(absent)


async def test_wanted_lost_before_a_new_instance_wrote_anything_is_told_again(world: World) -> None:
    """It only read what another left there, and still notices that it is gone."""
    async with serving(world.server):
        await world.create(command="sleep 60")
        await world.bind()
        first = await world.wanted_is(StartPod)
    async with serving(world.server):
        await world.nc.jetstream().delete_stream(WANTED_STREAM)
        await create_streams(world.nc, 1)
        assert (await world.wanted_is(StartPod)) == first


async def test_an_old_heartbeat_that_is_told_again_connects_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster whose agent died long ago stays disconnected through a restart of cluster_sync."""
    await world.heartbeat()
    monkeypatch.setattr("services.cluster_sync.service.SILENCE_SECONDS", 0.2)
    await asyncio.sleep(0.3)
    async with serving(world.server):
        await world.say(observed_node_subject(CLUSTER_ID, NODE_KEY), ObservedNode(name="n1", facts=FACTS))

        async def registered() -> bool:
            return (await world.store.load(NODE, NODE_KEY)).state.present

        await eventually(registered)
        assert not (await world.store.load(CLUSTER, cluster_key("c"))).state.connected
        await world.heartbeat()

        async def connected() -> bool:
            return (await world.store.load(CLUSTER, cluster_key("c"))).state.connected

        await eventually(connected)


async def test_where_cluster_sync_itself_stood_still_no_cluster_was_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a SIGSTOP, or on a machine that had no time for it: what agents said meanwhile was not read yet."""
    monkeypatch.setattr("services.cluster_sync.service.SILENCE_SECONDS", 3.0)
    monkeypatch.setattr("services.cluster_sync.service.TICK_SECONDS", 0.1)

    async def state() -> Cluster:
        return (await world.store.load(CLUSTER, cluster_key("c"))).state

    async def connected() -> bool:
        return (await state()).connected

    async def silent() -> bool:
        return not await connected()

    async with serving(world.server):
        await world.heartbeat()
        await eventually(connected)
        since = (await state()).connection_changed_at
        time.sleep(3.5)  # noqa: ASYNC251 (the service's own loop stands still)
        await asyncio.sleep(0.5)  # many a tick, until the agent speaks again
        await world.heartbeat()
        assert (await state()).connection_changed_at == since
        await eventually(silent)  # it goes on to notice those that are


async def test_with_two_thousand_clusters_each_is_heard(world: World) -> None:
    await in_flight(
        [
            world.decide(CLUSTER, cluster_key(f"c{n}"), AddCluster(name=f"c{n}", kind="simulated"), f"add-{n}")
            for n in range(2_000)
        ]
    )

    async def connected() -> bool:
        await world.heartbeat()
        return (await world.store.load(CLUSTER, cluster_key("c"))).state.connected

    async with serving(world.server):
        await eventually(connected)


async def test_an_agent_that_floods_observed_keeps_no_other_cluster_waiting(world: World) -> None:
    """Ten times what the stream holds, and on and on; the other cluster's pod runs and ends meanwhile."""
    flooder = incarnation_id(cluster_key("flooder"), "add-flooder")
    await world.decide(CLUSTER, cluster_key("flooder"), AddCluster(name="flooder", kind="simulated"), "add-flooder")
    stream = world.nc.jetstream()
    config = (await stream.stream_info(OBSERVED_STREAM)).config
    await stream.update_stream(config.evolve(max_bytes=256 * 1024))
    agent = await connect(world.server.settings("agent"), "agent")
    flooded = 0

    async def flood() -> None:
        nonlocal flooded
        while True:
            for _ in range(200):
                await agent.publish(f"obs.{flooder}.pod.p{flooded}", b"x" * 50)
                flooded += 1
            await agent.flush()

    try:
        async with serving(world.server):
            flooding = asyncio.create_task(flood())
            try:
                async with asyncio.timeout(60):
                    while flooded < 30_000:
                        await asyncio.sleep(0.02)
                await world.create(command="true")
                await world.bind()
                word = await world.wanted_is(StartPod)
                await said_until(world, word, "running", Phase.RUNNING)
                await said_until(world, word, "succeeded", Phase.COMPLETED)
                assert not flooding.done()
            finally:
                flooding.cancel()
                await asyncio.gather(flooding, return_exceptions=True)

            async def connected() -> bool:
                beat = ObservedCluster(at=datetime.now(UTC), agent_version="1")
                await world.say(observed_cluster_subject(flooder), beat)
                return (await world.store.load(CLUSTER, cluster_key("flooder"))).state.connected

            await eventually(connected)
    finally:
        # Else its thread of the loop keeps the test run from ending.
        await agent.close()
        await stream.update_stream(config)


async def said_until(world: World, word: StartPod, kind: PodFactKind, phase: Phase) -> None:
    """As an agent does: said, and taken, and said again while it does not stand in the log."""

    async def known() -> bool:
        ack = await world.report(word, kind)
        assert ack.error is None, ack
        return (await world.workload()).phase is phase

    await eventually(known, 60)


async def a_simulated_one(world: World, *names: str) -> tuple[str, dict[str, str]]:
    """Id of a cluster with these nodes, and their keys."""
    nodes = (SimulatedNodes(names=names, cpu_milli=4000, memory_bytes=2**30),)
    addition = AddCluster(name="s", kind="simulated", simulated_nodes=nodes)
    await world.decide(CLUSTER, cluster_key("s"), addition, "add-s")
    id_ = incarnation_id(cluster_key("s"), "add-s")
    return id_, {name: node_key(id_, name) for name in names}


async def test_a_simulated_node_that_is_removed_is_gone_also_where_no_agent_says_so(world: World) -> None:
    """And an agent that has not heard of it brings it back no more."""
    id_, keys = await a_simulated_one(world, "n1", "n2")

    async def present(name: str) -> bool:
        return (await world.store.load(NODE, keys[name])).state.present

    async def absent() -> bool:
        return not await present("n1")

    async with serving(world.server):
        for name, key in keys.items():
            await world.say(observed_node_subject(id_, key), ObservedNode(name=name, facts=FACTS))
        await eventually(lambda: present("n1"))
        await eventually(lambda: present("n2"))
        removal = RemoveSimulatedNodes(cluster_id=id_, names=("n1",))
        await world.decide(CLUSTER, cluster_key("s"), removal, "remove-n1")
        await eventually(absent)
        await world.say(observed_node_subject(id_, keys["n1"]), ObservedNode(name="n1", facts=FACTS))
        changed = replace(FACTS, cpu_milli=1)
        await world.say(observed_node_subject(id_, keys["n2"]), ObservedNode(name="n2", facts=changed))

        async def heard() -> bool:
            return (await world.store.load(NODE, keys["n2"])).state.facts.cpu_milli == 1

        await eventually(heard)
        assert await absent()
        nodes = (SimulatedNodes(names=("n1",), cpu_milli=4000, memory_bytes=2**30),)
        await world.decide(CLUSTER, cluster_key("s"), AddSimulatedNodes(cluster_id=id_, nodes=nodes), "add-n1")
        await asyncio.sleep(0.2)
        await world.say(observed_node_subject(id_, keys["n1"]), ObservedNode(name="n1", facts=FACTS))
        await eventually(lambda: present("n1"))


async def test_a_simulated_node_that_was_removed_while_nobody_looked_is_gone_after_a_start(world: World) -> None:
    id_, keys = await a_simulated_one(world, "n1")

    async def present() -> bool:
        return (await world.store.load(NODE, keys["n1"])).state.present

    async def absent() -> bool:
        return not await present()

    async with serving(world.server):
        await world.say(observed_node_subject(id_, keys["n1"]), ObservedNode(name="n1", facts=FACTS))
        await eventually(present)
    removal = RemoveSimulatedNodes(cluster_id=id_, names=("n1",))
    await world.decide(CLUSTER, cluster_key("s"), removal, "remove-n1")
    async with serving(world.server):
        await eventually(absent)
