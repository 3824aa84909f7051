"""Two simulated clusters, each with an agent in a process of its own that is stopped, killed and started again at any
time, while scheduler and cluster_sync begin anew: workloads that named no cluster leave the lost one, nothing is given
away that old pods may hold, and in the end nothing is left behind (issue 14 section 2, ADR 0138).
"""

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from development.checker.log import LogChecker, check_log
from development.checker.records import RawMessage
from development.checker.wanted import check_wanted
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import CLUSTER, PROJECT, WORKLOAD
from events.cluster import AddCluster
from events.codec import encode_commit
from events.commit import Actor
from events.ids import cluster_key, project_key, workload_key
from events.project import CreateProject
from events.simulated import SimulatedNodes
from events.subjects import WANTED_STREAM
from events.workload.commands import CreateWorkload
from events.workload.fields.metadata import Annotation
from events.workload.spec import ComputeSpec, TrainingSpec
from events.workload.state import Workload
from services.cluster_sync import service as cluster_sync
from services.runtime.log.latest import read_latest
from services.runtime.nats.connection import connect
from services.runtime.nats.inboxes import agent_user
from services.runtime.nats.streams import create_streams
from services.runtime.process.host import Health
from services.scheduler import service as scheduler
from tests.cluster_sync.given import World, eventually

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.timeout(300)]

SILENCE = 11.0
"""Heartbeats come every 5 s."""
GPUS = 4


