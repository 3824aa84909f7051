"""The node's decider: nobody can reserve what is not there."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from events.node import (
    Node,
    NodeFacts,
    NodeRegistered,
    ReportNode,
    ReportNodeGone,
    Reservation,
    ReserveOnNode,
    decide,
    evolve,
    reservation_id,
)
from events.refusal import Refusal
from events.workload.events import DeviceShare
from tests.events.given import SERVICE, context

FACTS = NodeFacts(cpu_milli=4000, memory_bytes=1000, gpu_count=2, max_pods=3)


def node(facts: NodeFacts = FACTS) -> Node:
    return evolve(Node(), NodeRegistered(cluster_id="c", name="n1", facts=facts))


def hold(number: int, *shares: tuple[int, int], cpu: int = 0, memory: int = 0) -> Reservation:
    return Reservation(
        id=reservation_id("w", "main", number, 1, 0),
        workload_id="w",
        workload_key="k",
        cpu_milli=cpu,
        memory_bytes=memory,
        devices=tuple(DeviceShare(device=device, milli=milli) for device, milli in shares),
    )


def reserve(state: Node, *reservations: Reservation, release: tuple[str, ...] = ()) -> Node | Refusal:
    decision = decide(ReserveOnNode(reserve=reservations, release=release), state, context(actor=SERVICE))
    if isinstance(decision, Refusal):
        return decision
    for event in decision:
        state = evolve(state, event)
    return state


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ((hold(0, cpu=4000, memory=1000),), None),
        ((hold(0, cpu=4001),), "lacks 1 milli of CPU"),
        ((hold(0, memory=600), hold(1, memory=600)), "lacks 200 bytes of memory"),
        ((hold(0, (0, 1000)), hold(1, (1, 1000))), None),
        ((hold(0, (0, 600)), hold(1, (0, 400))), None),
        ((hold(0, (0, 600)), hold(1, (0, 500))), "lacks 100 thousandths of device 0"),
        ((hold(0, (2, 1000)),), "has no free device 2"),
        (tuple(hold(number) for number in range(4)), "takes at most 3 pods"),
    ],
)
def test_what_fits_is_reserved_and_what_does_not_is_refused_with_numbers(
    wanted: tuple[Reservation, ...], refusal: str | None
) -> None:
    """S035, S036: whole devices, portions, CPU, memory, pods."""
    result = reserve(node(), *wanted)
    if refusal is None:
        assert isinstance(result, Node)
        assert set(result.reservations) == {r.id for r in wanted}
    else:
        assert isinstance(result, Refusal)
        assert result.code == "capacity_exceeded"
        assert refusal in result.message


def test_releasing_and_reserving_are_one_step() -> None:
    full = reserve(node(), hold(0, (0, 1000)))
    assert isinstance(full, Node)
    moved = reserve(full, hold(1, (0, 1000)), release=(hold(0).id,))
    assert isinstance(moved, Node)
    assert set(moved.reservations) == {hold(1).id}


def test_reserving_or_releasing_again_changes_nothing() -> None:
    once = reserve(node(), hold(0, (0, 500)))
    assert isinstance(once, Node)
    assert reserve(once, hold(0, (0, 500))) == once
    assert reserve(once, release=("never there",)) == once
    other = reserve(once, hold(0, (1, 500)))
    assert isinstance(other, Refusal), "the same id with other devices is another reservation"


@pytest.mark.parametrize(
    "facts",
    [
        NodeFacts(cpu_milli=4000, memory_bytes=1000, ready=False),
        NodeFacts(cpu_milli=4000, memory_bytes=1000, unschedulable=True),
    ],
)
def test_a_node_that_takes_no_pods_refuses_but_still_releases(facts: NodeFacts) -> None:
    held = reserve(node(), hold(0))
    assert isinstance(held, Node)
    report = ReportNode(cluster_id="c", name="n1", facts=facts)
    for event in decide(report, held, context()):  # type: ignore[union-attr]
        held = evolve(held, event)
    assert isinstance(reserve(held, hold(1)), Refusal)
    released = reserve(held, release=(hold(0).id,))
    assert isinstance(released, Node)
    assert released.reservations == {}


def test_capacity_may_shrink_below_what_is_reserved_and_then_nothing_new_fits() -> None:
    held = reserve(node(), hold(0, (0, 1000)), hold(1, (1, 1000)))
    assert isinstance(held, Node)
    smaller = NodeFacts(cpu_milli=4000, memory_bytes=1000, gpu_count=1, max_pods=3)
    for event in decide(ReportNode(cluster_id="c", name="n1", facts=smaller), held, context()):  # type: ignore[union-attr]
        held = evolve(held, event)
    assert len(held.reservations) == 2, "a dead GPU is a fact, not a release"
    assert held.free_device_milli == (0,)
    assert isinstance(reserve(held, hold(2, (0, 1))), Refusal)
    assert isinstance(reserve(held, hold(2)), Node), "a pod that asks for no GPU still fits"


def test_foreign_pods_take_from_the_capacity() -> None:
    facts = NodeFacts(
        cpu_milli=4000, memory_bytes=1000, gpu_count=2, foreign_cpu_milli=3000, foreign_gpus=1, foreign_pods=1
    )
    state = node(facts)
    assert (state.free_cpu_milli, len(state.free_device_milli), state.free_pods) == (1000, 1, 109)


def test_the_same_report_again_changes_nothing_and_a_removed_node_can_come_back() -> None:
    report = ReportNode(cluster_id="c", name="n1", facts=FACTS)
    assert decide(report, node(), context()) == ()
    gone = evolve(node(), decide(ReportNodeGone(), node(), context())[0])  # type: ignore[index]
    assert decide(ReportNodeGone(), gone, context()) == ()
    assert decide(report, gone, context()) == (NodeRegistered(cluster_id="c", name="n1", facts=FACTS),)


class NodeMachine(RuleBasedStateMachine):
    """Any sequence of reservations, releases and shrinking capacity."""

    def __init__(self) -> None:
        super().__init__()
        self.state = node()

    @rule(
        number=st.integers(0, 5),
        cpu=st.integers(0, 5000),
        memory=st.integers(0, 1200),
        shares=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000)), max_size=2, unique_by=lambda s: s[0]),
        release=st.lists(st.integers(0, 5), max_size=2, unique=True),
    )
    def reserve(self, number: int, cpu: int, memory: int, shares: list[tuple[int, int]], release: list[int]) -> None:
        wanted = hold(number, *shares, cpu=cpu, memory=memory)
        result = reserve(self.state, wanted, release=tuple(hold(n).id for n in release))
        if isinstance(result, Node):
            self.state = result

    @invariant()
    def never_more_than_there_is(self) -> None:
        assert self.state.free_cpu_milli >= 0
        assert self.state.free_memory_bytes >= 0
        assert self.state.free_pods >= 0
        assert all(0 <= milli <= 1000 for milli in self.state.free_device_milli)

    @invariant()
    def the_sums_are_those_of_the_reservations(self) -> None:
        held = self.state.reservations.values()
        assert self.state.used_cpu_milli == sum(r.cpu_milli for r in held)
        assert self.state.used_memory_bytes == sum(r.memory_bytes for r in held)
        assert sum(self.state.used_device_milli) == sum(s.milli for r in held for s in r.devices)


NodeMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestNodeMachine = NodeMachine.TestCase
