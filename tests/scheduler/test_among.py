"""Where nobody named a cluster, the scheduler chooses it: once, with the first pods, and for all pods of the workload
(issue 14 section 2, S007).
"""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.cluster import RemoveCluster
from events.ids import cluster_key, node_key
from events.node import CordonNode
from events.phases import Phase
from events.workload.commands import DeleteWorkload, PlacePods, ResumeWorkload, SuspendWorkload
from events.workload.fields.scheduling import PodAffinity
from events.workload.life import ClusterChosen
from events.workload.state import Workload
from services.scheduler.batches import batch_drafts, batches
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from services.scheduler.simulation.ledger import RefusedError
from services.scheduler.what_if import what_if
from services.scheduler.why import why
from tests.scheduler.test_elastic import elastic
from tests.scheduler.test_take_back import HIGH, LOW, ends, evicted, gang
from tests.scheduler.world import World
from tests.support.draws import draws


def two(a: tuple[int, ...] = (), b: tuple[int, ...] = (), **settings: Any) -> tuple[World, tuple[str, str]]:
    """A world with clusters `a` and `b`, with nodes of so many GPUs."""
    world = World()
    both = world.cluster("a"), world.cluster("b")
    world.project(**settings)
    for name, id_, nodes in (("a", both[0], a), ("b", both[1], b)):
        for number, gpus in enumerate(nodes):
            world.node(f"{name}{number}", cluster_id=id_, gpu_count=gpus)
    return world, both


def cluster_of(world: World, key: str) -> str:
    """Name of the cluster of a workload; empty where it has none yet."""
    return {each.cluster_id: each.name for each in _clusters(world)}.get(world.workload(key).cluster_id, "")


def _clusters(world: World) -> list[Any]:
    return [chain.state for (kind, _), chain in world.chains.items() if kind == "cluster"]


def nodes_of(world: World, key: str) -> set[str]:
    return {node for node, _ in world.places(key).values()}


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_the_cluster_is_chosen_in_the_commit_that_binds_the_first_pod() -> None:
    world, both = two(a=(2,), b=(8,))
    key = world.submit("w", among=both, gpu_devices_request=4)
    assert world.workload(key).cluster_id == ""

    world.settle()

    assert cluster_of(world, key) == "b"
    commit = next(each for each in world.commits if any(isinstance(event, ClusterChosen) for event in each.events))
    assert [type(event).__name__ for event in commit.events] == ["WorkloadQueued", "ClusterChosen", "PodsBound"]
    assert commit.record.about.cluster_id == both[1], "by which the gate and the counts go"
    assert not world.check().violations


@pytest.mark.parametrize(
    ("a", "b", "asked", "chosen"),
    [
        pytest.param((4,), (8,), 2, "b", id="the one with the most room"),
        pytest.param((4,), (4,), 2, "a", id="of those alike the first by name"),
        pytest.param((2, 2, 2, 2), (4,), 4, "b", id="the one where it fits on a node"),
        pytest.param((8,), (), 1, "a", id="not the one that has no nodes"),
    ],
)
def test_it_goes_where_it_fits_best(a: tuple[int, ...], b: tuple[int, ...], asked: int, chosen: str) -> None:
    world, both = two(a, b)
    key = world.submit("w", among=both, gpu_devices_request=asked)
    world.settle()
    assert cluster_of(world, key) == chosen


def test_what_fills_one_cluster_goes_on_to_the_next_in_the_same_plan() -> None:
    world, both = two(a=(2,), b=(1,))
    keys = [world.submit(f"w{n}", among=both, gpu_devices_request=1) for n in range(4)]
    world.cycle()
    assert sorted(cluster_of(world, key) for key in keys) == ["", "a", "a", "b"]
    assert not world.check().violations


def test_a_cluster_that_does_not_report_or_takes_no_pods_is_passed_over() -> None:
    world, both = two(a=(8,), b=(1,))
    world.connect(both[0], "a", connected=False)
    first = world.submit("first", among=both, gpu_devices_request=1)
    world.settle()
    assert cluster_of(world, first) == "b"

    second = world.submit("second", among=both, gpu_devices_request=1)
    world.settle()
    assert cluster_of(world, second) == ""
    world.connect(both[0], "a")
    world.settle()
    assert cluster_of(world, second) == "a"


