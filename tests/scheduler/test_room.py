"""The scheduler's room and the node's decider mean the same by a free device."""

from itertools import combinations

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
from events.workload.events import DeviceShare
from events.workload.spec import PodRequest
from services.scheduler.columns import Columns
from services.scheduler.room import Room
from services.scheduler.snapshot import Release
from tests.events.given import SERVICE, context

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


@settings(max_examples=300, deadline=None)
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
    room = Room(table, tuple(Release(node_key="k", row=0, reservation=r) for r in ended))
    released = tuple(r.id for r in ended)
    lost = any(share.device >= gpus for r in ended for share in r.devices)
    place = table.places["c", "default"]
    for number, request in enumerate(wanted, start=100):
        spot = room.find(request, place)
        if spot is None:
            # What a device gives back that the node has lost is counted in the next plan.
            if lost:
                continue
            choices = combinations(range(gpus), request.gpu_devices)
            each = (tuple(DeviceShare(device=d, milli=request.gpu_milli) for d in chosen) for chosen in choices)
            assert not any(takes(state, devices, number, released) for devices in each)
            continue
        assert takes(state, spot.devices, number, released)
        command = ReserveOnNode(reserve=(reservation(number, spot.devices),), release=released)
        events = decide(command, state, CONTEXT)
        assert not isinstance(events, Refusal)
        for event in events:
            state = evolve(state, event)
        released = ()
        room.take(spot, request)
