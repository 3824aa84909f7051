"""What agents are told of workloads whose claims they hold: whether they ended or were deleted, however long ago."""

import asyncio

import msgspec
import pytest

from events.aggregate import WORKLOAD
from events.cluster_protocol import Fates, FatesRequest, StartPod
from events.phases import Phase
from events.subjects import agent_recipes_subject, recipes_subject
from events.workload.commands import DeleteWorkload, SuspendWorkload
from tests.cluster_sync.given import CLUSTER_ID, KEY, World, eventually, serving

pytestmark = pytest.mark.anyio

OTHER = "00443214-c74a-8d5a-a1b2-0123456789ab"


async def fates(
    world: World, *workloads: str, cluster_id: str = CLUSTER_ID, seconds: float = 60
) -> dict[str, str] | None:
    """None where nothing is said for so long."""
    answers = await world.nc.subscribe(agent_recipes_subject(cluster_id))
    try:
        request = msgspec.json.encode(FatesRequest(workloads=workloads))
        await world.nc.publish(recipes_subject(cluster_id), request)
        return dict(msgspec.json.decode((await answers.next_msg(timeout=seconds)).data, type=Fates).fates)
    except TimeoutError:
        return None
    finally:
        await answers.unsubscribe()


async def test_a_workload_is_kept_then_ended_then_gone(world: World) -> None:
    """R40, C16. The fold forgets what has ended, and the log does not."""
    async with serving(world.server):
        workload = await world.create(command="true")
        assert await fates(world, workload) == {workload: "kept"}
        await world.bind()
        word = await world.wanted_is(StartPod)
        assert await fates(world, workload, OTHER, "nonsense") == {workload: "kept"}
        await world.report(word, "running")
        await world.report(word, "succeeded")
        await world.phase_is(Phase.COMPLETED)

        async def ended() -> bool:
            return await fates(world, workload) == {workload: "ended"}

        await eventually(ended)
        await world.decide(WORKLOAD, KEY, DeleteWorkload(workload_id=workload), "delete")

        async def gone() -> bool:
            return await fates(world, workload) == {workload: "gone"}

        await eventually(gone)
        again = await world.create(command="true")
        assert await fates(world, workload, again) == {workload: "gone", again: "kept"}
        await world.decide(WORKLOAD, KEY, SuspendWorkload(workload_id=again), "suspend")

        async def stopped() -> bool:
            return await fates(world, again) == {again: "ended"}

        await eventually(stopped)


async def test_nothing_is_said_of_what_is_not_in_the_log_and_none_learns_of_another_clusters(world: World) -> None:
    """What a restore lost may have its data left: nobody deletes that for it."""
    async with serving(world.server):
        workload = await world.create(command="true")
        assert await fates(world, OTHER, "", "a.b", seconds=1) is None
        assert await fates(world, workload, cluster_id=OTHER, seconds=1) is None
        await asyncio.sleep(0)
        assert await fates(world, workload) == {workload: "kept"}