def test_only_clusters_among_which_it_may_choose_are_taken() -> None:
    world, both = two(a=(8,), b=(1,))
    key = world.submit("w", among=both[1:], gpu_devices_request=1)
    other = world.submit("other", among=both[1:], gpu_devices_request=1)
    world.settle()
    assert (cluster_of(world, key), cluster_of(world, other)) == ("b", "")


def test_the_earlier_node_pool_counts_before_the_room() -> None:
    world = World()
    both = world.cluster("a", pools=("fast",)), world.cluster("b", pools=("fast",))
    world.project()
    world.node("a0", cluster_id=both[0], gpu_count=8)
    world.node("b0", cluster_id=both[1], gpu_count=1, pool="fast")
    key = world.submit("w", among=both, gpu_devices_request=1, node_pools=("fast", "default"))
    world.settle()
    assert nodes_of(world, key) == {"b0"}


def test_programs_run_on_this_machine_first_and_on_simulated_clusters_only_where_nothing_else_could_ever() -> None:
    world = World()
    local, demo = world.cluster(), world.cluster("demo", simulated=True)
    world.project()
    world.node("here", gpu_count=1)
    world.node("d0", cluster_id=demo, gpu_count=8)
    small = [world.submit(f"small{n}", among=(demo, local), gpu_devices_request=1) for n in range(2)]
    large = world.submit("large", among=(demo, local), gpu_devices_request=4)
    world.settle()
    assert [cluster_of(world, key) for key in small] == ["local", ""], "it waits for this machine, which is full"
    assert cluster_of(world, large) == "demo"


# -- one cluster for all its pods --------------------------------------------------------------------------------------


def test_pods_of_a_workload_are_not_spread_over_clusters() -> None:
    world, both = two(a=(2,), b=(3,))
    key = world.submit("w", among=both, gpu_devices_request=1, parallelism=4, completions=4)
    world.settle()
    assert nodes_of(world, key) == {"b0"}
    assert len(world.places(key)) == 3
    world.node("b1", cluster_id=both[1], gpu_count=1)
    world.settle()
    assert nodes_of(world, key) == {"b0", "b1"}


def test_it_goes_where_all_of_its_pods_have_room_rather_than_where_one_has_more_to_choose_from() -> None:
    world, both = two(a=(1, 1, 1), b=(2,))
    key = world.submit("w", among=both, gpu_devices_request=1, parallelism=3, completions=3)
    world.settle()
    assert nodes_of(world, key) == {"a0", "a1", "a2"}


def test_a_gang_is_placed_whole_in_one_cluster_or_waits() -> None:
    world, both = two(a=(2,), b=(3,))
    key = gang(world, "g", workers=4, among=both)
    fits = gang(world, "fits", workers=3, among=both)
    world.settle()
    assert cluster_of(world, fits) == "b"
    assert (cluster_of(world, key), world.places(key)) == ("", {})
    world.node("a1", cluster_id=both[0], gpu_count=2)
    world.settle()
    assert cluster_of(world, key) == "a"
    assert len(world.workload(key).pods.live) == 4
    assert not world.check().violations


def test_an_elastic_training_grows_where_it_started() -> None:
    world, both = two(a=(3,), b=(4, 2))
    key = elastic(world, "e", least=2, most=6, among=both)
    world.settle()
    assert cluster_of(world, key) == "b"
    world.now += timedelta(minutes=2)
    world.settle()
    pods = world.workload(key).pods.live
    assert {pod.node_name for pod in pods.values()} == {"b0", "b1"}
    assert len(pods) == 6
    assert not world.check().violations


def test_pods_that_stay_together_do_so_in_one_cluster() -> None:
    world, both = two()
    for name, id_, zones in (("a", both[0], "xy"), ("b", both[1], "xx")):
        for number, zone in enumerate(zones):
            world.node(f"{name}{number}", cluster_id=id_, gpu_count=1, labels={"zone": zone})
    key = gang(world, "g", workers=2, among=both, pod_affinity=PodAffinity(type="Required", key="zone"))
    world.settle()
    assert {pod.node_name for pod in world.workload(key).pods.live.values()} == {"b0", "b1"}


