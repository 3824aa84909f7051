"""The agent service against a real NATS, with its own permissions: what it does, and what it does not while nobody is
there to say what is wanted.
"""

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.cluster_protocol import LogsChunk, LogsRequest, WantedCluster
from events.simulated import SimulatedNodes, unpacked
from events.subjects import OBSERVED_STREAM, WANTED_STREAM
from services.agent import logs
from services.agent.agent import HEARTBEAT_SECONDS
from services.agent.backends.interface import Backend, Observation, Picture
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock
from services.agent.host import AgentHost
from services.agent.logs import ANSWERS_EACH, CHUNK_LINES, WINDOW
from services.agent.reports import ENDS_AGAIN_SECONDS
from services.api.log_lines import FIRST_CHUNK_SECONDS
from services.runtime.nats.connection import connect
from tests.agent.control_plane import ControlPlane, RunningService, control_plane, running_service
from tests.agent.given import CLUSTER, GIB, KEY, WORKLOAD, ref, run_pod, settled, stop_pod
from tests.support.poison import UNDECODABLE_JSON

pytestmark = pytest.mark.anyio

_CLUSTERS = itertools.count()


@pytest.fixture
async def plane(fresh_log: NatsServer) -> AsyncIterator[ControlPlane]:
    async with control_plane(fresh_log, f"{CLUSTER}n{next(_CLUSTERS)}") as plane:
        yield plane


