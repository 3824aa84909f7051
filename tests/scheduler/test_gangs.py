"""The pods of a distributed training are placed together, or none of them."""

from datetime import timedelta
from typing import Any, Literal

import pytest

from events.aggregate import WORKLOAD
from events.decision import Context
from events.ids import workload_key
from events.phases import Phase
from events.refusal import Refusal
from events.workload.commands import (
    CreateWorkload,
    DeleteWorkload,
    PlacePods,
    PodFact,
    PodFactKind,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
)
from events.workload.fields.distribution import Distribution
from events.workload.fields.scheduling import PodAffinity
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec
from services.scheduler.batches import batches
from services.scheduler.plan import plan
from services.scheduler.planning import Planning
from services.scheduler.policy.phases import place
from services.scheduler.policy.registry import POLICY
from tests.scheduler.world import ACTOR, World


def world(*gpus: int, quota: int | None = None) -> World:
    made = World()
    made.cluster()
    made.project(quota=quota)
    for number, count in enumerate(gpus):
        made.node(f"n{number}", gpu_count=count)
    return made


def submit(
    world: World,
    name: str,
    *,
    workers: int,
    gpus: int = 1,
    master: int | None = 0,
    policy: Any = "Running",
    **spec: Any,
) -> str:
    """A gang with so many GPUs for each worker, and for the master; None: without one."""
    world.now += timedelta(seconds=1)
    of_master = None if master is None else TrainingSpec(image="m", compute=ComputeSpec(gpu_devices_request=master))
    distribution = Distribution(distributed_framework="PyTorch", num_workers=workers, clean_pod_policy=policy)
    command = CreateWorkload(
        kind="Distributed",
        name=name,
        requested_name=name,
        project_id=world.project_id,
        cluster_id=world.cluster_id,
        spec=TrainingSpec(image="w", compute=ComputeSpec(gpu_devices_request=gpus), **spec),
        distributed=Distributed(distribution=distribution, master=of_master),
    )
    key = workload_key(world.project_id, name)
    world.do("workload", key, command)
    return key


def told(world: World, key: str, pod_set: str, index: int, *kinds: PodFactKind) -> None:
    pod = world.workload(key).pods[pod_set, index]
    ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
    for kind in kinds:
        fact = PodFact(pod=ref, kind=kind, at=world.now, exit_code=1 if kind == "failed" else None)
        world.do("workload", key, ReportPods(workload_id=world.workload(key).workload_id, facts=(fact,)))


def test_a_gang_that_fits_is_bound_in_one_batch() -> None:
    made = world(2, 2)
    key = submit(made, "fits", workers=4)
    snapshot = made.fold.snapshot(made.now)
    (batch,), _ = batches(plan(snapshot), max_messages=2)
    assert batch.pods == 5, "however small batches are just now"
    made.cycle()
    assert sorted(made.workload(key).pods) == [("master", 0), *(("worker", index) for index in range(4))]


def test_a_gang_that_does_not_fit_takes_nothing_and_says_how_far_it_came() -> None:
    made = world(2, 2)
    submit(made, "there", workers=1, master=None)
    made.cycle()
    key = submit(made, "wide", workers=4)
    after = submit(made, "narrow", workers=3, master=None)
    made.cycle()
    assert not made.workload(key).pods.live.size
    assert made.workload(key).reason == "insufficient_gpu"
    assert made.workload(key).message.startswith("its 5 pods start together, and after 4 found a place: 2 nodes of ")
    assert made.workload(after).pods.live.size == 3, "what it did not take is for others"


def test_a_gang_of_which_no_pod_can_ever_fit_says_so_as_any_workload_does() -> None:
    made = world(2)
    key = submit(made, "tall", workers=2, gpus=4, master=4)
    made.cycle()
    assert made.workload(key).reason == "no_matching_node"
    assert "start together" not in made.workload(key).message


