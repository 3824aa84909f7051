"""People on the cluster: they delete our pods by hand, and have pods of their own."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from development.kubernetes.simulated.admin import AdminError
from tests.kubernetes.faults.scenario import FOREIGN_PODS, World, ends_in_log, foreign_pods

pytestmark = pytest.mark.kubernetes_faults


def test_pods_deleted_by_hand_become_facts_and_are_run_again(world: World, times: Callable[[int], int]) -> None:
    deleted: dict[str, str] = {}
    with world.scenario("pods deleted by hand") as (row, load):
        while row.count < times(50):
            time.sleep(world.chance.uniform(0.1, 0.8))
            victim = _some_running_pod(world)
            if victim is None:
                continue
            grace_seconds = world.chance.choice((0, 1, 30))
            if _delete(world, victim, grace_seconds):
                deleted[_run_of(victim)] = victim["metadata"]["labels"]["muster.dev/workload"]
                row.count += 1

    ends = ends_in_log(world.stack)
    names = {id_: name for name, id_ in load.acknowledged.items()}
    kinds = [_judge(names[id_], ends[run]) for run, id_ in deleted.items()]
    world.rows[-1].remark = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    assert "interrupted" in kinds


def _some_running_pod(world: World) -> dict[str, Any] | None:
    pods = [
        pod
        for pod in world.stack.pods()
        if pod["metadata"]["name"] not in world.foreign
        and pod["status"]["phase"] in {"Pending", "Running"}
        and "deletionTimestamp" not in pod["metadata"]
    ]
    return world.chance.choice(pods) if pods else None


def _delete(world: World, pod: dict[str, Any], grace_seconds: int) -> bool:
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    precondition = {"preconditions": {"uid": pod["metadata"]["uid"]}}
    try:
        world.stack.plane.admin("DELETE", path, precondition, gracePeriodSeconds=grace_seconds)
    except AdminError:
        return False  # gone meanwhile
    return True


def _run_of(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    place = f"{labels['muster.dev/pod-set']}-{labels['muster.dev/index']}"
    return f"{labels['muster.dev/workload']}/{place}/{labels['muster.dev/attempt']}.{labels['muster.dev/try']}"


def _judge(name: str, ends: list[dict[str, Any]]) -> str:
    """A run that somebody deleted ended once: of itself before that, by our own order, or interrupted; never as a
    failure that counts against its owner.
    """
    assert len(ends) == 1, f"{name} has {len(ends)} ends"
    end = ends[0]
    if end["type"] == "PodInterrupted":
        assert end["data"]["reason"] == "deleted", end
        return "interrupted"
    if end["type"] == "PodFailed":
        assert "fails" in name, f"{name} failed by its deletion: {end}"
        assert end["data"]["exit_code"] == 3, end
    return {"PodFailed": "failed before", "PodSucceeded": "done before", "PodStopped": "stopped by us"}[end["type"]]


def test_foreign_pods_are_left_alone(world: World, times: Callable[[int], int]) -> None:
    """While everything of ours dies beside them. They are there, and are looked at, in every other scenario, too."""
    with world.scenario("foreign pods beside ours") as (row, _):
        for _ in range(times(10)):
            time.sleep(world.chance.uniform(0.5, 2.0))
            world.stack.agents[0].kill()
            world.stack.agents[0].start()
        row.count = len(foreign_pods(world.stack))
    assert world.rows[-1].count == FOREIGN_PODS
    assert foreign_pods(world.stack) == world.foreign
