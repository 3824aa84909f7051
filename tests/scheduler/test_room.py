"""The scheduler's room and the node's decider mean the same by a free device."""

from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from events.decision import Context
from events.node import (
    Node,
    NodeFacts,
    NodeRegistered,
    PodsReserved,
    Reservation,
    ReserveOnNode,
    decide,
    evolve,
)
from events.refusal import Refusal
from events.workload.pod import DeviceShare
from events.workload.spec import PodRequest
from services.scheduler.candidates import Candidates, packed
from services.scheduler.columns import LARGEST, Columns
from services.scheduler.policy.registry import POLICY
from services.scheduler.room import Room
from tests.events.given import SERVICE, context
from tests.support.draws import draws

MOST_DEVICES = 6
CONTEXT: Context = context(actor=SERVICE)

shares = st.tuples(st.integers(0, MOST_DEVICES - 1), st.sampled_from([1, 250, 500, 1000])).map(
    lambda share: DeviceShare(device=share[0], milli=share[1])
)
held_devices = st.lists(st.lists(shares, min_size=1, max_size=2, unique_by=lambda share: share.device), max_size=4)
requests = st.builds(
    lambda devices, milli: PodRequest(gpu_devices=devices, gpu_milli=milli),
    st.integers(1, 3),
    st.sampled_from([1, 250, 500, 501, 1000]),
)


def reservation(number: int, devices: tuple[DeviceShare, ...]) -> Reservation:
    return Reservation(id=f"w{number}", workload_id="w", workload_key="k", devices=devices)


def node(held: list[list[DeviceShare]], gpus: int, foreign: int) -> Node:
    """A node as its history may have left it: reserved while it had all its devices, and then it lost some."""
    state = evolve(Node(), NodeRegistered(cluster_id="c", name="n", facts=NodeFacts(cpu_milli=0, memory_bytes=0)))
    for number, devices in enumerate(held):
        used = dict(enumerate(state.used_device_milli))
        fitting = tuple(share for share in devices if used.get(share.device, 0) + share.milli <= 1000)
        state = evolve(state, PodsReserved(reservations=(reservation(number, fitting),)))
    facts = NodeFacts(cpu_milli=0, memory_bytes=0, gpu_count=gpus, foreign_gpus=foreign)
    return evolve(state, NodeRegistered(cluster_id="c", name="n", facts=facts))


def takes(state: Node, devices: tuple[DeviceShare, ...], number: int, release: tuple[str, ...] = ()) -> bool:
    command = ReserveOnNode(reserve=(reservation(number, devices),), release=release)
    return not isinstance(decide(command, state, CONTEXT), Refusal)


@settings(max_examples=draws(300), deadline=None)
@given(
    held_devices,
    st.integers(0, MOST_DEVICES),
    st.integers(0, MOST_DEVICES),
    st.lists(requests, min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_the_room_gives_what_the_node_takes_and_no_less(
    held: list[list[DeviceShare]], gpus: int, foreign: int, wanted: list[PodRequest], over: int
) -> None:
    state = node(held, gpus, foreign)
    columns = Columns()
    columns.set("k", state, reachable=True)
    table = columns.frozen()
    ended = tuple(state.reservations.values())[:over]
    room = Room(table)
    for over_ in ended:
        room.give_back(0, over_.cpu_milli, over_.memory_bytes, over_.devices)
    released = tuple(r.id for r in ended)
    lost = any(share.device >= gpus for r in ended for share in r.devices)
    pool = table.pool_numbers["c", "default"]
    for number, request in enumerate(wanted, start=100):
        candidates = Candidates(room, request, pool, POLICY.filters, packed(POLICY.scores))
        index = candidates.best()
        if index is None:
            # What a device gives back that the node has lost is counted in the next plan.
            if lost:
                continue
            choices = combinations(range(gpus), request.gpu_devices)
            each = (tuple(DeviceShare(device=d, milli=request.gpu_milli) for d in chosen) for chosen in choices)
            assert not any(takes(state, devices, number, released) for devices in each)
            continue
        devices = candidates.devices(index)
        assert takes(state, devices, number, released)
        command = ReserveOnNode(reserve=(reservation(number, devices),), release=released)
        events = decide(command, state, CONTEXT)
        assert not isinstance(events, Refusal)
        for event in events:
            state = evolve(state, event)
        released = ()
        room.take(0, request, devices)


moves = st.lists(
    st.tuples(
        st.sampled_from(["take", "give back"]),
        st.integers(0, 2),
        st.sampled_from([0, 1, 4_000, LARGEST]),
        st.lists(shares, max_size=3, unique_by=lambda share: share.device).map(tuple),
    ),
    max_size=8,
)


def carry_out(room: Room, history: list[tuple[str, int, int, tuple[DeviceShare, ...]]]) -> None:
    for word, row, cpu_milli, devices in history:
        if word == "take":
            room.take(row, PodRequest(cpu_milli=cpu_milli, memory_bytes=cpu_milli), devices)
        else:
            room.give_back(row, cpu_milli, cpu_milli, devices)


def content(room: Room) -> list[object]:
    return [column.tolist() for column in (room.cpu, room.memory, room.pods, room.devices, room.free_devices)]


def bests(candidates: list[Candidates]) -> list[tuple[int | None, int | None]]:
    return [(each.best(), each.least_gpu_milli()) for each in candidates]


@settings(max_examples=draws(200), deadline=None)
@given(moves, moves, moves, st.lists(requests, min_size=1, max_size=3))
def test_a_rollback_restores_exactly_what_was_there_and_what_is_best(first: Any, second: Any, third: Any, wanted: Any):
    """With numbers that are clipped, devices that the node lost, and marks within marks."""
    columns = Columns()
    for row, (gpus, foreign) in enumerate([(0, 0), (3, 1), (MOST_DEVICES, 0)]):
        columns.set(f"n{row}", node([], gpus, foreign), reachable=True)
    table = columns.frozen()
    room = Room(table)
    pool = table.pool_numbers["c", "default"]
    kept = [Candidates(room, request, pool, POLICY.filters, packed(POLICY.scores)) for request in wanted]
    carry_out(room, first)
    outer, before = room.checkpoint(), (content(room), bests(kept))
    carry_out(room, second)
    inner, between = room.checkpoint(), (content(room), bests(kept))
    carry_out(room, third)
    bests(kept)
    room.rollback(inner)
    assert (content(room), bests(kept)) == between
    carry_out(room, third)
    room.rollback(outer)
    assert (content(room), bests(kept)) == before
    fresh = Room(table)
    carry_out(fresh, first)
    again = [Candidates(fresh, request, pool, POLICY.filters, packed(POLICY.scores)) for request in wanted]
    assert (content(fresh), bests(again)) == before