def test_it_keeps_its_cluster_when_it_is_suspended_and_resumed() -> None:
    world, both = two(a=(1,), b=(2,))
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.command(key, SuspendWorkload)
    world.fact(key, "stopped")
    blocker = world.submit("blocker", cluster_id=both[1], gpu_devices_request=2)
    world.settle()
    world.command(key, ResumeWorkload)
    world.settle()
    assert (cluster_of(world, blocker), cluster_of(world, key)) == ("b", "b")
    assert world.workload(key).phase is Phase.PENDING


# -- who waits ---------------------------------------------------------------------------------------------------------


def test_who_waits_is_told_of_each_cluster() -> None:
    world, both = two(a=(2,), b=(2,))
    for id_, name in zip(both, "ab", strict=True):
        world.submit(f"full-{name}", cluster_id=id_, gpu_devices_request=2)
    alike = world.submit("alike", among=both, gpu_devices_request=1)
    world.settle()
    state = world.workload(alike)
    assert (state.phase, state.reason, state.cluster_id) == (Phase.PENDING, "insufficient_gpu", "")
    assert state.message == (
        "1 node of pool default of cluster a: 1 short of GPU (need 1, largest free 0); the same holds for cluster b"
    )

    world.connect(both[1], "b", connected=False)
    key = world.submit("w", among=both, gpu_devices_request=2)
    world.settle()
    assert world.workload(key).message == (
        "1 node of pool default of cluster a: 1 short of GPU (need 2, largest free 0); "
        "on cluster b: the agent of cluster b does not report"
    )


def many(*gpus: int) -> tuple[World, tuple[str, ...]]:
    """Clusters c0, c1 and so on, each with one node of so many GPUs."""
    world = World()
    ids = tuple(world.cluster(f"c{number}") for number in range(len(gpus)))
    world.project()
    for number, (id_, count) in enumerate(zip(ids, gpus, strict=True)):
        world.node(f"n{number}", cluster_id=id_, gpu_count=count)
    return world, ids


def test_that_the_same_holds_elsewhere_is_said_only_where_the_numbers_are_the_same() -> None:
    world, ids = many(8, 1, 8)
    key = world.submit("w", among=ids, gpu_devices_request=20)
    world.settle()
    state = world.workload(key)
    assert state.reason == "no_matching_node"
    assert "(largest has 8); on cluster c1: the only node of pool default of cluster c1 is too small" in state.message
    assert "(largest has 1)" in state.message
    assert state.message.endswith("; the same holds for cluster c2")


def test_of_many_clusters_that_differ_two_are_told_and_the_others_counted() -> None:
    world, ids = many(8, 7, 6, 5, 4)
    key = world.submit("w", among=ids, gpu_devices_request=20)
    world.settle()
    message = world.workload(key).message
    assert message.count("on cluster") == 2
    assert message.endswith("; and 2 more clusters cannot run it now either")


def test_what_would_help_on_any_of_its_clusters_is_looked_for_and_nodes_are_counted_by_cluster() -> None:
    world, ids = many(1, 8)
    key = world.submit("w", among=ids, gpu_devices_request=20)
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert [(each.cluster, each.nodes) for each in found.nodes] == [("c0", 1), ("c1", 1)]
    told = [change.message for change in found.changes]
    assert "submit it again with spec.compute.gpuDevicesRequest as 8" in told
    assert any(each.startswith("add 1 node with 20 free GPUs") and "of cluster c0" in each for each in told), told

    world, ids = many(1, 2)
    for number, id_ in enumerate(ids):
        world.submit(f"holder{number}", cluster_id=id_, gpu_devices_request=number + 1)
    world.settle()
    world.do("node", node_key(ids[0], "n0"), CordonNode(cluster_id=ids[0], name="n0"))
    key = world.submit("w", among=ids, gpu_devices_request=1)
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert {each.cluster for each in found.nodes} == {"c0", "c1"}
    assert {each.name for each in found.holders} == {"holder1"}


