"""Reservations of capacity: before, while they hold, and when they are over (issue 14 section 2; ADR 0133)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from events.capacity import CancelCapacityReservation, ReserveCapacity
from events.cluster import NodePool, SetNodePool
from events.codec import decode_commit, encode_commit
from events.department import department_key
from events.ids import cluster_key, project_key
from events.phases import Phase, PodPhase, WaitingReason
from events.project import ChangeProject, DeleteProject
from events.refusal import Refusal
from events.workload.fields.metadata import Label
from services.scheduler.classes import ENDS_LATE_SECONDS
from services.scheduler.fold import SchedulingState
from services.scheduler.policy.filters.calendar import told_of
from services.scheduler.simulation.ledger import RefusedError
from services.scheduler.snapshot import Plan
from tests.scheduler.test_maintenance import FIRM, HOUR, fresh, limit
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World

CPU_POOL = NodePool(name="cpu", label_key="pool", label_value="cpu")


class Lab(World):
    """With two projects, of which the second one reserves."""

    def __init__(self, *nodes: str, **facts: Any) -> None:
        super().__init__()
        self.cluster(pools=("gpu",))
        self.project()
        self.owner = self.project("owner")
        given: dict[str, Any] = {"gpu_count": 4} | facts
        for name in nodes:
            self.node(name, **given)

    def reserve(self, *nodes: str, after: timedelta = 2 * HOUR, lasts: timedelta = HOUR, **more: Any) -> datetime:
        """When it begins."""
        given: dict[str, Any] = {"name": "bench", "new": True, "project_id": self.owner, "project_name": "owner"} | more
        starts = self.now + after
        command = ReserveCapacity(
            cluster_id=self.cluster_id,
            nodes=nodes,
            starts_at=starts,
            ends_at=starts + lasts,
            **given,
        )
        self.do("cluster", cluster_key("local"), command)
        return starts

    def begun(self, name: str, **spec: Any) -> str:
        given: dict[str, Any] = {"gpu_devices_request": 1} | spec
        key = self.submit(name, **given)
        self.settle()
        for index in self.places(key):
            self.fact(key, "running", index=index)
        return key

    def at(self, moment: datetime) -> list[Plan]:
        self.now = moment
        return self.settle()

    def reason(self, key: str) -> str:
        return "" if self.places(key) else self.workload(key).reason


def test_before_it_what_gives_way_is_let_in_and_what_does_not_is_not_but_the_owner_is() -> None:
    lab = Lab("n0")
    starts = lab.reserve("n0")

    soft, firm, own = lab.begun("soft"), lab.begun("firm", **FIRM), lab.begun("own", project_id=lab.owner, **FIRM)

    assert lab.places(soft)
    assert lab.places(own)
    state = lab.workload(firm)
    assert state.reason == WaitingReason.CAPACITY_RESERVED
    assert "reservation bench for project owner" in state.message
    assert f"{starts:%Y-%m-%d %H:%M}" in state.message
    assert not lab.check().violations


@pytest.mark.parametrize(("spare", "starts"), [(10, True), (-10, False)])
def test_what_has_ended_by_its_limit_before_it_begins_is_let_in(spare: int, *, starts: bool) -> None:
    lab = Lab("n0")
    lab.reserve("n0")
    limit(lab, 2 * 3600 - 30 - ENDS_LATE_SECONDS - spare)
    key = lab.begun("firm", termination_grace_period_seconds=30, **FIRM)
    assert lab.reason(key) == ("" if starts else WaitingReason.CAPACITY_RESERVED)


def test_when_it_begins_others_give_way_and_until_it_is_over_only_the_owner_starts() -> None:
    lab = Lab("n0")
    soft = lab.begun("soft")
    starts = lab.reserve("n0")
    assert lab.fold.next_due() == starts - HOUR, "the longest grace"

    plans = lab.at(starts)

    evicted = [(each.name, each.reason) for planned in plans for each in planned.evictions]
    assert evicted == [("soft", "reserved")]
    lab.fact(soft, "stopped")
    own = lab.begun("own", project_id=lab.owner, gpu_devices_request=4)
    assert lab.places(own)
    lab.fact(own, "succeeded")
    lab.settle()
    assert lab.reason(soft) == WaitingReason.CAPACITY_RESERVED, "also while the owner leaves it idle"
    lab.at(starts + HOUR)
    assert lab.places(soft)
    assert not lab.check().violations


def test_what_gives_way_is_told_a_grace_before_it_begins_and_does_not_come_back() -> None:
    """Else a long grace takes the time that is kept for others, also where pods come at the last second."""
    lab = Lab("n0")
    soft, slow = lab.begun("soft"), lab.begun("slow", termination_grace_period_seconds=3600)
    starts = lab.reserve("n0", lead_seconds=0)

    lab.at(starts - HOUR - timedelta(seconds=1))
    assert lab.workload(slow).phase is Phase.RUNNING
    lab.at(starts - HOUR)
    assert lab.workload(slow).pods["main", 0].phase is PodPhase.STOPPING
    assert f"from {starts:%Y-%m-%d %H:%M} UTC on: reservation bench" in lab.workload(slow).message
    lab.fact(slow, "stopped")
    lab.settle()
    assert lab.reason(slow) == WaitingReason.CAPACITY_RESERVED
    assert lab.workload(soft).phase is Phase.RUNNING
    assert lab.places(lab.begun("late")), "its grace of 30 s is over before"
    assert lab.places(lab.begun("firm", **FIRM)), "its lead time is none"
    assert lab.fold.next_due() == starts - timedelta(seconds=30)
    lab.at(starts - timedelta(seconds=30))
    assert lab.workload(soft).pods["main", 0].phase is PodPhase.STOPPING
    assert lab.reason(lab.begun("last")) == WaitingReason.CAPACITY_RESERVED
    assert not lab.check().violations


def test_what_is_non_preemptible_and_was_there_before_its_lead_time_stays() -> None:
    lab = Lab("n0")
    key = lab.begun("firm", **FIRM)
    starts = lab.reserve("n0")
    lab.at(starts)
    assert lab.workload(key).phase is Phase.RUNNING


def test_so_many_gpus_are_the_first_nodes_that_have_as_many() -> None:
    lab = Lab("n0", "n1", "n2", pool="gpu")
    starts = lab.reserve(node_pools=("gpu",), gpus=6)
    lab.at(starts)
    key = lab.begun("w", **FIRM)
    assert lab.places(key)[0][0] == "n2"
    assert lab.reason(lab.begun("wide", gpu_devices_request=4, **FIRM)) == WaitingReason.INSUFFICIENT_GPU


def test_where_a_node_leaves_the_pool_another_one_takes_its_place() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    soft = {lab.places(key)[0][0]: key for key in (lab.begun(f"s{n}", gpu_devices_request=4) for n in range(2))}
    starts = lab.reserve(node_pools=("gpu",), gpus=4)

    def evicted(plans: list[Plan]) -> set[str]:
        return {each.key for planned in plans for each in planned.evictions}

    assert evicted(lab.at(starts)) == {soft["n0"]}
    lab.node("n0", gpu_count=4, pool="default")
    assert evicted(lab.settle()) == {soft["n1"]}


def test_a_weekly_one_comes_again_and_is_gone_in_between() -> None:
    lab = Lab("n0")
    starts = lab.reserve("n0", weekly=True)
    for week in range(3):
        begins = starts + timedelta(days=7 * week)
        lab.at(begins)
        key = lab.begun(f"in-{week}", **FIRM)
        assert lab.reason(key) == WaitingReason.CAPACITY_RESERVED
        lab.at(begins + HOUR)
        assert lab.places(key)
        lab.fact(key, "running")
        lab.fact(key, "succeeded")
        lab.settle()
        assert lab.fold.next_due() == begins + timedelta(days=7) - HOUR


def test_between_its_boundaries_nothing_happens() -> None:
    lab = Lab("n0")
    starts = lab.reserve("n0")
    lab.at(starts)
    before = len(lab.commits)
    lab.at(starts + HOUR / 2)
    assert len(lab.commits) == before
    assert lab.fold.next_due() == starts + HOUR
    lab.at(starts + HOUR)
    assert lab.fold.next_due() is None


def test_where_it_is_cancelled_everybody_may_use_the_nodes_at_once() -> None:
    lab = Lab("n0")
    starts = lab.reserve("n0")
    lab.at(starts)
    key = lab.begun("firm", **FIRM)
    assert not lab.places(key)
    command = CancelCapacityReservation(cluster_id=lab.cluster_id, name="bench")
    lab.do("cluster", cluster_key("local"), command)
    lab.settle()
    assert lab.places(key)


def test_where_the_project_is_deleted_everybody_may_use_the_nodes_and_nobody_gives_way() -> None:
    lab = Lab("n0", "n1")
    starts = lab.reserve("n0", lasts=48 * HOUR)
    lab.reserve("n1", name="later", after=8 * HOUR)
    lab.at(starts)
    firm = lab.begun("firm", gpu_devices_request=4, **FIRM)
    assert not lab.places(firm)

    lab.do("project", project_key("owner"), DeleteProject(project_id=lab.owner))
    lab.settle()

    assert lab.places(firm)
    soft = lab.begun("soft", gpu_devices_request=4)
    lab.at(starts + 6 * HOUR)
    assert lab.workload(soft).phase is Phase.RUNNING
    assert lab.fold.next_due() is None
    restored = SchedulingState()
    restored.restore(lab.fold.seq, lab.fold.chains, beside=lab.fold.beside())
    for fold in (fresh(lab), restored, lab.fold):
        assert fold.snapshot(lab.now).nodes.closings == ()
    assert not lab.check().violations


def test_what_waited_for_it_by_a_clock_that_was_ahead_starts_once_that_is_set_back() -> None:
    lab = Lab("n0")
    starts, began = lab.reserve("n0", after=48 * HOUR), lab.now
    lab.now = starts + HOUR / 2
    key = lab.begun("w")
    assert lab.reason(key) == WaitingReason.CAPACITY_RESERVED
    lab.at(began + timedelta(minutes=1))
    assert lab.places(key)


def test_where_it_is_given_to_another_project_the_former_owner_gives_way() -> None:
    lab = Lab("n0")
    starts = lab.reserve("n0")
    lab.at(starts)
    own = lab.begun("own", project_id=lab.owner)
    lab.owner = lab.project_id
    lab.reserve("n0", after=timedelta(0), new=False)
    evicted = [each.name for planned in lab.settle() for each in planned.evictions]
    assert evicted == ["own"]
    assert lab.workload(own).phase is Phase.PENDING


def test_a_gang_of_others_is_told_to_end_whole() -> None:
    lab = Lab("n0", "n1")
    gang(lab, "wide", workers=2, gpus=4)
    lab.settle()
    starts = lab.reserve("n0")
    evicted = [(e.reason, len(e.pods)) for planned in lab.at(starts) for e in planned.evictions]
    assert evicted == [("reserved", 2)]


def test_the_same_follows_from_the_log_read_anew_and_from_a_snapshot() -> None:
    """Kept state equals a fresh fold, before, while it holds, between two times, and in the next week."""
    lab = Lab("n0", "n1", pool="gpu")
    starts = lab.reserve(node_pools=("gpu",), gpus=3, weekly=True)
    lab.begun("soft")
    week = timedelta(days=7)
    for moment in (starts - HOUR, starts, starts + HOUR, starts + week - HOUR, starts + week, starts + week + HOUR):
        lab.now = moment
        lab.submit(f"firm-{moment:%d%H%M}", gpu_devices_request=4, **FIRM)
        restored = SchedulingState()
        restored.restore(lab.fold.seq, lab.fold.chains, beside=lab.fold.beside())
        kept = lab.fold.snapshot(lab.now)
        for fold in (fresh(lab), restored):
            of = fold.snapshot(lab.now)
            assert of.must_leave == kept.must_leave
            assert [(c.called, c.rows.tolist(), c.left_seconds) for c in of.nodes.closings] == [
                (c.called, c.rows.tolist(), c.left_seconds) for c in kept.nodes.closings
            ]
        lab.settle()
    assert not lab.check().violations


def of_department(lab: Lab) -> str:
    """A project of the department `ai` with a reservation of n0 that begins in two hours; its id."""
    where = department(lab, "ai")
    mate = lab.project("mate", **where)
    lab.owner = lab.project("kin", **where)
    lab.reserve("n0", project_id="", project_name="", **where)
    return mate


def test_for_a_department_all_of_its_projects_may_use_the_nodes_and_nobody_else() -> None:
    lab = Lab("n0")
    mate = of_department(lab)
    soft = lab.begun("soft")
    lab.at(lab.now + 2 * HOUR)
    assert lab.workload(soft).pods["main", 0].phase is PodPhase.STOPPING
    assert "kept for department ai" in lab.workload(soft).message
    lab.fact(soft, "stopped")
    assert lab.places(lab.begun("one", project_id=mate, **FIRM))
    assert lab.places(lab.begun("two", project_id=lab.owner, **FIRM))
    other = lab.begun("other", **FIRM)
    assert lab.reason(other) == WaitingReason.CAPACITY_RESERVED
    assert "reservation bench for department ai until" in lab.workload(other).message
    assert not lab.check().violations


def test_a_project_that_leaves_the_department_gives_way_and_one_that_comes_gets_in() -> None:
    lab = Lab("n0")
    mate = of_department(lab)
    lab.at(lab.now + 2 * HOUR)
    theirs = lab.begun("theirs", project_id=mate)
    ours = lab.begun("ours", **FIRM)
    assert lab.places(theirs)
    assert not lab.places(ours)
    elsewhere, ai = department(lab, "else"), lab.chain("department", department_key("ai")).state.department_id
    lab.do("project", project_key("mate"), ChangeProject(project_id=mate, **elsewhere))
    into = ChangeProject(project_id=lab.project_id, department_id=ai, department_name="ai")
    lab.do("project", project_key("default"), into)
    lab.settle()
    assert lab.workload(theirs).pods["main", 0].phase is PodPhase.STOPPING
    assert lab.places(ours)
    assert_kept(lab)


def test_for_workloads_with_labels_those_get_in_that_have_all_of_them_whatever_their_project_is() -> None:
    lab = Lab("n0")
    lab.reserve("n0", project_id="", project_name="", workload_labels={"team": "nlp", "use": "demo"})
    soft = lab.begun("soft", labels=(Label(name="team", value="nlp"),))
    lab.at(lab.now + 2 * HOUR)
    both = Label(name="team", value="nlp"), Label(name="use", value="demo")
    assert lab.workload(soft).pods["main", 0].phase is PodPhase.STOPPING, "it has one of two"
    assert lab.places(lab.begun("demo", labels=both, **FIRM))
    assert lab.places(lab.begun("demo", project_id=lab.owner, labels=both))
    late = lab.begun("late", labels=(Label(name="team", value="nlp"), Label(name="use", value="test")))
    assert lab.reason(late) == WaitingReason.CAPACITY_RESERVED
    assert "for workloads with team=nlp,use=demo until" in lab.workload(late).message
    assert told_of(lab.workload(late).message)
    assert_kept(lab)


def test_of_a_project_only_workloads_with_the_label_get_in() -> None:
    lab = Lab("n0")
    lab.reserve("n0", after=timedelta(0), workload_labels={"use": "demo"})
    lab.settle()
    demo = (Label(name="use", value="demo"),)
    assert lab.places(lab.begun("mine", project_id=lab.owner, labels=demo))
    assert not lab.places(lab.begun("other", labels=demo))
    plain = lab.begun("plain", project_id=lab.owner)
    assert not lab.places(plain)
    assert "for project owner with use=demo until" in lab.workload(plain).message


def test_where_the_labels_of_a_reservation_change_who_waits_is_looked_at_again() -> None:
    lab = Lab("n0")
    lab.reserve("n0", after=timedelta(0), workload_labels={"use": "demo"})
    lab.settle()
    key = lab.begun("w", project_id=lab.owner, labels=(Label(name="use", value="test"),))
    assert not lab.places(key)
    lab.reserve("n0", after=timedelta(0), new=False, workload_labels={"use": "test"})
    lab.settle()
    assert lab.places(key)
    assert_kept(lab)


def assert_kept(lab: Lab) -> None:
    """What the fold has kept is what another one finds out from the log, or from a snapshot."""
    restored = SchedulingState()
    restored.restore(lab.fold.seq, lab.fold.chains, beside=lab.fold.beside())
    kept = lab.fold.snapshot(lab.now)
    for fold in (fresh(lab), restored):
        of = fold.snapshot(lab.now)
        assert of.must_leave == kept.must_leave
        assert [queue.pod_class for queue in of.queues] == [queue.pod_class for queue in kept.queues]
        assert [(*each[:1], each.rows.tolist(), *each[2:]) for each in of.nodes.closings] == [
            (*each[:1], each.rows.tolist(), *each[2:]) for each in kept.nodes.closings
        ]


def test_so_many_nodes_are_the_first_ones_with_gpus_or_without() -> None:
    lab = Lab("n1", "n2", pool="gpu")
    lab.node("n0", gpu_count=0, pool="gpu")
    lab.reserve(node_pools=("gpu",), node_count=2, after=timedelta(0))
    lab.settle()
    assert lab.places(lab.begun("w", **FIRM))[0][0] == "n2"
    small = lab.begun("small", gpu_devices_request=0, cpu_core_request=20.0, **FIRM)
    assert lab.places(small)[0][0] == "n2"


def kept_by(lab: Lab) -> dict[str, list[str]]:
    nodes = lab.fold.snapshot(lab.now).nodes
    return {each.called.split()[1]: [nodes.names[row] for row in each.rows.nonzero()[0]] for each in nodes.closings}


def test_two_projects_that_want_so_much_of_one_pool_have_other_nodes_of_it_and_keep_them() -> None:
    """Given three of one pool, when the first is over, or one comes that begins earlier, then nobody's nodes change."""
    lab = Lab("n0", "n1", "n2", "n3", pool="gpu")
    whose: dict[str, Any] = {"project_id": lab.project_id, "project_name": "default"}
    starts = lab.reserve(name="one", node_pools=("gpu",), gpus=4, lasts=2 * HOUR)
    lab.reserve(name="two", node_pools=("gpu",), node_count=1, after=3 * HOUR, lasts=4 * HOUR, **whose)
    lab.reserve(name="mine", node_pools=("gpu",), gpus=3, after=3 * HOUR, lasts=HOUR)
    assert kept_by(lab) == {"one": ["n0"], "two": ["n1"], "mine": ["n2"]}
    lab.reserve(name="early", node_pools=("gpu",), gpus=99, after=HOUR, lasts=48 * HOUR, **whose)
    assert kept_by(lab) == {"one": ["n0"], "two": ["n1"], "mine": ["n2"], "early": ["n3"]}
    lab.now = starts + 3 * HOUR
    assert kept_by(lab) == {"two": ["n1"], "early": ["n3"]}
    assert_kept(lab)