@dataclass
class Fleet:
    """The clusters, by name, and all that serves them."""

    server: NatsServer
    world: World
    folder: Path
    ids: dict[str, str] = field(default_factory=dict[str, str])
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])
    services: dict[str, tuple[asyncio.Task[None], asyncio.Event]] = field(
        default_factory=dict[str, tuple["asyncio.Task[None]", asyncio.Event]]
    )
    keys: dict[str, str] = field(default_factory=dict[str, str])

    async def add(self, name: str) -> None:
        nodes = (SimulatedNodes(names=(f"{name}-0",), cpu_milli=32_000, memory_bytes=2**36, gpu_count=GPUS),)
        command = AddCluster(name=name, kind="simulated", simulated_nodes=nodes)
        await self.world.decide(CLUSTER, cluster_key(name), command, f"add-{name}")
        self.ids[name] = (await self.world.store.load(CLUSTER, cluster_key(name))).state.cluster_id
        self.server.add_agent(self.ids[name])

    def agent(self, name: str) -> None:
        """Start it, as its supervisor would."""
        environment = {
            "MUSTER_NATS_URL": self.server.url,
            "MUSTER_NATS_PASSWORD": self.server.passwords[agent_user(self.ids[name])],
            "MUSTER_AGENT_CLUSTER": self.ids[name],
            "MUSTER_HEALTH_PORT": "0",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        argv = [sys.executable, "-m", "services.agent"]
        with (self.folder / f"agent-{name}.log").open("ab") as out:
            self.agents[name] = subprocess.Popen(argv, env=environment, stdout=out, stderr=out, cwd=self.folder)

    def serve(self, name: str) -> None:
        run = {"scheduler": scheduler.run, "cluster_sync": cluster_sync.run}[name]
        stop = asyncio.Event()
        task = asyncio.create_task(run(self.server.settings(name), Health(name), stop))
        self.services[name] = task, stop

    async def end(self, name: str, *, gracefully: bool) -> None:
        task, stop = self.services.pop(name)
        if gracefully:
            stop.set()
        else:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def submit(self, name: str, *, gpus: int = 1, pods: int = 1, seconds: float = 3600) -> str:
        project_id = (await self.world.store.load(PROJECT, project_key("nlp"))).state.project_id
        key = self.keys[name] = workload_key(project_id, name)
        command = CreateWorkload(
            kind="Training",
            name=name,
            requested_name=name,
            project_id=project_id,
            cluster_id="",
            among=tuple(self.ids.values()),
            spec=TrainingSpec(
                image="i",
                compute=ComputeSpec(gpu_devices_request=gpus),
                parallelism=pods,
                completions=pods,
                preemptibility="preemptible",
                annotations=(Annotation(name="simulation.muster.dev/runtime-seconds", value=str(seconds)),),
            ),
        )
        await self.world.decide(WORKLOAD, key, command, f"submit-{name}")
        return key

    async def state(self, key: str) -> Workload:
        return (await self.world.store.load(WORKLOAD, key)).state

    async def until(self, key: str, test: Callable[[Workload], bool], seconds: float = 60) -> Workload:
        async def probe() -> Workload | None:
            state = await self.state(key)
            return state if test(state) else None

        try:
            return await eventually(probe, seconds)
        except TimeoutError:
            raise AssertionError(f"not so after {seconds:g} s: {await self.state(key)}") from None

    async def log(self) -> LogChecker:
        """The whole log, checked."""
        last, messages = await self.world.store.last_seq(), list[RawMessage]()
        async with contextlib.aclosing(self.world.store.follow(0, idle_seconds=0.05)) as follower:
            while len(messages) < last:
                for commit in await anext(follower):
                    subject = f"ev.{commit.aggregate}.{commit.key}"
                    messages.append(RawMessage(commit.seq, subject, encode_commit(commit.record)))
        return check_log(messages)

    async def wrong(self) -> list[str]:
        """What is wrong with the log, and with WANTED where it is at rest."""
        log = await self.log()
        found = await read_latest(self.world.nc, self.world.requests, WANTED_STREAM, "want.*.pod.>")
        said = [RawMessage(0, subject, payload) for subject, payload in found.items()]
        return [*log.report.violations, *check_wanted(said, log)]


@contextlib.asynccontextmanager
async def fleet(server_folder: Path, tmp_path: Path) -> AsyncGenerator[Fleet]:
    """Clusters east and west, and a project that waits a second for a lost one."""
    server = NatsServer(server_folder / "lost-nats")
    server.start()
    await recreate_streams(server.settings(EVERYTHING))
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    made = Fleet(server, World(server, nc), tmp_path)
    made.world.actor = Actor(id="ann")
    try:
        command = CreateProject(name="nlp", cluster_lost_seconds=1)
        await made.world.decide(PROJECT, project_key("nlp"), command, "create-nlp")
        for name in ("east", "west"):
            await made.add(name)
        for name in ("cluster_sync", "scheduler"):
            made.serve(name)
        for name in ("east", "west"):
            made.agent(name)
        yield made
        for name in list(made.services):
            await made.end(name, gracefully=True)
    finally:
        for task, _ in made.services.values():
            task.cancel()
        await asyncio.gather(*(task for task, _ in made.services.values()), return_exceptions=True)
        for process in made.agents.values():
            process.kill()
            process.wait()
        await nc.close()
        server.stop()


def runs(state: Workload) -> bool:
    return state.phase == "Running"


def name_of(fleet: Fleet, state: Workload) -> str:
    return next((name for name, id_ in fleet.ids.items() if id_ == state.cluster_id), "")


async def test_what_runs_on_a_cluster_that_is_lost_runs_on_the_other_and_the_old_pods_end_when_it_is_back(
    server_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_sync, "SILENCE_SECONDS", SILENCE)
    async with fleet(server_folder, tmp_path) as there:
        pair = await there.submit("pair", gpus=2, pods=2)
        state = await there.until(pair, lambda s: s.pods.running == 2)
        old, other = name_of(there, state), {"east": "west", "west": "east"}[name_of(there, state)]
        there.agents[old].send_signal(signal.SIGSTOP)

        moved = await there.until(pair, lambda s: s.attempt == 2 and s.pods.running == 2)
        assert (name_of(there, moved), len(moved.left[there.ids[old]])) == (other, 2)
        # All of WANTED is made anew from the log while nobody hears it there.
        await there.end("cluster_sync", gracefully=False)
        await there.world.nc.jetstream().delete_stream(WANTED_STREAM)
        await create_streams(there.world.nc, 1)
        there.serve("cluster_sync")
        there.agents[old].send_signal(signal.SIGCONT)

        back = await there.until(pair, lambda s: not s.left)
        assert (runs(back), back.attempt, name_of(there, back)) == (True, 2, other)
        # What they held is free again, and nothing else is.
        wide = await there.submit("wide", gpus=GPUS)
        assert name_of(there, await there.until(wide, runs)) == old
        assert await there.wrong() == []


async def test_clusters_that_are_lost_at_any_time_lose_nothing_and_double_nothing(
    server_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_sync, "SILENCE_SECONDS", SILENCE)
    chance = random.Random(14)
    async with fleet(server_folder, tmp_path) as there:
        for number in range(6):
            await there.submit(f"w{number}", pods=chance.choice((1, 2)), seconds=chance.choice((2, 8)))
        ends, stopped = time.monotonic() + 32, ""
        while time.monotonic() < ends:
            # One at a time is lost, for as long as its workloads need to leave, or for less.
            stopped = chance.choice(sorted(there.agents))
            killed = chance.random() < 0.5
            there.agents[stopped].send_signal(signal.SIGKILL if killed else signal.SIGSTOP)
            await asyncio.sleep(chance.choice((1, SILENCE + 3)))
            if chance.random() < 0.7:
                service = chance.choice(sorted(there.services))
                await there.end(service, gracefully=chance.random() < 0.5)
                there.serve(service)
            if killed:
                there.agents[stopped].wait()
                there.agent(stopped)
            else:
                there.agents[stopped].send_signal(signal.SIGCONT)
            await asyncio.sleep(chance.choice((0.1, 2)))
        for key in there.keys.values():
            done = await there.until(key, lambda s: s.phase == "Completed" and not s.left, 120)
            assert done.succeeded == len(done.progress) * done.spec.completions

        async def at_rest() -> Any:
            log = await there.log()
            return not (log.report.left_reserved or log.report.left_live) and not await there.wrong()

        await eventually(at_rest, 60)
        log = await there.log()
        assert log.report.violations == []
        assert any("ClusterLeft" in commit.types for commit in log.commits.values()), "nothing ever left a cluster"
