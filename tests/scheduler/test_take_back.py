"""Who may take whose place: a higher priority in the same project, and a project within its quota."""

from datetime import timedelta
from typing import Any

import pytest

from events.ids import workload_key
from events.phases import Phase
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    PodFact,
    PodFactKind,
    ReportPods,
    SuspendWorkload,
)
from events.workload.fields.distribution import Distribution
from events.workload.fields.saving import CheckpointSpec
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec
from services.runtime.log.folding import take
from services.scheduler.fold import SchedulingState
from services.scheduler.held import LEAVING_LATE
from services.scheduler.policy.phases import place, take_back
from services.scheduler.snapshot import Plan
from tests.scheduler.test_quotas import department
from tests.scheduler.world import GIB, World

LOW: dict[str, Any] = {"priority_class": "low"}
HIGH: dict[str, Any] = {"priority_class": "medium-high"}
FOUR: dict[str, Any] = {"parallelism": 4, "completions": 4}


def cluster(*gpus: int) -> World:
    world = World()
    world.cluster()
    for number, count in enumerate(gpus):
        world.node(f"n{number}", gpu_count=count)
    return world


def running(world: World, name: str, *, gpus: int = 1, **spec: Any) -> str:
    """A training whose pods run; each a second later than the one before."""
    key = world.submit(name, gpu_devices_request=gpus, **spec)
    world.settle()
    for index in world.places(key):
        world.fact(key, "running", index=index)
    return key


def gang(
    world: World,
    name: str,
    *,
    workers: int,
    project_id: str = "",
    gpus: int = 1,
    among: tuple[str, ...] = (),
    **spec: Any,
) -> str:
    world.now += timedelta(seconds=1)
    project_id = project_id or world.project_id
    key = workload_key(project_id, name)
    compute = {field: spec.pop(field) for field in list(spec) if field in ComputeSpec.__struct_fields__}
    command = CreateWorkload(
        kind="Distributed",
        name=name,
        requested_name=name,
        project_id=project_id,
        cluster_id="" if among else world.cluster_id,
        among=among,
        spec=TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=gpus, **compute), **spec),
        distributed=Distributed(
            distribution=Distribution(distributed_framework="PyTorch", num_workers=workers), master=None
        ),
    )
    world.do("workload", key, command)
    return key


def evicted(planned: Plan) -> list[tuple[str, str, int]]:
    return [(each.name, each.reason, len(each.pods)) for each in planned.evictions]


def ends(world: World, key: str) -> None:
    """Each of its pods that was told to end does."""
    for (pod_set, index), pod in list(world.workload(key).pods.live.items()):
        if pod.phase == "Stopping" and pod_set == "main":
            world.fact(key, "stopped", index=index)


def test_a_higher_priority_takes_the_place_of_a_lower_one_and_starts_once_that_has_ended() -> None:
    world = cluster(1)
    world.project()
    low = running(world, "low", **LOW)
    high = world.submit("high", gpu_devices_request=1, **HIGH)

    planned = world.cycle()

    assert evicted(planned) == [("low", "preempted", 1)]
    assert (world.workload(low).phase, world.workload(low).reason) == (Phase.PENDING, "preempted")
    assert "high, of a higher priority in the same project" in world.workload(low).message
    assert world.workload(low).attempt == 2
    assert world.workload(high).reason == "waiting_for_pods_to_end"
    world.settle()
    assert not world.places(high)

    ends(world, low)
    world.settle()
    assert set(world.places(high)) == {0}
    assert not world.check().violations


