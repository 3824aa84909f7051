"""Nodes fall silent and come back, or are taken out of the cluster."""

import time
from collections.abc import Callable

import pytest

from development.stack import until
from tests.kubernetes.faults.load import Load
from tests.kubernetes.faults.scenario import FOREIGN_NODES, World, live_pods

pytestmark = pytest.mark.kubernetes_faults

HELD = 6
"""One-GPU workloads."""
SPILL = 9
"""More than the nodes with foreign pods have room for, and no more than three nodes have."""


def test_silent_nodes_that_come_back_run_nothing_twice(world: World, times: Callable[[int], int]) -> None:
    """Their pods are out of sight after two seconds, keep what they hold, and are the same when they are back."""
    stack = world.stack
    agent = stack.agent(kubernetes_not_ready_seconds=1, kubernetes_node_lost_seconds=2)
    with world.scenario("kwok stopped until nodes are Unknown, then back") as (row, load), stack.instead(agent):
        while row.count < times(3):
            held = load.submit_endless(HELD)
            before = live_pods(stack, held).keys()
            stack.plane.stop_kwok()
            until(lambda: _ready(world) == {"Unknown"}, 60, lambda: f"{_ready(world)}")
            for id_ in held:
                stack.api.wait(id_, "Unknown", timeout_seconds=60)
            time.sleep(2)
            assert live_pods(stack, held).keys() == before
            stack.plane.start_kwok()
            until(lambda: _ready(world) == {"True"}, 60, lambda: f"{_ready(world)}")
            for id_ in held:
                stack.api.wait(id_, "Running", timeout_seconds=60)
            assert live_pods(stack, held).keys() == before
            for id_ in held:
                load.delete(id_)
            row.count += 1


def test_what_ran_on_a_node_that_was_taken_away_runs_elsewhere(world: World, times: Callable[[int], int]) -> None:
    with world.scenario("node object deleted", per_second=0) as (row, load):
        while row.count < times(5):
            row.remark += _take_a_node_away(world, load)
            row.count += 1


def _take_a_node_away(world: World, load: Load) -> str:
    stack = world.stack
    held = [*load.submit_endless(SPILL), *load.submit_endless(2, half=True)]
    before = {uid: pod["spec"]["nodeName"] for uid, pod in live_pods(stack, held).items()}
    gone = min(set(before.values()) - set(FOREIGN_NODES))
    lost = {uid for uid, node in before.items() if node == gone}
    stack.plane.admin("DELETE", f"/api/v1/nodes/{gone}")

    def elsewhere() -> bool:
        pods = live_pods(stack, held)
        on = {pod["spec"]["nodeName"] for pod in pods.values()}
        return not lost & pods.keys() and gone not in on and len(pods) == len(held)

    until(elsewhere, 90, lambda: f"{gone} is gone, and its pods are not: {stack.agents[0].said()}")
    for id_ in held:
        stack.api.wait(id_, "Running", timeout_seconds=60)
    stack.plane.add_nodes([gone], gpus=stack.gpus)
    stack.wait_connected()
    for id_ in held:
        load.delete(id_)
    return f"{len(lost)} pods of {gone}; "


def _ready(world: World) -> set[str]:
    nodes = world.stack.plane.admin("GET", "/api/v1/nodes")["items"]
    return {each["status"] for node in nodes for each in node["status"]["conditions"] if each["type"] == "Ready"}