def exactly(lab: Lab, gpus: int, **more: Any) -> datetime:
    given: dict[str, Any] = {"node_pools": ("gpu",)} | more
    return lab.reserve(gpus=gpus, exact=True, **given)


def devices(lab: Lab, key: str) -> list[int]:
    return [share[0] for _, shares in lab.places(key).values() for share in shares]


def test_exactly_so_many_gpus_leave_the_rest_of_the_node_to_others() -> None:
    lab = Lab("n0", gpu_count=8, pool="gpu")
    exactly(lab, 3, after=timedelta(0))
    lab.settle()
    others = [lab.begun(f"o{n}", gpu_devices_request=2, **FIRM) for n in range(3)]
    assert [devices(lab, key) for key in others] == [[3, 4], [5, 6], []]
    assert lab.reason(others[2]) == WaitingReason.CAPACITY_RESERVED
    assert devices(lab, lab.begun("small", gpu_devices_request=1)) == [7]
    own = lab.begun("own", project_id=lab.owner, gpu_devices_request=3)
    assert devices(lab, own) == [0, 1, 2]
    assert not lab.check().violations
    assert_kept(lab)


def test_two_have_other_gpus_of_one_node() -> None:
    lab = Lab("n0", "n1", gpu_count=8, pool="gpu")
    whose: dict[str, Any] = {"project_id": lab.project_id, "project_name": "default"}
    exactly(lab, 10, name="one", after=timedelta(0))
    exactly(lab, 4, name="two", after=timedelta(0), **whose)
    lab.settle()
    mine = lab.begun("mine", gpu_devices_request=4, **FIRM)
    assert (lab.places(mine)[0][0], devices(lab, mine)) == ("n1", [2, 3, 4, 5])
    assert devices(lab, lab.begun("more", gpu_devices_request=2)) == [6, 7]
    assert not lab.places(lab.begun("most", gpu_devices_request=1))
    wide = lab.begun("wide", project_id=lab.owner, gpu_devices_request=8)
    assert lab.places(wide)[0][0] == "n0"
    assert devices(lab, lab.begun("rest", project_id=lab.owner, gpu_devices_request=2)) == [0, 1]
    assert not lab.check().violations