def test_a_higher_priority_takes_a_place_also_where_others_of_its_class_wait_in_vain() -> None:
    world = cluster(1)
    world.project()
    running(world, "low", **LOW)
    world.submit("waits", gpu_devices_request=1, **LOW)
    world.settle()
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]
    assert world.workload(high).reason == "waiting_for_pods_to_end"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(LOW, LOW, id="not those of the same priority"),
        pytest.param(HIGH, LOW, id="not those of a higher one"),
        pytest.param(LOW | {"preemptibility": "non-preemptible"}, HIGH, id="not what is not preemptible"),
    ],
)
def test_nobody_else_gives_up_a_place(first: dict[str, Any], second: dict[str, Any]) -> None:
    world = cluster(1)
    world.project()
    running(world, "first", **first)
    world.submit("second", gpu_devices_request=1, **second)
    assert evicted(world.cycle()) == []
    world.settle()


def test_another_project_gives_up_no_place_for_a_priority_alone() -> None:
    world = cluster(1)
    world.project()
    running(world, "low", **LOW)
    world.submit("high", project_id=world.project("other"), gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == []


def test_a_project_gets_its_quota_in_one_cycle_and_no_more() -> None:
    world = cluster(4, 4)
    greedy = world.project("greedy", quota=2_000)
    entitled = world.project("entitled", quota=4_000, over_quota_weight=0.0)
    running(world, "wide", project_id=greedy, parallelism=8, completions=8)
    world.submit("mine", project_id=entitled, gpu_devices_request=1, parallelism=6, completions=6, **LOW)

    assert evicted(world.cycle()) == [("wide", "reclaimed", 1)] * 4
    world.settle()

    wide, mine = workload_key(greedy, "wide"), workload_key(entitled, "mine")
    assert world.workload(wide).phase is Phase.RUNNING, "four of its pods go on"
    assert world.workload(wide).attempt == 1
    ends(world, wide)
    world.settle()
    assert len(world.places(mine)) == 4
    assert len(world.places(wide)) == 4
    assert not world.check().violations


def test_a_project_without_a_quota_has_no_right_and_no_protection() -> None:
    world = cluster(1)
    nothing = world.project("nothing")
    some = world.project("some", quota=1_000)
    running(world, "first", project_id=nothing, **HIGH)
    world.submit("second", project_id=some, gpu_devices_request=1, **LOW)
    assert evicted(world.cycle()) == [("first", "reclaimed", 1)]
    ends(world, workload_key(nothing, "first"))
    world.settle()
    assert evicted(world.cycle()) == [], "what was evicted does not evict in turn"
    assert set(world.places(workload_key(some, "second"))) == {0}


def test_a_gang_goes_whole_and_comes_whole() -> None:
    world = cluster(2, 2)
    greedy, entitled = world.project("greedy"), world.project("entitled", quota=3_000)
    first = gang(world, "first", workers=3, project_id=greedy)
    world.settle()
    second = gang(world, "second", workers=2, project_id=entitled)

    planned = world.cycle()

    assert sum(len(each.pods) for each in planned.evictions) == world.workload(first).pods.live.size
    assert world.workload(first).attempt == 2
    world.settle()
    assert world.workload(second).pods.live.size == 0
    assert not world.check().violations


def test_of_a_gang_that_cannot_be_whole_nobody_is_told_to_end() -> None:
    world = cluster(2, 2)
    greedy, entitled = world.project("greedy"), world.project("entitled", quota=8_000)
    running(world, "firm", project_id=greedy, preemptibility="non-preemptible")
    running(world, "soft", project_id=greedy, gpus=1)
    gang(world, "four", workers=4, project_id=entitled)
    assert evicted(world.cycle()) == []
    world.settle()


def test_the_one_that_has_run_least_goes_and_no_more_than_must() -> None:
    world = cluster(2, 2)
    world.project()
    for name in ("a", "b", "c", "d"):
        running(world, name, **LOW)
        world.now += timedelta(hours=1)
    world.submit("one", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("d", "preempted", 1)]


def test_a_kept_place_goes_to_nobody_who_comes_later() -> None:
    """Half of it is free already when the small one comes."""
    world = cluster(2)
    world.project()
    low = running(world, "low", **LOW)
    wide = world.submit("wide", gpu_devices_request=2, **HIGH)
    world.cycle()
    small = world.submit("small", gpu_devices_request=1, **LOW)
    world.settle()
    assert not world.places(small)
    ends(world, low)
    world.settle()
    assert set(world.places(wide)) == {0}
    assert not world.places(small)


def test_the_place_of_what_a_person_suspended_is_kept_too() -> None:
    world = cluster(2)
    world.project()
    first = running(world, "first", gpus=1)
    world.command(first, SuspendWorkload)
    wide = world.submit("wide", gpu_devices_request=2)
    world.cycle()
    small = world.submit("small", gpu_devices_request=1)
    world.settle()
    assert not world.places(small)
    assert world.workload(wide).reason == "waiting_for_pods_to_end"


def test_a_place_is_not_kept_for_ever_where_a_pod_does_not_end() -> None:
    world = cluster(2)
    world.project()
    world.command(running(world, "stuck", gpus=1), SuspendWorkload)
    world.submit("wide", gpu_devices_request=2)
    small = world.submit("small", gpu_devices_request=1)
    world.settle()
    world.now += timedelta(minutes=7)
    world.settle()
    assert set(world.places(small)) == {0}


def test_nobody_more_is_told_to_end_while_those_who_were_still_count_against_the_limit() -> None:
    world = cluster(4)
    world.project("bounded", limit=2_000)
    both = [running(world, name, **LOW) for name in ("a", "b")]
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("b", "preempted", 1)]
    assert evicted(world.cycle()) == []
    assert world.workload(high).reason == "waiting_for_pods_to_end"
    ends(world, both[1])
    world.settle()
    assert set(world.places(high)) == {0}
    assert set(world.places(both[0])) == {0}


