"""What an agent says of its pods, and what it keeps to itself, on a real NATS."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from events.cluster_protocol import ObservedCluster, ObservedPod
from events.subjects import observed_cluster_subject
from services.agent.reports import HELD_SECONDS, Reports
from services.runtime.connection import connect
from tests.agent.control_plane import ControlPlane, control_plane
from tests.agent.given import NOW, seen
from tests.support.servers import EVERYTHING, NatsServer

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
    reports = Reports(nc, CLUSTER)
    reports.pod(seen("starting"))
    reports.say_all_again()
    assert await said(reports, nc, plane) == []
    reports.pod(seen("running"))
    assert await said(reports, nc, plane) == ["running"]
    reports.fall_due(LATER)
    assert await said(reports, nc, plane) == ["running", "running"]


async def test_a_pod_that_does_not_run_for_long_is_told(nc: Client, plane: ControlPlane) -> None:
    reports = Reports(nc, CLUSTER)
    reports.fall_due(0)
    reports.pod(seen("starting"))
    reports.fall_due(1)
    assert await said(reports, nc, plane) == []
    reports.fall_due(LATER + HELD_SECONDS)
    assert await said(reports, nc, plane) == ["starting"]


async def test_a_start_with_something_to_tell_is_told_at_once(nc: Client, plane: ControlPlane) -> None:
    reports = Reports(nc, CLUSTER)
    reports.pod(starting("its image is fetched"))
    assert await said(reports, nc, plane) == ["starting"]
    # What was told before is corrected at once, too.
    reports.pod(seen("starting"))
    assert await said(reports, nc, plane) == ["starting", "starting"]
