"""What an agent says of its pods, and what it keeps to itself, on a real NATS."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.js.api import DiscardPolicy

from development.servers import EVERYTHING, NatsServer
from events.cluster_protocol import ObservedCluster, ObservedPod
from events.subjects import OBSERVED_STREAM, observed_cluster_subject
from services.agent.reports import ALL_AGAIN_SECONDS, AT_ONCE, HELD_SECONDS, Reports
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import OBSERVED_SECONDS
from tests.agent.control_plane import ControlPlane, control_plane
from tests.agent.given import KEY, NOW, seen

pytestmark = pytest.mark.anyio
CLUSTER = "told"
LATER = 1e9
"""A moment at which everything is due."""


@pytest.fixture
async def plane(fresh_log: NatsServer) -> AsyncIterator[ControlPlane]:
    async with control_plane(fresh_log, CLUSTER) as plane:
        yield plane


@pytest.fixture
async def nc(fresh_log: NatsServer) -> AsyncIterator[Client]:
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield nc
    await nc.close()


def starting(message: str) -> ObservedPod:
    return replace(seen("starting"), message=message)


async def said(reports: Reports, nc: Client, plane: ControlPlane) -> list[str]:
    """Kinds that arrived, up to now: what is said after them has arrived."""
    await reports.flush()
    before = len(plane.heartbeats)
    await nc.publish(observed_cluster_subject(CLUSTER), msgspec.json.encode(ObservedCluster(at=NOW, agent_version="")))
    await plane.until(lambda: len(plane.heartbeats) > before)
    return [pod.kind for pod in plane.said]


async def test_a_pod_that_soon_runs_is_told_once(nc: Client, plane: ControlPlane) -> None:
    reports = Reports(nc, CLUSTER, silent=lambda: False)
    reports.pod(seen("starting"))
    reports.say_all_again()
    assert await said(reports, nc, plane) == []
    reports.pod(seen("running"))
    assert await said(reports, nc, plane) == ["running"]
    reports.fall_due(LATER)
    assert await said(reports, nc, plane) == ["running", "running"]


async def test_a_pod_that_does_not_run_for_long_is_told(nc: Client, plane: ControlPlane) -> None:
    reports = Reports(nc, CLUSTER, silent=lambda: False)
    reports.fall_due(0)
    reports.pod(seen("starting"))
    reports.fall_due(1)
    assert await said(reports, nc, plane) == []
    reports.fall_due(LATER + HELD_SECONDS)
    assert await said(reports, nc, plane) == ["starting"]


async def test_a_start_with_something_to_tell_is_told_at_once(nc: Client, plane: ControlPlane) -> None:
    reports = Reports(nc, CLUSTER, silent=lambda: False)
    reports.pod(starting("its image is fetched"))
    assert await said(reports, nc, plane) == ["starting"]
    # What was told before is corrected at once, too.
    reports.pod(seen("starting"))
    assert await said(reports, nc, plane) == ["starting", "starting"]


@contextlib.asynccontextmanager
async def full(nc: Client) -> AsyncGenerator[None]:
    """OBSERVED takes no new subject while the block lasts, as where it is away."""
    stream = nc.jetstream()
    config = (await stream.stream_info(OBSERVED_STREAM)).config
    await stream.publish(observed_cluster_subject("another"), b"{}")
    await stream.update_stream(config.evolve(max_msgs=1, discard=DiscardPolicy.NEW))
    yield
    await stream.update_stream(config)


async def stored(nc: Client) -> int:
    subjects = (await nc.jetstream().stream_info(OBSERVED_STREAM, subjects_filter="obs.*.pod.*")).state.subjects
    return len(subjects or {})


async def test_what_the_stream_did_not_take_is_said_again_until_it_does(nc: Client, plane: ControlPlane) -> None:
    reports = Reports(nc, CLUSTER, silent=lambda: False)
    reports.pod(seen("succeeded"))
    async with full(nc):
        await reports.flush()
        assert await stored(nc) == 0
    saying = asyncio.create_task(reports.run())
    try:
        async with asyncio.timeout(60):
            while await stored(nc) == 0:
                await asyncio.sleep(0.02)
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
    assert {pod.kind for pod in plane.said} == {"succeeded"}


async def test_while_nothing_is_taken_few_words_are_tried_and_none_is_lost(nc: Client) -> None:
    reports = Reports(nc, CLUSTER, silent=lambda: False)
    pods = 2 * AT_ONCE
    for index in range(pods):
        reports.pod(replace(seen("running"), pod_key=f"{KEY}{index}"))
    async with full(nc):
        before = nc.stats["out_msgs"]
        for _ in range(5):
            await reports.flush()
        assert nc.stats["out_msgs"] - before == AT_ONCE, "then a pause"
    saying = asyncio.create_task(reports.run())
    try:
        async with asyncio.timeout(60):
            while await stored(nc) < pods:
                await asyncio.sleep(0.02)
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


async def test_words_that_nobody_says_any_more_leave_the_stream(nc: Client) -> None:
    """Ended runs, above all: the stream is shared by all clusters, and took no news of new ones once it was full."""
    config = (await nc.jetstream().stream_info(OBSERVED_STREAM)).config
    assert config.max_age == OBSERVED_SECONDS
    assert ALL_AGAIN_SECONDS * 10 < OBSERVED_SECONDS
    await nc.jetstream().update_stream(config.evolve(max_age=0.2, duplicate_window=0.2))
    reports = Reports(nc, CLUSTER, silent=lambda: False)
    reports.pod(seen("succeeded"))
    await reports.flush()
    assert await stored(nc) == 1
    reports.no_pod(KEY)
    async with asyncio.timeout(60):
        while await stored(nc):
            reports.say_all_again()
            await reports.flush()
            await asyncio.sleep(0.05)


async def test_what_was_not_said_while_another_agent_spoke_is_said_when_it_falls_silent(
    nc: Client, plane: ControlPlane
) -> None:
    others = [True]
    reports = Reports(nc, CLUSTER, silent=lambda: others[0])
    reports.pod(seen("running"))
    assert await said(reports, nc, plane) == []
    others[0] = False
    assert await said(reports, nc, plane) == ["running"]
