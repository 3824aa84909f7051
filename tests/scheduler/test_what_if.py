"""What the next plan would do with a workload that nobody has submitted (issue 13 section 5)."""

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.ids import workload_key
from events.what_if import WhatIf, WhatIfAsked
from events.workload.commands import CreateWorkload
from events.workload.fields.distribution import Distribution
from events.workload.kinds import KINDS
from events.workload.places import bindable
from events.workload.spec import (
    ComputeSpec,
    Distributed,
    Inference,
    TrainingSpec,
    beside_with_defaults,
    with_defaults,
)
from services.scheduler.answering import imagined
from services.scheduler.classes import Place, Rights, ready
from services.scheduler.rounds import Enough, never
from services.scheduler.waits import Stint
from services.scheduler.what_if import BUSY, NEVER
from services.scheduler.why import why
from tests.scheduler.cases import GPU_NODE
from tests.scheduler.test_plan_properties import carry_out, dense_submissions, of_pod, specs, steps, submit_dense
from tests.scheduler.test_take_back import HIGH, LOW, running
from tests.scheduler.world import World
from tests.support.draws import draws


@pytest.fixture
def world() -> World:
    world = World()
    world.cluster()
    world.project(quota=16_000)
    world.node("a", **GPU_NODE)
    world.node("b", **GPU_NODE)
    return world


def asked(world: World, *, workers: int = 0, enough: Enough = never, **spec: Any) -> WhatIf:
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
    return imagined(world.fold, msgspec.json.decode(msgspec.json.encode(question), type=WhatIfAsked), world.now, enough)


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


def test_an_answer_that_has_taken_too_long_tells_no_place_that_a_later_round_may_give_to_others() -> None:
    """Given somebody who would be told to end for it, after others have been placed."""
    world = World()
    world.cluster()
    world.project()
    world.node("a", gpu_count=1)
    world.node("b", gpu_count=2)
    running(world, "low", **LOW)
    for number in range(2):
        world.submit(f"first-{number}", gpu_devices_request=1, **HIGH)
    assert asked(world, gpu_devices_request=1, **HIGH).evicted
    found = asked(world, gpu_devices_request=1, enough=lambda: True, **HIGH)
    assert (found.outcome, found.evicted, found.message) == ("unknown", (), BUSY)
    # Why it waits is known after the first round, too.
    waits = asked(world, gpu_devices_request=1, enough=lambda: True)
    assert waits == asked(world, gpu_devices_request=1)
    assert waits.reason == "insufficient_gpu"


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


# -- what is told is what happens --------------------------------------------------------------------------------------


NOWHERE: Final = Place(order=(), stint=Stint(0.0, 0.0), rights=Rights(None))


class Asking(World):
    """Asks about each workload in the very moment before it is submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, WhatIf] = {}
        """By key, the last answer."""

    def do(self, aggregate: str, key: str, command: Any) -> tuple[Any, ...]:
        if isinstance(command, CreateWorkload):
            beside = beside_with_defaults(command.beside)
            question = WhatIfAsked(
                kind=command.kind,
                name=command.name,
                project_id=command.project_id,
                cluster_id=command.cluster_id,
                among=command.among,
                spec=KINDS[command.kind].with_defaults(command.spec),
                distributed=beside if isinstance(beside, Distributed) else None,
                inference=beside if isinstance(beside, Inference) else None,
                at=self.now,
            )
            self.said[key] = imagined(self.fold, question, self.now)
        return super().do(aggregate, key, command)


def check_it_happens(world: Asking, key: str) -> None:
    """That the plan after a submission does what was told before it."""
    said, planned = world.said[key], world.cycle()
    if planned.more or planned.put_off:
        return  # it is decided in several plans
    state = world.workload(key)
    bound: Counter[tuple[str, str, str]] = Counter()
    for each in planned.bindings:
        if each.key == key:
            bound[each.placement.pod.pod_set, each.placement.node_name, each.placement.pool] += 1
    assert Counter({(one.pod_set, one.node, one.node_pool): one.pods for one in said.placed}) == bound
    evicted = Counter[str]()
    elsewhere = 0
    for each in planned.evictions:
        if each.beneficiary != state.workload_id:
            continue
        if each.key == workload_key(state.project_id, each.name):
            evicted[each.name] += len(each.pods)
        else:
            elsewhere += len(each.pods)
    assert Counter({one.name: one.pods for one in said.evicted}) == evicted
    assert said.evicted_elsewhere == elsewhere
    if not bound:
        assert (said.outcome == "never") == (state.reason in NEVER)
        assert said.reason == state.reason
        if not (evicted or elsewhere):
            assert said.message == state.message


def check_what_is_explained_happens(world: World, keys: list[str], number: int) -> None:
    """Of one that waits: that the next plan places all of it where it is told to, and no other."""
    waiting = [key for key in keys if bindable(world.workload(key), world.now)]
    if not waiting:
        world.cycle()
        return
    state = world.workload(key := waiting[number % len(waiting)])
    needed = {pod for _, entry in ready(key, state, NOWHERE, bindable(state, world.now)).waiting for pod in entry.pods}
    told, planned = why(world.fold, state.workload_id, world.now, None), world.cycle()
    if needed and not (planned.more or planned.put_off):
        bound = {each.placement.pod for each in planned.bindings if each.key == key}
        assert (told.outcome == "starts") == (needed <= bound), told


asking_steps = st.one_of(
    st.tuples(st.just("ask"), dense_submissions),
    st.tuples(st.just("submit"), dense_submissions),
    st.tuples(st.sampled_from(["running", "end", "cycle", "succeeded", "wait"]), st.integers(0, 50)),
)


@settings(max_examples=draws(40), deadline=None)
@given(st.lists(asking_steps, min_size=8, max_size=30))
def test_what_is_told_is_what_happens_where_many_want_little(history: list[tuple[str, Any]]) -> None:
    world = Asking()
    world.cluster()
    for name in ("n0", "n1"):
        world.node(name, gpu_count=4)
    projects = [world.project("first", quota=4_000), world.project("second", quota=2_000)]
    projects += [world.project("third", over_quota_weight=2.0), world.project("fourth", over_quota_weight=0.0)]
    projects.append(world.project("fifth", quota=1_000, minimum_runtime_seconds=600))
    keys: list[str] = []
    for word, what in history:
        world.now += timedelta(seconds=1)
        match word:
            case "ask" | "submit":
                keys.append(submit_dense(world, f"w{len(keys)}", projects[what["project"]], what))
                if word == "ask":
                    check_it_happens(world, keys[-1])
            case "cycle":
                check_what_is_explained_happens(world, keys, what)
            case "wait":
                world.now += timedelta(minutes=20)
            case "end":
                of_pod(world, keys, what, "stopped", {"Stopping"})
            case _:
                of_pod(world, keys, what, "running" if word == "running" else "succeeded", {"Bound", "Running"})


@settings(max_examples=draws(40), deadline=None)
@given(st.lists(steps, max_size=25), st.tuples(specs, st.integers(0, 2)), st.sampled_from([None, 0, 1_500, 4_000]))
def test_what_is_told_is_what_happens_on_nodes_of_many_kinds(
    history: list[tuple[str, Any]], what: tuple[Any, int], quota: int | None
) -> None:
    world = Asking()
    world.cluster(pools=("a", "b"))
    projects = [world.project(quota=quota), world.project("second", quota=2_000), world.project("third")]
    keys: list[str] = []
    for step in history:
        carry_out(world, keys, step, projects)
    carry_out(world, keys, ("submit", what), projects)
    check_it_happens(world, keys[-1])
