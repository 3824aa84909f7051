"""What the next plan would do with a workload that nobody has submitted (issue 13 section 5)."""

from typing import Any

import msgspec
import pytest

from events.what_if import WhatIf, WhatIfAsked
from events.workload.fields.distribution import Distribution
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec, with_defaults
from services.scheduler.service import imagined
from tests.scheduler.cases import GPU_NODE
from tests.scheduler.test_take_back import HIGH, LOW, running
from tests.scheduler.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.cluster()
    world.project(quota=16_000)
    world.node("a", **GPU_NODE)
    world.node("b", **GPU_NODE)
    return world


def asked(world: World, *, workers: int = 0, **spec: Any) -> WhatIf:
    compute = {field: spec.pop(field) for field in list(spec) if field in ComputeSpec.__struct_fields__}
    whole = with_defaults(TrainingSpec(image="i", compute=ComputeSpec(**compute), **spec))
    distribution = Distribution(distributed_framework="PyTorch", num_workers=workers)
    question = WhatIfAsked(
        kind="Distributed" if workers else "Training",
        name="new",
        project_id=world.project_id,
        cluster_id=world.cluster_id,
        spec=whole,
        distributed=Distributed(distribution=distribution, master=None) if workers else None,
        at=world.now,
    )
    return imagined(world.fold, msgspec.json.decode(msgspec.json.encode(question), type=WhatIfAsked), world.now)


def placed(found: WhatIf) -> list[tuple[str, int, int]]:
    return [(one.node, one.pods, one.gpu_milli) for one in found.placed]


def test_it_says_where_pods_would_run_and_changes_nothing(world: World) -> None:
    world.settle()
    before = len(world.commits)
    found = asked(world, gpu_devices_request=8, completions=2, parallelism=2)
    assert (found.outcome, found.waiting_pods) == ("runs", 0)
    assert placed(found) == [("a", 1, 8000), ("b", 1, 8000)]
    assert asked(world, gpu_devices_request=8) == asked(world, gpu_devices_request=8)
    assert len(world.commits) == before
    key = world.submit("real", gpu_devices_request=8)
    world.settle()
    assert world.places(key)[0][0] in {"a", "b"}


def test_what_waits_already_goes_first_and_what_has_no_room_waits_with_a_reason(world: World) -> None:
    for number in range(2):
        world.submit(f"w{number}", gpu_devices_request=8)
    # Not planned yet: both go before it.
    found = asked(world, gpu_devices_request=8)
    assert (found.outcome, found.reason, placed(found)) == ("waits", "insufficient_gpu", [])
    world.settle()
    # Of its class one waits already, and why is known.
    world.submit("waits", gpu_devices_request=8)
    world.settle()
    again = asked(world, gpu_devices_request=8)
    assert (again.outcome, again.reason, again.waiting_pods) == ("waits", "insufficient_gpu", 1)
    assert again.message == found.message
    assert asked(world, gpu_devices_request=8, priority_class="very-high").outcome == "waits"


def test_a_plan_says_whose_place_it_could_not_take_yet() -> None:
    world = World()
    world.cluster()
    world.project(minimum_runtime_seconds=600)
    world.node("a", gpu_count=1)
    running(world, "low", **LOW)
    found = asked(world, gpu_devices_request=1, **HIGH)
    assert found.outcome == "waits"
    (kept,) = found.kept
    assert (kept.name, kept.rule) == ("low", "minimum_runtime")
    assert kept.until is not None
    world.now = kept.until
    again = asked(world, gpu_devices_request=1, **HIGH)
    assert ([one.name for one in again.evicted], again.kept) == (["low"], ())


def test_a_higher_priority_would_take_a_place_also_where_another_of_its_class_waits_in_vain() -> None:
    world = World()
    world.cluster()
    world.project()
    world.node("a", gpu_count=1)
    running(world, "low", **LOW)
    world.submit("waits", gpu_devices_request=1, **LOW)
    world.settle()
    assert [one.name for one in asked(world, gpu_devices_request=1, **HIGH).evicted] == ["low"]
    world.submit("high", gpu_devices_request=1, **HIGH)
    assert [each.name for each in world.cycle().evictions] == ["low"], "and so it does"


def test_a_part_of_a_training_runs_and_a_gang_runs_whole_or_not_at_all(world: World) -> None:
    world.submit("one", gpu_devices_request=8)
    world.settle()
    found = asked(world, gpu_devices_request=8, completions=2, parallelism=2)
    assert (found.outcome, len(found.placed), found.waiting_pods) == ("waits", 1, 1)
    gang = asked(world, workers=2, gpu_devices_request=8)
    assert (gang.outcome, gang.placed, gang.waiting_pods) == ("waits", (), 2)
    assert asked(world, workers=2, gpu_devices_request=4).outcome == "runs"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"node_pools": ("none",)}, "no_such_node_pool"),
        ({"gpu_devices_request": 9}, "no_matching_node"),
        ({"node_type": "never"}, "no_matching_node"),
    ],
)
def test_what_can_never_be_placed_says_so(world: World, spec: dict[str, Any], reason: str) -> None:
    found = asked(world, **spec)
    assert (found.outcome, found.reason) == ("never", reason)
    assert found.message


def test_workloads_of_other_projects_are_counted_and_not_named(world: World) -> None:
    """Whoever asks may not see them, and those who have to go may not see whoever gets their place."""
    other = world.project("other")
    for number in range(2):
        world.submit(f"theirs{number}", project_id=other, gpu_devices_request=8)
    world.settle()
    found = asked(world, gpu_devices_request=8)
    assert found.outcome == "waits"
    assert "1 pod of other projects" in found.message
    assert (found.evicted, found.evicted_elsewhere) == ((), 1)
    assert "theirs" not in found.message
    world.submit("secret", gpu_devices_request=8)
    (eviction,) = world.cycle().evictions
    assert "a workload of project default" in eviction.message
    assert "secret" not in eviction.message


def test_whom_it_would_have_told_to_end_is_told_by_name_and_rule(world: World) -> None:
    for number in range(2):
        world.submit(f"low{number}", gpu_devices_request=8, priority_class="very-low")
    world.settle()
    found = asked(world, gpu_devices_request=8, priority_class="high", preemptibility="preemptible")
    (one,) = found.evicted
    assert (one.name[:-1], one.pods, one.rule) == ("low", 1, "preempted")
    assert (found.outcome, found.evicted_elsewhere) == ("waits", 0)
    assert f"{one.name} (1 pod)" in found.message
