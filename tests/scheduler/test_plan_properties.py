"""What holds of every plan: within capacity, at rest once carried out, the same for the same snapshot, within quota."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from events.node import Taint
from events.phases import FINISHED
from events.workload.commands import ChangeWorkload, DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.fields.compute import ExtendedResource
from events.workload.fields.scheduling import (
    MatchExpression,
    NodeAffinityRequired,
    NodeSelectorTerm,
    PodAffinity,
    Toleration,
)
from tests.scheduler.world import GIB, World

GPU_MEMORY = [0, 16 * GIB, 80 * GIB]

node_facts = st.fixed_dictionaries(
    {
        "cpu_milli": st.integers(0, 20_000),
        "memory_bytes": st.integers(0, 64 * GIB),
        "gpu_count": st.integers(0, 5),
        "gpu_memory_bytes": st.sampled_from(GPU_MEMORY),
        "max_pods": st.integers(0, 6),
        "pool": st.sampled_from(["default", "a", "b"]),
        "ready": st.sampled_from([True, True, True, False]),
        "taints": st.sampled_from([(), (), (), (Taint(key="t"),), (Taint(key="nvidia.com/gpu"),)]),
        "foreign_cpu_milli": st.integers(0, 2_000),
        "foreign_gpus": st.integers(0, 3),
        "foreign_pods": st.integers(0, 2),
        "labels": st.sampled_from([{}, {"zone": "x"}, {"zone": "y"}, {"zone": "x", "run.ai/type": "big"}]),
        "extended": st.sampled_from([{}, {}, {"rdma/hca": 2}]),
        "foreign_extended": st.sampled_from([{}, {"rdma/hca": 1}]),
    }
)
in_zone_x = NodeAffinityRequired(
    node_selector_terms=(
        NodeSelectorTerm(match_expressions=(MatchExpression(key="zone", operator="In", values=("x",)),)),
    )
)
"""Fields that place: none of them most of the time."""
placing = st.sampled_from(
    [
        {},
        {},
        {"tolerations": (Toleration(key="t", operator="Exists", effect="Any"),)},
        {"node_type": "big"},
        {"node_affinity_required": in_zone_x},
        {"pod_affinity": PodAffinity(type="Required", key="zone")},
        {"pod_affinity": PodAffinity(type="Preferred", key="zone")},
        {"extended_resources": (ExtendedResource(resource="rdma/hca", quantity="1"),)},
    ]
)
gpu_requests = st.one_of(
    st.just({}),
    st.builds(lambda n: {"gpu_devices_request": n}, st.integers(1, 4)),
    st.builds(
        lambda n, portion: {
            "gpu_devices_request": n,
            "gpu_request_type": "portion",
            "gpu_portion_request": portion,
        },
        st.integers(1, 2),
        st.sampled_from([0.001, 0.25, 0.333, 0.5, 0.9, 1.0]),
    ),
    st.builds(lambda gib: {"gpu_request_type": "memory", "gpu_memory_request": f"{gib}Gi"}, st.integers(1, 90)),
)
specs = st.builds(
    lambda gpu, placed, others: gpu | placed | others,
    gpu_requests,
    placing,
    st.fixed_dictionaries(
        {
            "cpu_core_request": st.sampled_from([0.0, 0.0001, 0.5, 3.0]),
            "cpu_memory_request": st.sampled_from(["0", "1Gi", "9Gi"]),
            "completions": st.integers(1, 5),
            "parallelism": st.integers(1, 3),
            "priority_class": st.sampled_from(["low", "medium", "high"]),
            "node_pools": st.sampled_from([(), ("a",), ("b", "default"), ("nowhere",)]),
        }
    ),
)
steps = st.one_of(
    st.tuples(st.just("submit"), specs),
    st.tuples(st.just("node"), st.tuples(st.integers(0, 4), node_facts)),
    st.tuples(
        st.sampled_from(["succeeded", "failed", "interrupted", "running", "unreachable", "stopped"]), st.integers(0, 50)
    ),
    st.tuples(st.sampled_from(["suspend", "resume", "delete", "priority"]), st.integers(0, 50)),
    st.tuples(st.just("cycle"), st.tuples(st.integers(1, 5), st.integers(2, 6))),
)


def carry_out(world: World, keys: list[str], step: tuple[str, Any]) -> None:
    word, what = step
    match word:
        case "submit":
            keys.append(world.submit(f"w{len(keys)}", **what))
        case "node":
            number, facts = what
            world.node(f"n{number}", **facts)
        case "cycle":
            max_pods, max_messages = what
            world.cycle(max_pods=max_pods, max_messages=max_messages)
        case "succeeded" | "failed" | "interrupted" | "running" | "unreachable" | "stopped":
            live = [(key, index) for key in keys for _, index in sorted(world.workload(key).pods.live)]
            if live:
                key, index = live[what % len(live)]
                world.fact(key, word, index=index)
        case _:
            living = [key for key in keys if world.workload(key).desired != "Deleted"]
            if living:
                act_on(world, living[what % len(living)], word)


def act_on(world: World, key: str, word: str) -> None:
    ended = world.workload(key).phase in FINISHED
    if word == "delete":
        world.command(key, DeleteWorkload)
    elif word == "priority":
        world.command(key, ChangeWorkload, priority_class="very-high")
    elif not ended:
        world.command(key, SuspendWorkload if word == "suspend" else ResumeWorkload)


def check_quota(world: World, keys: list[str], quota: int | None) -> None:
    if quota is None:
        return
    held = sum(
        share.milli
        for key in keys
        if world.workload(key).spec.preemptibility == "non-preemptible"
        for pod in world.workload(key).pods.live.values()
        for share in pod.devices
    )
    assert held <= quota


def check_reservations(world: World, keys: list[str]) -> None:
    """At rest, exactly the live pods hold room."""
    live = {
        (key, pod.node_key, pod.devices, world.workload(key).pod_sets[0].template.request.extended)
        for key in keys
        for pod in world.workload(key).pods.live.values()
    }
    held = {
        (reservation.workload_key, node_key, reservation.devices, reservation.extended)
        for (kind, node_key), chain in world.chains.items()
        if kind == "node"
        for reservation in chain.state.reservations.values()
    }
    assert held == live


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([None, 0, 1_500, 4_000]))
def test_every_history_stays_within_capacity_and_comes_to_rest(history: list[tuple[str, Any]], quota: int | None):
    world = World()
    world.cluster(pools=("a", "b"))
    world.project(quota=quota)
    keys: list[str] = []
    for step in history:
        carry_out(world, keys, step)
        check_quota(world, keys, quota)
    world.settle(cycles=60)
    assert world.plan().empty
    check_quota(world, keys, quota)
    check_reservations(world, keys)
    assert not world.check().violations
    for key in keys:
        state = world.workload(key)
        if state.living and state.phase == "Pending" and not state.pods.live:
            assert state.reason, f"{state.name} waits without a reason"


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=20))
def test_a_fold_kept_along_the_way_equals_one_made_from_what_is_stored(history: list[tuple[str, Any]]):
    from services.scheduler.fold import SchedulingState
    from services.scheduler.plan import plan

    world = World()
    world.cluster(pools=("a", "b"))
    world.project()
    keys: list[str] = []
    for step in history:
        carry_out(world, keys, step)
    world.fold.settle(world.now)
    restored = SchedulingState()
    restored.restore(
        world.fold.seq,
        {name: dict(chains) for name, chains in world.fold.chains.items()},
        beside=world.fold.beside(),
    )
    ours, theirs = plan(world.fold.snapshot(world.now)), plan(restored.snapshot(world.now))
    assert {r.reservation.id for r in ours.releases} == {r.reservation.id for r in theirs.releases}
    placed = {(b.key, b.placement.pod) for b in ours.bindings}
    # What the first knows to be blocked, the second finds out again: nothing more is placed.
    assert placed == {(b.key, b.placement.pod) for b in theirs.bindings}