def test_when_it_begins_those_end_that_hold_its_gpus_and_others_stay() -> None:
    lab = Lab("n0", gpu_count=4, pool="gpu")
    softs = [lab.begun(f"s{n}") for n in range(4)]
    starts = exactly(lab, 2)
    lab.at(starts - timedelta(seconds=30))
    phases = [lab.workload(key).pods["main", 0].phase for key in softs]
    assert phases == [PodPhase.STOPPING] * 2 + [PodPhase.RUNNING] * 2
    for key in softs[:2]:
        lab.fact(key, "stopped")
    lab.settle()
    assert [lab.reason(key) for key in softs[:2]] == [WaitingReason.CAPACITY_RESERVED] * 2
    assert devices(lab, lab.begun("own", project_id=lab.owner, gpu_devices_request=2)) == [0, 1]
    lab.at(starts + HOUR)
    assert not lab.check().violations


def test_its_part_of_cpu_and_memory_is_kept_with_its_gpus() -> None:
    """Given a node of 4 GPUs and 32 cores, when 2 GPUs are kept, then so are 16 cores, until those use them."""
    lab = Lab("n0", gpu_count=4, pool="gpu")
    early = [lab.begun(f"c{n}", gpu_devices_request=0, cpu_core_request=8.0) for n in range(4)]
    assert all(lab.places(key) for key in early)
    starts = exactly(lab, 2, lead_seconds=0)
    lab.at(starts - timedelta(seconds=30))
    stopping = [key for key in early if lab.workload(key).pods["main", 0].phase is PodPhase.STOPPING]
    assert len(stopping) == 2, "as many as keep its part from it"
    for key in stopping:
        lab.fact(key, "stopped")
    lab.at(starts)
    assert [lab.reason(key) for key in stopping] == [WaitingReason.CAPACITY_RESERVED] * 2
    own = lab.begun("own", project_id=lab.owner, gpu_devices_request=2, cpu_core_request=4.0)
    assert lab.places(own)
    assert sum(bool(lab.places(key)) for key in stopping) == 1, "its GPUs are in use: what else there is, is free"
    assert not lab.check().violations