@pytest.mark.parametrize(
    ("nodes", "asked", "told"),
    [
        ((2,), {"workers": 3, "gpus": 2, "master": 2}, "has room for 1 of 4 pods with 2 GPUs, even when empty"),
        ((4, 1), {"workers": 2, "gpus": 2, "master": 2}, "has room for 2 of 3 pods with 2 GPUs, even when empty"),
        ((4,), {"workers": 2, "gpus": 2, "master": 1}, "and need 5 GPUs in all, and pool default of"),
        ((3, 3), {"workers": 3, "gpus": 2, "master": None}, "has room for 2 of 3 pods with 2 GPUs, even when empty"),
        ((2, 2), {"workers": 3, "gpus": 1, "master": 1}, ""),
    ],
)
@pytest.mark.parametrize("others", [0, 1], ids=["empty", "beside others"])
def test_a_gang_for_which_there_will_never_be_room_says_so(
    nodes: tuple[int, ...], asked: Any, told: str, others: int
) -> None:
    """Whoever waits for it would wait for ever."""
    made = world(*nodes)
    if others:
        submit(made, "other", workers=1, master=None)
        made.cycle()
    key = submit(made, "gang", **asked)
    made.cycle()
    found = made.workload(key)
    if told:
        assert (found.reason, told in found.message) == ("no_matching_node", True), found.message
    else:
        assert found.reason == ("insufficient_gpu" if others else "")


def test_a_gang_waits_until_there_is_room_for_all_of_it() -> None:
    made = world(2)
    first = submit(made, "first", workers=2, master=None)
    second = submit(made, "second", workers=2, master=None)
    made.cycle()
    assert (made.workload(first).pods.live.size, made.workload(second).pods.live.size) == (2, 0)
    told(made, first, "worker", 0, "succeeded")
    made.cycle()
    assert not made.workload(second).pods.live.size, "one place is not enough"
    told(made, first, "worker", 1, "succeeded")
    assert made.workload(first).phase is Phase.COMPLETED
    made.cycle()
    made.cycle()
    assert made.workload(second).pods.live.size == 2


def test_a_pod_that_failed_is_run_again_alone_and_keeps_its_index() -> None:
    made = world(4)
    key = submit(made, "again", workers=3)
    made.cycle()
    told(made, key, "worker", 1, "running", "failed")
    made.now += timedelta(seconds=2)
    made.cycle()
    pod = made.workload(key).pods["worker", 1]
    assert (pod.phase, pod.try_) == ("Bound", 1)
    assert made.workload(key).pods.live.size == 4


def test_a_resumed_gang_is_placed_whole_again() -> None:
    made = world(3)
    key = submit(made, "resumed", workers=3, master=None)
    made.cycle()
    id_ = made.workload(key).workload_id
    made.do("workload", key, SuspendWorkload(workload_id=id_))
    for index in range(3):
        told(made, key, "worker", index, "stopped")
    made.cycle()
    other = submit(made, "other", workers=1, master=None, priority_class="high")
    made.cycle()
    made.do("workload", key, ResumeWorkload(workload_id=id_))
    made.cycle()
    assert not made.workload(key).pods.live.size
    told(made, other, "worker", 0, "succeeded")
    made.cycle()
    made.cycle()
    assert made.workload(key).pods.live.size == 3


def test_a_gang_of_which_all_pods_failed_is_placed_whole_again() -> None:
    made = world(3)
    key = submit(made, "crashed", workers=3, master=None)
    made.cycle()
    for index in range(3):
        told(made, key, "worker", index, "running", "failed")
    other = submit(made, "other", workers=2, master=None)
    made.cycle()
    assert not made.workload(key).pods.live.size, "its first pod may run again, and the third one not yet"
    assert made.workload(key).reason == "backoff"
    assert made.workload(other).pods.live.size == 2
    made.now += timedelta(seconds=10)
    made.cycle()
    assert not made.workload(key).pods.live.size, "all of them may, and have no room"
    told(made, other, "worker", 0, "running", "succeeded")
    told(made, other, "worker", 1, "running", "succeeded")
    made.cycle()
    made.cycle()
    assert made.workload(key).pods.live.size == 3
    assert not made.check().violations


