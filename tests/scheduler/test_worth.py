"""What room is worth: the price of a GPU's rest, the value of a node, and what the fast ways to find them out must not
change.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.node import Node, NodeFacts, NodeRegistered, evolve
from events.workload.fields.scheduling import MatchExpression, NodeSelectorTerm
from events.workload.spec import PodRequest
from services.scheduler.candidates import Candidates, packed, worth_of
from services.scheduler.columns import Columns
from services.scheduler.mix import Weighed, shape_of
from services.scheduler.patterns import worth_of_rest
from services.scheduler.policy.registry import POLICY
from services.scheduler.room import Room, View
from services.scheduler.snapshot import NodeTable
from services.scheduler.worth import BY_SCARCITY, LEAST_ROOM, Worth
from tests.scheduler.world import GIB, World
from tests.support.draws import draws

WORTH: list[tuple[str, dict[int, float], dict[int, int]]] = [
    ("nothing comes", {}, {0: 0, 500: 0, 1000: 0}),
    ("halves", {500: 1}, {499: 0, 500: 5_000, 999: 5_000, 1000: 10_000}),
    ("thirds, where a tenth is lost", {300: 1}, {299: 0, 300: 3_333, 600: 6_667, 900: 10_000, 1000: 10_000}),
    ("a large one leaves a rest that nothing fits into", {810: 1}, {190: 0, 809: 0, 810: 10_000, 1000: 10_000}),
    ("many small ones make the rest worth something", {810: 1, 190: 5}, {190: 2_000, 810: 8_000, 1000: 10_000}),
    ("few small ones do not", {810: 5, 190: 1}, {190: 0, 810: 10_000, 1000: 10_000}),
    ("0.6 and 0.4 fill a GPU; 0.4 are too few", {600: 3, 400: 1}, {400: 0, 600: 10_000, 1000: 10_000}),
    ("the smallest counts as one of twenty", {1: 1}, {19: 0, 20: 200, 1000: 10_000}),
]


@pytest.mark.parametrize(("demand", "worth"), [(d, w) for _, d, w in WORTH], ids=[name for name, *_ in WORTH])
def test_the_rest_of_a_gpu_is_worth_what_the_shares_that_come_make_of_it(
    demand: dict[int, float], worth: dict[int, int]
):
    found = worth_of_rest(demand)
    assert {free: int(found[free]) for free in worth} == worth


@settings(max_examples=draws(60), deadline=None)
@given(st.dictionaries(st.integers(1, 999), st.integers(1, 50), min_size=1, max_size=30))
def test_two_rests_are_together_worth_no_less_and_a_gpu_no_more_than_one(demand: dict[int, float]):
    worth = worth_of_rest(demand)
    assert worth[0] == 0
    assert worth[1000] <= 10_000
    assert (np.diff(worth) >= 0).all()
    for first in range(0, 1001, 37):
        both = worth[first:]
        # Each is rounded.
        assert (both >= worth[first] + worth[: len(both)] - 2).all()


nodes = st.fixed_dictionaries(
    {
        "cpu_milli": st.sampled_from([0, 4_000, 9_500, 64_000]),
        "memory_bytes": st.sampled_from([0, 8 * GIB, 512 * GIB]),
        "gpu_count": st.sampled_from([0, 1, 3, 8]),
        "gpu_memory_bytes": st.sampled_from([0, 16 * GIB, 80 * GIB]),
        "labels": st.sampled_from([{}, {"model": "a"}, {"model": "b"}]),
        "foreign_gpus": st.sampled_from([0, 0, 1]),
        "ready": st.sampled_from([True, True, False]),
        "pool": st.sampled_from(["default", "other"]),
    }
)
only_a = (NodeSelectorTerm(match_expressions=(MatchExpression(key="model", operator="In", values=("a",)),)),)
requests = st.builds(
    lambda gpus, cpu, memory, terms: PodRequest(**gpus, cpu_milli=cpu, memory_bytes=memory, node_terms=terms),
    st.one_of(
        st.just({}),
        st.builds(
            lambda n, milli: {"gpu_devices": n, "gpu_milli": milli},
            st.integers(1, 4),
            st.sampled_from([110, 250, 470, 500, 810, 1000]),
        ),
        st.builds(lambda gib: {"gpu_devices": 1, "gpu_memory_bytes": gib * GIB}, st.sampled_from([4, 12, 40])),
    ),
    st.sampled_from([0, 500, 6_000]),
    st.sampled_from([0, GIB]),
    st.sampled_from([None, None, only_a]),
)
clusters = st.lists(nodes, min_size=1, max_size=14)
"""Some of more nodes than are looked up one by one."""
mixes = st.lists(
    st.builds(
        lambda request, pools, weight: Weighed(shape_of(request, cluster_id="c", pools=pools), weight),
        requests.filter(lambda request: request.gpu_devices > 0),
        st.sampled_from([(), (), ("other",)]),
        st.sampled_from([0.5, 3.0, 200.0]),
    ),
    max_size=6,
).map(tuple)


def table_of(cluster: list[dict[str, Any]]) -> NodeTable:
    columns = Columns()
    for number, facts in enumerate(cluster):
        registered = NodeRegistered(cluster_id="c", name=f"n{number}", facts=NodeFacts(**facts))
        columns.set(f"n{number}", evolve(Node(), registered), reachable=True)
    return columns.frozen()


def room_of(table: NodeTable, mix: tuple[Weighed, ...]) -> Room:
    room = Room(table, partial(worth_of, mix=mix, filters=POLICY.filters))
    assert room.worth is not None
    return room


def plainly_useful(facts: dict[str, Any], free: list[int], shape: Weighed) -> float:
    """One node, one shape, as the page says it."""
    request, milli = shape.shape.request, shape.shape.request.gpu_milli
    if request.gpu_memory_bytes:
        size = facts["gpu_memory_bytes"]
        milli = -(-1000 * request.gpu_memory_bytes // size) if size else 2_000
    enough = [each for each in free if each >= milli]
    open_ = request.node_terms is None or facts["labels"].get("model") == "a"
    open_ = open_ and (not shape.shape.pools or facts["pool"] in shape.shape.pools)
    fits = len(enough) >= request.gpu_devices and facts["cpu_milli"] >= request.cpu_milli
    if not open_ or not fits or milli > 1000 or facts["memory_bytes"] < request.memory_bytes:
        return 0.0
    asked, usable = milli * request.gpu_devices, float(sum(enough))
    for have, need in (
        (facts["cpu_milli"], request.cpu_milli),
        (facts["memory_bytes"], request.memory_bytes),
    ):
        usable = min(usable, 2 * have / max(need, 1) * asked)
    return 0.3 * sum(enough) + 0.7 * usable


@settings(max_examples=draws(60), deadline=None)
@given(clusters, mixes)
def test_nodes_are_worth_what_a_plain_count_says(cluster: list[dict[str, Any]], mix: tuple[Weighed, ...]):
    table = table_of(cluster)
    room = room_of(table, mix)
    worth: Worth = room.worth  # pyright: ignore[reportAssignmentType]
    here = [facts for facts in cluster if facts["gpu_count"] and facts["ready"]]
    if not here:
        assert worth.nothing
        return
    found = worth.values(room.rooms(np.arange(len(cluster))))
    assert found == pytest.approx(worth.first)
    # The prior is told too, as the shapes that weigh so much.
    shapes = [*mix, *worth.expected]
    weights: list[float] = []
    for each in shapes:
        total = sum(plainly_useful(facts, free_of(facts), each) for facts in here)
        scarce = max(total / (1000 * sum(facts["gpu_count"] for facts in here)), LEAST_ROOM)
        weights.append(each.weight * scarce**-BY_SCARCITY)
    by_node = [[plainly_useful(facts, free_of(facts), each) for each in shapes] for facts in cluster]
    if not any(each.shape.request.gpu_memory_bytes for each in mix):  # their size differs from node to node
        sizes = [each.shape.request.gpu_devices * each.shape.request.gpu_milli / 1000 for each in shapes]
        weights = [weight * size**-0.6 for weight, size in zip(weights, sizes, strict=True)]
        wanted = [sum(w * u for w, u in zip(weights, of, strict=True)) / sum(weights) for of in by_node]
        assert found == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-9)


def free_of(facts: dict[str, Any]) -> list[int]:
    return [1000] * max(facts["gpu_count"] - facts["foreign_gpus"], 0)


@settings(max_examples=draws(60), deadline=None)
@given(clusters, mixes, st.lists(requests, min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=14))
def test_what_is_kept_about_nodes_is_what_looking_anew_finds(
    cluster: list[dict[str, Any]], mix: tuple[Weighed, ...], wanted: list[PodRequest], order: list[int]
):
    """And no device gives more than it has, and no node more CPU or memory."""
    table = table_of(cluster)
    pool, scores = table.pool_numbers["c", cluster[0]["pool"]], packed(POLICY.scores)
    room = room_of(table, mix)
    kept = [Candidates(room, request, pool, POLICY.filters, scores) for request in wanted]
    for step in order:
        request, candidates = wanted[step % len(wanted)], kept[step % len(wanted)]
        fresh = Candidates(room, request, pool, POLICY.filters, scores)
        best = candidates.best()
        assert best == fresh.best()
        if best is None:
            continue
        row, devices = int(candidates.rows[best]), candidates.devices(best)
        view = View(room, request, candidates.rows[best : best + 1])
        assert [share.device for share in devices] == np.flatnonzero(view.chosen[0]).tolist() * bool(devices)
        mark = room.checkpoint()
        room.take(row, request, devices)
        room.rollback(mark)
        assert candidates.best() == best
        room.take(row, request, devices)
        has = table.free_device_milli >= 0
        assert (room.devices[has] >= 0).all()
        assert (room.devices[~has] == -1).all()
        assert (room.cpu >= 0).all()
        assert (room.memory >= 0).all()


PORTION: dict[str, Any] = {"gpu_request_type": "portion", "gpu_devices_request": 1}


def test_a_share_goes_where_it_completes_a_gpu_and_not_where_least_is_left():
    """0.3 fits into both rests; in the one of 0.5 a pod of half a GPU would find no room any more."""
    world = World()
    world.cluster()
    world.project()
    world.node("a", gpu_count=2)
    for n in range(20):
        world.submit(f"half{n}", gpu_portion_request=0.5, **PORTION, node_pools=("nowhere",))
        world.submit(f"large{n}", gpu_portion_request=0.7, **PORTION, node_pools=("nowhere",))
        world.submit(f"small{n}", gpu_portion_request=0.3, **PORTION, node_pools=("nowhere",))
    half = world.submit("half", gpu_portion_request=0.5, **PORTION)
    large = world.submit("large", gpu_portion_request=0.6, **PORTION)
    world.settle()
    small = world.submit("small", gpu_portion_request=0.3, **PORTION)
    world.settle()
    [(_, [(device, _)])] = world.places(small).values()
    [(_, [(beside, _)])] = world.places(large).values()
    assert world.places(half)[0][1] != [(beside, 500)]
    assert device == beside


def test_nodes_that_wide_pods_need_stay_whole_once_such_pods_come():
    """All else is alike, so plain best fit would fill the node with the least free."""
    world = World()
    world.cluster()
    world.project()
    for n in range(10):
        world.submit(f"wide{n}", gpu_devices_request=4, node_pools=("nowhere",))
    world.node("four", gpu_count=4)
    world.node("six", gpu_count=6)
    world.submit("begins", gpu_devices_request=3, node_pools=("default",))
    world.settle()
    first = world.submit("first", gpu_devices_request=1)
    world.settle()
    wide = world.submit("wide", gpu_devices_request=4)
    world.settle()
    assert world.places(first)
    assert world.places(wide)


@pytest.mark.parametrize("count", [1, 12])
def test_a_cluster_without_gpus_is_filled_by_best_fit(count: int):
    table = table_of([{"cpu_milli": 8_000 * (1 + n % 3), "memory_bytes": GIB} for n in range(count)])
    room = room_of(table, ())
    pool = table.pool_numbers["c", "default"]
    candidates = Candidates(room, PodRequest(cpu_milli=500), pool, POLICY.filters, packed(POLICY.scores))
    assert candidates.best() == 0
