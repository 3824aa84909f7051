"""The autoscaler on a real server: it hears of loads and asks `commands` for replicas. S068, S069."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from development.commands import CommandPath, RunningService, command_path, furnish
from development.servers import EVERYTHING, NatsServer
from events.aggregate import WORKLOAD, draft
from events.commit import service_actor
from events.decision import Context
from events.ids import key_of_id
from events.load import InferenceLoad, LoadReport
from events.phases import SCALED_TO_ZERO, Phase
from events.refusal import Refusal
from events.subjects import load_subject
from events.workload.commands import CreateWorkload, PlacePods, PodFact, ReportPods
from events.workload.fields.inference import Autoscaling, Serving, ServingPort
from events.workload.places import bindable
from events.workload.pod import Placement, PodRef
from events.workload.sizes import WorkloadScaled
from events.workload.spec import Inference, TrainingSpec
from events.workload.state import Workload
from services.autoscaler import service
from services.runtime.nats.connection import connect
from tests.support.subscribing import until

pytestmark = pytest.mark.anyio

SPEED = 60.0
"""A minute's patience is a second."""


@dataclass
class Scene:
    """One inference that a cluster runs at once, and proxies that say what is asked of it."""

    path: CommandPath
    client: Client
    workload_id: str
    loads: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """What each proxy says every moment, by its name."""

    @property
    def key(self) -> str:
        return key_of_id(self.workload_id) or ""

    async def state(self) -> Workload:
        return (await self.path.store.load(WORKLOAD, self.key)).state

    async def replicas(self) -> int:
        inference = (await self.state()).inference
        assert inference is not None
        return inference.replicas

    async def has(self, replicas: int) -> None:
        async def there() -> bool:
            return await self.replicas() == replicas

        await until(there, f"{replicas} replicas")

    async def scaled(self) -> list[WorkloadScaled]:
        version = (await self.path.store.load(WORKLOAD, self.key)).version
        found: list[WorkloadScaled] = []
        async with aclosing(self.path.store.commits(WORKLOAD, self.key, after_seq=0, until_seq=version)) as pages:
            async for commits in pages:
                found += [event for commit in commits for event in commit.events if isinstance(event, WorkloadScaled)]
        return found

    async def autoscaler(self) -> RunningService:
        settings = self.path.server.settings("autoscaler", autoscaler_speed=SPEED)
        running = RunningService(service.run, settings, "autoscaler")
        self.path.services.append(running)
        return await running.ready()

    async def proxies(self) -> None:
        """For ever, say what is asked."""
        while True:
            for name, load in self.loads.items():
                said = LoadReport(seconds=0.02, loads=(InferenceLoad(workload_id=self.workload_id, **load),))
                await self.client.publish(load_subject(name), msgspec.json.encode(said))
            await asyncio.sleep(0.02)

    async def cluster(self) -> None:
        """For ever, place and run what may be."""
        while True:
            await self._live()
            await asyncio.sleep(0.02)

    async def _live(self) -> None:
        chain = await self.path.store.load(WORKLOAD, self.key)
        state, now = chain.state, self.now(chain.state)
        pods = bindable(state, now)
        commands: list[Any] = []
        if pods or not state.queued:
            placements = tuple(Placement(pod=pod, node_key="n", node_name="n", pool="default") for pod in pods)
            commands.append(PlacePods(workload_id=state.workload_id, placements=placements))
        elif state.pods.live:
            kinds: dict[str, Any] = {"Bound": "running", "Stopping": "stopped"}
            facts = tuple(
                PodFact(pod=_ref(id_, pod), kind=kinds[pod.phase], at=now)
                for id_, pod in state.pods.live.items()
                if pod.phase in kinds
            )
            commands.append(ReportPods(workload_id=state.workload_id, facts=facts))
        for command in commands:
            events = WORKLOAD.decide(
                command, state, Context(now=now, actor=CLUSTER, command_id=f"c{chain.version}", version=chain.version)
            )
            if events and not isinstance(events, Refusal):
                made = draft(WORKLOAD, self.key, chain, events, command_id=f"c{chain.version}", actor=CLUSTER, now=now)
                await self.path.store.append(made)

    def now(self, state: Workload) -> Any:
        assert state.created_at is not None
        return state.created_at