@pytest.mark.parametrize(
    "more",
    [
        {"gpus": 1, "node_count": 1},
        {"node_count": 0},
        {"exact": True},
        {"exact": True, "node_count": 1},
        {"project_id": ""},
        {"department_id": "x"},
    ],
)
def test_no_command_can_ask_for_what_cannot_be(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Lab("n0").reserve("n0", **more)


def refused(lab: Lab, *nodes: str, **more: Any) -> Refusal:
    with pytest.raises(RefusedError) as caught:
        lab.reserve(*nodes, **more)
    return caught.value.refusal


@pytest.mark.parametrize("starts", [datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, 12, tzinfo=UTC)])
def test_a_weekly_one_that_begins_before_there_were_gpus_is_refused_and_the_log_can_be_read(starts: datetime) -> None:
    """Given a beginning whose year has a digit too few, when it is to be reserved, then it is refused by name."""
    lab = Lab("a")
    refusal = refused(lab, "a", after=starts - lab.now, weekly=True)
    assert (refusal.code, refusal.field) == ("invalid", "startsAt")
    assert "366 days ago" in refusal.message
    for commit in lab.commits:
        decode_commit(f"ev.{commit.aggregate}.{commit.key}", commit.seq, encode_commit(commit.record))


def test_one_that_has_come_again_for_years_can_still_be_changed() -> None:
    lab = Lab("a")
    starts = lab.reserve("a", weekly=True)
    lab.now += timedelta(days=800)
    lab.reserve("a", weekly=True, new=False, after=starts - lab.now, lead_seconds=7)
    assert lab.chain("cluster", cluster_key("local")).state.reserved[0].lead_seconds == 7


