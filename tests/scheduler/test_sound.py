"""What breaks a rule that holds of every plan is left out of it, and told; the rest is carried out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import structlog.testing

from events.node import NodeFacts
from services.runtime.log.memory import MemoryEventStore
from services.scheduler import service
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from services.scheduler.planning import Phase, Planning, Policy
from services.scheduler.policy.registry import POLICY
from services.scheduler.service import Scheduler
from services.scheduler.snapshot import Eviction, Plan
from services.scheduler.sound import CAPACITY, FOR_SOMEBODY, QUOTA, WHOLE
from tests.scheduler.test_elastic import elastic
from tests.scheduler.test_take_back import cluster, gang, running
from tests.scheduler.world import World
from tests.support.people import People, commits_of


def with_fault(run: Callable[[Planning], None], *, after: str = "place") -> Policy:
    """The product's policy with a phase that is wrong."""
    at = [phase.name for phase in POLICY.phases].index(after) + 1
    return replace(POLICY, phases=(*POLICY.phases[:at], Phase(name="fault", run=run), *POLICY.phases[at:]))


def planned(world: World, run: Callable[[Planning], None], **where: Any) -> Plan:
    return plan(world.fold.snapshot(world.now), policy=with_fault(run, **where))


def rules(of: Plan) -> list[tuple[str, str]]:
    return [(each.rule, each.of) for each in of.broken]


def bound(of: Plan) -> list[str]:
    return [f"{each.name}-{each.placement.pod.index}" for each in of.bindings]


def all_on_the_first_node(planning: Planning) -> None:
    placed = planning.placed
    placed.rows[:] = [0] * len(placed.rows)
    placed.devices[:] = [placed.devices[0]] * len(placed.devices)


@pytest.mark.parametrize(
    ("asked", "node"),
    [
        pytest.param({"gpu_devices_request": 1}, {"gpu_count": 1}, id="a GPU"),
        pytest.param({"cpu_core_request": 20.0}, {}, id="CPU"),
        pytest.param({"cpu_memory_request": "200Gi"}, {}, id="memory"),
        pytest.param({}, {"max_pods": 1}, id="pods"),
    ],
)
def test_nothing_is_bound_to_a_node_that_would_be_beyond_its_capacity(
    asked: dict[str, Any], node: dict[str, Any]
) -> None:
    world = World()
    world.cluster()
    world.project()
    for name in ("n0", "n1"):
        world.node(name, **node)
    for name in ("one", "two"):
        world.submit(name, **asked)
    assert len(world.plan().bindings) == 2
    found = planned(world, all_on_the_first_node)
    assert rules(found) == [(CAPACITY, "node n0")]
    assert not found.bindings
    assert found.broken[0].left_out == 2


def test_what_is_on_other_nodes_is_bound_all_the_same() -> None:
    world = cluster(1, 1, 1)
    world.project()
    for name in ("one", "two", "three"):
        world.submit(name, gpu_devices_request=1)

    def two_on_one(planning: Planning) -> None:
        planning.placed.rows[1] = planning.placed.rows[0]

    assert bound(planned(world, two_on_one)) == ["three-0"]


def test_the_gpus_that_others_hold_are_not_given_away() -> None:
    world = World()
    world.cluster()
    world.project()
    world.node("n0", gpu_count=2, foreign_gpus=1)
    world.submit("one", gpu_devices_request=1)

    def both(planning: Planning) -> None:
        (share,) = planning.placed.devices[0]
        planning.placed.devices[0] = (share, type(share)(device=1 - share.device, milli=1_000))

    assert rules(planned(world, both)) == [(CAPACITY, "node n0")]


def test_what_is_released_on_a_node_in_the_same_plan_counts() -> None:
    world = cluster(1)
    world.project()
    key = running(world, "first")
    world.fact(key, "succeeded")
    world.submit("second", gpu_devices_request=1)
    found = world.plan()
    assert (len(found.releases), bound(found), found.broken) == (1, ["second-0"], ())


