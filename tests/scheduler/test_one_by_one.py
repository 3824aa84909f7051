"""A plan that puts pods on nodes many at a time is the one that would be made pod by pod, each filter and each score
asked of each node anew.
"""

from datetime import timedelta
from typing import Any, override

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.workload.pod import DeviceShare
from events.workload.spec import PodRequest
from services.scheduler.candidates import Candidates, Filled
from services.scheduler.plan import MAX_UPDATES_PER_PLAN, plan
from services.scheduler.planning import Planning
from services.scheduler.policy.phases import place, quota
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.turns import Turns, weighed
from services.scheduler.room import View
from services.scheduler.snapshot import Pending, Plan, PodClass, Snapshot
from tests.scheduler.test_plan_properties import of_pod
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World
from tests.support.draws import draws


class PlainTurns(Turns):
    """Each turn is of one entry, and what its project holds is looked up each time."""

    @override
    def _through(self, heads: Any, key: Any, i: int, at: int, stop: int) -> int:
        return at + 1

    @override
    def _standing_of(self, i: int, pod_class: PodClass, entry: Pending) -> int:
        planning, project_id = self._planning, pod_class.project_id
        project = planning.snapshot.projects.get(project_id)
        parts = [(part.request, part.needed) for part in pod_class.gang] or [(pod_class.request, 1)]
        milli = sum(request.gpu_devices * request.gpu_milli * count for request, count in parts)
        pools = pod_class.pools or (project.pools if project else ()) or ("",)
        if milli and any(quota.within(planning, project_id, pool, milli) for pool in pools):
            return 0
        return max(super()._standing_of(i, pod_class, entry), 1)

    @override
    def _beyond(self, project_id: str) -> tuple[float, float]:
        planning, project = self._planning, self._planning.shares.project(project_id)
        return (
            weighed(quota.beyond(planning, project_id, project.department_id), project.department_weights),
            weighed(quota.beyond(planning, project_id, project_id), project.weights),
        )


class PlainPlanning(Planning):
    """Pods are put one by one on the best of all nodes."""

    @override
    def fill(
        self, candidates: Candidates, request: PodRequest, most: int, most_gpu_milli: int | None = None
    ) -> Filled | None:
        rows = candidates.rows
        view = View(self.room, request, rows)
        refused = np.zeros(len(rows), dtype=np.bool_)
        for each in self.policy.filters:
            if each.asks(request) and each.full is not None:
                refused |= each.full.refuses(view)
        if most_gpu_milli is not None:
            refused |= request.gpu_devices * view.share_milli > most_gpu_milli
        scores = [np.clip(each.value(view), 0, (1 << each.bits) - 1).tolist() for each in self.policy.scores]
        open_ = np.flatnonzero(~refused).tolist()
        index = min(open_, key=lambda n: (*(column[n] for column in scores), n), default=None)
        if index is None:
            return None
        chosen, share = view.chosen[index].tolist(), int(view.share_milli[index])
        devices = tuple(DeviceShare(device=n, milli=share) for n, taken in enumerate(chosen) if taken)
        self.take(int(rows[index]), request, devices)
        return index, [devices]


def plainly(snapshot: Snapshot, max_pods: int) -> Plan:
    planning = PlainPlanning(snapshot, POLICY, max_pods)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(place, "Turns", PlainTurns)
        for phase in POLICY.phases:
            phase.run(planning)
    return planning.plan(max_updates=MAX_UPDATES_PER_PLAN)


workloads = st.fixed_dictionaries(
    {
        "project": st.integers(0, 3),
        "gpus": st.sampled_from([0, 0, 1, 1, 1, 2]),
        "portion": st.sampled_from([None, None, 0.5, 0.25]),
        "cpu": st.sampled_from([0.5, 0.5, 1.0]),
        "pods": st.sampled_from([1, 1, 1, 3, 6]),
        "times": st.sampled_from([1, 2, 8]),
        "gang": st.booleans(),
        "priority_class": st.sampled_from(["low", "low", "low", "high"]),
        "pools": st.sampled_from([(), (), ("b", "default"), ("a",)]),
        "firm": st.booleans(),
        "seconds": st.sampled_from([0, 0, 1, 4_000]),
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), workloads),
        st.tuples(st.just("submit"), workloads),
        st.tuples(st.just("submit"), workloads),
        st.tuples(st.sampled_from(["cycle", "running", "succeeded", "stopped"]), st.integers(0, 30)),
    ),
    max_size=14,
)
nodes = st.lists(
    st.fixed_dictionaries(
        {
            "gpu_count": st.sampled_from([0, 2, 4, 8]),
            "cpu_milli": st.sampled_from([2_000, 8_000]),
            "pool": st.sampled_from(["default", "default", "a", "b"]),
            "max_pods": st.sampled_from([3, 50]),
        }
    ),
    min_size=1,
    max_size=5,
)


def submit(world: World, name: str, project_id: str, what: dict[str, Any]) -> str:
    spec: dict[str, Any] = {"priority_class": what["priority_class"], "node_pools": what["pools"]}
    if what["gang"]:
        return gang(world, name, workers=what["pods"], project_id=project_id, gpus=what["gpus"] or 1, **spec)
    if what["gpus"] and what["portion"]:
        spec |= {"gpu_devices_request": 1, "gpu_request_type": "portion", "gpu_portion_request": what["portion"]}
    elif what["gpus"]:
        spec |= {"gpu_devices_request": what["gpus"]}
    spec |= {"preemptibility": "non-preemptible"} if what["firm"] else {}
    pods = {"parallelism": what["pods"], "completions": what["pods"]}
    return world.submit(name, project_id=project_id, cpu_core_request=what["cpu"], **pods, **spec)


@settings(max_examples=draws(120), deadline=None)
@given(nodes, steps, st.integers(1, 4), st.sampled_from([3, 2_000]))
def test_the_plan_is_the_one_that_is_made_pod_by_pod(
    cluster: list[dict[str, Any]], history: list[tuple[str, Any]], shared_by: int, max_pods: int
):
    """Of one project alone, too, whose workloads have a turn many at a time."""
    world = World()
    world.cluster(pools=("a", "b"))
    for number, facts in enumerate(cluster):
        world.node(f"n{number}", **facts)
    projects = [world.project(), world.project("second", quota=4_000)]
    projects += [world.project("third", quota=1_000, **department(world, "tight", gpu_quota_milli=2_000))]
    projects += [world.project("fourth", over_quota_weight=3.0)]
    keys: list[str] = []
    steps_: list[tuple[Any, Any]] = [*history]
    for word, what in steps_:
        world.now += timedelta(seconds=what["seconds"] if word == "submit" else 1)
        if word == "submit":
            for _ in range(what["times"]):
                keys.append(submit(world, f"w{len(keys)}", projects[what["project"] % shared_by], what))
        elif word == "cycle":
            check(world, max_pods)
            world.cycle()
        else:
            phases = {"Stopping"} if word == "stopped" else {"Bound", "Starting", "Running"}
            of_pod(world, keys, what, word, phases)
    check(world, max_pods)


def check(world: World, max_pods: int) -> None:
    snapshot = world.fold.snapshot(world.now)
    assert plan(snapshot, max_pods=max_pods) == plainly(snapshot, max_pods)
