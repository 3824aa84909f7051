"""Maintenance of nodes by the calendar (issue 14 section 2; ADR 0133): before, while it goes on, and at its end."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from events.cluster import ReportCluster
from events.ids import cluster_key, node_key, project_key
from events.maintenance import CancelMaintenance, PlanMaintenance
from events.node import MOST_MAINTAINED, CordonNode, DrainNode, Node, ReportNodeGone, UncordonNode
from events.phases import Phase, PodPhase, WaitingReason
from events.project import ChangeProject
from events.time_limits import SetTimeLimits, TimeLimit
from events.workload.life import WorkloadWaiting
from services.scheduler import plan as plan_module
from services.scheduler.classes import ENDS_LATE_SECONDS
from services.scheduler.fold import SchedulingState
from services.scheduler.policy.filters.calendar import told_of
from services.scheduler.policy.phases.report import is_news
from services.scheduler.snapshot import Plan, Waiting
from services.scheduler.why import why
from tests.scheduler.world import World

FIRM: dict[str, Any] = {"preemptibility": "non-preemptible"}
HOUR = timedelta(hours=1)


def lab(*names: str) -> World:
    world = World()
    world.cluster(pools=("gpu",))
    world.project()
    for name in names:
        world.node(name, gpu_count=4)
    return world


def plan_maintenance(
    world: World, *nodes: str, after: timedelta = 2 * HOUR, lasts: timedelta = HOUR, **more: Any
) -> datetime:
    """When it begins."""
    given: dict[str, Any] = {"name": "firmware", "new": True} | more
    starts = world.now + after
    command = PlanMaintenance(
        cluster_id=world.cluster_id, nodes=nodes, starts_at=starts, ends_at=starts + lasts, **given
    )
    world.do("cluster", cluster_key("local"), command)
    return starts


def cancel(world: World) -> None:
    command = CancelMaintenance(cluster_id=world.cluster_id, name="firmware")
    world.do("cluster", cluster_key("local"), command)


def limit(world: World, seconds: int | None) -> None:
    limits = () if seconds is None else (TimeLimit(kind="Training", runtime_seconds=seconds),)
    world.do("project", project_key("default"), SetTimeLimits(project_id=world.project_id, limits=limits))


def running(world: World, name: str, **spec: Any) -> str:
    key = world.submit(name, gpu_devices_request=1, **spec)
    world.settle()
    assert world.places(key), world.workload(key).message
    world.fact(key, "running")
    return key


def waits(world: World, name: str, **spec: Any) -> tuple[str, str]:
    """The reason and the words; that of nothing where it starts."""
    key = world.submit(name, gpu_devices_request=1, **spec)
    world.settle()
    state = world.workload(key)
    return ("", "") if world.places(key) else (state.reason, state.message)


def at(world: World, moment: datetime) -> list[Plan]:
    assert world.now <= moment
    world.now = moment
    return world.settle()


def node(world: World, name: str) -> Node:
    return world.chain("node", node_key(world.cluster_id, name)).state


def kinds(world: World, name: str) -> list[str]:
    key = node_key(world.cluster_id, name)
    return [type(event).__name__ for c in world.commits if c.key == key for event in c.events]


def fresh(world: World) -> SchedulingState:
    """A fold of the same log from its beginning."""
    fold = SchedulingState()
    for commit in world.commits:
        fold.apply(commit)
    return fold


def test_what_gives_way_is_let_in_until_it_begins_and_what_does_not_is_not() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")

    assert waits(world, "soft") == ("", "")
    reason, message = waits(world, "firm", **FIRM)

    assert reason == WaitingReason.MAINTENANCE
    assert "maintenance firmware" in message
    assert f"{starts:%Y-%m-%d %H:%M}" in message
    assert not world.check().violations


@pytest.mark.parametrize(("before", "starts"), [(660, True), (600, False), (60, False)])
def test_what_gives_way_but_would_still_run_when_it_begins_is_not_let_in(before: int, *, starts: bool) -> None:
    """Given maintenance, when a pod with a grace of ten minutes comes, then its grace is to be over before."""
    world = lab("n0")
    begins = plan_maintenance(world, "n0", lead_seconds=0)
    world.now = begins - timedelta(seconds=before)

    reason, message = waits(world, "slow", termination_grace_period_seconds=600)

    assert reason == ("" if starts else WaitingReason.MAINTENANCE)
    assert starts or f"from {begins:%Y-%m-%d %H:%M}" in message
    assert waits(world, "quick", termination_grace_period_seconds=0) == ("", "")
    assert not world.check().violations


@pytest.mark.parametrize(("minimum", "starts"), [(3600 - 90, True), (3600 - 29, False), (None, True)])
def test_what_its_project_lets_run_for_so_long_is_let_in_where_it_may(minimum: int | None, *, starts: bool) -> None:
    """Given a minimum runtime, when maintenance is ahead, then no pod starts that would lose its place before that."""
    world = lab("n0")
    plan_maintenance(world, "n0", after=HOUR)
    change = ChangeProject(project_id=world.project_id, minimum_runtime_seconds=minimum)
    world.do("project", project_key("default"), change)

    reason, _ = waits(world, "w", termination_grace_period_seconds=30)

    assert reason == ("" if starts else WaitingReason.MAINTENANCE)


def test_a_minimum_runtime_does_not_count_before_the_lead_time_nor_of_what_has_ended_by_its_limit() -> None:
    cases: list[tuple[dict[str, Any], int | None]] = [({"lead_seconds": 1800}, None), ({}, 600)]
    for more, limited in cases:
        world = lab("n0")
        plan_maintenance(world, "n0", after=HOUR, **more)
        limit(world, limited)
        change = ChangeProject(project_id=world.project_id, minimum_runtime_seconds=86_400)
        world.do("project", project_key("default"), change)
        assert waits(world, "w") == ("", "")


def test_a_node_remembers_a_long_one_however_many_short_ones_come_and_go_in_it() -> None:
    """Given long maintenance, when more short ones than a node remembers begin and are over in it, then the long one
    has taken the node once, and who lets pods on it again has it back.
    """
    world = lab("n0")
    begun = plan_maintenance(world, "n0", name="long", lasts=900 * HOUR)
    at(world, begun)
    for n in range(MOST_MAINTAINED + 3):
        begins = plan_maintenance(world, "n0", name=f"short-{n}", lasts=HOUR)
        at(world, begins)
        at(world, begins + HOUR)
    assert kinds(world, "n0").count("NodeDrainStarted") == 1 + MOST_MAINTAINED + 3
    assert len(node(world, "n0").maintained) <= MOST_MAINTAINED

    world.do("node", node_key(world.cluster_id, "n0"), UncordonNode(cluster_id=world.cluster_id, name="n0"))

    assert waits(world, "w") == ("", "")
    assert not world.check().violations


def test_outside_of_its_lead_time_everything_is_let_in_and_within_it_not() -> None:
    """The nearest smaller case: one second before the lead begins a non-preemptible workload starts."""
    world = lab("n0")
    starts = plan_maintenance(world, "n0", after=30 * HOUR)

    at(world, starts - 24 * HOUR - timedelta(seconds=2))
    assert waits(world, "before", **FIRM) == ("", "")
    at(world, starts - 24 * HOUR)
    assert waits(world, "after", **FIRM)[0] == WaitingReason.MAINTENANCE


def test_a_lead_of_its_own_holds_in_place_of_the_default() -> None:
    world = lab("n0")
    plan_maintenance(world, "n0", lead_seconds=0)

    assert waits(world, "firm", **FIRM) == ("", "")


@pytest.mark.parametrize(("spare", "starts"), [(10, True), (-10, False)])
def test_what_has_ended_by_its_limit_before_it_begins_is_let_in(spare: int, *, starts: bool) -> None:
    """Its limit on running time, its grace, and ten minutes in which its pods start are counted."""
    world = lab("n0")
    plan_maintenance(world, "n0", after=2 * HOUR)
    grace = 30
    limit(world, 2 * 3600 - grace - ENDS_LATE_SECONDS - spare)

    reason, _ = waits(world, "firm", termination_grace_period_seconds=grace, **FIRM)

    assert reason == ("" if starts else WaitingReason.MAINTENANCE)


def test_a_limit_that_is_set_later_lets_in_what_waits() -> None:
    world = lab("n0")
    plan_maintenance(world, "n0")
    key = world.submit("firm", gpu_devices_request=1, **FIRM)
    world.settle()
    assert not world.places(key)

    limit(world, 600)
    world.settle()

    assert world.places(key)


def test_a_node_beside_it_is_used() -> None:
    world = lab("n0", "n1")
    plan_maintenance(world, "n0")

    key = running(world, "firm", **FIRM)

    assert world.places(key)[0][0] == "n1"


def test_at_its_start_the_nodes_are_drained_and_come_back_at_its_end() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    key = running(world, "soft")

    assert world.fold.next_due() == starts, "nothing is done until then"
    plans = at(world, starts)

    assert [len(each.marks) for each in plans if each.marks] == [1]
    assert kinds(world, "n0")[-2:] == ["NodeCordoned", "NodeDrainStarted"]
    assert node(world, "n0").cordoned_by == "ann"
    evicted = [each for planned in plans for each in planned.evictions]
    assert [(each.reason, each.message) for each in evicted] == [
        ("drained", "node n0 is drained for maintenance firmware")
    ]
    world.fact(key, "stopped")
    world.settle()
    assert kinds(world, "n0")[-1] == "NodeDrained"
    assert world.workload(key).reason == WaitingReason.MAINTENANCE
    assert "maintenance firmware until 2026-03-01" in world.workload(key).message

    due = world.fold.next_due()
    assert due is not None
    assert due <= starts + HOUR
    at(world, starts + HOUR)

    assert "NodeUncordoned" in kinds(world, "n0")
    assert not node(world, "n0").cordoned
    assert world.places(key)
    assert not world.check().violations


def test_what_is_non_preemptible_stays_when_it_begins_unless_it_is_forced() -> None:
    for force in (False, True):
        world = lab("n0")
        key = running(world, "firm", **FIRM)
        starts = plan_maintenance(world, "n0", force=force)

        at(world, starts)

        assert (world.workload(key).phase is Phase.RUNNING) is not force


def test_nothing_happens_between_its_boundaries() -> None:
    """An idle system does nothing: one plan at the start, one at the end, and none in between."""
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    world.settle()
    assert world.fold.next_due() == starts
    at(world, starts)
    assert world.fold.next_due() == starts + HOUR
    before = len(world.commits)
    at(world, starts + HOUR / 2)
    assert len(world.commits) == before
    at(world, starts + HOUR)
    assert world.fold.next_due() is None


def test_what_somebody_cordoned_stays_so_when_it_is_over() -> None:
    for before in (True, False):
        world = lab("n0")
        starts = plan_maintenance(world, "n0")
        running(world, "soft")
        if before:
            world.cordon("n0")
        at(world, starts)
        if not before:
            world.cordon("n0", CordonNode)
        at(world, starts + HOUR)

        assert node(world, "n0").cordoned, before
        assert node(world, "n0").cordoned_for is None
        assert node(world, "n0").drain is None
        assert not world.check().violations


def test_a_drain_by_somebody_goes_on_when_it_is_over() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    at(world, starts)
    world.do("node", node_key(world.cluster_id, "n0"), DrainNode(cluster_id=world.cluster_id, name="n0"))
    at(world, starts + HOUR)

    assert node(world, "n0").cordoned
    assert node(world, "n0").drain is not None


def test_who_uncordons_a_node_meanwhile_has_it_back_and_it_is_not_drained_again() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    at(world, starts)

    world.cordon("n0", UncordonNode)

    assert waits(world, "firm", **FIRM) == ("", "")
    at(world, starts + HOUR)
    assert kinds(world, "n0").count("NodeDrainStarted") == 1
    assert kinds(world, "n0").count("NodeUncordoned") == 1


def test_a_node_that_comes_while_it_goes_on_is_taken_out_too_and_one_that_is_not_meant_is_not() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, node_pools=("gpu",))
    at(world, starts)
    assert not node(world, "n0").cordoned

    world.node("n1", gpu_count=4, pool="gpu")
    world.settle()

    assert node(world, "n1").cordoned
    assert not node(world, "n0").cordoned


def test_by_labels_those_are_meant_that_have_all_of_them() -> None:
    world = lab()
    world.node("n0", gpu_count=4, labels={"rack": "a", "row": "1"})
    world.node("n1", gpu_count=4, labels={"rack": "a", "row": "2"})
    starts = plan_maintenance(world, labels={"rack": "a", "row": "1"})

    at(world, starts)

    assert (node(world, "n0").cordoned, node(world, "n1").cordoned) == (True, False)


def test_where_it_is_cancelled_the_nodes_come_back_at_once() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    at(world, starts)
    key = world.submit("firm", gpu_devices_request=1, **FIRM)
    world.settle()
    assert not world.places(key)

    cancel(world)
    world.settle()

    assert not node(world, "n0").cordoned
    assert world.places(key)


def test_where_it_is_cancelled_before_it_begins_what_waits_starts() -> None:
    world = lab("n0")
    plan_maintenance(world, "n0")
    key = world.submit("firm", gpu_devices_request=1, **FIRM)
    world.settle()
    assert not world.places(key)

    cancel(world)
    world.settle()

    assert world.places(key)


def test_where_its_end_is_moved_the_nodes_come_back_at_the_new_one() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    at(world, starts)

    plan_maintenance(world, "n0", after=timedelta(0), lasts=3 * HOUR, new=False)
    at(world, starts + 2 * HOUR)
    assert node(world, "n0").cordoned
    at(world, starts + 3 * HOUR)
    assert not node(world, "n0").cordoned


def test_two_that_overlap_take_a_node_out_once_each_and_it_comes_back_when_both_are_over() -> None:
    """Neither begins again because of the other, and whichever ends first lets nothing in."""
    for first, second in ((2, 3), (4, 2)):
        world = lab("n0")
        starts = plan_maintenance(world, "n0", name="a", lasts=first * HOUR)
        plan_maintenance(world, "n0", name="b", after=3 * HOUR, lasts=second * HOUR)
        ends = max(starts + first * HOUR, starts + HOUR + second * HOUR)
        at(world, starts)
        at(world, starts + HOUR)
        assert kinds(world, "n0").count("NodeDrainStarted") == 2
        at(world, min(starts + first * HOUR, starts + HOUR + second * HOUR))
        assert node(world, "n0").cordoned
        at(world, ends)
        assert not node(world, "n0").cordoned
        assert kinds(world, "n0").count("NodeDrainStarted") == 2
        assert not world.check().violations


@pytest.mark.parametrize("ends_then", [False, True])
def test_of_two_that_begin_at_one_moment_or_end_and_begin_a_plan_has_one_mark_of_a_node(*, ends_then: bool) -> None:
    """Two of one node would be two commits of it in one atomic batch, which cannot be."""
    world = lab("n0")
    starts = plan_maintenance(world, "n0", name="a")
    plan_maintenance(world, "n0", name="b", after=(3 if ends_then else 2) * HOUR)
    for moment in (starts, starts + HOUR):
        plans = at(world, moment)
        assert max(len(planned.marks) for planned in plans) <= 1
    assert node(world, "n0").cordoned is ends_then
    at(world, starts + 2 * HOUR)
    assert not node(world, "n0").cordoned
    assert kinds(world, "n0").count("NodeDrainStarted") == 2
    assert not world.check().violations


def test_what_waited_for_its_lead_time_by_a_clock_that_was_ahead_starts_once_that_is_set_back() -> None:
    world = lab("n0")
    starts, began = plan_maintenance(world, "n0", after=72 * HOUR), world.now
    world.now = starts - HOUR
    key = world.submit("firm", gpu_devices_request=1, **FIRM)
    world.settle()
    assert world.workload(key).reason == WaitingReason.MAINTENANCE
    world.now = began + timedelta(minutes=1)
    world.settle()
    assert world.places(key)


def gone(world: World, name: str) -> None:
    world.do("node", node_key(world.cluster_id, name), ReportNodeGone())
    world.settle()


def test_a_node_that_is_removed_and_comes_again_while_it_goes_on_stays_out_until_it_is_over() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    at(world, starts)
    gone(world, "n0")
    world.node("n0", gpu_count=4)
    world.settle()

    assert node(world, "n0").cordoned
    assert waits(world, "soft")[0] == WaitingReason.MAINTENANCE
    at(world, starts + HOUR)
    assert not node(world, "n0").cordoned
    assert not world.check().violations


def test_a_node_that_is_away_when_it_is_over_comes_back_without_a_mark() -> None:
    """Also where another one that overlaps goes on: then it is out for that."""
    for other in (False, True):
        world = lab("n0")
        starts = plan_maintenance(world, "n0")
        if other:
            plan_maintenance(world, "n0", name="b", lasts=3 * HOUR)
        at(world, starts)
        gone(world, "n0")
        at(world, starts + HOUR)
        world.node("n0", gpu_count=4)
        world.settle()
        assert node(world, "n0").cordoned is other
        at(world, starts + 3 * HOUR)
        assert not node(world, "n0").cordoned
        assert not world.check().violations


def test_a_node_that_leaves_the_entry_for_a_while_is_taken_out_again() -> None:
    world = lab()
    world.node("n0", gpu_count=4, labels={"rack": "4"})
    starts = plan_maintenance(world, labels={"rack": "4"})
    at(world, starts)
    world.node("n0", gpu_count=4)
    world.settle()
    assert not node(world, "n0").cordoned
    world.node("n0", gpu_count=4, labels={"rack": "4"})
    world.settle()
    assert node(world, "n0").cordoned
    assert not world.check().violations


def test_a_node_that_leaves_two_entries_one_after_the_other_is_taken_out_again_by_the_second() -> None:
    world = lab()
    world.node("n0", gpu_count=4, labels={"rack": "4"})
    starts = plan_maintenance(world, "n0", name="a")
    plan_maintenance(world, name="b", labels={"rack": "4"}, lasts=3 * HOUR)
    at(world, starts)
    world.node("n0", gpu_count=4)
    at(world, starts + HOUR)
    assert not node(world, "n0").cordoned
    world.node("n0", gpu_count=4, labels={"rack": "4"})
    world.settle()
    assert node(world, "n0").cordoned
    assert not world.check().violations


def test_where_force_is_set_while_it_goes_on_everybody_is_told_to_end_once() -> None:
    world = lab("n0")
    key = running(world, "firm", **FIRM)
    starts = plan_maintenance(world, "n0", lead_seconds=0)
    at(world, starts)
    assert world.workload(key).pods["main", 0].phase is PodPhase.RUNNING

    plan_maintenance(world, "n0", after=timedelta(0), lead_seconds=0, force=True, new=False)
    world.settle()

    assert world.workload(key).pods["main", 0].phase is PodPhase.STOPPING
    assert world.plan().marks == ()
    world.fact(key, "stopped")
    world.settle()
    assert kinds(world, "n0").count("NodeDrainStarted") == 2
    at(world, starts + HOUR)
    assert not node(world, "n0").cordoned
    assert not world.check().violations


def begun_by_a_clock_ahead(world: World) -> datetime:
    """By three minutes; it is postponed by a day meanwhile. When it begins now."""
    starts = plan_maintenance(world, "n0")
    at(world, starts)
    assert node(world, "n0").cordoned
    world.now = starts - timedelta(minutes=3)
    plan_maintenance(world, "n0", after=24 * HOUR, new=False)
    return world.now + 24 * HOUR


def test_what_began_by_a_clock_ahead_and_is_postponed_is_undone_and_begins_when_it_should() -> None:
    world = lab("n0")
    starts = begun_by_a_clock_ahead(world)
    world.settle()
    assert not node(world, "n0").cordoned
    at(world, starts)
    assert node(world, "n0").cordoned
    at(world, starts + HOUR)
    assert not node(world, "n0").cordoned
    assert not world.check().violations


def test_who_uncordons_what_began_too_early_has_it_until_it_begins() -> None:
    for postponed in (True, False):
        world = lab("n0")
        if postponed:
            starts = begun_by_a_clock_ahead(world)
        else:
            starts = plan_maintenance(world, "n0")
            at(world, starts)
            world.now = starts - timedelta(minutes=3)
        world.cordon("n0", UncordonNode)
        world.settle()
        assert not node(world, "n0").cordoned
        at(world, starts)
        assert node(world, "n0").cordoned, postponed
        assert not world.check().violations


def test_of_two_schedulers_whose_clocks_are_far_apart_each_drains_a_node_once_before_its_time() -> None:
    """The one that is behind undoes it once, and no more: else they wrote the log without end."""
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    for _ in range(5):
        world.now = starts
        world.settle()
        world.now = starts - HOUR
        world.settle()
    assert node(world, "n0").cordoned
    assert kinds(world, "n0").count("NodeDrainStarted") == 2
    assert kinds(world, "n0").count("NodeUncordoned") == 1
    assert not world.check().violations


def test_who_uncordons_a_node_of_two_that_overlap_has_it_back_for_both() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0", name="a", lasts=2 * HOUR)
    plan_maintenance(world, "n0", name="b", lasts=3 * HOUR)
    at(world, starts)
    world.cordon("n0", UncordonNode)
    assert waits(world, "firm", **FIRM) == ("", "")
    at(world, starts + 3 * HOUR)
    assert kinds(world, "n0").count("NodeUncordoned") == 1


def test_a_gang_waits_as_a_whole_for_nodes_that_it_would_run_into() -> None:
    world = lab("n0", "n1")
    plan_maintenance(world, "n0", "n1")

    reason, _ = waits(world, "wide", **FIRM)

    assert reason == WaitingReason.MAINTENANCE


def test_a_scheduler_that_was_away_all_the_time_lets_the_nodes_be_used_again() -> None:
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    key = world.submit("firm", gpu_devices_request=1, **FIRM)
    world.settle()

    at(world, starts + 2 * HOUR)

    assert "NodeCordoned" not in kinds(world, "n0")
    assert world.places(key)


def test_by_a_clock_that_is_behind_nothing_is_undone() -> None:
    """Two schedulers, of which one knows that it began."""
    world = lab("n0")
    starts = plan_maintenance(world, "n0")
    at(world, starts)
    world.now = starts - timedelta(seconds=5)

    world.settle()

    assert node(world, "n0").cordoned
    assert kinds(world, "n0").count("NodeCordoned") == 1


def test_the_same_follows_from_the_log_read_anew_and_from_a_snapshot() -> None:
    """Kept state equals a fresh fold, before, while it goes on, and after."""
    world = lab("n0", "n1")
    starts = plan_maintenance(world, "n0")
    running(world, "soft")
    for moment in (starts - HOUR, starts, starts + HOUR / 2, starts + HOUR):
        world.now = moment
        world.submit(f"firm-{moment:%H%M}", gpu_devices_request=4, **FIRM)
        again, restored = fresh(world), SchedulingState()
        restored.restore(world.fold.seq, world.fold.chains, beside=world.fold.beside())
        kept = world.fold.snapshot(world.now)
        for fold in (again, restored):
            of = fold.snapshot(world.now)
            assert of.marks == kept.marks
            assert [(c.called, c.rows.tolist(), c.left_seconds) for c in of.nodes.closings] == [
                (c.called, c.rows.tolist(), c.left_seconds) for c in kept.nodes.closings
            ]
            assert [q.pod_class for q in of.queues] == [q.pod_class for q in kept.queues]
        world.settle()
    assert not world.check().violations


# -- what the log tells of it ------------------------------------------------------------------------------------------


def reasons_told(world: World, key: str) -> list[str]:
    return [
        event.message
        for commit in world.commits
        if commit.key == key
        for event in commit.events
        if isinstance(event, WorkloadWaiting)
    ]


def behind_two() -> tuple[World, str]:
    """It waits for two entries of its only node, of which one goes on for longer."""
    world = lab("n0")
    plan_maintenance(world, "n0")
    plan_maintenance(world, "n0", name="rack", lasts=48 * HOUR)
    key = world.submit("firm", gpu_devices_request=2, **FIRM)
    world.settle()
    assert world.workload(key).reason == "maintenance"
    assert "maintenance firmware" in world.workload(key).message
    return world, key


def test_where_it_is_cancelled_the_reason_of_what_waits_on_does_not_name_it_any_more() -> None:
    """The table tells what holds now. The code stays the same, and the sentence does not."""
    world, key = behind_two()

    cancel(world)
    at(world, world.now + timedelta(seconds=11))

    assert not world.places(key)
    assert world.workload(key).reason == "maintenance"
    assert "maintenance rack" in world.workload(key).message
    assert "firmware" not in world.workload(key).message
    assert fresh(world).snapshot(world.now).queues


def test_what_was_told_anew_with_the_same_code_is_not_told_again_and_all_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GIVEN more workloads than one plan tells of, THEN each is told once that the entry is cancelled, and it ends."""
    monkeypatch.setattr(plan_module, "MAX_UPDATES_PER_PLAN", 2)
    world, key = behind_two()
    keys = [key, *(world.submit(f"firm-{n}", gpu_devices_request=2, **FIRM) for n in range(4))]
    world.settle()
    assert all("maintenance firmware" in world.workload(each).message for each in keys)

    cancel(world)
    at(world, world.now + timedelta(seconds=11))

    assert {world.workload(each).reason for each in keys} == {"maintenance"}
    assert not any("firmware" in world.workload(each).message for each in keys)
    told = [reasons_told(world, each) for each in keys]
    world.now += timedelta(minutes=1)
    world.node("n2", gpu_count=1)
    assert not world.plan().updates, "what the log says already"
    world.settle()
    assert [reasons_told(world, each) for each in keys] == told


