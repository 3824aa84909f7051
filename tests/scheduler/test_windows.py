"""Windows of a project: when its workloads may start, and what becomes of those that run (issue 14 section 2)."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from events.ids import project_key
from events.phases import Phase, WaitingReason
from events.project import ChangeProject
from events.quotas import PoolQuota
from events.windows import SetStartWindows, StartWindows, read_window
from services.scheduler.fold import SchedulingState
from services.scheduler.snapshot import Plan
from services.scheduler.why import why
from tests.scheduler.test_maintenance import fresh
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import BEGIN, World

FIRM: dict[str, Any] = {"preemptibility": "non-preemptible"}
MONDAY = BEGIN + timedelta(days=1)
"""2026-03-02, 00:00 UTC."""
OPENS, CLOSES = MONDAY + timedelta(hours=20), MONDAY + timedelta(hours=30)


def lab(*nodes: str, windows: tuple[str, ...] = ("Mon-Fri 20:00-06:00",), **more: Any) -> World:
    """At noon of a Monday, when the window is closed."""
    world = World()
    world.cluster()
    world.project()
    for name in nodes:
        world.node(name, gpu_count=4)
    world.now = MONDAY + timedelta(hours=12)
    setting(world, *windows, **more)
    return world


def setting(world: World, *windows: str, zone: str = "UTC", ends_running: bool = False) -> None:
    read = tuple(map(read_window, windows))
    given = StartWindows(zone=zone, windows=read, ends_running=ends_running) if windows else None
    world.do("project", project_key("default"), SetStartWindows(project_id=world.project_id, windows=given))


def at(world: World, moment: datetime) -> list[Plan]:
    world.now = moment
    return world.settle()


def started(world: World, name: str, **spec: Any) -> str:
    key = world.submit(name, gpu_devices_request=1, **spec)
    world.settle()
    for index in world.places(key):
        world.fact(key, "running", index=index)
    return key


def test_outside_its_window_a_workload_waits_and_starts_when_the_next_one_opens() -> None:
    world = lab("n0")
    key = started(world, "w")

    state = world.workload(key)
    assert state.reason == WaitingReason.OUTSIDE_WINDOW
    assert "Mon-Fri 20:00-06:00 UTC" in state.message
    assert "the next one opens at 2026-03-02 20:00 UTC" in state.message
    at(world, OPENS - timedelta(seconds=1))
    assert not world.places(key)
    assert world.fold.next_due() == OPENS
    at(world, OPENS)
    assert world.places(key)
    assert not world.check().violations


def test_a_window_is_by_the_clock_of_its_zone() -> None:
    world = lab("n0")
    setting(world, "Mon-Fri 20:00-06:00", zone="Europe/Berlin")
    key = started(world, "w")
    at(world, OPENS - timedelta(hours=1, seconds=1))
    assert not world.places(key)
    at(world, OPENS - timedelta(hours=1))
    assert world.places(key)


def test_what_runs_goes_on_when_a_window_closes_unless_it_ends_what_is_preemptible() -> None:
    for ends in (False, True):
        world = lab("n0", ends_running=ends)
        world.now = OPENS
        soft, firm = started(world, "soft"), started(world, "firm", **FIRM)

        plans = at(world, CLOSES)

        evicted = [each for planned in plans for each in planned.evictions]
        assert [(each.name, each.reason) for each in evicted] == ([("soft", "window_closed")] if ends else [])
        assert world.workload(firm).phase is Phase.RUNNING
        if ends:
            world.fact(soft, "stopped")
            world.settle()
            assert world.workload(soft).reason == WaitingReason.OUTSIDE_WINDOW
            at(world, OPENS + timedelta(days=1))
            assert world.places(soft)
        assert not world.check().violations


def test_what_is_ended_by_a_window_goes_on_though_it_is_terminated_by_preemption() -> None:
    world = lab("n0", ends_running=True)
    world.now = OPENS
    key = started(world, "soft", terminate_after_preemption=True)
    at(world, CLOSES)
    world.fact(key, "stopped")
    world.settle()
    assert world.workload(key).phase is Phase.PENDING


def test_a_gang_waits_whole_and_is_ended_whole() -> None:
    world = lab("n0", "n1", ends_running=True)
    key = gang(world, "wide", workers=2, gpus=2)
    world.settle()
    assert world.workload(key).reason == WaitingReason.OUTSIDE_WINDOW
    at(world, OPENS)
    assert world.workload(key).pods.live.size == 2

    plans = at(world, CLOSES)

    assert [(each.reason, len(each.pods)) for planned in plans for each in planned.evictions] == [("window_closed", 2)]


def test_other_projects_start_meanwhile_and_have_its_share() -> None:
    """What could not start now speaks for nothing: another project has the whole cluster, and loses nothing to it."""
    world = lab("n0")
    other = world.project("other")
    started(world, "closed")
    keys = [started(world, f"o{n}", project_id=other) for n in range(4)]
    assert all(world.places(key) for key in keys)
    assert not [each for planned in at(world, OPENS - timedelta(hours=1)) for each in planned.evictions]


def test_what_can_never_start_says_so_also_outside_its_window() -> None:
    world = lab("n0")
    key = world.submit("huge", gpu_devices_request=64)
    world.settle()
    assert world.workload(key).reason == WaitingReason.NO_MATCHING_NODE


def test_windows_that_are_taken_away_let_it_start_at_once() -> None:
    world = lab("n0")
    key = started(world, "w")
    setting(world)
    world.settle()
    assert world.places(key)
    assert world.fold.next_due() is None


def test_between_two_changes_nothing_happens() -> None:
    world = lab("n0")
    started(world, "w")
    before = len(world.commits)
    for hour in (13, 15, 19):
        at(world, MONDAY + timedelta(hours=hour))
    assert len(world.commits) == before


def test_a_clock_that_is_set_back_closes_it_again() -> None:
    world = lab("n0")
    at(world, OPENS)
    world.now = OPENS - timedelta(minutes=5)
    key = started(world, "w")
    assert world.workload(key).reason == WaitingReason.OUTSIDE_WINDOW


@pytest.mark.parametrize("hours", [12, 20, 25, 30])
def test_the_same_follows_from_the_log_read_anew_and_from_a_snapshot(hours: int) -> None:
    world = lab("n0", ends_running=True)
    world.now = OPENS
    started(world, "soft")
    world.now = MONDAY + timedelta(days=1, hours=hours)
    restored = SchedulingState()
    restored.restore(world.fold.seq, world.fold.chains, beside=world.fold.beside())
    kept = world.fold.snapshot(world.now)
    for fold in (fresh(world), restored):
        of = fold.snapshot(world.now)
        assert (of.projects, of.must_leave) == (kept.projects, kept.must_leave)


def test_who_sets_windows_that_end_what_runs_outside_of_them_has_it_told_why() -> None:
    """No window has closed."""
    world = lab("n0", windows=())
    key = started(world, "soft")
    setting(world, "Mon-Fri 20:00-06:00", ends_running=True)
    evicted = [each for planned in world.settle() for each in planned.evictions]
    assert [each.key for each in evicted] == [key]
    assert evicted[0].message == "it runs outside of the windows of its project (Mon-Fri 20:00-06:00 UTC)"


def test_where_the_windows_change_and_the_next_one_opens_as_before_the_reason_says_the_new_ones() -> None:
    """What the log told before names windows that there are no more."""
    world = lab("n0")
    key = started(world, "w")
    setting(world, "Mon-Fri 20:00-04:00")
    at(world, world.now + timedelta(seconds=11))
    assert "Mon-Fri 20:00-04:00 UTC" in world.workload(key).message
    assert "the next one opens at 2026-03-02 20:00 UTC" in world.workload(key).message


# -- windows for what is over quota -----------------------------------------------------------------------------------


def over_quota(quota: int | None = 2_000, **more: Any) -> World:
    """Of four GPUs two are the project's, at noon of a Monday, when its window is closed."""
    world = lab("n0")
    windows = StartWindows(zone="UTC", windows=(read_window("Mon-Fri 20:00-06:00"),), over_quota_only=True)
    world.do("project", project_key("default"), SetStartWindows(project_id=world.project_id, windows=windows))
    change = ChangeProject(project_id=world.project_id, gpu_quota_milli=quota, **more)
    world.do("project", project_key("default"), change)
    return world