def test_no_gang_is_bound_in_part() -> None:
    world = cluster(4)
    world.project()
    gang(world, "wide", workers=3)
    world.submit("single", gpu_devices_request=1)
    found = planned(world, lambda planning: planning.placed.forget(2))
    assert rules(found) == [(WHOLE, "workload wide")]
    assert not found.bindings

    def but_one(planning: Planning) -> None:
        for column in ("classes", "entries", "pods", "pools", "rows", "devices"):
            getattr(planning.placed, column).pop(0)

    found = planned(world, but_one)
    assert bound(found) == ["single-0"]
    assert found.broken[0].message == "2 of 3 pods that start together"


def test_nothing_grows_without_what_it_needs() -> None:
    world = cluster(4)
    world.project()
    elastic(world, "grows", least=2, most=4)

    def no_base(planning: Planning) -> None:
        growing = {ref for each in planning.snapshot.growing for ref in each.entry.pods}
        planning.placed.whole.clear()
        while planning.placed.pods and planning.placed.pods[0] not in growing:
            for column in ("classes", "entries", "pods", "pools", "rows", "devices"):
                getattr(planning.placed, column).pop(0)

    found = planned(world, no_base, after="grow")
    assert rules(found) == [(WHOLE, "workload grows")]
    assert not found.bindings


def test_nothing_that_is_not_preemptible_goes_beyond_a_quota() -> None:
    world = cluster(4)
    tight, other = world.project("tight", quota=1_000), world.project("other", quota=4_000)
    firm: dict[str, Any] = {"preemptibility": "non-preemptible", "gpu_devices_request": 1}
    world.submit("one", project_id=tight, **firm)
    world.submit("theirs", project_id=other, **firm)
    assert bound(world.plan()) == ["one-0", "theirs-0"]

    def twice_as_much(planning: Planning) -> None:
        at = [entry.name for entry in planning.placed.entries].index("one")
        (share,) = planning.placed.devices[at]
        planning.placed.devices[at] = (share, type(share)(device=3, milli=1_000))

    found = planned(world, twice_as_much)
    assert rules(found) == [(QUOTA, "project tight")]
    assert bound(found) == ["theirs-0"]


@pytest.mark.parametrize("beneficiary", ["", "somebody"])
def test_nobody_is_told_to_end_for_whom_nothing_is_kept(beneficiary: str) -> None:
    world = cluster(2)
    world.project()
    state = world.workload(running(world, "goes-on"))
    (ref,) = [each.pod for commit in world.commits for event in commit.events for each in _placements(event)]
    world.submit("waits", gpu_devices_request=1)

    def for_nothing(planning: Planning) -> None:
        of = {"key": "k", "workload_id": state.workload_id, "name": state.name, "message": "m"}
        planning.evictions.append(Eviction(pods=(ref,), reason="reclaimed", beneficiary=beneficiary, **of))

    found = planned(world, for_nothing, after="grow")
    assert (rules(found), found.evictions) == ([(FOR_SOMEBODY, "workload goes-on")], ())
    assert bound(found) == ["waits-0"]


def _placements(event: object) -> tuple[Any, ...]:
    return getattr(event, "placements", ())


@pytest.mark.anyio
async def test_a_scheduler_goes_on_tells_it_once_and_carries_out_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    people = People(MemoryEventStore())
    await people.cluster()
    await people.connect()
    await people.project()
    for name in ("n0", "n1", "n2"):
        await people.node(name, NodeFacts(cpu_milli=32_000, memory_bytes=2**38, gpu_count=8))
    for name in ("one", "two", "three"):
        await people.submit(name, gpu_devices_request=8)
    fold = SchedulingState()
    for commit in await commits_of(people.store):
        fold.apply(commit)
    scheduler = Scheduler(people.store, fold)

    def two_on_one(planning: Planning) -> None:
        if len(planning.placed.rows) > 1:
            planning.placed.rows[1] = planning.placed.rows[0]

    monkeypatch.setattr(service, "plan", partial(plan, policy=with_fault(two_on_one)))
    with structlog.testing.capture_logs() as logs:
        assert await scheduler.cycle()
        assert await scheduler.cycle()
    told = [each for each in logs if each["event"] == "plan_partly_left_out"]
    assert [(each["rule"], each["pods"], each["waiting_pods"], each["nodes"]) for each in told] == [
        (CAPACITY, 2, 3, 3),
    ]
    monkeypatch.undo()
    for _ in range(3):
        await scheduler.cycle()
    assert sum(chain.state.pods.live.size for chain in fold.workloads.values()) == 3
