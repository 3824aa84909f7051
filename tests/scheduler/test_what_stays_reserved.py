"""Which nodes a reservation has does not change because an earlier one is over, changed or cancelled (issue 14 section
2; ADR 0143).
"""

from datetime import timedelta
from typing import Any

import pytest

from events.capacity import CancelCapacityReservation, Parts, shared_out
from events.ids import cluster_key, node_key, project_key
from events.node import CordonNode
from events.project import DeleteProject
from tests.scheduler.test_capacity import HOUR, Lab, assert_kept, kept_by

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


def reserve(lab: Lab, name: str, count: int = 1, after: timedelta = HOUR, lasts: timedelta = DAY, **more: Any) -> None:
    """So many nodes of the pool."""
    given: dict[str, Any] = {"node_pools": ("gpu",), "node_count": count} | more
    lab.reserve(name=name, after=after, lasts=lasts, **given)
    lab.now += MINUTE


def cancel(lab: Lab, name: str) -> None:
    command = CancelCapacityReservation(cluster_id=lab.cluster_id, name=name)
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
    assert lab.chain("cluster", cluster_key("local")).state.formerly_reserved == ()


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