def test_outside_its_windows_a_project_stays_within_its_quota_and_in_them_it_goes_over_it() -> None:
    world = over_quota()
    keys = [started(world, f"w{n}") for n in range(4)]

    assert [bool(world.places(key)) for key in keys] == [True, True, False, False]
    state = world.workload(keys[2])
    assert state.reason == WaitingReason.OUTSIDE_WINDOW
    assert "goes over its quota only in its windows" in state.message
    assert "hold 2 GPUs of 2 GPUs; the next one opens at 2026-03-02 20:00 UTC" in state.message
    at(world, OPENS)
    assert all(world.places(key) for key in keys)
    for index in (2, 3):
        world.fact(keys[index], "running")
    assert not [each for plan in at(world, CLOSES) for each in plan.evictions], "what runs goes on"
    world.fact(keys[0], "succeeded")
    world.settle()
    late = started(world, "late")
    assert world.workload(late).reason == WaitingReason.OUTSIDE_WINDOW, "three go on of two"
    assert not world.check().violations


@pytest.mark.parametrize(("quota", "starts"), [(None, False), (0, False), (1_000, True)])
def test_a_project_without_a_quota_uses_gpus_only_in_such_windows(quota: int | None, *, starts: bool) -> None:
    world = over_quota(quota)
    assert bool(world.places(started(world, "w"))) is starts
    assert world.places(world_without_gpu(world))


