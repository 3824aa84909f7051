"""What stands between the agent and the API server refuses, breaks, falls silent or lies, under load."""

import random
import time
from collections.abc import Callable

import pytest

from development.kubernetes.proxy import Mode, Proxy, Request
from development.kubernetes.stack import Program
from development.stack import until
from tests.kubernetes.faults.load import Load
from tests.kubernetes.faults.scenario import World, live_pods

pytestmark = pytest.mark.kubernetes_faults

IMPATIENT = {"kubernetes_watch_silence_seconds": 3, "kubernetes_call_seconds": 3}
"""So that silence is noticed within a short fault."""
STRUCK_SECONDS = 30.0
HELD = 8
"""Workloads that run all the time while the server lies: more than are checked one by one."""

FAULTS = {
    "429 with Retry-After": (Mode.TOO_MANY, 1, 1.5),
    "429 without Retry-After": (Mode.TOO_MANY, None, 1.5),
    "500": (Mode.ERROR, None, 1.5),
    "cut in mid-body": (Mode.CUT, None, 1.5),
    "silent half-open": (Mode.SILENT, None, 5.0),
}
"""Mode, Retry-After in seconds, longest duration in seconds."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_way_to_the_api_server_loses_nothing(world: World, times: Callable[[int], int], fault: str) -> None:
    mode, retry_after_seconds, longest_seconds = FAULTS[fault]
    way = world.stack.proxy()
    way.proxy.retry_after_seconds = retry_after_seconds
    agent = world.stack.agent(url=way.url, **IMPATIENT)
    with world.scenario(f"proxy: {fault}") as (row, _), world.stack.instead(agent):
        while row.count < times(50):
            time.sleep(world.chance.uniform(0.2, 1.0))
            _strike(way.proxy, mode, world.chance.uniform(0.1, longest_seconds), world.chance)
            row.count += 1
        row.remark = f"{way.proxy.struck[mode]} requests and streams met it"


def _strike(proxy: Proxy, mode: Mode, seconds: float, chance: random.Random) -> None:
    """Everybody, or only those who ask, or only those who change something; until it struck at least once."""
    before = proxy.struck[mode]
    proxy.only = chance.choice((_everything, _everything, _asks, _changes))
    proxy.mode = mode
    try:
        time.sleep(seconds)
        until(lambda: proxy.struck[mode] > before, STRUCK_SECONDS, lambda: f"nobody met {mode}")
    finally:
        proxy.mode = Mode.PASS


def _everything(_: Request) -> bool:
    return True


def _asks(request: Request) -> bool:
    return request.method == "GET"


def _changes(request: Request) -> bool:
    return request.method != "GET"


def test_an_empty_list_from_a_broken_server_ends_nothing(world: World, times: Callable[[int], int]) -> None:
    way = world.stack.proxy()
    agent = world.stack.agent(url=way.url, **IMPATIENT)
    with world.scenario("empty list from a broken server") as (row, load), world.stack.instead(agent):
        while row.count < times(5):
            _lie(world, way.proxy, agent, load)
            row.count += 1
        row.remark = f"{_disbelieved(agent)} lists were not believed"


def _lie(world: World, proxy: Proxy, agent: Program, load: Load) -> None:
    held = load.submit_endless(HELD)
    before = {uid: pod["spec"]["nodeName"] for uid, pod in live_pods(world.stack, held).items()}
    disbelieved = _disbelieved(agent)
    proxy.only, proxy.mode = _everything, Mode.EMPTY_LIST
    _break_connections(proxy)
    until(lambda: _disbelieved(agent) >= disbelieved + 2, 60, lambda: f"every list was believed: {agent.said()}")
    until(lambda: world.stack.cluster_row()["problem"], 30, lambda: f"nobody is told: {world.stack.cluster_row()}")
    agent.kill()
    agent.start(wait=False)  # one that begins knows nothing that could be missing
    until(lambda: _disbelieved(agent) >= disbelieved + 4, 60, lambda: f"a list was believed: {agent.said()}")
    still = {uid: pod["spec"]["nodeName"] for uid, pod in live_pods(world.stack, held).items()}
    assert still == before, "runs were given up"

    proxy.mode = Mode.PASS
    world.stack.wait_connected()
    assert {uid: pod["spec"]["nodeName"] for uid, pod in live_pods(world.stack, held).items()} == before
    for id_ in held:
        assert world.stack.api.training(id_)["actualPhase"] == "Running"
        load.delete(id_)


def _break_connections(proxy: Proxy) -> None:
    for connection in list(proxy._connections):
        connection.get_loop().call_soon_threadsafe(connection.cancel)


def _disbelieved(agent: Program) -> int:
    return agent.log.read_text().count("not believed")
