"""kill -9 of the agent and of cluster_sync under load: at random, and where it hurts most."""

import signal
import time
from collections.abc import Callable

import pytest

from development.kubernetes.stack import lasting_port
from tests.kubernetes.faults.scenario import World
from tests.support.second import EACH

pytestmark = pytest.mark.kubernetes_faults

POINTS = {
    "agent": ("fence_raised", "pod_created", "code_map_made", "pod_deleted", "finalizer_removed", "reservation_made"),
    "cluster_sync": ("facts_committed", "wanted_published"),
}
POINT_SECONDS = 90.0


def test_agent_and_cluster_sync_killed_at_random_lose_nothing(world: World, times: Callable[[int], int]) -> None:
    agent, cluster_sync = world.stack.agents[0], world.stack.cluster_sync
    with world.scenario("agent and cluster_sync killed at random") as (row, _):
        while row.count < times(100):
            time.sleep(world.chance.uniform(0.2, 4.0))
            for victim in world.chance.choice(([agent], [cluster_sync], [agent, cluster_sync])):
                row.count += victim.kill()
                victim.start(wait=False)
        agent.wait_ready()
        cluster_sync.wait_ready()


@pytest.mark.parametrize("service", POINTS)
def test_death_at_each_failpoint_loses_nothing(world: World, times: Callable[[int], int], service: str) -> None:
    victim = world.stack.agents[0] if service == "agent" else world.stack.cluster_sync
    with world.scenario(f"{service} killed at each failpoint", per_second=5) as (row, _):
        victim.kill()
        for point in POINTS[service] * times(5):
            victim.start(wait=False, MUSTER_FAILPOINT=f"{point}:{world.chance.randint(1, 4)}")
            assert victim.wait_ended(POINT_SECONDS) == -signal.SIGKILL, victim.said()
            row.count += 1
        victim.start()
        row.remark = f"{times(5)} at each of {', '.join(POINTS[service])}"


def test_two_of_each_service_and_death_of_either_lose_nothing(world: World, times: Callable[[int], int]) -> None:
    """Whoever is first wins; people ask at either api."""
    stack = world.stack
    port = str(lasting_port())
    seconds = [stack.second(service) for service in EACH]
    first = [stack.control, stack.workers, stack.cluster_sync]
    try:
        for program in seconds:
            program.start(MUSTER_HTTP_PORT=port)
        with world.scenario("two of each service", urls=[f"http://127.0.0.1:{port}"]) as (row, _):
            while row.count < times(40):
                time.sleep(world.chance.uniform(0.2, 3.0))
                victim = world.chance.choice((*first, *seconds))
                row.count += victim.kill()
                victim.start(wait=False, **({} if victim in first else {"MUSTER_HTTP_PORT": port}))
            for program in (*first, *seconds):
                program.wait_ready()
    finally:
        for program in seconds:
            program.kill()