def test_a_node_that_is_to_be_uncordoned_is_named_with_its_cluster() -> None:
    world, ids = many(2, 2)
    for number, id_ in enumerate(ids):
        world.do("node", node_key(id_, f"n{number}"), CordonNode(cluster_id=id_, name=f"n{number}"))
    key = world.submit("w", among=ids, gpu_devices_request=1)
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert "uncordon node n0 of cluster c0" in [change.message for change in found.changes]


def test_where_its_clusters_are_removed_it_says_so() -> None:
    world, both = two(a=(1,), b=(1,))
    key = world.submit("w", among=both, gpu_devices_request=4)
    world.settle()
    for id_, name in zip(both, "ab", strict=True):
        world.do("cluster", cluster_key(name), RemoveCluster(cluster_id=id_))
        world.now += timedelta(minutes=1)
        world.settle()
    state = world.workload(key)
    assert state.reason == "cluster_disconnected"
    assert state.message == "each cluster that could run it was removed; delete the workload and submit it again"


def test_what_was_found_full_is_tried_again_where_room_comes_free_in_any_cluster() -> None:
    world, both = two(a=(1,), b=(1,))
    held = [
        world.submit(f"held-{name}", cluster_id=id_, gpu_devices_request=1)
        for id_, name in zip(both, "ab", strict=True)
    ]
    world.settle()
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    assert world.workload(key).reason == "insufficient_gpu"
    world.fact(held[1], "running")
    world.fact(held[1], "succeeded")
    world.settle()
    assert cluster_of(world, key) == "b"


def test_one_that_names_a_cluster_and_one_that_does_not_wait_apart() -> None:
    """They stand at one cluster, and ask for the same; yet what blocks the one does not block the other."""
    world, both = two(a=(1,), b=())
    world.submit("full", cluster_id=both[0], gpu_devices_request=1)
    named = world.submit("named", cluster_id=both[0], gpu_devices_request=1)
    free = world.submit("free", among=both, gpu_devices_request=1)
    world.settle()
    world.node("b0", cluster_id=both[1], gpu_count=2)
    world.settle()
    assert (cluster_of(world, free), world.places(named)) == ("b", {})
    later = world.submit("later", among=both, gpu_devices_request=1)
    world.settle()
    assert cluster_of(world, later) == "b"


def test_it_takes_the_place_of_a_lower_priority_on_whichever_cluster_that_runs() -> None:
    world, both = two(a=(1,), b=(1,))
    world.submit("firm", cluster_id=both[0], gpu_devices_request=1, preemptibility="non-preemptible", **LOW)
    low = world.submit("low", cluster_id=both[1], gpu_devices_request=1, **LOW)
    world.settle()
    world.fact(low, "running")
    high = world.submit("high", among=both, gpu_devices_request=1, **HIGH)

    planned = world.cycle()

    assert evicted(planned) == [("low", "preempted", 1)]
    assert world.workload(high).reason == "waiting_for_pods_to_end"
    world.settle()
    assert cluster_of(world, high) == ""
    ends(world, low)
    world.settle()
    assert (cluster_of(world, high), nodes_of(world, high)) == ("b", {"b0"})
    assert not world.check().violations


def test_a_gang_takes_back_what_it_needs_on_one_cluster() -> None:
    world, both = two(a=(2,), b=(2,))
    world.submit("firm", cluster_id=both[0], gpu_devices_request=1, preemptibility="non-preemptible", **LOW)
    lows = [world.submit(f"low{n}", cluster_id=both[1], gpu_devices_request=1, **LOW) for n in range(2)]
    world.settle()
    for low in lows:
        world.fact(low, "running")
    high = gang(world, "high", workers=2, among=both, **HIGH)
    assert sorted(name for name, *_ in evicted(world.cycle())) == ["low0", "low1"]
    for low in lows:
        ends(world, low)
    world.settle()
    assert cluster_of(world, high) == "b"
    assert len(world.workload(high).pods.live) == 2