def test_a_project_is_not_taken_below_its_quota_while_its_pods_end() -> None:
    world = cluster(4)
    greedy, entitled = world.project("greedy", quota=2_000), world.project("entitled", quota=4_000)
    wide = running(world, "wide", project_id=greedy, parallelism=4, completions=4)
    mine = world.submit("mine", project_id=entitled, gpu_devices_request=1, parallelism=4, completions=4, **LOW)
    assert evicted(world.cycle()) == [("wide", "reclaimed", 1)] * 2
    assert evicted(world.cycle()) == []
    ends(world, wide)
    world.settle()
    assert len(world.places(wide)) == 2
    assert len(world.places(mine)) == 2


def test_nobody_ends_for_what_the_quota_for_non_preemptible_pods_does_not_allow() -> None:
    """Also where the limit, which others' end would make room in, has less left."""
    world = cluster(8)
    world.project("both", quota=4_000, limit=6_000)
    running(world, "firm", gpus=3, preemptibility="non-preemptible", **LOW)
    running(world, "soft", gpus=3, **LOW)
    world.submit("more", gpu_devices_request=2, preemptibility="non-preemptible", **HIGH)
    assert evicted(world.cycle()) == []


def test_a_gang_of_which_a_pod_is_not_seen_is_left_alone() -> None:
    """Told to end would be the others alone, for nothing."""
    world = cluster(3)
    world.project()
    key = gang(world, "three", workers=3, **LOW)
    world.settle()
    (name, index), pod = next(iter(world.workload(key).pods.live.items()))
    ref = PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
    fact = PodFact(pod=ref, kind="unreachable", at=world.now)
    world.do("workload", key, ReportPods(workload_id=world.workload(key).workload_id, facts=(fact,)))
    world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == []
    world.settle()


def test_of_what_ends_for_good_all_pods_are_told_at_once() -> None:
    world = cluster(2)
    world.project()
    running(world, "low", terminate_after_preemption=True, parallelism=2, completions=2, **LOW)
    world.submit("high", gpu_devices_request=1, parallelism=2, completions=2, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 2)]
    assert evicted(world.cycle()) == []


