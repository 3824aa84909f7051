"""Which pods have to leave their node: taints with effect NoExecute (S044), and drains."""

from datetime import timedelta
from typing import Any

import pytest

from events.ids import node_key, workload_key
from events.node import DrainNode, Taint, UncordonNode
from events.phases import Phase
from events.workload.commands import CreateWorkload, PodFact, PodFactKind, ReportPods, SuspendWorkload
from events.workload.fields.distribution import Distribution
from events.workload.fields.scheduling import Toleration
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec
from events.workload.state import Workload
from services.scheduler import must_leave
from services.scheduler.batches import eviction_drafts
from services.scheduler.fold import SchedulingState
from services.scheduler.snapshot import Plan
from tests.scheduler.world import World

MAINTENANCE = Taint(key="maintenance", effect="NoExecute")
GPUS: dict[str, Any] = {"gpu_count": 4}


def tolerates(seconds: int | None = None, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"key": "maintenance", "operator": "Exists", "effect": "NoExecute", "seconds": seconds}
    return {"tolerations": (Toleration(**(given | more)),)}


def lab(*names: str) -> World:
    world = World()
    world.cluster()
    world.project()
    for name in names:
        world.node(name, **GPUS)
    return world


def running(world: World, name: str, **spec: Any) -> str:
    key = world.submit(name, gpu_devices_request=1, **spec)
    world.settle()
    for index in world.places(key):
        world.fact(key, "running", index=index)
    return key


def gang(world: World, name: str, *, workers: int) -> str:
    world.now += timedelta(seconds=1)
    key = workload_key(world.project_id, name)
    command = CreateWorkload(
        kind="Distributed",
        name=name,
        requested_name=name,
        project_id=world.project_id,
        cluster_id=world.cluster_id,
        spec=TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=2)),
        distributed=Distributed(
            distribution=Distribution(distributed_framework="PyTorch", num_workers=workers), master=None
        ),
    )
    world.do("workload", key, command)
    world.settle()
    for index in range(workers):
        say(world, key, "running", index)
    return key


def say(world: World, key: str, kind: PodFactKind, index: int) -> None:
    """Of a worker of a gang."""
    state = world.workload(key)
    pod = state.pods["worker", index]
    ref = PodRef(pod_set="worker", index=index, attempt=pod.attempt, try_=pod.try_)
    fact = PodFact(pod=ref, kind=kind, at=world.now)
    world.do("workload", key, ReportPods(workload_id=state.workload_id, facts=(fact,)))


def taint(world: World, name: str, *taints: Taint) -> None:
    world.node(name, **GPUS, taints=taints or (MAINTENANCE,))


def drain(world: World, name: str, **more: Any) -> tuple[Any, ...]:
    return world.do("node", node_key(world.cluster_id, name), DrainNode(cluster_id=world.cluster_id, name=name, **more))


def evicted(planned: Plan) -> list[tuple[str, str, int]]:
    return sorted((each.name, each.reason, len(each.pods)) for each in planned.evictions)


def end(world: World, key: str) -> None:
    for _, index in [id_ for id_, pod in world.workload(key).pods.live.items() if pod.phase == "Stopping"]:
        world.fact(key, "stopped", index=index)


def is_sound(world: World) -> bool:
    return not world.check().violations


WHO_LEAVES: list[tuple[str, dict[str, Any], Taint, int | None]] = [
    ("tolerates nothing", {}, MAINTENANCE, 0),
    ("another effect", tolerates(None, effect="NoSchedule"), MAINTENANCE, 0),
    ("for ever", tolerates(None), MAINTENANCE, None),
    ("any effect", tolerates(None, effect="Any"), MAINTENANCE, None),
    ("for a time", tolerates(60), MAINTENANCE, 60),
    (
        "the longer of two",
        {"tolerations": (*tolerates(60)["tolerations"], *tolerates(90)["tolerations"])},
        MAINTENANCE,
        90,
    ),
    (
        "for ever beside a time",
        {"tolerations": (*tolerates(60)["tolerations"], *tolerates()["tolerations"])},
        MAINTENANCE,
        None,
    ),
    ("longer than times go", tolerates(2**62), MAINTENANCE, None),
    ("non-preemptible", {"preemptibility": "non-preemptible"}, MAINTENANCE, 0),
    ("terminated when preempted", {"terminate_after_preemption": True}, MAINTENANCE, 0),
    ("only keeps away new ones", {}, Taint(key="maintenance", effect="NoSchedule"), None),
    ("keeps the node for GPUs", {}, Taint(key="nvidia.com/gpu", effect="NoExecute"), None),
    ("a node that does not answer", {}, Taint(key="node.kubernetes.io/unreachable", effect="NoExecute"), None),
]


