"""cluster_sync on a real NATS, with an agent that this test plays: WANTED follows the log, OBSERVED becomes facts."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from events.aggregate import CLUSTER, NODE, PROJECT, WORKLOAD, Aggregate, draft
from events.cluster import AddCluster, NodePool, RemoveCluster, SetNodePool
from events.cluster_protocol import (
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    RunPod,
    SettledPod,
    StopPod,
    WantedCluster,
    WantedPod,
    pod_key,
)
from events.commit import service_actor
from events.decision import Context
from events.ids import cluster_key, incarnation_id, node_key, project_key, workload_key
from events.node import NodeFacts
from events.phases import Phase
from events.project import CreateProject
from events.refusal import Refusal
from events.subjects import (
    WANTED_STREAM,
    observed_cluster_subject,
    observed_node_subject,
    observed_pod_subject,
    wanted_cluster_subject,
    wanted_filter,
    wanted_subject,
)
from events.workload.commands import CreateTraining, DeleteWorkload, PlacePods, PodFactKind, SuspendWorkload
from events.workload.events import Placement
from events.workload.spec import TrainingSpec
from events.workload.state import bindable
from services.cluster_sync.fold import FOLDED, SNAPSHOT_SHAPE
from services.cluster_sync.service import run
from services.runtime.connection import connect
from services.runtime.fold_snapshots import FoldSnapshots
from services.runtime.host import Health
from services.runtime.jetstream import JetStreamEventStore
from services.runtime.latest import read_latest
from services.runtime.requests import Requests
from services.runtime.store import Committed
from services.runtime.streams import create_streams
from tests.support.servers import EVERYTHING, NatsServer

pytestmark = pytest.mark.anyio

CLUSTER_ID = incarnation_id(cluster_key("c"), "add-c")
PROJECT_ID = incarnation_id(project_key("nlp"), "create-nlp")
KEY = workload_key(PROJECT_ID, "train")
POD = pod_key(KEY, "main", 0)
NODE_KEY = node_key(CLUSTER_ID, "n1")
FACTS = NodeFacts(cpu_milli=4000, memory_bytes=2**30, gpu_count=2, labels={"gpu": "a100"})
WANTED = msgspec.json.Decoder(WantedPod)


async def _when(read: Callable[[], Any], test: Callable[[Any], bool]) -> Any:
    """What was read, where the test holds for it."""
    found = await read()
    return found if test(found) else None


class World:
    """The log, and the agent's side of one cluster."""

    def __init__(self, server: NatsServer, nc: Any) -> None:
        self.server = server
        self.nc = nc
        self.requests = Requests(nc)
        self.store = JetStreamEventStore(nc)

    async def decide(self, aggregate: Aggregate[Any], key: str, command: Any, command_id: str) -> None:
        chain = await self.store.load(aggregate, key)
        now = datetime.now(UTC)
        actor = service_actor("test")
        context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
        decision = aggregate.decide(command, chain.state, context)
        assert not isinstance(decision, Refusal), decision
        made = draft(aggregate, key, chain, decision, command_id=command_id, actor=actor, now=now)
        assert isinstance(await self.store.append(made), Committed)

    async def workload(self) -> Any:
        return (await self.store.load(WORKLOAD, KEY)).state

    async def create(self, **spec: Any) -> str:
        command = CreateTraining(
            name="train",
            requested_name="train",
            project_id=PROJECT_ID,
            cluster_id=CLUSTER_ID,
            spec=TrainingSpec(**spec),
        )
        await self.decide(WORKLOAD, KEY, command, f"create-{datetime.now(UTC).isoformat()}")
        return (await self.workload()).workload_id

    async def bind(self) -> None:
        state = await self.workload()
        placements = tuple(
            Placement(pod=pod, node_key=NODE_KEY, node_name="n1", pool="default")
            for pod in bindable(state, datetime.now(UTC))
        )
        command = PlacePods(workload_id=state.workload_id, placements=placements)
        await self.decide(WORKLOAD, KEY, command, f"bind-{datetime.now(UTC).isoformat()}")

    async def say(self, subject: str, message: msgspec.Struct) -> None:
        await self.requests.ask(subject, msgspec.json.encode(message), seconds=3)

    async def heartbeat(self, protection: bool | None = None) -> None:
        beat = ObservedCluster(at=datetime.now(UTC), agent_version="1", ownership_protection=protection)
        await self.say(observed_cluster_subject(CLUSTER_ID), beat)

    async def report(
        self, word: RunPod | StopPod, kind: PodFactKind, *, at: datetime | None = None, **more: Any
    ) -> None:
        observed = ObservedPod(
            pod_key=word.pod_key,
            token=word.token,
            workload_id=word.workload_id,
            pod=word.pod,
            kind=kind,
            at=at or datetime.now(UTC),
            **more,
        )
        await self.say(observed_pod_subject(CLUSTER_ID, word.pod_key), observed)

    async def wanted(self, pod: str = POD) -> Any:
        found = await read_latest(self.nc, self.requests, WANTED_STREAM, wanted_filter(CLUSTER_ID))
        payload = found.get(wanted_subject(CLUSTER_ID, pod))
        return None if payload is None else WANTED.decode(payload)

    async def wanted_is(self, kind: type, pod: str = POD) -> Any:
        async def probe() -> Any:
            word = await self.wanted(pod)
            return word if isinstance(word, kind) else None

        return await eventually(probe)

    async def phase_is(self, phase: Phase) -> Any:
        async def probe() -> Any:
            state = await self.workload()
            return state if state.phase is phase else None

        return await eventually(probe)