def test_a_share_by_memory_is_weighed_by_each_node_and_not_by_the_first() -> None:
    world = World()
    world.cluster()
    world.node("small", gpu_count=1, gpu_memory_bytes=16 * GIB)
    world.node("large", gpu_count=1, gpu_memory_bytes=80 * GIB)
    greedy, entitled = world.project("greedy"), world.project("entitled", quota=1_000)
    for name in ("a", "b"):
        running(world, name, project_id=greedy)
    world.submit("half", project_id=entitled, gpu_request_type="memory", gpu_memory_request="40Gi")
    assert len(evicted(world.cycle())) == 1


def test_one_plan_takes_back_for_each_priority_of_a_class() -> None:
    world = cluster(2)
    world.project()
    for name in ("a", "b"):
        running(world, name, **LOW)
    world.submit("first", gpu_devices_request=1, **HIGH)
    world.submit("second", gpu_devices_request=1, priority_class="medium")
    assert [(each.name, each.beneficiary) for each in world.cycle().evictions] == [
        ("b", world.workload(workload_key(world.project_id, "first")).workload_id),
        ("a", world.workload(workload_key(world.project_id, "second")).workload_id),
    ]
    assert evicted(world.cycle()) == []


def test_what_one_plan_does_not_look_at_the_next_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many classes that take nothing do not hold up a plan; who comes after them gets a turn."""
    monkeypatch.setattr(take_back, "MOST_WEIGHED", 5)
    world = cluster(2, 1)
    mine, other = world.project("mine", quota=10_000), world.project("other", quota=2_000)
    running(world, "within", project_id=other, gpus=2)
    running(world, "low", project_id=mine, gpus=1, **LOW)
    for number in range(6):
        wide: dict[str, Any] = {"gpu_devices_request": 2, "cpu_core_request": 1 + number, "priority_class": "high"}
        world.submit(f"wide{number}", project_id=mine, **wide)
    one = world.submit("one", project_id=mine, gpu_devices_request=1, **HIGH)
    first = world.cycle()
    assert evicted(first) == []
    assert first.put_off
    world.settle()
    assert world.workload(one).reason == "waiting_for_pods_to_end"


def test_a_log_that_is_read_again_promises_no_places_that_were_given() -> None:
    """Whom others ended for goes before everybody; not for ever."""
    world = cluster(1)
    world.project()
    low = running(world, "low", **LOW)
    world.submit("high", gpu_devices_request=1, **HIGH)
    world.cycle()
    assert len(read_again(world).snapshot(world.now).promised) == 1
    ends(world, low)
    world.settle()
    assert not read_again(world).snapshot(world.now).promised


def read_again(world: World) -> SchedulingState:
    fold = SchedulingState()
    assert take(fold, world.commits) is None
    return fold


def test_one_plan_tells_no_more_to_end_than_it_keeps_places_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "MOST_HELD", 2)
    world = cluster(4)
    world.project()
    low = running(world, "low", parallelism=4, completions=4, **LOW)
    high = world.submit("high", gpu_devices_request=1, parallelism=4, completions=4, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)] * 2
    assert evicted(world.cycle()) == []
    ends(world, low)
    assert evicted(world.cycle()) == [("low", "preempted", 1)] * 2
    assert len(world.places(high)) == 2
    ends(world, low)
    world.settle()
    assert len(world.places(high)) == 4


def test_what_asks_to_end_after_it_was_preempted_has_failed() -> None:
    """S050."""
    world = cluster(1)
    world.project()
    low = running(world, "low", terminate_after_preemption=True, **LOW)
    world.submit("high", gpu_devices_request=1, **HIGH)
    world.cycle()
    assert (world.workload(low).phase, world.workload(low).reason) == (Phase.FAILED, "preempted")
    assert "as terminateAfterPreemption asks" in world.workload(low).message
    ends(world, low)
    world.settle()
    assert not world.workload(low).pods.live.size
    assert not world.check().violations


def test_a_limit_that_is_used_up_by_a_lower_priority_makes_room_for_a_higher_one() -> None:
    world = cluster(4)
    world.project("bounded", limit=2_000)
    low = running(world, "low", gpus=2, **LOW)
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]
    ends(world, low)
    world.settle()
    assert set(world.places(high)) == {0}
    assert not world.check().violations


@pytest.mark.parametrize("beside", ["kept", "lost"])
def test_a_restart_from_a_snapshot_knows_for_whom_others_were_told_to_end(beside: str) -> None:
    """What nobody can read promises nothing."""
    world = cluster(1)
    world.project()
    running(world, "low", **LOW)
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    world.cycle()
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    restored = SchedulingState()
    restored.restore(world.fold.seq, chains, beside=world.fold.beside() if beside == "kept" else b"?")
    promised = {world.workload(high).workload_id: 1_000} if beside == "kept" else dict[str, int]()
    assert restored.snapshot(world.now).promised == promised


def test_a_workload_runs_for_the_minimum_of_its_project_before_its_place_is_taken() -> None:
    """And then it is taken, though nothing else happens."""
    world = cluster(1)
    world.project(minimum_runtime_seconds=600)
    running(world, "low", **LOW)
    world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == []
    world.settle()
    due = world.fold.next_due()
    assert due is not None
    assert timedelta(minutes=9) < due - world.now < timedelta(minutes=10)
    world.now = due
    assert evicted(world.cycle()) == [("low", "preempted", 1)]


def test_the_minimum_of_a_department_holds_where_its_project_says_nothing() -> None:
    world = cluster(2)
    where = department(world, "research", minimum_runtime_seconds=600)
    kept, own = world.project("kept", **where), world.project("own", minimum_runtime_seconds=0, **where)
    for project_id in (kept, own):
        running(world, "low", project_id=project_id, **LOW)
        world.submit("high", project_id=project_id, gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]
    assert world.workload(workload_key(own, "low")).reason == "preempted"


def test_who_submits_and_deletes_over_and_over_evicts_once() -> None:
    world = cluster(1)
    world.project()
    low = running(world, "low", **LOW)
    for number in range(3):
        high = world.submit(f"high{number}", gpu_devices_request=1, **HIGH)
        assert len(evicted(world.cycle())) == (number == 0)
        world.command(high, DeleteWorkload)
        ends(world, low)
        world.settle()
        assert set(world.places(low)) == {0}
    world.submit("high", gpu_devices_request=1, **HIGH)
    world.settle()
    world.now += timedelta(minutes=10)
    assert evicted(world.cycle()) == [("low", "preempted", 1)], "not for ever"


def _tell(world: World, key: str, kind: PodFactKind, index: int, **fields: Any) -> None:
    """Of the only pod set that a workload has, whatever it is called."""
    state = world.workload(key)
    ((name, pod),) = [(name, pod) for (name, number), pod in state.pods.items() if number == index]
    ref = PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
    fact = PodFact(pod=ref, kind=kind, at=world.now, **fields)
    world.do("workload", key, ReportPods(workload_id=state.workload_id, facts=(fact,)))


@pytest.mark.parametrize("kept", ["after an eviction", "for its minimum"])
def test_a_pod_that_fails_over_and_over_does_not_keep_the_place_of_the_others(kept: str) -> None:
    world = cluster(2, 1)
    wide: dict[str, Any] = {"gpu_devices_request": 2, **HIGH}
    if kept == "after an eviction":
        world.project()
        low = world.submit("low", gpu_devices_request=1, parallelism=3, completions=3, **LOW)
        world.settle()
        before = world.submit("before", **wide)
        assert len(evicted(world.cycle())) == 2
        world.command(before, DeleteWorkload)
        ends(world, low)
        world.settle()
    else:
        world.project(minimum_runtime_seconds=600)
        low = gang(world, "low", workers=3, **LOW)
        world.settle()
    places = world.places(low)
    (other,) = [index for index, (node, _) in places.items() if node == "n1"]
    for index in places:
        _tell(world, low, "running", index)
    world.submit("high", **wide)
    assert not evicted(world.cycle())
    world.now += timedelta(minutes=8)
    _tell(world, low, "failed", other, exit_code=1)
    world.settle()
    world.now += timedelta(minutes=1)
    world.settle()
    _tell(world, low, "running", other)
    world.now += timedelta(minutes=2)
    assert evicted(world.cycle())


def test_what_was_evicted_for_another_workload_never_evicts_that_one_in_turn() -> None:
    """Also where priorities are changed meanwhile; others may."""
    world = cluster(1)
    world.project()
    low = running(world, "low", **LOW)
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    world.cycle()
    ends(world, low)
    world.settle()
    world.now += timedelta(hours=1)
    world.command(low, ChangeWorkload, priority_class="very-high")
    assert evicted(world.cycle()) == []
    world.submit("other", gpu_devices_request=1, priority_class="high")
    assert evicted(world.cycle()) == [("high", "preempted", 1)]
    assert set(world.places(high)) == {0}


def test_what_others_were_told_to_end_for_takes_no_more_than_they_give_up() -> None:
    """Of a workload that is promised two places two go first, and not all: else it takes those of the next one, which
    would have still others end.
    """
    world = cluster(4)
    first, second = world.project("first", quota=2_000), world.project("second", quota=2_000)
    low = running(world, "low", project_id=world.project("third"), **FOUR)
    wide = world.submit("wide", project_id=first, gpu_devices_request=1, **FOUR, **HIGH)
    narrow = world.submit("narrow", project_id=second, gpu_devices_request=1, parallelism=2, completions=2)
    assert sum(len(each.pods) for each in world.cycle().evictions) == 4
    world.settle()
    ends(world, low)
    world.settle()
    assert [len(world.places(key)) for key in (wide, narrow)] == [2, 2]
    assert sum(type(event).__name__ == "PodsEvicted" for each in world.commits for event in each.events) == 4
    assert not world.check().violations


def test_the_one_that_saved_its_work_goes_before_one_that_began_later() -> None:
    """Issue 14, section 2: the age of the newest file is used by least-loss victims."""
    world = cluster(2, 2)
    world.project()
    keys = [running(world, name, checkpoint=CheckpointSpec(), **LOW) for name in ("a", "b", "c")]
    world.now += timedelta(hours=1)
    running(world, "d", checkpoint=CheckpointSpec(), **LOW)
    world.now += timedelta(hours=1)
    world.fact(keys[1], "running", checkpoint_at=world.now - timedelta(minutes=1))
    world.submit("one", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("b", "preempted", 1)]


def test_work_at_risk_counts_by_gpus() -> None:
    """Given one on four GPUs for an hour, and one on a single GPU for two: the second has done half as much."""
    world = cluster(4, 1)
    world.project()
    running(world, "narrow", **LOW)
    world.now += timedelta(hours=1)
    running(world, "wide", gpus=4, **LOW)
    world.now += timedelta(hours=1)
    world.submit("one", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("narrow", "preempted", 1)]


def test_two_pods_that_lose_little_go_for_one_that_loses_much_but_not_for_a_little_more() -> None:
    """Each pod that is ended costs ten minutes of a GPU beside its work."""
    for saved, gone in ((timedelta(hours=9), {"wide"}), (timedelta(hours=0), {"x", "y"})):
        world = cluster(2, 2)
        world.project()
        wide = running(world, "wide", gpus=2, checkpoint=CheckpointSpec(), **LOW)
        world.now += timedelta(hours=9)
        for name in ("x", "y"):
            running(world, name, **LOW)
        world.now += timedelta(minutes=20)
        if saved:
            world.fact(wide, "running", checkpoint_at=world.now - timedelta(minutes=20))
        world.submit("one", gpu_devices_request=2, **HIGH)
        assert {name for name, _, _ in evicted(world.cycle())} == gone


def test_a_file_that_is_told_of_is_no_reason_for_a_new_plan() -> None:
    """An idle system does nothing, though its workloads save their work."""
    world = cluster(1)
    world.project()
    key = running(world, "a", checkpoint=CheckpointSpec(), **LOW)
    world.submit("waits", gpu_devices_request=1, **LOW)
    world.settle()
    world.fold.settle(world.now)
    before = world.fold.freed
    world.now += timedelta(hours=1)
    world.fact(key, "running", checkpoint_at=world.now)
    world.fold.settle(world.now)
    assert world.fold.freed == before


@pytest.mark.parametrize("by", ["quota", "share"])
def test_nobody_is_beyond_what_is_theirs_by_pods_that_hang_while_they_end(by: str) -> None:
    """A node that is not heard of keeps what was taken back; who gave it up keeps what is within its quota."""
    world = cluster(4)
    quotas = {"greedy": 1_000, "entitled": 4_000} if by == "quota" else {}
    greedy, entitled = (world.project(name, quota=quotas.get(name)) for name in ("greedy", "entitled"))
    keys = [running(world, f"r{n}", project_id=greedy) for n in range(4)]
    world.submit("mine", project_id=entitled, gpu_devices_request=1, **FOUR)
    world.settle()
    goes_on = sum(pod.phase != "Stopping" for key in keys for pod in world.workload(key).pods.live.values())
    assert goes_on == (1 if by == "quota" else 2)

    world.now += timedelta(hours=1) + LEAVING_LATE

    assert evicted(world.cycle()) == []
    world.settle()
    for key in keys:
        ends(world, key)
    world.settle()
    assert not world.check().violations


def test_what_others_give_up_is_kept_in_the_same_plan_for_all_for_whom_it_is_enough() -> None:
    """A gang that goes whole leaves more than the one needs for whom it goes, to one that came before it."""
    world = cluster(4, 4)
    entitled, greedy = world.project("entitled", quota=8_000), world.project("greedy")
    gang(world, "large", workers=2, gpus=4, project_id=greedy)
    world.settle()
    small = gang(world, "small", workers=3, project_id=greedy)
    world.submit("last", project_id=entitled, gpu_devices_request=4)

    planned = world.cycle()

    assert evicted(planned) == [("large", "reclaimed", 2)]
    assert world.workload(small).reason == "waiting_for_pods_to_end"
    assert world.plan().empty


def test_a_gang_takes_nothing_back_by_a_right_that_it_has_not_to_all_of_it() -> None:
    world = cluster(4)
    tight = world.project("tight", quota=2_000, over_quota_weight=0.0)
    gang(world, "theirs", workers=3, project_id=world.project("greedy"))
    world.settle()
    wide = gang(world, "wide", workers=3, project_id=tight)
    assert evicted(world.cycle()) == [], "one has room, and one more would be within its quota"
    world.settle()
    world.command(wide, DeleteWorkload)
    gang(world, "fits", workers=2, project_id=tight)
    assert evicted(world.cycle()) == [("theirs", "reclaimed", 3)]


@pytest.mark.parametrize("minutes", [30, 61, 66, 90])
def test_how_long_a_pod_hangs_is_not_counted_anew_by_a_scheduler_that_begins_anew(minutes: int) -> None:
    """Else it would keep the place for another for longer than the one that ran on."""
    world = World()
    world.cluster()
    world.project()
    world.node("n", gpu_count=1)
    low = world.submit("low", gpu_devices_request=1, termination_grace_period_seconds=3600, **LOW)
    world.settle()
    world.fact(low, "running")
    world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]
    world.fold.settle(world.now)
    world.now += timedelta(minutes=minutes)
    restored = SchedulingState()
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    restored.restore(world.fold.seq, chains, beside=world.fold.beside())
    for after in (timedelta(0), timedelta(minutes=40)):
        ours, theirs = world.fold.snapshot(world.now + after), restored.snapshot(world.now + after)
        assert (ours.leaving, ours.late) == (theirs.leaving, theirs.late)
    assert ours.late
