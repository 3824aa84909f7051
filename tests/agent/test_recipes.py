"""What an agent does until it is told what a run is made of: it waits, says so, and nothing else waits with it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from events.cluster_protocol import ObservedCluster, ObservedPod, RunPod, SealedValues, WantedCluster
from events.simulated import packed
from events.subjects import (
    OBSERVED_STREAM,
    agent_recipes_subject,
    observed_cluster_subject,
    observed_filter,
    observed_pod_subject,
)
from services.agent import agent as agent_module
from services.agent import recipes, values
from services.agent.agent import Agent
from services.agent.backends.interface import NO_VALUES
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock
from services.agent.wanted import Changed, Wanted, Whole
from services.runtime.log.latest import read_latest
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.agent.given import CLUSTER, KEY, NODES, run_pod, start_pod, stop_pod
from tests.support.recipes import answering

pytestmark = pytest.mark.anyio

HERE = WantedCluster(cluster_id=CLUSTER, name="c", kind="simulated", packed_nodes=packed(NODES))


class Counting(SimulatedBackend):
    """Notes what it was asked to start."""

    def __init__(self) -> None:
        super().__init__(NODES, RealClock())
        self.started: list[RunPod] = []
        self.lacks = 0
        """How often yet a run that was started lacks values of credentials, as on Kubernetes."""

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:
        self.lacks -= bool(self.started and self.lacks)
        self.started.append(pod)
        await super().apply(pod, values)

    def lacking(self) -> Sequence[tuple[str, int]]:
        return [(pod.pod_key, pod.token) for pod in self.started[:1] if self.lacks]


class Side:
    """One agent at work, and the other side of its streams."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc
        self.backend = Counting()
        self.wanted = Wanted()

    async def observed(self, subject: str, what: type[Any]) -> Any:
        found = await read_latest(self.nc, Requests(self.nc), OBSERVED_STREAM, observed_filter(CLUSTER))
        return msgspec.json.decode(found[subject], type=what) if subject in found else None


@pytest.fixture
async def side(fresh_log: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Side]:
    monkeypatch.setattr(recipes, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(recipes, "PROBLEM_SECONDS", 0.5)
    monkeypatch.setattr(values, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(values, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(agent_module, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(agent_module, "FIRST_RETRY_SECONDS", 0.1)
    async with contextlib.AsyncExitStack() as stack:
        control = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
        stack.push_async_callback(control.close)
        nc = await connect(fresh_log.settings("agent"), "agent")
        stack.push_async_callback(nc.close)
        made = Side(control)
        await stack.enter_async_context(at_work(Agent(HERE, made.backend, nc, made.wanted, version="1")))
        yield made


@contextlib.asynccontextmanager
async def at_work(agent: Agent) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    try:
        yield
    finally:
        stop.set()
        await running


async def until(probe: Callable[[], Any], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            found = probe()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)


async def test_a_run_starts_with_what_its_recipe_says_also_where_the_answer_comes_late(
    side: Side, fresh_log: NatsServer
) -> None:
    recipe = run_pod(environment={"A": "b"})
    side.wanted.put(Whole({KEY: msgspec.json.encode(start_pod(recipe))}))
    await asyncio.sleep(0.5)
    assert side.backend.started == []
    async with answering(fresh_log, [recipe]):
        await until(lambda: side.backend.started)
    assert side.backend.started == [recipe]


async def test_what_a_started_run_lacks_of_credentials_is_asked_for_until_it_is_there_or_not_wanted(
    side: Side, fresh_log: NatsServer
) -> None:
    recipe = run_pod()
    side.wanted.put(Whole({KEY: msgspec.json.encode(start_pod(recipe))}))
    async with answering(fresh_log, [recipe]):
        await until(lambda: side.backend.started)
    side.backend.lacks = 2
    await asyncio.sleep(0.5)
    assert len(side.backend.started) == 1, "nobody answers"
    async with answering(fresh_log, [recipe]):
        await until(lambda: not side.backend.lacks)
        assert side.backend.started == [recipe] * 3
        side.wanted.put(Changed({KEY: msgspec.json.encode(stop_pod())}))
        await until(lambda: not side.backend.fences() or side.backend.fences()[KEY] > recipe.token)
        side.backend.lacks = 1
        await asyncio.sleep(0.3)
    assert len(side.backend.started) == 3


async def test_a_cluster_whose_agent_is_not_answered_shows_that_until_it_is(side: Side, fresh_log: NatsServer) -> None:
    async def problem() -> str:
        beat = await side.observed(observed_cluster_subject(CLUSTER), ObservedCluster)
        return "" if beat is None else beat.problem

    recipe = run_pod()
    side.wanted.put(Whole({KEY: msgspec.json.encode(start_pod(recipe))}))
    said = await until(problem)
    assert "what runs are made of" in said
    assert "cluster_sync" in said
    async with answering(fresh_log, [recipe]):
        await until(lambda: side.backend.started)

        async def well() -> bool:
            return not await problem()

        await until(well)


async def test_a_run_that_waits_for_its_recipe_is_let_go_when_it_is_told_to(side: Side) -> None:
    """So that a person can end the wait: the run is said not to be there, and its node is free."""
    side.wanted.put(Whole({KEY: msgspec.json.encode(start_pod(run_pod()))}))
    await asyncio.sleep(0.3)
    side.wanted.put(Changed({KEY: msgspec.json.encode(stop_pod())}))
    said = await until(lambda: side.observed(observed_pod_subject(CLUSTER, KEY), ObservedPod))
    assert (said.kind, said.message) == ("stopped", "the run was never started here")
    assert side.backend.started == []


async def test_runs_whose_recipes_nobody_tells_keep_no_other_from_being_ended(
    side: Side, fresh_log: NatsServer
) -> None:
    other = run_pod(pod_key="other-main-0")
    waiting = {f"k{n}-main-0": run_pod(pod_key=f"k{n}-main-0") for n in range(300)}
    async with answering(fresh_log, [other]):
        side.wanted.put(Whole({other.pod_key: msgspec.json.encode(start_pod(other))}))
        await until(lambda: side.backend.started)
        side.wanted.put(Changed({key: msgspec.json.encode(start_pod(one)) for key, one in waiting.items()}))
        await asyncio.sleep(0.1)
        side.wanted.put(Changed({other.pod_key: msgspec.json.encode(stop_pod(key=other.pod_key))}))

        async def stopped() -> bool:
            said = await side.observed(observed_pod_subject(CLUSTER, other.pod_key), ObservedPod)
            return said is not None and said.kind not in {"starting", "running"}

        await until(stopped)


@pytest.mark.parametrize("wrong", [b"", b"not json", b"{}", msgspec.json.encode(run_pod(token=7))])
async def test_an_answer_that_is_none_of_this_run_starts_nothing(
    side: Side, fresh_log: NatsServer, wrong: bytes
) -> None:
    recipe = run_pod()
    side.wanted.put(Whole({KEY: msgspec.json.encode(start_pod(recipe))}))
    for _ in range(5):
        await side.nc.publish(agent_recipes_subject(CLUSTER), wrong)
        await asyncio.sleep(0.05)
    assert side.backend.started == []
    async with answering(fresh_log, [recipe]):
        await until(lambda: side.backend.started)
    assert side.backend.started == [recipe]
