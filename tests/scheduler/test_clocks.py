"""Clocks that are set back, and times that a clock told which was ahead: they delay nothing for long."""

from datetime import timedelta

from events.ids import node_key
from events.node import DrainNode
from events.workload.commands import PodFact, ReportPods
from events.workload.pod import PodRef
from services.scheduler.held import LEAVING_LATE
from tests.scheduler.test_take_back import HIGH, LOW, cluster, ends, evicted, running
from tests.scheduler.world import World

DAY = timedelta(days=1)


def woken(world: World, *, within: timedelta) -> None:
    """The scheduler sleeps until it has something to look at."""
    due = world.fold.next_due()
    assert due is not None, "it sleeps for ever"
    assert due <= world.now + within
    world.now = max(world.now, due)


def test_who_waits_for_a_minimum_runtime_is_looked_at_when_it_is_over_though_the_clock_was_set_back() -> None:
    world = cluster(1)
    world.project(minimum_runtime_seconds=600)
    running(world, "low", **LOW)
    world.submit("high", gpu_devices_request=1, **HIGH)
    world.settle()

    world.now -= timedelta(milliseconds=1)
    world.settle()

    found: list[tuple[str, str, int]] = []
    while not found:
        woken(world, within=timedelta(seconds=601))
        found += evicted(world.cycle())
    assert found == [("low", "preempted", 1)]


def test_a_place_that_a_pod_never_leaves_is_not_waited_for_for_longer_where_the_clock_was_set_back() -> None:
    """Told to end by a clock that was a day ahead, on a node that nobody hears of any more."""
    world = cluster(1)
    world.project()
    world.now += DAY
    running(world, "low", **LOW)
    world.submit("high", gpu_devices_request=1, **HIGH)
    world.settle()

    world.now -= DAY
    world.settle()

    assert world.fold.snapshot(world.now).leaving
    woken(world, within=timedelta(hours=1) + LEAVING_LATE)
    assert not world.fold.snapshot(world.now).leaving


def test_a_pod_that_began_at_a_time_to_come_is_not_spared_until_then() -> None:
    """The clock of its cluster was ahead."""
    world = cluster(1)
    world.project(minimum_runtime_seconds=600)
    key = world.submit("low", gpu_devices_request=1, **LOW)
    world.settle()
    pod = world.workload(key).pods["main", 0]
    ref = PodRef(pod_set="main", index=0, attempt=pod.attempt, try_=pod.try_)
    fact = PodFact(pod=ref, kind="running", at=world.now + DAY)
    world.do("workload", key, ReportPods(workload_id=world.workload(key).workload_id, facts=(fact,)))
    world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]


def test_a_workload_placed_again_at_a_time_to_come_is_not_spared_until_then() -> None:
    """By a scheduler whose clock was ahead."""
    world = cluster(1)
    world.project()
    low = running(world, "low", **LOW)
    first = world.submit("first", gpu_devices_request=1, **HIGH)
    world.settle()
    ends(world, low)
    world.settle()
    world.now += DAY
    world.fact(first, "succeeded")
    world.settle()
    assert world.places(low)
    world.now -= DAY
    world.submit("second", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]


def test_a_drain_begins_at_once_whatever_time_it_was_decided_at() -> None:
    world = cluster(1)
    world.project()
    running(world, "low", **LOW)
    world.now += DAY
    world.do("node", node_key(world.cluster_id, "n0"), DrainNode(cluster_id=world.cluster_id, name="n0"))
    world.now -= DAY
    assert evicted(world.cycle()) == [("low", "drained", 1)]


def test_who_left_a_node_for_nobody_is_not_spared_where_it_runs_next() -> None:
    """Only who was kept from running for others is."""
    world = cluster(1, 1)
    world.project()
    low = running(world, "low", **LOW)
    other = next(name for name in ("n0", "n1") if name != world.places(low)[0][0])
    world.node(other, gpu_count=0)
    drained = world.places(low)[0][0]
    world.do("node", node_key(world.cluster_id, drained), DrainNode(cluster_id=world.cluster_id, name=drained))
    world.settle()
    ends(world, low)
    world.node(other, gpu_count=1)
    world.settle()
    assert world.places(low)[0][0] == other
    world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]