def test_room_is_made_by_moving_pods_on_the_cluster_that_has_enough_in_pieces() -> None:
    world, both = two(a=(1,), b=(2, 2))
    world.submit("full", cluster_id=both[0], gpu_devices_request=1, preemptibility="non-preemptible")
    ones = [world.submit(f"one{n}", cluster_id=both[1], gpu_devices_request=1, **LOW) for n in range(3)]
    world.settle()
    for one in ones:
        world.fact(one, "running")
    stands = {key: str(nodes_of(world, key)) for key in ones}
    ended = next(key for key, at in stands.items() if list(stands.values()).count(at) == 2)
    world.fact(ended, "succeeded")
    world.settle()
    left = [key for key in ones if key != ended]
    assert len({stands[key] for key in left}) == 2, "one on each node"
    wide = world.submit("wide", among=both, gpu_devices_request=2, **LOW)
    planned = world.cycle()
    assert [reason for _, reason, _ in evicted(planned)] == ["moved"]
    for one in left:
        ends(world, one)
    world.settle()
    assert cluster_of(world, wide) == "b"
    assert not world.check().violations


def test_a_quota_counts_what_is_held_on_all_clusters() -> None:
    world, both = two(a=(2,), b=(2,), quota=2_000)
    keys = [
        world.submit(f"w{n}", among=both, gpu_devices_request=1, preemptibility="non-preemptible") for n in range(3)
    ]
    world.settle()
    assert sum(bool(world.places(key)) for key in keys) == 2
    assert world.workload(keys[2]).reason == "quota_used"


# -- questions ---------------------------------------------------------------------------------------------------------


def test_why_it_waits_is_explained_and_what_would_let_it_start_does() -> None:
    world, both = two(a=(2,), b=(1,))
    world.submit("full", cluster_id=both[0], gpu_devices_request=2)
    world.submit("other", cluster_id=both[1], gpu_devices_request=1)
    key = world.submit("w", among=both, gpu_devices_request=2)
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert (found.outcome, found.reason) == ("waits", "insufficient_gpu")
    assert [each.name for each in found.holders] == ["full"]
    assert any("full" in change.message for change in found.changes)
    assert msgspec.json.encode(found)


def test_a_rehearsal_says_on_which_cluster_it_would_run() -> None:
    world, both = two(a=(1,), b=(4,))
    key = world.submit("w", among=both, gpu_devices_request=2)
    state: Workload = world.workload(key)
    world.command(key, DeleteWorkload)
    found = what_if(world.fold.imagine(msgspec.structs.replace(state, phase=Phase.PENDING), world.now, "~"), "~")
    assert (found.outcome, [(each.cluster, each.node) for each in found.placed]) == ("runs", [("b", "b0")])
    assert world.fold.seq == world.commits[-1].seq


# -- two schedulers, crashes -------------------------------------------------------------------------------------------


def test_a_second_plan_that_chose_another_cluster_is_refused() -> None:
    world, both = two(a=(2,), b=(2,))
    key = world.submit("w", among=both, gpu_devices_request=1, parallelism=2, completions=2)
    planned = world.plan()
    world.node("a0", cluster_id=both[0], gpu_count=0)
    theirs = world.plan()
    (first,), _ = batches(planned, max_messages=300)
    (second,), _ = batches(theirs, max_messages=300)
    drafts, refused = batch_drafts(world.heads(), second, "00000000-0000-4000-8000-000000000000", world.now)
    world.append(*drafts)
    assert (refused, cluster_of(world, key)) == ({}, "b")

    drafts, refused = batch_drafts(world.heads(), first, "00000000-0000-4000-8000-000000000001", world.now)
    assert (drafts, [each.code for each in refused.values()]) == ([], ["stale_placement"])


@pytest.mark.parametrize("named", ["", "elsewhere"])
def test_a_placement_on_none_of_its_clusters_is_refused(named: str) -> None:
    world, both = two(a=(2,), b=(2,))
    key = world.submit("w", among=both, gpu_devices_request=1)
    (binding,) = world.plan().bindings
    placing = PlacePods(workload_id=world.workload(key).workload_id, placements=(binding.placement,), cluster_id=named)
    with pytest.raises(RefusedError, match=r"stale_placement: the cluster of 'w' is one of"):
        world.do("workload", key, placing)