async def eventually(probe: Callable[[], Any], seconds: float = 15) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            found = await probe()
            if found:
                return found
            await asyncio.sleep(0.02)


@pytest.fixture
async def world(fresh_log: NatsServer) -> AsyncIterator[World]:
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    made = World(fresh_log, nc)
    await made.decide(CLUSTER, cluster_key("c"), AddCluster(name="c", kind="simulated"), "add-c")
    await made.decide(PROJECT, project_key("nlp"), CreateProject(name="nlp"), "create-nlp")
    yield made
    await nc.close()


@contextlib.asynccontextmanager
async def serving(server: NatsServer) -> AsyncGenerator[None]:
    """cluster_sync with its own credentials, until the block ends."""
    stop, health = asyncio.Event(), Health("cluster_sync")
    task = asyncio.create_task(run(server.settings("cluster_sync"), health, stop))

    async def up() -> bool:
        if task.done():
            task.result()
        return health.serving

    await eventually(up)
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 10)


async def test_a_bound_pod_is_told_to_its_cluster_and_its_end_is_settled(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(RunPod)
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
        word = await world.wanted_is(RunPod)
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
        await world.wanted_is(RunPod)
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
        word = await world.wanted_is(RunPod)
        await world.report(word, "failed", exit_code=1)
        await world.phase_is(Phase.FAILED)
        await world.wanted_is(SettledPod)
        await world.report(word, "running")
        stop = await world.wanted_is(StopPod)
        assert (stop.reason, stop.token) == ("superseded", word.token)
        await world.report(word, "stopped")
        await world.wanted_is(SettledPod)


async def test_wanted_that_was_lost_is_told_again(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60")
        await world.bind()
        first = await world.wanted_is(RunPod)
        await world.nc.jetstream().purge_stream(WANTED_STREAM)
        await world.nc.jetstream().delete_stream(WANTED_STREAM)
        await create_streams(world.nc, 1)
        assert (await world.wanted_is(RunPod)) == first
        found = await read_latest(world.nc, world.requests, WANTED_STREAM, wanted_filter(CLUSTER_ID))
        word = msgspec.json.decode(found[wanted_cluster_subject(CLUSTER_ID)], type=WantedCluster)
        assert (word.name, word.kind, word.removed) == ("c", "simulated", False)


async def test_what_happened_while_it_was_away_is_caught_up_with(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60")
        await world.bind()
        word = await world.wanted_is(RunPod)
    await world.report(word, "succeeded")
    async with serving(world.server):
        await world.phase_is(Phase.COMPLETED)
        await world.wanted_is(SettledPod)


async def test_a_restart_with_a_snapshot_knows_what_it_knew(world: World) -> None:
    async with serving(world.server):
        await world.create(command="sleep 60", completions=2, parallelism=2)
        await world.bind()
        await world.wanted_is(RunPod, pod_key(KEY, "main", 1))
    snapshots = FoldSnapshots(world.store.snapshots, "cluster_sync", shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)
    found = await snapshots.load()
    assert found is not None
    assert KEY in found[1]["workload"]
    async with serving(world.server):
        for index in range(2):
            word = await world.wanted_is(RunPod, pod_key(KEY, "main", index))
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
        assert (await world.wanted_is(RunPod)).project_name == "nlp"


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
        word = await world.wanted_is(RunPod)
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
        await world.wanted_is(RunPod)
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


async def test_a_cluster_that_its_agent_cannot_work_with_is_disconnected_until_it_can(world: World) -> None:
    async def cluster() -> Any:
        return (await world.store.load(CLUSTER, cluster_key("c"))).state

    async with serving(world.server):
        await world.heartbeat()
        await eventually(lambda: _when(cluster, lambda state: state.connected))
        beat = ObservedCluster(at=datetime.now(UTC), problem="the API server cannot be reached")
        await world.say(observed_cluster_subject(CLUSTER_ID), beat)
        state = await eventually(lambda: _when(cluster, lambda state: not state.connected))
        assert state.problem == "the API server cannot be reached"
        await world.heartbeat()
        state = await eventually(lambda: _when(cluster, lambda state: state.connected))
        assert state.problem == ""


async def test_a_run_that_is_out_of_sight_and_back_with_the_same_start_is_told_both_times(world: World) -> None:
    started = datetime.now(UTC)
    async with serving(world.server):
        await world.create(command="true")
        await world.bind()
        word = await world.wanted_is(RunPod)
        assert word.project_name == "nlp"
        steps: list[tuple[PodFactKind, Phase]] = [("running", Phase.RUNNING), ("unreachable", Phase.UNKNOWN)]
        for kind, phase in (*steps, steps[0]):
            await world.report(word, kind, at=started)
            await world.phase_is(phase)
        assert isinstance(await world.wanted(), RunPod)


async def test_nonsense_from_an_agent_stops_nobody(world: World) -> None:
    async with serving(world.server):
        await world.requests.ask(observed_pod_subject(CLUSTER_ID, "x"), b"{nonsense", seconds=3)
        await world.requests.ask(f"obs.{CLUSTER_ID}.surprise", b"{}", seconds=3)
        await world.create(command="true")
        await world.bind()
        await world.report(await world.wanted_is(RunPod), "succeeded")
        await world.phase_is(Phase.COMPLETED)


async def test_two_instances_do_no_harm(world: World) -> None:
    async with serving(world.server), serving(world.server):
        await world.create(command="true", completions=3, parallelism=3)
        await world.bind()
        for index in range(3):
            word = await world.wanted_is(RunPod, pod_key(KEY, "main", index))
            await world.report(word, "running")
            await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)
    seen = [type(event).__name__ async for event in events_of(world)]
    assert (seen.count("PodSucceeded"), seen.count("WorkloadCompleted")) == (3, 1)


async def test_five_hundred_pods_at_once_are_told_and_their_ends_recorded(world: World) -> None:
    async with serving(world.server):
        await world.create(command="true", completions=500, parallelism=500)
        await world.bind()
        await world.wanted_is(RunPod, pod_key(KEY, "main", 499))

        async def report(index: int) -> None:
            await world.report(await world.wanted(pod_key(KEY, "main", index)), "succeeded")

        found = await read_latest(world.nc, world.requests, WANTED_STREAM, wanted_filter(CLUSTER_ID))
        words = [WANTED.decode(payload) for subject, payload in found.items() if ".pod." in subject]
        assert len(words) == 500
        await asyncio.gather(*(world.report(word, "succeeded") for word in words if isinstance(word, RunPod)))
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
        first = await world.wanted_is(RunPod)
    async with serving(world.server):
        await world.nc.jetstream().delete_stream(WANTED_STREAM)
        await create_streams(world.nc, 1)
        assert (await world.wanted_is(RunPod)) == first


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
