"""What holds of every plan: within capacity, at rest once carried out, the same for the same snapshot, within quota."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from events.node import Taint
from events.phases import FINISHED
from events.workload.commands import (
    ChangeWorkload,
    DeleteWorkload,
    PodFact,
    PodFactKind,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
)
from events.workload.fields.compute import ExtendedResource
from events.workload.fields.scheduling import (
    MatchExpression,
    NodeAffinityRequired,
    NodeSelectorTerm,
    PodAffinity,
    Toleration,
)
from events.workload.pod import PodRef
from events.workload.state import Workload
from services.scheduler.plan import MAX_PODS_PER_PLAN, MAX_UPDATES_PER_PLAN
from services.scheduler.rounds import Rounds
from services.scheduler.snapshot import Plan, PodClass
from tests.scheduler.test_elastic import elastic
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import GIB, World
from tests.support.draws import draws

SOFT = (Taint(key="soft", effect="PreferNoSchedule"),)
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
        "taints": st.sampled_from([(), (), (), (Taint(key="t"),), (Taint(key="nvidia.com/gpu"),), SOFT]),
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
    st.tuples(st.just("submit"), st.tuples(specs, st.integers(0, 2))),
    st.tuples(st.just("node"), st.tuples(st.integers(0, 4), node_facts)),
    st.tuples(
        st.sampled_from(["succeeded", "failed", "interrupted", "running", "unreachable", "stopped"]), st.integers(0, 50)
    ),
    st.tuples(st.sampled_from(["suspend", "resume", "delete", "priority"]), st.integers(0, 50)),
    st.tuples(st.just("cycle"), st.tuples(st.integers(1, 5), st.integers(2, 6))),
)


def carry_out(world: World, keys: list[str], step: tuple[str, Any], projects: Sequence[str] = ("",)) -> None:
    word, what = step
    match word:
        case "submit":
            spec, project = what
            keys.append(world.submit(f"w{len(keys)}", project_id=projects[int(project) % len(projects)], **spec))
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
        if world.workload(key).project_id == world.project_id
        and world.workload(key).spec.preemptibility == "non-preemptible"
        for pod in world.workload(key).pods.live.values()
        for share in pod.devices
    )
    assert held <= quota


def check_evictions(world: World, planned: Plan, protected: AbstractSet[str]) -> None:
    """For whom others were told to end, a place is kept; and only those with a right to it are among them.

    Args:
        protected: ids of projects that held no more than their quota.
    """
    ids = {world.workload(key).workload_id: world.workload(key) for (kind, key) in world.chains if kind == "workload"}
    kept = {
        entry.workload_id for queue in world.seen_queues if queue.pod_class in planned.held for entry in queue.entries
    }
    ended = {each.workload_id for each in planned.evictions if each.reason != "shrunk"}
    for each in planned.evictions:
        victim, winner = ids[each.workload_id], ids[each.beneficiary]
        assert each.beneficiary in kept
        if each.reason == "shrunk":
            # Another one may take the rest of it in the same plan, by right.
            if each.workload_id not in ended:
                check_goes_on(victim)
        elif each.reason == "moved":
            assert victim.preemptible
            assert victim.priority_rank <= winner.priority_rank
        elif each.reason == "preempted":
            assert (victim.project_id, victim.priority_rank) < (winner.project_id, winner.priority_rank)
            assert victim.project_id == winner.project_id
        elif each.reason == "backfilled":
            assert victim.project_id == winner.project_id
            assert victim.priority_rank <= winner.priority_rank
        else:
            assert winner.project_id != victim.project_id
            assert victim.project_id not in protected, "its project stayed within its quota"


def check_goes_on(of: Workload) -> None:
    """It has as many pods as it needs, and the one at which they meet."""
    live = [id_ for id_, pod in of.pods.live.items() if pod.phase != "Stopping"]
    for pod_set in of.pod_sets:
        assert sum(name == pod_set.name for name, _ in live) + of.succeeded >= pod_set.minimum
    assert (of.pod_sets[0].name, 0) in {*live, *of.pods.waiting} or of.succeeded


def check_growth(world: World, planned: Plan) -> None:
    """Nobody has more pods than it may, and what was added takes no place that somebody who waits could use now."""
    growth = {each.entry.key: each for each in world.seen_growth}
    for (kind, _), chain in world.chains.items():
        of = chain.state
        if kind == "workload" and of.elastic and of.living:
            live = [pod for pod in of.pods.live.values() if pod.phase != "Stopping"]
            assert len(live) <= sum(pod_set.most or pod_set.count for pod_set in of.pod_sets)
    added = [
        each for each in planned.bindings if each.key in growth and each.placement.pod in growth[each.key].entry.pods
    ]
    waits = [
        queue
        for queue in world.seen_queues
        if queue.pod_class in planned.blocked
        and planned.blocked[queue.pod_class].reason == "insufficient_gpu"
        # A quota may have kept others back while there was room: they are told what they wait for once that is taken.
        and queue.pod_class.preemptible
    ]
    # All nodes are alike in this world: whoever waits for GPUs could use any.
    large = [queue for queue in waits if max(_gpus(queue.pod_class)) <= 4]
    assert not (added and large), f"{len(added)} pods were added while {len(large)} classes wait"


def _gpus(of: PodClass) -> list[int]:
    return [each.request.gpu_devices for each in of.gang] or [of.request.gpu_devices]


def going_on(world: World) -> Counter[str]:
    """By project id: what its pods hold of GPUs that were not told to end, in thousandths."""
    held: Counter[str] = Counter()
    for (kind, _), chain in world.chains.items():
        if kind == "workload":
            pods = [pod for pod in chain.state.pods.live.values() if pod.phase != "Stopping"]
            held[chain.state.project_id] += sum(share.milli for pod in pods for share in pod.devices)
    return held


def within_quota(world: World, planned: Plan, held: Mapping[str, int], quotas: Mapping[str, int]) -> set[str]:
    """Those of these projects that had no more than their quota before this plan, nor with what it gives them: pods
    that it binds, and places that it keeps.

    Args:
        held: as of going_on, before the plan.
    """
    assert world.seen_snapshot is not None
    rounds = Rounds(world.seen_snapshot, world.policy, max_pods=MAX_PODS_PER_PLAN, max_updates=MAX_UPDATES_PER_PLAN)
    again = rounds.plan()
    assert (again.bindings, again.evictions) == (planned.bindings, planned.evictions)
    assert rounds.last is not None
    used, before = rounds.last.quota_used, world.seen_snapshot.held_milli
    given = {id_: used.get((id_, "", False), 0) - before.get((id_, "", False), 0) for id_ in quotas}
    return {id_ for id_, quota in quotas.items() if held[id_] + given[id_] <= quota}


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


@settings(max_examples=draws(150), deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([None, 0, 1_500, 4_000]))
def test_every_history_stays_within_capacity_and_comes_to_rest(history: list[tuple[str, Any]], quota: int | None):
    world = World()
    world.cluster(pools=("a", "b"))
    projects = [world.project(quota=quota), world.project("second", quota=2_000), world.project("third")]
    keys: list[str] = []
    for step in history:
        carry_out(world, keys, step, projects)
        check_quota(world, keys, quota)
    quotas = {projects[1]: 2_000} | ({} if quota is None else {projects[0]: quota})
    held = going_on(world)
    planned = world.cycle()
    check_evictions(world, planned, within_quota(world, planned, held, quotas))
    assert planned.more or world.cycle().empty, "what was decided is enough"
    world.settle(cycles=60)
    assert world.plan().empty
    check_quota(world, keys, quota)
    check_reservations(world, keys)
    assert not world.check().violations
    for key in keys:
        state = world.workload(key)
        if state.living and state.phase == "Pending" and not state.pods.live:
            assert state.reason, f"{state.name} waits without a reason"


@settings(max_examples=draws(60), deadline=None)
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
    placed = {(b.key, b.placement) for b in ours.bindings}
    # What the first knows to be blocked, the second finds out again: nothing more is placed.
    assert placed == {(b.key, b.placement) for b in theirs.bindings}


dense_submissions = st.fixed_dictionaries(
    {
        "project": st.integers(0, 4),
        "gpus": st.sampled_from([1, 1, 2, 4]),
        "portion": st.sampled_from([None, None, None, 0.5]),
        "pods": st.integers(1, 3),
        "gang": st.booleans(),
        "growth": st.sampled_from([0, 0, 1, 5]),
        "priority_class": st.sampled_from(["low", "medium", "medium-high", "high"]),
    }
)
dense_steps = st.one_of(
    st.tuples(st.just("submit"), dense_submissions),
    st.tuples(st.sampled_from(["running", "end", "cycle", "succeeded", "wait"]), st.integers(0, 50)),
)
"""Little room and many who want it."""


def submit_dense(world: World, name: str, project_id: str, what: dict[str, Any]) -> str:
    spec: dict[str, Any] = {"priority_class": what["priority_class"]}
    if what["growth"]:
        least = what["pods"]
        return elastic(
            world, name, least=least, most=least + what["growth"], project_id=project_id, gpus=what["gpus"], **spec
        )
    if what["gang"]:
        return gang(world, name, workers=what["pods"], project_id=project_id, gpus=what["gpus"], **spec)
    share = {"gpu_request_type": "portion", "gpu_portion_request": what["portion"]} if what["portion"] else {}
    spec |= {"gpu_devices_request": 1 if share else what["gpus"], **share}
    return world.submit(name, project_id=project_id, parallelism=what["pods"], completions=what["pods"], **spec)


def of_pod(world: World, keys: list[str], number: int, kind: PodFactKind, phases: set[str]) -> None:
    """A fact of one of the pods in these phases."""
    pods = [
        (key, PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_))
        for key in keys
        for (name, index), pod in sorted(world.workload(key).pods.live.items())
        if pod.phase in phases
    ]
    if pods:
        key, ref = pods[number % len(pods)]
        fact = PodFact(pod=ref, kind=kind, at=world.now)
        world.do("workload", key, ReportPods(workload_id=world.workload(key).workload_id, facts=(fact,)))


def for_whom(planned: Plan) -> set[tuple[str, str]]:
    """Who does not go on, and for whom."""
    return {(each.workload_id, each.beneficiary) for each in planned.evictions if each.reason != "shrunk"}


@settings(max_examples=draws(100), deadline=None)
@given(st.lists(dense_steps, max_size=40))
def test_places_are_taken_back_by_right_and_never_in_turn(history: list[tuple[str, Any]]):
    world = World()
    world.cluster()
    for name in ("n0", "n1"):
        world.node(name, gpu_count=4)
    tight, wide = department(world, "tight", gpu_quota_milli=2_000), department(world, "wide", over_quota_weight=2.0)
    projects = [world.project("first", quota=4_000), world.project("second", quota=2_000, **tight)]
    projects += [world.project("third", **wide), world.project("fourth", quota=1_000, over_quota_weight=3.0, **tight)]
    projects.append(world.project("fifth", over_quota_weight=0.0))
    quotas = {projects[0]: 4_000, projects[1]: 2_000, projects[3]: 1_000}
    keys: list[str] = []
    evicted_for: set[tuple[str, str]] = set()
    steps: list[tuple[str, Any]] = [*history, ("cycle", 0)]
    for word, what in steps:
        world.now += timedelta(seconds=1)
        match word:
            case "submit":
                keys.append(submit_dense(world, f"w{len(keys)}", projects[what["project"]], what))
            case "cycle":
                held = going_on(world)
                planned = world.cycle()
                check_growth(world, planned)
                check_evictions(world, planned, within_quota(world, planned, held, quotas))
                evicted_for |= for_whom(planned)
                assert planned.more or world.cycle().empty, "what was decided is enough"
            case "wait":
                world.now += timedelta(minutes=20)
            case "end":
                of_pod(world, keys, what, "stopped", {"Stopping"})
            case "running" | "succeeded":
                of_pod(world, keys, what, word, {"Bound", "Starting", "Running"})
            case _:
                raise AssertionError(word)
    assert not {(victim, winner) for victim, winner in evicted_for if (winner, victim) in evicted_for}
    for _ in range(200):
        of_pod(world, keys, 0, "stopped", {"Stopping"})
    world.settle(cycles=60)
    assert not world.check().violations
