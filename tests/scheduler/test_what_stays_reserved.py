"""Which nodes a reservation has does not change because an earlier one is over, changed or cancelled (issue 14 section
2; ADR 0143).
"""

from datetime import timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.capacity import CancelCapacityReservation
from events.ids import cluster_key, node_key, project_key
from events.node import CordonNode
from events.project import DeleteProject
from events.reserved_shares import LOOKED_THROUGH, Parts, needed, shared_out
from services.scheduler.simulation.ledger import RefusedError
from tests.scheduler.test_capacity import HOUR, Lab, assert_kept, kept_by

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def reserve(lab: Lab, name: str, count: int = 1, after: timedelta = HOUR, lasts: timedelta = DAY, **more: Any) -> None:
    """So many nodes of the pool."""
    given: dict[str, Any] = {"node_pools": ("gpu",), "node_count": count} | more
    lab.reserve(name=name, after=after, lasts=lasts, **given)
    lab.now += MINUTE


def cancel(lab: Lab, name: str, **more: Any) -> None:
    command = CancelCapacityReservation(cluster_id=lab.cluster_id, name=name, **more)
    lab.do("cluster", cluster_key("local"), command)
    lab.now += MINUTE


def devices_by(lab: Lab) -> dict[str, dict[str, tuple[int, ...]]]:
    nodes = lab.fold.snapshot(lab.now).nodes
    return {
        each.called.split()[1]: {nodes.names[row]: devices for row, devices in each.parts.items()}
        for each in nodes.closings
    }


def evicted(lab: Lab) -> list[str]:
    return [each.name for planned in lab.settle() for each in planned.evictions]


@pytest.mark.parametrize("weekly", [False, True])
def test_what_is_over_for_so_long_that_no_list_has_it_moves_nobody(*, weekly: bool) -> None:
    lab = Lab("n0", "n1", "n2", pool="gpu")
    reserve(lab, "one", after=timedelta(0), lasts=2 * HOUR)
    reserve(lab, "two", lasts=6 * DAY if weekly else 60 * DAY, weekly=weekly)
    lab.now += 36 * DAY
    lab.begun("soft", gpu_devices_request=4)
    before = kept_by(lab)["two"]

    reserve(lab, "other", after=100 * DAY, lasts=HOUR)

    cluster = lab.chain("cluster", cluster_key("local")).state
    assert [each.name for each in cluster.reserved] == ["two", "other"]
    assert (kept_by(lab)["two"], evicted(lab)) == (before, [])
    assert_kept(lab)


def test_once_the_one_that_met_it_is_over_too_neither_is_remembered() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    reserve(lab, "one", lasts=2 * HOUR)
    reserve(lab, "two", lasts=2 * HOUR)
    lab.now += 36 * DAY
    reserve(lab, "other", after=DAY)
    cluster = lab.chain("cluster", cluster_key("local")).state
    assert needed(cluster.formerly_reserved, cluster.reserved, lab.now) == ()


@pytest.mark.parametrize("how", ["cancelled", "moved", "smaller", "for a deleted project"])
def test_one_that_holds_stays_where_it_is_when_an_earlier_one_goes(how: str) -> None:
    lab = Lab("n0", "n1", "n2", pool="gpu")
    other = lab.project("other")
    reserve(lab, "one", count=2, project_id=other, project_name="other")
    reserve(lab, "two")
    lab.now += 2 * HOUR
    lab.settle()
    assert kept_by(lab)["two"] == ["n2"]
    match how:
        case "cancelled":
            cancel(lab, "one")
        case "moved":
            reserve(lab, "one", count=2, after=5 * DAY, project_id=other, project_name="other", new=False)
        case "smaller":
            reserve(lab, "one", project_id=other, project_name="other", new=False, after=-2 * HOUR)
        case _:
            lab.do("project", project_key("other"), DeleteProject(project_id=other))
    lab.begun("soft", gpu_devices_request=4)

    assert (kept_by(lab)["two"], evicted(lab)) == (["n2"], [])
    assert_kept(lab)


def test_what_an_earlier_one_leaves_is_for_one_that_has_too_few_and_for_those_to_come() -> None:
    lab = Lab("n0", "n1", "n2", "n3", pool="gpu")
    reserve(lab, "one", count=3)
    reserve(lab, "two", count=2)
    assert kept_by(lab)["two"] == ["n3"]
    cancel(lab, "one")
    assert kept_by(lab)["two"] == ["n0", "n3"]
    reserve(lab, "three", count=2)
    assert kept_by(lab)["three"] == ["n1", "n2"]
    cancel(lab, "two")
    assert kept_by(lab)["three"] == ["n1", "n2"]
    assert_kept(lab)


