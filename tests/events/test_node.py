"""The node's decider: nobody can reserve what is not there."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from events.node import (
    CordonNode,
    Node,
    NodeChanged,
    NodeCordoned,
    NodeFacts,
    NodeRegistered,
    NodeRemoved,
    ReportNode,
    ReportNodeGone,
    Reservation,
    ReserveOnNode,
    UncordonNode,
    UserNodeCommand,
    decide,
    evolve,
    reservation_id,
)
from events.refusal import Refusal
from events.workload.needs import ExtendedAmount
from events.workload.pod import DeviceShare
from tests.events.given import SERVICE, context
from tests.support.draws import draws

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
        ((hold(0, (2, 1000)),), "has no device 2"),
        (tuple(hold(number) for number in range(4)), "takes at most 3 pods"),
        ((hold(0, (0, 500)), hold(0, (1, 500))), f"cannot hold {hold(0).id} twice"),
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


def test_extended_resources_are_reserved_and_given_back_and_never_more_than_there_are() -> None:
    """S037."""
    facts = replace(FACTS, max_pods=9, extended={"rdma/hca": 4}, foreign_extended={"rdma/hca": 1})

    def asks(number: int, **amounts: int) -> Reservation:
        extended = tuple(ExtendedAmount(resource=name.replace("_", "/"), amount=n) for name, n in amounts.items())
        return replace(hold(number), extended=extended)

    state = reserve(node(facts), asks(0, rdma_hca=1), asks(1, rdma_hca=2))
    assert isinstance(state, Node)
    assert state.used_extended == {"rdma/hca": 3}
    assert reserve(state, asks(2, rdma_hca=1)) == Refusal(
        code="capacity_exceeded", message="node 'n1' lacks 1 of rdma/hca"
    )
    assert reserve(state, asks(2, no_such=1)) == Refusal(
        code="capacity_exceeded", message="node 'n1' lacks 1 of no/such"
    )
    assert isinstance(reserve(state, hold(2)), Node)
    released = reserve(state, asks(2, rdma_hca=2), release=(hold(1).id,))
    assert isinstance(released, Node)
    assert released.used_extended == {"rdma/hca": 3}
    empty = reserve(released, release=(hold(0).id, hold(2).id))
    assert isinstance(empty, Node)
    assert empty.used_extended == {}


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


def mark(state: Node, command: UserNodeCommand) -> tuple[Node, int]:
    """The node afterwards, and how many events that took."""
    events = decide(command, state, context())
    assert not isinstance(events, Refusal), events
    for event in events:
        state = evolve(state, event)
    return state, len(events)


CORDON, UNCORDON = CordonNode(cluster_id="c", name="n1"), UncordonNode(cluster_id="c", name="n1")


def test_a_cordoned_node_keeps_what_it_holds_and_takes_nothing_new_until_it_is_uncordoned() -> None:
    held = reserve(node(), hold(0))
    assert isinstance(held, Node)
    closed, _ = mark(held, CORDON)
    assert closed.reservations == held.reservations
    refusal = reserve(closed, hold(1))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "node_not_schedulable"
    opened, _ = mark(closed, UNCORDON)
    assert isinstance(reserve(opened, hold(1)), Node)


def test_the_mark_says_who_set_it_first_and_when_and_setting_it_again_changes_nothing() -> None:
    closed, events = mark(node(), CORDON)
    assert (closed.cordoned_by, closed.cordoned_at, events) == (context().actor.id, context().now, 1)
    assert decide(CORDON, closed, context(actor=SERVICE)) == ()
    assert mark(mark(closed, UNCORDON)[0], UNCORDON)[1] == 0


def test_the_mark_is_apart_from_what_the_agent_reports_and_outlives_the_nodes_absence() -> None:
    closed, _ = mark(node(), CORDON)
    for command in (
        ReportNode(cluster_id="c", name="n1", facts=NodeFacts(cpu_milli=1, memory_bytes=1)),
        ReportNodeGone(),
        ReportNode(cluster_id="c", name="n1", facts=FACTS),
    ):
        for event in decide(command, closed, context(actor=SERVICE)):  # type: ignore[union-attr]
            assert not isinstance(event, NodeCordoned)
            closed = evolve(closed, event)
    assert closed.cordoned
    assert closed.present


def test_a_node_that_is_not_there_cannot_be_cordoned_and_one_that_went_away_can_be_uncordoned() -> None:
    never = decide(CORDON, Node(), context())
    assert isinstance(never, Refusal)
    assert never.code == "not_found"
    closed, _ = mark(node(), CORDON)
    gone = evolve(closed, NodeRemoved())
    assert isinstance(decide(CORDON, gone, context()), Refusal)
    assert not mark(gone, UNCORDON)[0].cordoned


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
    assert (state.free_cpu_milli, state.free_devices, state.free_pods) == (1000, 1, 109)


@pytest.mark.parametrize(
    ("ours", "gpus", "foreign", "wanted", "refusal"),
    [
        ([(7, 1000)], 8, 4, [(0, 1000), (1, 1000), (2, 1000)], None),
        ([(7, 1000)], 8, 4, [(0, 1000), (1, 1000), (2, 1000), (3, 1000)], "has 8 devices that work, of which 4 are"),
        ([(7, 1000)], 8, 4, [(0, 1000), (5, 1000), (6, 1000)], None),
        ([(7, 500)], 8, 7, [(7, 500)], None),
        ([(7, 500)], 8, 7, [(0, 1)], "has 8 devices that work, of which 7 are"),
        ([(7, 500)], 8, 8, [(7, 500)], "has 8 devices that work, of which 8 are"),
        ([(7, 1000)], 7, 0, [(index, 1000) for index in range(6)], None),
        ([(7, 1000)], 7, 0, [(index, 1000) for index in range(7)], "has 7 devices that work, of which 0 are"),
        ([(7, 500)], 7, 0, [(7, 500)], "has no device 7"),
        ([], 8, 0, [(-1, 1000)], "has no device -1"),
        ([], 8, 0, [(3, 500), (3, 500)], "cannot give a device twice to one pod"),
        ([], 8, 0, [(0, 0)], "no share of a device is 0 thousandths"),
        ([], 8, 0, [(0, 1001)], "no share of a device is 1001 thousandths"),
    ],
)
def test_our_devices_and_those_of_others_are_never_more_than_work(
    ours: list[tuple[int, int]],
    gpus: int,
    foreign: int,
    wanted: list[tuple[int, int]],
    refusal: str | None,
) -> None:
    """The kubelet chooses which of the physical ones a pod gets, so the count decides, not the number of a device."""
    before = reserve(
        node(NodeFacts(cpu_milli=4000, memory_bytes=1000, gpu_count=8)), *([hold(0, *ours)] if ours else [])
    )
    assert isinstance(before, Node)
    facts = NodeFacts(cpu_milli=4000, memory_bytes=1000, gpu_count=gpus, foreign_gpus=foreign)
    result = reserve(evolve(before, NodeChanged(facts=facts)), hold(1, *wanted))
    if refusal is None:
        assert isinstance(result, Node)
    else:
        assert isinstance(result, Refusal)
        assert refusal in result.message


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


PHYSICAL_DEVICES = 5


class DeviceMachine(RuleBasedStateMachine):
    """A node whose kubelet gives out physical devices, to us and to others, while some of them die and heal."""

    def __init__(self) -> None:
        super().__init__()
        self.state = node(NodeFacts(cpu_milli=4000, memory_bytes=1000, gpu_count=PHYSICAL_DEVICES))
        self.dead: set[int] = set()
        self.foreign: set[int] = set()
        self.ours: dict[int, int] = {}
        """The physical device behind each logical one that a pod of ours touches."""

    def given(self) -> int | None:
        """A device that the kubelet has left to give."""
        left = set(range(PHYSICAL_DEVICES)) - self.dead - self.foreign - set(self.ours.values())
        return max(left, default=None)

    def report(self) -> None:
        facts = NodeFacts(
            cpu_milli=4000,
            memory_bytes=1000,
            gpu_count=PHYSICAL_DEVICES - len(self.dead),
            foreign_gpus=len(self.foreign),
        )
        self.state = evolve(self.state, NodeChanged(facts=facts))

    @rule()
    def another_pod_comes(self) -> None:
        if (device := self.given()) is not None:
            self.foreign.add(device)
        self.report()

    @rule()
    def another_pod_goes(self) -> None:
        self.foreign = set(sorted(self.foreign)[1:])
        self.report()

    @rule(device=st.integers(0, PHYSICAL_DEVICES - 1))
    def a_device_dies_or_heals(self, device: int) -> None:
        self.dead ^= {device}
        self.report()

    @rule(
        number=st.integers(0, 5),
        shares=st.lists(
            st.tuples(st.integers(-1, PHYSICAL_DEVICES), st.sampled_from([0, 1, 300, 500, 1000, 1001])),
            min_size=1,
            max_size=3,
            unique_by=lambda share: share[0],
        ),
        release=st.lists(st.integers(0, 5), max_size=2, unique=True),
    )
    def reserve(self, number: int, shares: list[tuple[int, int]], release: list[int]) -> None:
        result = reserve(self.state, hold(number, *shares), release=tuple(hold(n).id for n in release))
        if not isinstance(result, Node):
            return
        held = {share.device for r in result.reservations.values() for share in r.devices}
        self.ours = {logical: physical for logical, physical in self.ours.items() if logical in held}
        for logical in held - self.ours.keys():
            device = self.given()
            assert device is not None, "the kubelet has a device for whatever is reserved"
            self.ours[logical] = device
        if result.reservations.keys() - self.state.reservations.keys():
            assert len(held) + len(self.foreign) + len(self.dead) <= PHYSICAL_DEVICES
        self.state = result

    @rule(number=st.integers(0, 5))
    def release(self, number: int) -> None:
        result = reserve(self.state, release=(hold(number).id,))
        assert isinstance(result, Node)
        held = {share.device for r in result.reservations.values() for share in r.devices}
        self.ours = {logical: physical for logical, physical in self.ours.items() if logical in held}
        self.state = result


DeviceMachine.TestCase.settings = settings(max_examples=draws(100), stateful_step_count=30, deadline=None)
TestDeviceMachine = DeviceMachine.TestCase

NodeMachine.TestCase.settings = settings(max_examples=draws(100), stateful_step_count=30, deadline=None)
TestNodeMachine = NodeMachine.TestCase