def test_a_sentence_that_only_reads_as_if_it_named_an_entry_is_not_told_over_and_over() -> None:
    """Names that people choose stand in sentences, too."""
    told = "no node of type maintenance x until 2026-03-01 12:00 UTC"
    waiting = Waiting(reason=WaitingReason.NO_MATCHING_NODE, message=told)
    assert told_of(told)
    assert not is_news("no_matching_node", told, waiting)


def test_who_came_while_it_was_planned_is_told_that_it_is_cancelled_as_those_who_came_before() -> None:
    world = lab("n0")
    plan_maintenance(world, "n0", name="rack", lasts=48 * HOUR)
    first = world.submit("first", gpu_devices_request=2, **FIRM)
    world.settle()
    assert world.workload(first).reason == "maintenance"
    plan_maintenance(world, "n0")
    second = world.submit("second", gpu_devices_request=2, **FIRM)
    at(world, world.now + timedelta(seconds=1))
    assert "maintenance firmware" in world.workload(second).message

    cancel(world)
    at(world, world.now + timedelta(seconds=1))
    due = world.fold.next_due()
    assert due is not None
    assert due <= world.now + timedelta(seconds=11)
    at(world, due)

    assert "firmware" not in world.workload(second).message


def test_who_came_while_there_was_another_reason_is_told_that_it_is_gone() -> None:
    """GIVEN a reason that comes and goes before it is told to those who wait already."""
    world = lab("n0")
    world.submit("holder", gpu_devices_request=4, **FIRM)
    world.settle()
    world.submit("first", gpu_devices_request=2)
    world.settle()
    world.do("cluster", cluster_key("local"), ReportCluster(cluster_id=world.cluster_id, connected=False))
    second = world.submit("second", gpu_devices_request=2)
    at(world, world.now + timedelta(seconds=1))
    assert world.workload(second).reason == "cluster_disconnected"

    world.do("cluster", cluster_key("local"), ReportCluster(cluster_id=world.cluster_id, connected=True))
    at(world, world.now + timedelta(seconds=1))
    due = world.fold.next_due()
    assert due is not None
    at(world, due)

    assert world.workload(second).reason == "insufficient_gpu"