@pytest.fixture
async def agent(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[RunningService]:
    async with running_service(fresh_log, tmp_path / "data") as running:
        yield running


def simulated(token: int = 1, *, seconds: float = 60, key: str = KEY, **more: object):
    return run_pod(token, pod_key=key, annotations={"simulation.muster.dev/runtime-seconds": str(seconds)}, **more)


def local(script: str, token: int = 1, *, key: str = KEY, **more: object):
    return run_pod(token, pod_key=key, node_name=socket.gethostname(), arguments=("/bin/sh", "-c", script), **more)


@pytest.mark.usefixtures("agent")
async def test_a_cluster_that_is_wanted_is_served_with_heartbeats_and_nodes(plane: ControlPlane) -> None:
    await plane.want_cluster()
    await plane.until(lambda: len(plane.nodes) == 2 and len(plane.heartbeats) > 0)
    assert plane.heartbeats[-1].nodes == 2
    assert plane.heartbeats[-1].orphans == ()


async def test_the_service_is_ready_before_any_cluster_is_wanted(agent: RunningService) -> None:
    async with asyncio.timeout(60):
        while not agent.health.serving:
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("agent")
async def test_a_run_goes_from_wanted_to_its_end_and_is_said_again_until_it_is_settled(plane: ControlPlane) -> None:
    await plane.want_cluster()
    await plane.want(simulated(seconds=0.2))
    await plane.until_pod("succeeded")
    kinds = [pod.kind for pod in plane.said]
    # A newer word takes the place of one that was not sent yet.
    assert kinds == [kind for kind in ("starting", "running", "succeeded") if kind in kinds]
    await plane.until(lambda: [pod.kind for pod in plane.said].count("succeeded") > 1)
    await plane.want(settled())
    await plane.until_still(lambda: len(plane.said), seconds=ENDS_AGAIN_SECONDS + 1)


@pytest.mark.usefixtures("agent")
async def test_a_stop_of_a_run_that_never_was_is_answered(plane: ControlPlane) -> None:
    await plane.want_cluster()
    await plane.want(stop_pod(3))
    end = await plane.until_pod("stopped", 3)
    assert end.workload_id == WORKLOAD
    await plane.want(simulated(3))
    await asyncio.sleep(0.5)
    assert {pod.kind for pod in plane.said} == {"stopped"}


@pytest.mark.usefixtures("agent")
async def test_a_newer_run_starts_only_when_the_older_one_is_gone(plane: ControlPlane, tmp_path: Path) -> None:
    await plane.want_cluster("local")
    mark = tmp_path / "mark"
    await plane.want(local(f"trap 'sleep 0.5; rm {mark}; exit 0' TERM; touch {mark}; while :; do sleep .02; done"))
    await plane.until_pod("running")
    async with asyncio.timeout(60):
        while not mark.exists():
            await asyncio.sleep(0.02)
    await plane.want(local(f"test ! -e {mark}", 2))
    await plane.until_pod("succeeded", 2)


@pytest.mark.usefixtures("agent")
async def test_runs_that_nothing_mentions_are_told_as_orphans_and_left_alone(
    plane: ControlPlane, fresh_log: NatsServer
) -> None:
    await plane.want_cluster()
    await plane.want(simulated())
    await plane.until_pod("running")
    nc = plane.nc
    await nc.jetstream().purge_stream(WANTED_STREAM)
    # The picture is taken anew after the connection was lost; here the consumer is taken away instead.
    for consumer in await nc.jetstream().consumers_info(WANTED_STREAM):
        await nc.jetstream().delete_consumer(WANTED_STREAM, consumer.name)
    await plane.until(lambda: plane.heartbeats[-1].orphans == (f"{KEY}/1",))
    assert {pod.kind for pod in plane.said} <= {"starting", "running"}
    await plane.want(simulated())
    await plane.until(lambda: plane.heartbeats[-1].orphans == ())
    assert {pod.kind for pod in plane.said} <= {"starting", "running"}
    assert fresh_log.process is not None


async def test_streams_made_anew_under_a_running_agent_are_noticed(
    plane: ControlPlane, fresh_log: NatsServer, agent: RunningService
) -> None:
    await plane.want_cluster()
    await plane.want(simulated())
    await plane.until_pod("running")
    plane.said.clear()
    plane.nodes.clear()
    await recreate_streams(fresh_log.settings(EVERYTHING))
    await plane.want_cluster()
    await plane.want(simulated())
    await plane.want(simulated(key="new-main-0"))
    await plane.until_pod("running", key="new-main-0", seconds=30)
    await plane.until(lambda: plane.newest() is not None and len(plane.nodes) == 2, seconds=40)
    async with asyncio.timeout(60):
        # Two pods, two nodes, the heartbeat.
        while (await plane.nc.jetstream().stream_info(OBSERVED_STREAM)).state.messages < 5:
            await asyncio.sleep(0.1)
    assert {pod.kind for pod in plane.said} <= {"starting", "running"}
    assert not agent.task.done()


async def test_an_agent_that_broke_down_finds_its_pods_again_and_starts_none_twice(
    plane: ControlPlane, fresh_log: NatsServer, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    async with running_service(fresh_log, tmp_path / "data") as first:
        await plane.want_cluster("local")
        await plane.want(local(f"echo x >> {starts}; sleep 1000"))
        await plane.until_pod("running")
        await first.break_down()
    plane.said.clear()
    async with running_service(fresh_log, tmp_path / "data"):
        await plane.until_pod("running")
        await asyncio.sleep(0.3)
        assert starts.read_text() == "x\n"
        await plane.want(stop_pod(1, grace_seconds=1))
        await plane.until_pod("stopped")


async def test_when_the_service_stops_its_local_pods_are_interrupted_and_that_is_said(
    plane: ControlPlane, fresh_log: NatsServer, tmp_path: Path
) -> None:
    async with running_service(fresh_log, tmp_path / "data") as running:
        await plane.want_cluster("local")
        await plane.want(local("trap '' TERM; while :; do sleep 0.1; done", grace_seconds=600))
        await plane.until_pod("running")
        async with asyncio.timeout(60):  # and not the ten minutes that the pod may take
            await running.stop()
    end = await plane.until_pod("interrupted")
    assert end.reason == "shutdown"
    plane.said.clear()
    async with running_service(fresh_log, tmp_path / "data"):
        # Said again by the next agent, for whoever was away; the run is not started a second time.
        assert (await plane.until_pod("interrupted")).reason == "shutdown"


@pytest.mark.usefixtures("agent")
async def test_logs_come_in_chunks_with_an_end(plane: ControlPlane) -> None:
    await plane.want_cluster("local")
    await plane.want(local("seq 1 30000"))
    await plane.until_pod("succeeded")
    request = LogsRequest(workload_id=WORKLOAD, pod_key=KEY, pod=ref(try_=1))
    received = [chunk async for chunk in plane.logs(request)]
    assert [line.text for chunk in received for line in chunk.lines] == [str(i) for i in range(1, 30001)]
    assert received[-1].end
    assert received[-1].error == ""


@pytest.mark.usefixtures("agent")
async def test_output_that_json_must_escape_byte_by_byte_still_fits_its_messages(plane: ControlPlane) -> None:
    await plane.want_cluster("local")
    await plane.want(local("head -c 600000 /dev/zero"))
    await plane.until_pod("succeeded")
    received = [chunk async for chunk in plane.logs(LogsRequest(workload_id=WORKLOAD, pod_key=KEY))]
    assert sum(len(line.text) for chunk in received for line in chunk.lines) == 600_000
    assert received[-1].error == ""


@pytest.mark.usefixtures("agent")
async def test_logs_that_are_not_there_are_answered_with_why(plane: ControlPlane) -> None:
    await plane.want_cluster("local")
    await plane.until(lambda: len(plane.heartbeats) > 0)
    (chunk,) = [chunk async for chunk in plane.logs(LogsRequest(workload_id="other", pod_key=KEY))]
    assert chunk.end
    assert "no log of that pod is kept" in chunk.error


@pytest.mark.usefixtures("agent")
async def test_logs_are_followed_while_the_pod_writes(plane: ControlPlane) -> None:
    await plane.want_cluster("local")
    await plane.want(local("echo one; sleep 0.7; echo two"))
    await plane.until_pod("running")
    request = LogsRequest(workload_id=WORKLOAD, pod_key=KEY, follow=True)
    texts = [line.text async for chunk in plane.logs(request) for line in chunk.lines]
    assert texts == ["one", "two"]


@pytest.mark.usefixtures("agent")
async def test_who_follows_a_pod_that_is_silent_hears_from_the_agent_before_the_api_gives_it_up(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logs.FIRST_WORD_SECONDS < FIRST_CHUNK_SECONDS / 2
    monkeypatch.setattr(logs, "IDLE_PROBE_SECONDS", 1000.0)  # what is heard is the first word
    await plane.want_cluster("local")
    await plane.want(local("sleep 1000"))
    await plane.until_pod("running")
    request = LogsRequest(workload_id=WORKLOAD, pod_key=KEY, follow=True)
    async with aclosing(plane.logs(request)) as chunks, asyncio.timeout(60):
        first = await anext(chunks)
    assert (first.lines, first.end, first.error) == ((), False, "")


@pytest.mark.usefixtures("agent")
async def test_many_clusters_are_served_by_one_process(plane: ControlPlane) -> None:
    clusters = {f"many{number}n{next(_CLUSTERS)}" for number in range(80)}
    heard: set[str] = set()

    async def hear(message: Msg) -> None:
        heard.add(message.subject.split(".")[1])
        plane.news.set()

    await plane.nc.subscribe("obs.*.cluster", cb=hear)
    for cluster in clusters:
        plane.cluster = cluster
        await plane.want_cluster()
    await plane.until(lambda: clusters <= heard)


class Broken(SimulatedBackend):
    """With a fault that nobody foresaw."""

    async def list_all(self) -> Picture:
        raise OverflowError("cannot convert float infinity to integer")


async def test_a_cluster_whose_backend_breaks_ends_no_other_one(plane: ControlPlane, fresh_log: NatsServer) -> None:
    opened: list[str] = []

    async def open_backend(cluster: WantedCluster) -> Backend:
        opened.append(cluster.cluster_id)
        made = SimulatedBackend if cluster.cluster_id == good else Broken
        return made(unpacked(cluster.packed_nodes), RealClock())

    good = plane.cluster
    plane.cluster = f"broken{next(_CLUSTERS)}"
    await plane.want_cluster()
    stop, ready = asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as stack:
        nc = await connect(fresh_log.settings("agent"), "agent")
        stack.push_async_callback(nc.close)
        host = asyncio.create_task(AgentHost(nc, {"simulated": open_backend}, version="v").run(stop, ready.set))
        async with asyncio.timeout(60):
            while opened.count(plane.cluster) < 2 and not host.done():
                await asyncio.sleep(0.05)
        plane.cluster = good
        await plane.want_cluster()
        await plane.want(simulated(seconds=0.2))
        await plane.until_pod("succeeded")
        stop.set()
        await host


@pytest.mark.usefixtures("agent")
async def test_pods_that_were_wanted_before_their_cluster_was_known_are_started(plane: ControlPlane) -> None:
    await plane.want(simulated(seconds=0.2))
    await plane.want_cluster()
    await plane.until_pod("succeeded")


@pytest.mark.usefixtures("agent")
async def test_a_cluster_that_is_changed_while_it_serves_goes_on_with_what_is_wanted(plane: ControlPlane) -> None:
    await plane.want_cluster()
    await plane.want(simulated(1, seconds=1000))
    await plane.until_pod("running")
    await plane.want_cluster(simulated_nodes=(SimulatedNodes(names=("n1", "n9"), cpu_milli=4000, memory_bytes=GIB),))
    await plane.want(simulated(2, seconds=0.2, key="another-main-0"))
    await plane.until_pod("succeeded", 2, key="another-main-0")


class Watched(SimulatedBackend):
    """It counts who began to look at it."""

    watches = 0

    async def watch(self) -> AsyncIterator[Sequence[Observation]]:
        self.watches += 1
        async for seen in super().watch():
            yield seen


@asynccontextmanager
async def watched(server: NatsServer) -> AsyncGenerator[dict[str, Watched]]:
    """Backends of the clusters of one agent host, by cluster id."""
    opened: dict[str, Watched] = {}

    async def open_backend(cluster: WantedCluster) -> Backend:
        made = opened[cluster.cluster_id] = Watched(unpacked(cluster.packed_nodes), RealClock())
        return made

    stop, nc = asyncio.Event(), await connect(server.settings("agent"), "agent")
    host = asyncio.create_task(AgentHost(nc, {"simulated": open_backend}, version="v").run(stop, lambda: None))
    try:
        yield opened
        assert not host.done()
    finally:
        stop.set()
        await host
        await nc.close()


async def begins(backend: Watched, watches: int) -> None:
    async with asyncio.timeout(60):
        while backend.watches < watches:
            await asyncio.sleep(0.02)


async def test_a_cluster_that_is_cut_off_goes_on_unheard_and_what_became_of_it_is_told_afterwards(
    plane: ControlPlane, fresh_log: NatsServer
) -> None:
    """Given two clusters of one host, when one is cut off, then only that one is silent, deaf, and goes on; when it is
    connected again, then ends, orders and starts of the time between are settled.
    """
    async with (
        control_plane(fresh_log, f"{CLUSTER}n{next(_CLUSTERS)}") as other,
        watched(fresh_log) as backends,
    ):
        await plane.want_cluster()
        await other.want_cluster()
        await plane.want(simulated(seconds=1), simulated(seconds=1000, key="long-main-0", node_name="n2"))
        await plane.until(lambda: plane.newest() is not None)
        await plane.until_pod("running", key="long-main-0")

        await plane.want_cluster(cut_off=True)
        await begins(backends[plane.cluster], 2)
        await plane.want(stop_pod(1, key="long-main-0"), simulated(seconds=1000, key="late-main-0"))
        beats = len(other.heartbeats)
        await other.until(lambda: len(other.heartbeats) > beats)  # what was on its way has come before it
        await plane.nc.flush()
        said = len(plane.said), len(plane.heartbeats)
        await other.until(lambda: len(other.heartbeats) > beats + 2)
        assert (len(plane.said), len(plane.heartbeats)) == said

        back_at = datetime.now(UTC)
        await plane.want_cluster()
        assert (await plane.until_pod("succeeded")).at < back_at
        assert (await plane.until_pod("stopped", key="long-main-0")).at > back_at
        assert (await plane.until_pod("running", key="late-main-0")).at > back_at
        await plane.until(lambda: len(plane.heartbeats) > said[1])


async def test_a_cluster_that_is_cut_off_from_the_first_is_silent_until_it_is_connected(
    plane: ControlPlane, fresh_log: NatsServer
) -> None:
    async with watched(fresh_log) as backends:
        await plane.want(simulated(seconds=1000))
        await plane.want_cluster(cut_off=True)
        async with asyncio.timeout(60):
            while plane.cluster not in backends:
                await asyncio.sleep(0.02)
        await begins(backends[plane.cluster], 1)
        assert (plane.said, plane.heartbeats) == ([], [])
        await plane.want_cluster()
        await plane.until_pod("running")


async def test_a_cluster_that_is_removed_while_it_is_cut_off_is_let_go(
    plane: ControlPlane, fresh_log: NatsServer
) -> None:
    async with watched(fresh_log) as backends:
        await plane.want_cluster()
        await plane.until(lambda: len(plane.heartbeats) > 0)
        await plane.want_cluster(cut_off=True)
        await begins(backends[plane.cluster], 2)
        await plane.want_cluster(cut_off=True, removed=True)
        ends = backends[plane.cluster].watch()
        async with asyncio.timeout(60):
            async for _ in ends:
                pass  # it ends once the backend is closed


@pytest.mark.usefixtures("agent")
async def test_nodes_are_added_and_removed_while_pods_run(plane: ControlPlane) -> None:
    """Given a pod on a node that stays, when nodes come and go, then it goes on; a pod of one that goes ends."""
    await plane.want_cluster()
    await plane.want(simulated(1, seconds=1000), simulated(1, seconds=1000, key="other-main-0", node_name="n2"))
    await plane.until_pod("running")
    await plane.until_pod("running", key="other-main-0")
    left = SimulatedNodes(names=("n1", "n9"), cpu_milli=8000, memory_bytes=32 * GIB, gpu_count=2)
    await plane.want_cluster(simulated_nodes=(left,))
    ended = await plane.until_pod("interrupted", key="other-main-0")
    assert ended.reason == "node_lost"
    await plane.until(lambda: "n9" in plane.nodes and plane.nodes["n2"].gone)
    await plane.want(simulated(2, seconds=0.2, key="another-main-0", node_name="n9"))
    await plane.until_pod("succeeded", 2, key="another-main-0")
    newest = plane.newest()
    assert newest is not None
    assert newest.kind == "running"


@pytest.mark.usefixtures("agent")
async def test_a_removed_cluster_is_left_and_an_unreadable_word_harms_nobody(plane: ControlPlane) -> None:
    await plane.want_cluster()
    await plane.until(lambda: len(plane.heartbeats) > 0)
    for number, payload in enumerate(UNDECODABLE_JSON.values()):
        await plane.nc.jetstream().publish(f"want.{plane.cluster}.pod.bad{number}", payload)
        await plane.nc.jetstream().publish(f"want.bad{number}.cluster", payload)
    await plane.want(simulated())
    await plane.until_pod("running")
    await plane.want_cluster(removed=True)
    await plane.until_still(lambda: len(plane.heartbeats), seconds=HEARTBEAT_SECONDS + 1)


@pytest.mark.usefixtures("agent")
async def test_two_thousand_pods_on_1213_nodes_all_end(plane: ControlPlane) -> None:
    nodes = SimulatedNodes(
        names=tuple(f"n{i}" for i in range(1213)), cpu_milli=96_000, memory_bytes=512 * GIB, gpu_count=8
    )
    await plane.want_cluster(simulated_nodes=(nodes,))
    await plane.until(lambda: len(plane.nodes) == 1213)
    cpu = time.process_time()
    keys = [f"k{i}-main-0" for i in range(2000)]
    await asyncio.gather(
        *(plane.want(simulated(seconds=1, key=key, node_name=f"n{i % 1213}")) for i, key in enumerate(keys))
    )
    ended: set[str] = set()
    looked_at = 0

    def all_ended() -> bool:
        nonlocal looked_at
        ended.update(pod.pod_key for pod in plane.said[looked_at:] if pod.kind == "succeeded")
        looked_at = len(plane.said)
        return len(ended) == 2000

    await plane.until(all_ended, seconds=100)
    print(f"2,000 pods: {time.process_time() - cpu:.2f} s of processor time, test's own part included")
    await plane.want(*(settled(key=key) for key in keys))


@pytest.mark.usefixtures("agent")
async def test_an_asker_that_takes_nothing_is_sent_a_few_chunks_and_no_more(plane: ControlPlane) -> None:
    await plane.want_cluster("local")
    await plane.want(local("seq 1 30000"))
    await plane.until_pod("succeeded")
    arrived = 0
    async with aclosing(plane.logs(LogsRequest(workload_id=WORKLOAD, pod_key=KEY))) as chunks:
        async for chunk in chunks:
            arrived += len(chunk.lines)
            # Everything that the agent would send by itself is there well before it looks for a sign of life.
            await asyncio.sleep(1)
            assert plane.waiting_chunks() < WINDOW
            break
    assert 0 < arrived <= CHUNK_LINES


@pytest.mark.usefixtures("agent")
async def test_one_reader_cannot_take_every_place(plane: ControlPlane) -> None:
    await plane.want_cluster("local")
    await plane.want(local("echo here; sleep 1000"))
    await plane.until_pod("running")
    async with AsyncExitStack() as open_follows:

        async def first_of(reader: str) -> LogsChunk:
            request = LogsRequest(workload_id=WORKLOAD, pod_key=KEY, follow=True, reader=reader)
            chunks = await open_follows.enter_async_context(aclosing(plane.logs(request)))
            return await anext(chunks)

        greedy = [await first_of("greedy") for _ in range(ANSWERS_EACH)]
        beyond, other = await first_of("greedy"), await first_of("another")
    assert not any(chunk.error for chunk in greedy)
    assert beyond.end
    assert f"and may of {ANSWERS_EACH}" in beyond.error
    assert [line.text for line in other.lines] == ["here"]
