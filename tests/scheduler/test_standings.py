"""Where a workload stands for which nobody named a cluster is found out anew only where a cluster changed, and it is
always what a look at everything would say (S007).
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from events.ids import cluster_key, node_key, project_key
from events.maintenance import PlanMaintenance
from events.node import CordonNode, Taint, UncordonNode
from events.project import ChangeProject
from events.workload.needs import NODE_TYPE_LABEL
from events.workload.spec import PodRequest
from services.scheduler.planning import Planning
from services.scheduler.policy.among import Known, Stands, standing
from services.scheduler.policy.kinds import Kinds
from services.scheduler.policy.registry import POLICY
from services.scheduler.snapshot import PodClass, Queue, Snapshot
from tests.scheduler.test_among import two
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World
from tests.support.draws import draws


def waiting(snapshot: Snapshot) -> list[Queue]:
    return [queue for queue in snapshot.queues if queue.kept_as is not None]


def classes(world: World) -> list[PodClass]:
    return [queue.pod_class for queue in waiting(world.fold.snapshot(world.now))]


def unplaced(snapshot: Snapshot) -> Snapshot:
    """Before it was found out where each of them stands."""
    queues = (queue if queue.kept_as is None else replace(queue, pod_class=queue.kept_as) for queue in snapshot.queues)
    return replace(snapshot, queues=tuple(queues))


def test_while_no_cluster_changes_nothing_is_found_out_anew() -> None:
    world, both = two(a=(1,), b=(2,))
    for gpus in (3, 4, 5):
        world.submit(f"w{gpus}", among=both, gpu_devices_request=gpus)
    before = classes(world)
    world.submit("another", among=both, gpu_devices_request=6)
    world.now += timedelta(minutes=1)
    after = classes(world)
    assert len(after) == 4
    assert {id(each) for each in before} < {id(each) for each in after}, "they are the very same"


def test_where_one_cluster_changes_only_that_one_is_looked_at() -> None:
    world, both = two(a=(1,), b=(2,))
    world.submit("w", among=both, gpu_devices_request=4)
    (queue,) = waiting(world.fold.snapshot(world.now))
    pod_class, known = queue.kept_as, Known()
    assert pod_class is not None

    def looked() -> dict[str, object]:
        snapshot = world.fold.snapshot(world.now)
        standing(unplaced(snapshot), POLICY, known)
        return dict(known.stood[pod_class].ranked)

    first = looked()
    world.submit("small", cluster_id=both[0], gpu_devices_request=1)
    world.settle()
    bound = looked()
    assert bound[both[1]] is first[both[1]]
    assert bound[both[0]] is not first[both[0]]
    world.node("b9", cluster_id=both[1], gpu_count=1)
    come = looked()
    assert come[both[0]] is bound[both[0]]
    assert come[both[1]] is not bound[both[1]]


def test_what_waits_no_more_is_forgotten() -> None:
    world, both = two(a=(1,), b=(2,))
    world.submit("w", among=both, gpu_devices_request=1)
    known = Known()
    standing(unplaced(world.fold.snapshot(world.now)), POLICY, known)
    assert known.stood
    world.settle()
    standing(unplaced(world.fold.snapshot(world.now)), POLICY, known)
    assert not known.stood


SIZES = st.sampled_from([0, 1, 2, 4])
changes = st.one_of(
    st.tuples(st.just("submit"), SIZES, st.booleans()),
    st.tuples(st.just("node"), SIZES, st.sampled_from(["x", "y"])),
    st.tuples(st.just("taint"), SIZES, st.booleans()),
    st.tuples(
        st.sampled_from(["gang", "labelled", "cordon", "connect", "maintenance", "project"]), SIZES, st.booleans()
    ),
    st.tuples(st.sampled_from(["cycle", "running", "succeeded", "wait"]), SIZES, st.just(None)),
)


def change(world: World, both: tuple[str, str], keys: list[str], step: tuple[str, int, Any]) -> None:
    what, size, how = step
    at, name = both[size % 2], "ab"[size % 2]
    match what:
        case "submit":
            more = {"preemptibility": "non-preemptible"} if how else {}
            keys.append(world.submit(f"w{len(keys)}", among=both, gpu_devices_request=size + 1, **more))
        case "gang":
            keys.append(gang(world, f"w{len(keys)}", workers=size + 1, among=both))
        case "labelled":
            keys.append(world.submit(f"w{len(keys)}", among=both, gpu_devices_request=1, node_type="x" if how else "y"))
        case "node":
            world.node(f"{name}0", cluster_id=at, gpu_count=size, labels={NODE_TYPE_LABEL: how}, pool=how)
        case "taint":
            taints = (Taint(key="t", effect="NoSchedule"),) if how else ()
            world.node(f"{name}1", cluster_id=at, gpu_count=size, taints=taints)
        case "cordon":
            command = (CordonNode if how else UncordonNode)(cluster_id=at, name=f"{name}0")
            world.do("node", node_key(at, f"{name}0"), command)
        case "connect":
            world.connect(at, name, connected=how)
        case "maintenance" if how:
            starts = world.now + timedelta(minutes=size)
            planned = PlanMaintenance(
                cluster_id=at,
                name=f"m{len(world.commits)}",
                nodes=(f"{name}0",),
                starts_at=starts,
                ends_at=starts + timedelta(minutes=3),
                new=True,
            )
            world.do("cluster", cluster_key(name), planned)
        case "project":
            changed = ChangeProject(project_id=world.project_id, node_pools=("x",) if how else ())
            world.do("project", project_key("default"), changed)
        case "cycle":
            world.cycle(max_pods=size + 1)
        case "running" | "succeeded":
            for key in keys:
                if ("main", 0) in world.workload(key).pods.live:
                    world.fact(key, what)
        case _:
            world.now += timedelta(minutes=size)


@settings(max_examples=draws(80), deadline=None)
@given(st.lists(changes, max_size=25))
def test_each_stands_where_it_would_if_everything_were_looked_at(history: list[tuple[str, int, Any]]) -> None:
    world, both = two(a=(2, 1), b=(4, 1))
    keys: list[str] = []
    for step in history:
        change(world, both, keys, step)
        snapshot = world.fold.snapshot(world.now)
        anew = Stands(snapshot, POLICY)
        for queue in waiting(snapshot):
            assert queue.kept_as is not None
            assert queue.pod_class == anew.of(queue.kept_as)


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(changes, max_size=25))
def test_what_is_counted_once_for_nodes_alike_is_what_each_of_them_says(history: list[tuple[str, int, Any]]) -> None:
    world, both = two(a=(2, 1, 2, 1), b=(4, 1, 4, 4))
    keys: list[str] = []
    for step in history:
        change(world, both, keys, step)
    planning = Planning(replace(world.fold.snapshot(world.now), queues=()), POLICY, 0)
    nodes, kinds = planning.snapshot.nodes, Kinds(planning)
    every = tuple(range(len(nodes.closings)))
    for devices, cpu, closings in ((0, 100, ()), (1, 0, every), (2, 4_000, ()), (4, 100, every)):
        request = PodRequest(cpu_milli=cpu, gpu_devices=devices, gpu_milli=1_000 if devices else 0)
        for number in nodes.pool_numbers.values():
            rows = np.flatnonzero((nodes.pool == number) & nodes.present)
            held, fits = kinds.each(rows, request, closings)
            assert kinds.count(kinds.of(rows), request, closings) == (held.sum(), fits.sum())
            one_by_one = [kinds.each(rows[i : i + 1], request, closings) for i in range(len(rows))]
            assert held.tolist() == [int(each[0]) for each, _ in one_by_one]
            assert fits.tolist() == [int(each[0]) for _, each in one_by_one]