CLUSTER = service_actor("scheduler")


def _ref(id_: tuple[str, int], pod: Any) -> Any:
    return PodRef(pod_set=id_[0], index=id_[1], attempt=pod.attempt, try_=pod.try_)


@asynccontextmanager
async def scene(server: NatsServer, folder: Path, **autoscaling: Any) -> AsyncGenerator[Scene]:
    async with command_path(server, folder, services=()) as path:
        project, cluster = await furnish(path)
        serving = Serving(serving_port=ServingPort(container=8000), autoscaling=Autoscaling(**autoscaling))
        command = CreateWorkload(
            kind="Inference",
            name="chat",
            requested_name="chat",
            project_id=project,
            cluster_id=cluster,
            spec=TrainingSpec(image="i"),
            inference=Inference(serving=serving, replicas=1),
        )
        made = await path.accepted("ada", command, "chat")
        client = await connect(server.settings(EVERYTHING), EVERYTHING)
        found = Scene(path=path, client=client, workload_id=made.id)
        tasks = [asyncio.create_task(found.proxies()), asyncio.create_task(found.cluster())]
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await client.close()
        assert all(isinstance(result, asyncio.CancelledError) for result in results), results


@pytest.fixture
async def served(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene(fresh_log, tmp_path, max_replicas=5, scale_to_zero_retention_seconds=60) as found:
        yield found


async def test_replicas_follow_the_load_of_all_proxies_down_to_none_and_up_with_the_first_request(
    served: Scene,
) -> None:
    await served.autoscaler()
    served.loads = {"p1": {"arrived": 5}, "p2": {"arrived": 3}}
    await served.has(4)
    served.loads = {"p1": {}, "p2": {}}
    await served.has(0)
    state = await served.state()
    assert (state.phase, state.reason) == (Phase.RUNNING, SCALED_TO_ZERO)
    served.loads = {"p1": {}, "p2": {"held": 2, "arrived": 1}}
    await served.has(1)
    told = await served.scaled()
    assert told[0].message.startswith("load 400 requests/s over 1 replica")
    first = next(event for event in told if event.was == 0)
    assert (first.reason, first.message) == ("request", "2 requests waiting while there was no replica")
    assert {event.reason for event in told if not event.replicas} == {"idle"}


async def test_without_reports_and_with_such_as_nobody_can_read_everything_stays(served: Scene) -> None:
    await served.autoscaler()
    served.loads = {"p1": {"arrived": 6}}
    await served.has(3)
    served.loads = {}
    for junk in (b"", b"\xff{", b'{"seconds":-1,"loads":[]}', b'{"seconds":1,"loads":[{"workload_id":"x","held":-1}]}'):
        await served.client.publish(load_subject("junk"), junk)
    await asyncio.sleep(1.5)  # a minute and a half, by its windows
    assert await served.replicas() == 3


async def test_two_at_once_that_are_killed_again_and_again_scale_as_one_would(served: Scene) -> None:
    runners = [await served.autoscaler(), await served.autoscaler()]
    for number, (arrived, replicas) in enumerate(((6, 3), (10, 5), (0, 0))):
        served.loads = {"p1": {"arrived": arrived}}
        await runners[number % 2].kill()
        runners[number % 2] = await served.autoscaler()
        await served.has(replicas)
    told = await served.scaled()
    assert [event.was for event in told] == [1, *(event.replicas for event in told[:-1])], (
        "each goes on from the one before"
    )
    assert max(Counter((event.was, event.replicas) for event in told).values()) == 1, "none was carried out twice"
    assert max(event.replicas for event in told) == 5