def test_devices_stay_the_same_too() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    exactly: dict[str, Any] = {"node_count": None, "exact": True}
    reserve(lab, "one", gpus=1, **exactly)
    reserve(lab, "two", gpus=2, **exactly)
    assert devices_by(lab)["two"] == {"n0": (1, 2)}
    cancel(lab, "one")
    assert devices_by(lab)["two"] == {"n0": (1, 2)}
    reserve(lab, "three", gpus=3, **exactly)
    assert devices_by(lab)["three"] == {"n0": (0, 3), "n1": (0,)}


def test_a_node_that_is_cordoned_has_nothing_shared_out_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given many nodes and reservations, that takes seconds, and follows from names, labels and GPUs alone."""
    lab = Lab("n0", "n1", pool="gpu")
    reserve(lab, "one", lasts=2 * DAY)
    lab.now += 2 * HOUR
    lab.settle()
    shared: list[str] = []

    def seen(*of: Any) -> dict[str, Parts]:
        shared.append("once")
        return shared_out(*of)

    monkeypatch.setattr("services.scheduler.calendar.shared_out", seen)
    command = CordonNode(cluster_id=lab.cluster_id, name="n0")
    lab.do("node", node_key(lab.cluster_id, "n0"), command)
    assert kept_by(lab)["one"] == ["n0"]
    assert not shared
    lab.node("n0", gpu_count=4, pool="default")
    assert kept_by(lab)["one"] == ["n1"]
    assert len(shared) == 1
    assert_kept(lab)


def of_three(lab: Lab) -> str:
    """Of two nodes: `one` has n0 on the first day of each week; `two` wants both on the first three days, and has n1
    alone; `three` has n0 on the third day. The project of `three`.
    """
    reserve(lab, "one", after=HOUR, lasts=12 * HOUR, weekly=True)
    reserve(lab, "two", count=2, after=HOUR, lasts=3 * DAY, weekly=True)
    other = lab.project("other")
    reserve(lab, "three", after=2 * DAY, lasts=12 * HOUR, weekly=True, project_id=other, project_name="other")
    lab.now += 2 * DAY
    lab.settle()
    assert kept_by(lab) == {"two": ["n1"], "three": ["n0"]}
    return other


def test_what_one_leaves_goes_to_nobody_from_whom_another_one_would_lose_it() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    lab.begun("soft", gpu_devices_request=4, project_id=of_three(lab))
    cancel(lab, "one")
    assert (kept_by(lab)["three"], evicted(lab)) == (["n0"], [])
    assert_kept(lab)


def test_one_that_is_made_for_later_evicts_nobody_now() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    reserve(lab, "one", after=HOUR, lasts=12 * HOUR)
    reserve(lab, "two", count=2, after=HOUR, lasts=3 * DAY, weekly=True)
    other = lab.project("other")
    reserve(lab, "three", after=2 * DAY, lasts=12 * HOUR, weekly=True, project_id=other, project_name="other")
    lab.now += 37 * DAY + HOUR
    lab.settle()
    lab.begun("soft", gpu_devices_request=4, project_id=other)
    assert kept_by(lab) == {"two": ["n1"], "three": ["n0"]}

    reserve(lab, "x", after=100 * DAY, lasts=HOUR)

    assert (kept_by(lab)["three"], evicted(lab)) == (["n0"], [])


def test_an_earlier_one_that_wants_more_takes_nothing_from_a_later_one() -> None:
    lab = Lab("n0", "n1", "n2", pool="gpu")
    reserve(lab, "one")
    reserve(lab, "two")
    reserve(lab, "one", count=3, new=False)
    lab.now += 2 * HOUR
    assert kept_by(lab) == {"one": ["n0", "n2"], "two": ["n1"]}


def test_those_that_are_over_keep_no_other_one_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.capacity.MOST_RESERVED", 5)
    lab = Lab("n0", "n1", pool="gpu")
    for number in range(5):
        reserve(lab, f"r{number}", lasts=HOUR)
    with pytest.raises(RefusedError, match="5 reservations that are still to come or go on"):
        reserve(lab, "new")
    lab.now += DAY
    reserve(lab, "new")
    cluster = lab.chain("cluster", cluster_key("local")).state
    assert [each.name for each in cluster.reserved] == ["r1", "r2", "r3", "r4", "new"]


def test_one_that_has_what_a_deleted_project_left_keeps_it_when_another_one_wants_more() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    gone, other = lab.project("gone"), lab.project("other")
    reserve(lab, "one")
    reserve(lab, "two", project_id=gone, project_name="gone")
    reserve(lab, "three", project_id=other, project_name="other")
    lab.do("project", project_key("gone"), DeleteProject(project_id=gone))
    lab.now += 2 * HOUR
    lab.settle()
    assert kept_by(lab) == {"one": ["n0"], "three": ["n1"]}
    lab.begun("soft", gpu_devices_request=4, project_id=other)
    one = next(each for each in lab.chain("cluster", cluster_key("local")).state.reserved if each.name == "one")

    reserve(lab, "one", count=2, after=one.starts_at - lab.now, new=False, gone_projects=(gone,))

    assert (kept_by(lab)["three"], evicted(lab)) == (["n1"], [])


def test_the_order_of_the_log_counts_where_a_clock_was_behind() -> None:
    lab = Lab("n0", "n1", pool="gpu")
    reserve(lab, "one", after=2 * HOUR)
    lab.now -= 2 * MINUTE
    reserve(lab, "two", after=2 * HOUR)
    assert kept_by(lab) == {"one": ["n0"], "two": ["n1"]}
    lab.now -= 5 * MINUTE
    cancel(lab, "one")
    assert kept_by(lab) == {"two": ["n1"]}


def test_those_that_were_are_looked_through_once_there_are_many_more() -> None:
    """One that is changed over and over beside another one; then both are over."""
    lab = Lab("n0", "n1", "n2", pool="gpu")
    reserve(lab, "one")
    reserve(lab, "two")
    for number in range(LOOKED_THROUGH + 5):
        reserve(lab, "one", count=1 + number % 2, new=False)
    cluster = lab.chain("cluster", cluster_key("local")).state
    assert len(cluster.formerly_reserved) > LOOKED_THROUGH
    assert needed(cluster.formerly_reserved, cluster.reserved, lab.now) == cluster.formerly_reserved
    lab.now += 40 * DAY
    for number in range(LOOKED_THROUGH):
        reserve(lab, f"later{number}")
        cancel(lab, f"later{number}")
    assert len(lab.chain("cluster", cluster_key("local")).state.formerly_reserved) < LOOKED_THROUGH


TIMES = st.tuples(st.integers(0, 12), st.integers(1, 8), st.booleans())
SIZES = st.one_of(
    st.builds(lambda count: {"node_count": count}, st.integers(1, 3)),
    st.builds(lambda gpus, exact: {"gpus": gpus, "exact": exact}, st.integers(1, 12), st.booleans()),
)
CHANGES = st.one_of(st.none(), st.just("gone"), st.tuples(TIMES, SIZES), st.tuples(TIMES, SIZES))
STEPS = st.lists(st.tuples(st.integers(0, 5), CHANGES), min_size=2, max_size=14)


@given(steps=STEPS, there=st.lists(st.sampled_from([0, 1, 4, 8]), min_size=1, max_size=5))
def test_whatever_is_made_changed_or_cancelled_nobody_else_loses_anything(
    steps: list[tuple[int, Any]], there: list[int]
) -> None:
    """Nor do two that meet ever have the same device. Every third reservation is for the same project, and projects are
    deleted, too.
    """
    lab, gone = Lab(), set[str]()
    for number, gpus in enumerate(there):
        lab.node(f"n{number}", gpu_count=gpus, pool="gpu")
    nodes = {chain.state.name: chain.state for (kind, _), chain in lab.chains.items() if kind == "node"}

    def shares() -> dict[str, dict[str, set[int]]]:
        cluster = lab.chain("cluster", cluster_key("local")).state
        forms = (*cluster.reserved, *cluster.formerly_reserved)
        over = {each.form for each in forms if each.project_id in gone}
        found = shared_out(forms, {each.form: nodes for each in forms}, over)
        has = {
            each.id: {
                name: set(range(nodes[name].facts.gpu_count)) if devices is None else set(devices)
                for name, devices in found[each.form].items()
            }
            for each in cluster.reserved
            if each.times(lab.now) and each.project_id not in gone
        }
        for one, other in combinations(cluster.reserved, 2):
            if one.id in has and other.id in has and one.meets(other):
                for name in has[one.id].keys() & has[other.id].keys():
                    assert has[one.id][name] or has[other.id][name], "a node without devices is one's alone"
                    assert not has[one.id][name] & has[other.id][name]
        return has

    for number, change in steps:
        before, name = shares(), f"r{number}"
        cluster = lab.chain("cluster", cluster_key("local")).state
        its = next((each.id for each in cluster.reserved if each.name == name and each.times(lab.now)), "")
        projects: dict[str, Any] = {"gone_projects": tuple(sorted(gone))}
        if change == "gone":
            gone.add(f"p{number % 3}")
            its = ""
        elif change is None:
            if its:
                cancel(lab, name, **projects)
            else:
                lab.now += 31 * DAY
        else:
            (begins, lasts, weekly), size = change
            wanted: dict[str, Any] = {"node_count": None} | size
            times: dict[str, Any] = {"after": begins * 12 * HOUR, "lasts": lasts * 12 * HOUR, "weekly": weekly}
            projects["project_id"] = next(f"p{each}" for each in (number % 3, 3) if f"p{each}" not in gone)
            reserve(lab, name, new=not its, **times, **wanted, **projects)
        lab.now += 8 * HOUR
        after = shares()
        for id_, had in before.items():
            if id_ != its and id_ in after:
                for node, devices in had.items():
                    assert node in after[id_]
                    assert devices <= after[id_][node]