def test_what_a_crashed_gang_waits_for_is_looked_at_when_its_last_pod_may_run_again() -> None:
    made = world(3)
    key = submit(made, "crashed", workers=3, master=None)
    made.cycle()
    for index in range(3):
        told(made, key, "worker", index, "running", "failed")
    for _ in range(10):
        made.cycle()
        due = made.fold.next_due()
        if due is None:
            break
        made.now = max(due, made.now)
    assert made.workload(key).pods.live.size == 3


def test_a_gang_that_is_resumed_while_its_pods_stop_waits_for_all_of_them() -> None:
    made = world(3)
    key = submit(made, "resumed", workers=3, master=None)
    made.cycle()
    id_ = made.workload(key).workload_id
    made.do("workload", key, SuspendWorkload(workload_id=id_))
    made.do("workload", key, ResumeWorkload(workload_id=id_))
    told(made, key, "worker", 0, "stopped")
    made.cycle()
    made.cycle()
    assert [pod.phase for pod in made.workload(key).pods.live.values()] == ["Stopping", "Stopping"]
    told(made, key, "worker", 1, "stopped")
    told(made, key, "worker", 2, "stopped")
    made.cycle()
    made.cycle()
    assert [pod.phase for pod in made.workload(key).pods.live.values()] == ["Bound"] * 3
    assert not made.check().violations


def test_what_changed_since_the_plan_binds_no_part_of_a_gang() -> None:
    made = world(4)
    key = submit(made, "torn", workers=3, master=None)
    made.cycle()
    told(made, key, "worker", 0, "running", "interrupted")
    (again,) = plan(made.fold.snapshot(made.now)).bindings
    told(made, key, "worker", 1, "running", "failed")
    id_ = made.workload(key).workload_id
    command = PlacePods(workload_id=id_, placements=(again.placement,))
    context = Context(now=made.now, actor=ACTOR, command_id="c", version=made.chain("workload", key).version)
    refused = WORKLOAD.decide(command, made.workload(key), context)
    assert isinstance(refused, Refusal)
    assert refused.code == "stale_placement"


@pytest.mark.parametrize("preemptibility", ["preemptible", "non-preemptible"])
def test_a_quota_bounds_the_whole_gang(preemptibility: str) -> None:
    made = world(8, quota=3000)
    key = submit(made, "quota", workers=4, master=None, preemptibility=preemptibility)
    made.cycle()
    assert made.workload(key).pods.live.size == (4 if preemptibility == "preemptible" else 0)


def test_gangs_leave_room_for_a_plan_that_is_cut_short() -> None:
    made = world(8)
    submit(made, "one", workers=2, master=None)
    submit(made, "two", workers=2, master=None)
    planned = plan(made.fold.snapshot(made.now), max_pods=3)
    assert len(planned.bindings) == 2
    assert planned.more