def test_where_its_end_is_moved_the_reason_says_the_new_one() -> None:
    world = lab("n0")
    plan_maintenance(world, "n0", lasts=HOUR)
    key = world.submit("firm", gpu_devices_request=1, **FIRM)
    world.settle()
    cancel(world)
    plan_maintenance(world, "n0", lasts=2 * HOUR)
    at(world, world.now + timedelta(seconds=11))
    state = world.workload(key)
    assert state.reason == "maintenance"
    assert f"to {world.now - timedelta(seconds=11) + 4 * HOUR:%Y-%m-%d %H:%M} UTC" in state.message


def beside_a_full_node(count: int = 1) -> tuple[World, list[str]]:
    """So many wait for GPUs: one node is full, and on the other one is maintenance soon."""
    world = lab("n0", "n1")
    plan_maintenance(world, "n1")
    holder = world.submit("holder", gpu_devices_request=4, **FIRM)
    world.settle()
    world.fact(holder, "running")
    keys = [world.submit(f"firm-{n}", gpu_devices_request=3, **FIRM) for n in range(count)]
    world.settle()
    assert {world.workload(key).reason for key in keys} == {"insufficient_gpu"}
    return world, keys


def test_a_boundary_tells_nothing_to_those_who_wait_for_the_same_reason_before_and_after() -> None:
    """GIVEN many that wait for GPUs, WHEN maintenance of another node begins, is moved and is over, THEN the log has no
    new event of any but who gets the room then.
    """
    world, keys = beside_a_full_node(40)
    told = {key: reasons_told(world, key) for key in keys}
    assert all("1 taking no new pods (maintenance or reservations)" in texts[-1] for texts in told.values())

    starts = world.now + 2 * HOUR
    for moment in (starts - HOUR, starts, starts + HOUR / 2, starts + 2 * HOUR):
        at(world, moment)
        at(world, moment + timedelta(seconds=11))

    started = [key for key in keys if world.places(key)]
    assert len(started) == 1
    assert all(reasons_told(world, key) == told[key] for key in keys)
    assert not world.check().violations


def test_numbers_that_are_others_by_now_are_told_no_second_time() -> None:
    world, (key,) = beside_a_full_node()
    told = reasons_told(world, key)
    world.node("n2", gpu_count=1)
    at(world, world.now + timedelta(minutes=1))
    world.node("n3", gpu_count=1)
    at(world, world.now + timedelta(minutes=1))
    assert reasons_told(world, key) == told


def test_the_reason_names_an_entry_once_and_without_counting_twice() -> None:
    world = lab("n0", "n1", "n2")
    plan_maintenance(world, "n1")
    world.submit("holder", gpu_devices_request=4, **FIRM)
    other = world.submit("other", gpu_devices_request=4, **FIRM)
    world.settle()
    assert world.places(other)
    key = world.submit("firm", gpu_devices_request=2, **FIRM)
    world.settle()
    assert "1 taking no new pods (maintenance or reservations)" in world.workload(key).message
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    closed = [each.message for each in found.nodes if each.ground == "calendar"]
    assert len(closed) == 1
    assert closed[0].count("maintenance firmware from 2026-") == 1
