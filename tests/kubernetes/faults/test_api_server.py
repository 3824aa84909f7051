"""The API server and its etcd die and come back, and forget the past, under load."""

import time
from collections.abc import Callable

import pytest

from development.kubernetes.proxy import Mode, Request
from development.kubernetes.stack import Program, ProxyThread
from development.stack import until
from tests.kubernetes.faults.scenario import World

pytestmark = pytest.mark.kubernetes_faults

WATCHES = 3
"""Of an agent: pods, nodes and events."""


def test_api_server_killed_loses_nothing(world: World, times: Callable[[int], int]) -> None:
    plane = world.stack.plane
    with world.scenario("API server killed") as (row, _):
        while row.count < times(20):
            time.sleep(world.chance.uniform(0.5, 3.0))
            plane.kill_api_server()
            time.sleep(world.chance.choice((0.0, world.chance.uniform(0.0, 4.0))))
            plane.start_api_server()
            row.count += 1


def test_etcd_restarted_loses_nothing(world: World, times: Callable[[int], int]) -> None:
    with world.scenario("etcd restarted") as (row, _):
        while row.count < times(5):
            time.sleep(world.chance.uniform(1.0, 3.0))
            world.stack.plane.restart_etcd()
            row.count += 1


def test_a_compacted_history_is_listed_anew(world: World, times: Callable[[int], int]) -> None:
    """The agent's watches are held back until the history after their version is gone: a real 410 answers them."""
    way = world.stack.proxy()
    agent = world.stack.agent(url=way.url)
    with world.scenario("compaction with API server restart: 410") as (row, _), world.stack.instead(agent):
        tried = 0
        while row.count < times(10):
            tried += 1
            assert tried <= 3 * times(10), f"of {tried - 1} compactions {row.count} met with a 410"
            time.sleep(world.chance.uniform(0.5, 1.5))
            row.count += _compact(world, way, agent)
        row.remark = f"{_expired(agent)} watches were answered with 410"


def _compact(world: World, way: ProxyThread, agent: Program) -> int:
    """Whether it had the wanted effect: a watch was told that it is too old. Where the API server took longer to come
    back than the agent's Lease lasts, the agent has listed everything before its watches ask.
    """
    before, listed, proxy, plane = _expired(agent), _lease_came_back(agent), way.proxy, world.stack.plane
    cut, held = proxy.struck[Mode.CUT], proxy.struck[Mode.HOLD]
    proxy.only = _watches
    proxy.mode = Mode.CUT
    until(lambda: proxy.struck[Mode.CUT] > cut, 30, lambda: "no watch had anything to tell")
    proxy.mode = Mode.HOLD
    until(lambda: proxy.struck[Mode.HOLD] >= held + WATCHES, 30, lambda: f"no watches: {agent.said()}")
    time.sleep(world.chance.uniform(0.5, 1.5))
    plane.compact()
    plane.restart_api_server()
    proxy.mode = Mode.PASS
    until(
        lambda: _expired(agent) > before or _lease_came_back(agent) > listed,
        30,
        lambda: f"no 410, and no list for the Lease's sake: {agent.said()}",
    )
    return int(_expired(agent) > before)


def _watches(request: Request) -> bool:
    return request.watches


def _expired(agent: Program) -> int:
    return agent.log.read_text().count("(410 ")


def _lease_came_back(agent: Program) -> int:
    return agent.log.read_text().count("this agent is the one that acts from now on")
