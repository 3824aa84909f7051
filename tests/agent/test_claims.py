"""Claims go when cluster_sync says that their workload is over, and not before."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from development.servers import EVERYTHING, NatsServer
from events.cluster_protocol import Fate, Fates, FatesRequest, MessageType
from events.subjects import agent_recipes_subject, recipes_subject
from events.workload.volumes import ClaimedFolder, NewClaim
from services.agent import claims
from services.agent.claims import Claims
from services.agent.recipes import Recipes
from services.runtime.nats.connection import connect
from tests.agent.given import CLUSTER, Watched, open_local, run_pod

pytestmark = pytest.mark.anyio


class Side:
    """cluster_sync's part, and the agent's over a local cluster."""

    def __init__(self, nc: Client, local: Watched) -> None:
        self.nc = nc
        self.local = local
        self.fates: dict[str, Fate] = {}
        self.in_use: set[str] | None = set()
        self.asked: list[tuple[str, ...]] = []

    async def answer(self, message: Msg) -> None:
        if msgspec.json.decode(message.data, type=MessageType).type != FatesRequest.__name__:
            return
        asked = msgspec.json.decode(message.data, type=FatesRequest).workloads
        self.asked.append(asked)
        told: dict[str, Fate] = {workload: self.fates[workload] for workload in asked if workload in self.fates}
        await self.nc.publish(agent_recipes_subject(CLUSTER), msgspec.json.encode(Fates(fates=told)))

    async def use(self, workload: str, token: int) -> None:
        """A run of a workload that leaves a claim of each sort."""
        volumes = tuple(
            ClaimedFolder(
                mount_path=f"/muster-test-{number}", number=number, new=NewClaim(size_bytes=1, ephemeral=short)
            )
            for number, short in enumerate((False, True))
        )
        pod = run_pod(token, node_name=self.local.node, arguments=("/bin/true",), volumes=volumes, workload_id=workload)
        await self.local.backend.apply(pod)
        await self.local.until("succeeded", token=token)


@pytest.fixture
async def side(fresh_log: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Side]:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.05)
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    local = await open_local(tmp_path / "data")
    made = Side(nc, local)
    await nc.subscribe(recipes_subject(CLUSTER), cb=made.answer)
    agent = Claims(nc, CLUSTER, local.backend, in_use=lambda: made.in_use)
    recipes = Recipes(nc, CLUSTER, on_fates=agent.hear)
    await recipes.start()
    await nc.flush()
    running = asyncio.create_task(agent.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await recipes.close()
    await local.close()
    await nc.close()


async def until(side: Side, *held: tuple[str, bool]) -> None:
    async with asyncio.timeout(60):
        while {(one.workload_id, one.ephemeral) for one in await side.local.backend.claims()} != set(held):
            await asyncio.sleep(0.02)


async def test_ephemeral_ones_go_when_a_workload_ends_and_all_when_it_is_gone(side: Side) -> None:
    """R40, C16."""
    for token, workload in enumerate(("w-1", "w-2", "w-3"), start=1):
        await side.use(workload, token)
    side.fates = {"w-1": "kept", "w-2": "ended", "w-3": "gone"}
    await until(side, ("w-1", True), ("w-2", False))
    side.fates["w-2"] = "gone"
    await until(side, ("w-1", True))


async def test_none_goes_while_a_pod_is_wanted_or_while_nobody_knows_what_is(side: Side) -> None:
    await side.use("w-1", 1)
    for in_use in (None, {"w-1"}):
        side.in_use = in_use
        side.fates = {"w-1": "gone"}
        asked = len(side.asked)
        await asyncio.sleep(0.5)
        assert len(side.asked) - asked <= 1, "an answer that was on its way"
        assert [one.workload_id for one in await side.local.backend.claims()] == ["w-1"]
    side.in_use = set()
    await until(side)


async def test_one_that_is_kept_is_asked_about_ever_less_often(side: Side) -> None:
    await side.use("w-1", 1)
    side.fates = {"w-1": "kept"}
    async with asyncio.timeout(60):
        while not side.asked:
            await asyncio.sleep(0.02)
    await asyncio.sleep(1)
    assert len(side.asked) <= 6
    assert set(side.asked) == {("w-1",)}