def test_what_is_non_preemptible_and_within_the_quota_starts_whatever_its_project_holds_beyond_it() -> None:
    """Given a project that went over its quota by what is preemptible, when its window has closed, then what is
    non-preemptible starts as far as the quota goes, and what is preemptible waits.
    """
    world = over_quota()
    world.node("n1", gpu_count=4)
    at(world, OPENS)
    assert all(world.places(started(world, f"soft-{n}")) for n in range(3))
    at(world, CLOSES)

    firm = world.submit("firm", gpu_devices_request=2, preemptibility="non-preemptible")
    world.settle()
    more = started(world, "more", preemptibility="non-preemptible")
    soft = started(world, "soft")

    assert world.places(firm)
    assert world.workload(more).reason == WaitingReason.QUOTA_USED
    assert world.workload(soft).reason == WaitingReason.OUTSIDE_WINDOW
    assert not world.check().violations


def test_without_a_quota_also_what_is_non_preemptible_waits_for_the_window() -> None:
    world = over_quota(None)
    firm = started(world, "firm", preemptibility="non-preemptible")
    assert world.workload(firm).reason == WaitingReason.OUTSIDE_WINDOW


def world_without_gpu(world: World) -> str:
    key = world.submit("cpu", gpu_devices_request=0)
    world.settle()
    return key


def test_quotas_of_node_pools_are_its_quota_where_it_has_no_other() -> None:
    world = over_quota(None, pool_quotas=(PoolQuota(node_pool="default", gpu_quota_milli=1_000),))
    first, second = started(world, "a"), started(world, "b")
    assert world.places(first)
    assert world.workload(second).reason == WaitingReason.OUTSIDE_WINDOW


def test_what_is_wider_than_the_quota_waits_for_the_window_and_not_for_ever() -> None:
    world = over_quota()
    key = world.submit("wide", gpu_devices_request=3)
    world.settle()
    assert world.workload(key).reason == WaitingReason.OUTSIDE_WINDOW
    at(world, OPENS)
    assert world.places(key)


def test_explain_names_the_window_that_lets_it_go_over_its_quota() -> None:
    world = over_quota()
    keys = [started(world, f"w{n}") for n in range(3)]
    found = why(world.fold, world.workload(keys[2]).workload_id, world.now, None)
    assert found.reason == "outside_window"
    assert found.changes[0].message.startswith("wait until 2026-03-02 20:00 UTC")
    assert found.no_estimate.startswith("not before its project's next window opens")


def test_the_same_follows_from_the_log_read_anew_of_windows_for_what_is_over_quota() -> None:
    world = over_quota()
    for n in range(3):
        started(world, f"w{n}")
    for moment in (world.now, OPENS, CLOSES):
        world.now = moment
        kept, of = world.fold.snapshot(moment), fresh(world).snapshot(moment)
        assert of.projects == kept.projects
        assert of.held_milli == kept.held_milli


def test_nothing_is_ended_by_a_window_for_what_is_over_quota() -> None:
    windows = StartWindows(zone="UTC", windows=(read_window("20:00-06:00"),), over_quota_only=True, ends_running=True)
    with pytest.raises(ValueError, match="over quota"):
        SetStartWindows(project_id="x", windows=windows)