@pytest.mark.parametrize(("spec", "given", "after"), [case[1:] for case in WHO_LEAVES], ids=[c[0] for c in WHO_LEAVES])
def test_a_taint_evicts_at_once_or_after_as_long_as_it_is_tolerated(
    spec: dict[str, Any], given: Taint, after: int | None
) -> None:
    """S044 R17: and what is evicted waits again, with the reason."""
    world = lab("n0")
    key = running(world, "a", **spec)

    taint(world, "n0", given)

    if after is None:
        world.settle()
        assert world.fold.next_due() is None
        assert world.workload(key).phase is Phase.RUNNING
        return
    if after:
        assert world.cycle().empty
        assert world.fold.next_due() == world.now + timedelta(seconds=after)
        world.now += timedelta(seconds=after) - timedelta(microseconds=1)
        assert world.cycle().empty
        world.now += timedelta(microseconds=1)
    planned = world.cycle()
    assert evicted(planned) == [("a", "tainted", 1)]
    state = world.workload(key)
    assert (state.phase, state.reason, state.attempt) == (Phase.PENDING, "tainted", 2)
    assert "node n0 has the taint maintenance:NoExecute" in state.message
    end(world, key)
    world.settle()
    assert (world.workload(key).phase, world.workload(key).reason) == (Phase.PENDING, "no_nodes")
    world.node("n1", **GPUS)
    world.settle()
    assert world.places(key)[0][0] == "n1"
    assert is_sound(world)


def test_a_taint_that_goes_in_time_evicts_nobody_and_one_that_comes_back_counts_anew() -> None:
    """S044."""
    world = lab("n0")
    key = running(world, "a", **tolerates(60))
    taint(world, "n0")
    world.now += timedelta(seconds=59)
    world.node("n0", **GPUS)
    world.now += timedelta(seconds=2)
    world.settle()
    taint(world, "n0")
    world.now += timedelta(seconds=59)
    world.settle()
    assert world.workload(key).phase is Phase.RUNNING
    # Facts that say the same again, or more, take nothing from the time that went by.
    world.node("n0", gpu_count=4, labels={"a": "b"}, taints=(MAINTENANCE,))
    world.now += timedelta(seconds=1)
    assert evicted(world.cycle()) == [("a", "tainted", 1)]


def test_who_tolerates_a_taint_for_a_time_is_not_placed_where_it_is() -> None:
    """S044: it would be told to end again."""
    world = lab()
    taint(world, "n0")
    key = world.submit("a", gpu_devices_request=1, **tolerates(60))
    world.settle()
    assert world.workload(key).reason == "no_nodes"
    assert "maintenance:NoExecute (tolerated for 60 s only)" in world.workload(key).message


def test_who_decides_after_a_kill_or_beside_another_decides_the_same_once() -> None:
    """The times stand in the log."""
    world = lab("n0")
    key = running(world, "a", **tolerates(60))
    taint(world, "n0")
    world.now += timedelta(seconds=61)
    restarted = SchedulingState()
    restarted.restore(world.fold.seq, world.fold.chains, beside=world.fold.beside())
    assert restarted.snapshot(world.now).must_leave == world.fold.snapshot(world.now).must_leave
    late = world.plan().evictions
    assert evicted(world.cycle()) == [("a", "tainted", 1)]
    again = eviction_drafts(world.heads(), late[0], "c", world.now)
    assert getattr(again, "code", "") == "stale_eviction"
    assert world.cycle().empty
    assert sum(type(event).__name__ == "PodsEvicted" for c in world.commits for event in c.events) == 1
    assert world.workload(key).attempt == 2