@pytest.fixture
def counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind many gangs that were tried in vain."""
    monkeypatch.setattr(place, "TRIED_IN_VAIN", 0)


@pytest.mark.usefixtures("counted_first")
def test_a_gang_that_is_counted_first_is_placed_where_it_fits_and_says_how_many_would_find_a_place() -> None:
    made = world(2, 2)
    submit(made, "there", workers=1, master=None)
    made.cycle()
    wide, narrow = submit(made, "wide", workers=4), submit(made, "narrow", workers=3)
    made.cycle()
    assert made.workload(narrow).pods.live.size == 4
    assert (made.workload(wide).reason, made.workload(wide).message) == (
        "insufficient_gpu",
        "its 5 pods start together, and at most 3 of them find a place now, each with 1 GPU",
    )


@pytest.mark.usefixtures("counted_first")
def test_a_gang_that_is_counted_first_keeps_to_the_quota_and_to_its_topology() -> None:
    made = world(quota=2000)
    for number, zone in enumerate("aabcd"):
        made.node(f"n{number}", gpu_count=1, labels={"zone": zone})
    beyond = submit(made, "beyond", workers=3, master=None, preemptibility="non-preemptible")
    apart = submit(made, "apart", workers=3, master=None, pod_affinity=PodAffinity(key="zone", type="Required"))
    fits = submit(made, "fits", workers=2, master=None, pod_affinity=PodAffinity(key="zone", type="Required"))
    made.cycle()
    assert [made.workload(key).pods.live.size for key in (beyond, apart, fits)] == [0, 0, 2]
    assert made.workload(beyond).reason == "quota_used"
    assert "at most 2 of them find a place now: " in made.workload(beyond).message
    assert "at most 2 of them find a place now, each with 1 GPU" in made.workload(apart).message


@pytest.mark.parametrize(
    ("affinity", "workers", "zones"),
    [("Preferred", 3, "bbb"), ("Preferred", 5, "abbbc"), ("Required", 3, "bbb"), ("Required", 5, "")],
)
def test_s043_a_gang_keeps_to_one_topology_where_it_must_and_where_it_can(
    affinity: Literal["Required", "Preferred"], workers: int, zones: str
) -> None:
    """S042, S043."""
    made = world()
    for number, zone in enumerate("abbbc"):
        made.node(f"n{number}", gpu_count=1, labels={"zone": zone})
    key = submit(made, "w", workers=workers, master=None, pod_affinity=PodAffinity(key="zone", type=affinity))
    made.cycle()
    nodes = sorted(pod.node_name for pod in made.workload(key).pods.live.values())
    assert "".join("abbbc"[int(node.removeprefix("n"))] for node in nodes) == zones


def test_many_wide_gangs_that_wait_are_not_tried_pod_by_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given gangs of different shapes, of which each would take nearly all that is free."""
    monkeypatch.setattr(place, "MOST_PROBED", 10_000)  # they are all of one project
    made = world(*(8 for _ in range(10)))
    for number in range(60):
        submit(made, f"wide-{number}", workers=81 + number, master=None)
    planning = Planning(made.fold.snapshot(made.now), POLICY, 2_000)
    for phase in POLICY.phases:
        phase.run(planning)
    assert not planning.placed.pods
    assert len(planning.short) == 60
    assert planning.tried_in_vain == 2_000


def test_the_masters_end_completes_it_and_stops_the_workers() -> None:
    made = world(4)
    key = submit(made, "ends", workers=2)
    made.cycle()
    for pod_set, index in (("master", 0), ("worker", 0), ("worker", 1)):
        told(made, key, pod_set, index, "running")
    told(made, key, "worker", 0, "succeeded")
    assert made.workload(key).phase is Phase.RUNNING
    told(made, key, "master", 0, "succeeded")
    assert made.workload(key).phase is Phase.COMPLETED
    assert made.workload(key).pods["worker", 1].phase == "Stopping"
    told(made, key, "worker", 1, "stopped")
    assert not made.check().violations


@pytest.mark.parametrize("end", ["succeeded", "failed", "interrupted"])
def test_with_the_policy_none_workers_outlive_the_end_and_go_by_themselves(end: PodFactKind) -> None:
    made = world(4)
    key = submit(made, "outlived", workers=2, policy="None")
    made.cycle()
    for pod_set, index in (("master", 0), ("worker", 0), ("worker", 1)):
        told(made, key, pod_set, index, "running")
    told(made, key, "master", 0, "succeeded")
    assert made.workload(key).phase is Phase.COMPLETED
    assert [pod.phase for pod in made.workload(key).pods.values()] == ["Running", "Running"]
    told(made, key, "worker", 0, end)
    assert made.workload(key).pods.live.size == 1
    made.do("workload", key, DeleteWorkload(workload_id=made.workload(key).workload_id))
    assert made.workload(key).pods["worker", 1].phase == "Stopping"
    told(made, key, "worker", 1, "stopped")
    assert made.workload(key).deleted_at is not None
    made.settle()
    assert not made.check().violations