def test_one_that_is_over_as_soon_as_it_begins_is_refused() -> None:
    assert "a minute" in refused(Lab("a"), "a", lasts=timedelta(seconds=59)).message


OTHER_WEEK = timedelta(days=7 * 30)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"weekly": True}, {"after": 2 * HOUR + OTHER_WEEK}),
        ({"after": 2 * HOUR + OTHER_WEEK}, {"weekly": True}),
        ({"weekly": True}, {"after": 1.5 * HOUR + OTHER_WEEK, "weekly": True}),
        ({"weekly": True, "lasts": timedelta(days=6)}, {"after": timedelta(days=-1), "weekly": True}),
        ({"nodes": ("b", "a")}, {}),
        ({"nodes": (), "node_pools": ("gpu",)}, {"nodes": (), "node_pools": ("gpu",), "gpus": 4}),
        ({"nodes": (), "node_pools": ("gpu",)}, {"nodes": (), "labels": {"rack": "4"}}),
        ({"nodes": (), "node_pools": ("gpu",)}, {}),
    ],
)
def test_two_projects_cannot_be_given_the_same_nodes_for_the_same_time(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Given a reservation, when another project is to have nodes then that may be the same, then the first is named."""
    lab = Lab("a", "b")
    given: dict[str, Any] = {"nodes": ("a",)} | first
    lab.reserve(*given.pop("nodes"), name="mine", **given)
    wanted: dict[str, Any] = {"nodes": ("a",), "project_id": lab.project_id, "project_name": "default"} | second
    refusal = refused(lab, *wanted.pop("nodes"), **wanted)
    assert (refusal.code, refusal.field) == ("invalid", "startsAt")
    assert "'mine'" in refusal.message
    assert "'owner'" in refusal.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"after": 3 * HOUR}),
        ({}, {"after": HOUR}),
        ({}, {"nodes": ("b",)}),
        ({}, {"after": 2 * HOUR + OTHER_WEEK, "weekly": True}),
        ({"weekly": True}, {"after": 2 * HOUR + OTHER_WEEK + timedelta(days=1)}),
        ({"weekly": True}, {"after": 3 * HOUR, "weekly": True}),
        ({"nodes": (), "labels": {"rack": "3"}}, {"nodes": (), "labels": {"rack": "4"}}),
        ({"node_pools": ("gpu",)}, {"node_pools": ("cpu",)}),
        ({"nodes": (), "node_pools": ("gpu",), "gpus": 3}, {"nodes": (), "node_pools": ("gpu",), "node_count": 2}),
        ({}, {"gone_projects": ("owner",)}),
        ({}, {"project_id": "owner"}),
    ],
)
def test_what_does_not_meet_is_reserved(first: dict[str, Any], second: dict[str, Any]) -> None:
    lab = Lab("a", "b")
    lab.do("cluster", cluster_key("local"), SetNodePool(cluster_id=lab.cluster_id, pool=CPU_POOL))
    given: dict[str, Any] = {"nodes": ("a",)} | first
    lab.reserve(*given.pop("nodes"), name="mine", **given)
    wanted: dict[str, Any] = {"nodes": ("a",), "project_id": lab.project_id, "project_name": "default"} | second
    if wanted["project_id"] == "owner":
        wanted["project_id"] = lab.owner
    if "gone_projects" in wanted:
        wanted["gone_projects"] = (lab.owner,)
    lab.reserve(*wanted.pop("nodes"), **wanted)
    assert len(lab.chain("cluster", cluster_key("local")).state.reserved) == 2