# -- properties --------------------------------------------------------------------------------------------------------

steps = st.one_of(
    st.tuples(
        st.just("submit"),
        st.fixed_dictionaries(
            {
                "gpus": st.sampled_from([0, 1, 1, 2, 4]),
                "pods": st.integers(1, 4),
                "kind": st.sampled_from(["plain", "plain", "gang", "elastic"]),
                "where": st.sampled_from(["ab", "ab", "abs", "b", "a alone"]),
                "priority_class": st.sampled_from(["low", "medium-high"]),
                "preemptibility": st.sampled_from(["preemptible", "non-preemptible"]),
            }
        ),
    ),
    st.tuples(st.sampled_from(["running", "end", "succeeded", "suspend", "cycle", "away", "back"]), st.integers(0, 50)),
)


def carry_out(world: World, clusters: dict[str, str], keys: list[str], step: tuple[str, Any]) -> None:
    word, what = step
    live = [(key, id_) for key in keys for id_ in sorted(world.workload(key).pods.live)]
    match word:
        case "submit":
            keys.append(submit(world, clusters, f"w{len(keys)}", what))
        case "cycle":
            world.cycle(max_pods=what % 4 + 1)
        case "away" | "back":
            name = "ab"[what % 2]
            world.connect(clusters[name], name, connected=word == "back")
        case "suspend":
            living = [key for key in keys if world.workload(key).phase not in {"Completed", "Failed"}]
            if living:
                key = living[what % len(living)]
                stops = world.workload(key).desired == "Running"
                world.command(key, SuspendWorkload if stops else ResumeWorkload)
        case "end":
            for key in keys:
                ends(world, key)
        case "running" | "succeeded" if live:
            key, (pod_set, index) = live[what % len(live)]
            if pod_set == "main":
                world.fact(key, word, index=index)
        case _:
            pass


def submit(world: World, clusters: dict[str, str], name: str, what: dict[str, Any]) -> str:
    among = tuple(clusters[each] for each in what["where"]) if what["where"] != "a alone" else ()
    spec: dict[str, Any] = {"priority_class": what["priority_class"], "preemptibility": what["preemptibility"]}
    pods, gpus = what["pods"], what["gpus"]
    if what["kind"] == "plain":
        spec |= {"gpu_devices_request": gpus} if gpus else {}
        return world.submit(name, among=among, parallelism=pods, completions=pods, **spec)
    if what["kind"] == "gang":
        return gang(world, name, workers=pods, gpus=max(gpus, 1), among=among, **spec)
    return elastic(world, name, least=pods, most=pods + 2, gpus=max(gpus, 1), among=among, **spec)


@settings(max_examples=draws(120), deadline=None)
@given(st.lists(steps, max_size=25))
def test_every_history_comes_to_rest_with_each_workload_on_one_cluster(history: list[tuple[str, Any]]) -> None:
    world, (a, b) = two(a=(2, 1), b=(4,), quota=3_000)
    clusters = {"a": a, "b": b, "s": world.cluster("s", simulated=True)}
    world.node("s0", cluster_id=clusters["s"], gpu_count=4)
    keys: list[str] = []
    for step in history:
        carry_out(world, clusters, keys, step)
    restored = SchedulingState()
    world.fold.settle(world.now)
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    restored.restore(world.fold.seq, chains, beside=world.fold.beside())
    ours, theirs = plan(world.fold.snapshot(world.now)), plan(restored.snapshot(world.now))
    assert {(b.key, b.placement) for b in ours.bindings} == {(b.key, b.placement) for b in theirs.bindings}

    world.settle(cycles=60)

    assert world.plan().empty
    assert not world.check().violations
    nodes = {key: chain.state.cluster_id for (kind, key), chain in world.chains.items() if kind == "node"}
    for key in keys:
        state = world.workload(key)
        on = {nodes[pod.node_key] for pod in state.pods.live.values()}
        assert on <= {state.cluster_id}, "all of its pods are on its cluster"
        assert not state.among or state.cluster_id in {"", *state.among}
        if state.living and state.phase == "Pending" and not state.pods.live:
            assert state.reason, f"{state.name} waits without a reason"