def test_of_a_gang_all_go_and_while_nobody_sees_one_of_them_none() -> None:
    world = lab("n0", "n1")
    key = gang(world, "g", workers=3)
    on = {index: node for index, (node, _) in world.places(key).items()}
    assert set(on.values()) == {"n0", "n1"}
    hidden = next(index for index, node in on.items() if node == "n1")
    say(world, key, "unreachable", hidden)
    taint(world, "n0")
    assert world.cycle().empty
    assert world.fold.next_due() is None
    say(world, key, "running", hidden)
    planned = world.cycle()
    assert evicted(planned) == [("g", "tainted", 3)]
    assert "its pods go with it, since they live together" in planned.evictions[0].message
    assert is_sound(world)


def test_a_drain_cordons_evicts_and_ends_by_itself_once_nothing_is_left() -> None:
    world = lab("n0")
    first, second = running(world, "a"), running(world, "b")
    kept = running(world, "kept", preemptibility="non-preemptible")
    world.node("n1", **GPUS)

    begun = drain(world, "n0")

    assert [type(event).__name__ for event in begun] == ["NodeCordoned", "NodeDrainStarted"]
    assert evicted(world.cycle()) == [("a", "drained", 1), ("b", "drained", 1)]
    end(world, first)
    end(world, second)
    world.settle()
    assert {world.places(key)[0][0] for key in (first, second)} == {"n1"}
    node = world.chain("node", node_key(world.cluster_id, "n0")).state
    assert node.draining
    assert [r.workload_key for r in node.reservations.values()] == [kept]
    assert drain(world, "n0") == ()

    forced = drain(world, "n0", force=True)

    assert [type(event).__name__ for event in forced] == ["NodeDrainStarted"]
    planned = world.cycle()
    assert evicted(planned) == [("kept", "drained", 1)]
    assert "with force: the workload is non-preemptible" in planned.evictions[0].message
    end(world, kept)
    world.settle()
    node = world.chain("node", node_key(world.cluster_id, "n0")).state
    assert node.cordoned
    assert not node.draining
    assert node.drain is not None
    assert node.drain.ended_at == world.now
    assert drain(world, "n0", force=True) == ()
    assert is_sound(world)


def test_a_drain_of_an_empty_node_is_over_at_once_and_uncordon_ends_one_that_goes_on() -> None:
    world = lab("n0", "n1")
    assert [type(e).__name__ for e in drain(world, "n1")] == ["NodeCordoned", "NodeDrainStarted", "NodeDrained"]
    kept = running(world, "kept", preemptibility="non-preemptible")
    drain(world, "n0")
    assert world.cycle().empty
    world.do("node", node_key(world.cluster_id, "n0"), UncordonNode(cluster_id=world.cluster_id, name="n0"))
    drained = world.chain("node", node_key(world.cluster_id, "n0")).state
    assert (drained.drain, drained.cordoned) == (None, False)
    world.command(kept, SuspendWorkload)
    world.fact(kept, "stopped")
    world.settle()
    assert not any(type(e).__name__ == "NodeDrained" for c in world.commits[-3:] for e in c.events)
    assert is_sound(world)


def test_a_workload_on_many_nodes_is_looked_at_once_and_not_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight thousand pods on a thousand nodes that get a taint held up everybody for seconds, with each fact."""
    looked: list[str] = []

    def seen(state: Workload) -> bool:
        looked.append(state.name)
        return True

    monkeypatch.setattr(must_leave, "_all_seen", seen)
    names = [f"n{number}" for number in range(5)]
    world = lab(*names)
    running(world, "wide", parallelism=20, completions=20)
    for name in names:
        taint(world, name)
    assert sum(count for _, _, count in evicted(world.cycle())) == 20
    assert looked == ["wide"]
