"""Elastic workloads start with what they need, grow by what is left over, and give that up before anything else goes
(S063, S065).
"""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from events.ids import workload_key
from events.node import CordonNode, DrainNode
from events.phases import Phase
from events.workload.commands import (
    CreateWorkload,
    DeleteWorkload,
    EvictPods,
    PodFact,
    PodFactKind,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
)
from events.workload.fields.distribution import Distribution
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec
from services.scheduler.policy.phases.grow import GROWS_AGAIN_AFTER
from services.scheduler.simulation.ledger import RefusedError
from services.scheduler.snapshot import Plan
from services.scheduler.why import why
from tests.scheduler.test_take_back import HIGH, LOW, cluster, evicted, running
from tests.scheduler.world import World
from tests.support.public_events import Everything
from tests.support.tables import Tables


def elastic(
    world: World,
    name: str,
    *,
    least: int = 2,
    workers: int | None = None,
    most: int = 6,
    master: bool = False,
    project_id: str = "",
    gpus: int = 1,
    among: tuple[str, ...] = (),
    **spec: Any,
) -> str:
    world.now += timedelta(seconds=1)
    project_id = project_id or world.project_id
    distribution = Distribution(
        distributed_framework="PyTorch",
        num_workers=least if workers is None else workers,
        min_replicas=least,
        max_replicas=most,
    )
    command = CreateWorkload(
        kind="Distributed",
        name=name,
        requested_name=name,
        project_id=project_id,
        cluster_id="" if among else world.cluster_id,
        among=among,
        spec=TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=gpus), **spec),
        distributed=Distributed(distribution=distribution, master=TrainingSpec(image="m") if master else None),
    )
    key = workload_key(project_id, name)
    world.do("workload", key, command)
    return key


def say(world: World, key: str, kind: PodFactKind, *indexes: int, pod_set: str = "worker") -> None:
    """A fact of these pods; of all that hold a node where none is named."""
    state = world.workload(key)
    for index in indexes or sorted(index for name, index in state.pods.live if name == pod_set):
        pod = world.workload(key).pods[pod_set, index]
        ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
        fact = PodFact(pod=ref, kind=kind, at=world.now, exit_code=1 if kind == "failed" else None)
        world.do("workload", key, ReportPods(workload_id=state.workload_id, facts=(fact,)))


def ends(world: World, key: str) -> None:
    """Each of its pods that was told to end does."""
    for (pod_set, index), pod in sorted(world.workload(key).pods.live.items(), key=lambda each: each[0]):
        if pod.phase == "Stopping":
            say(world, key, "stopped", index, pod_set=pod_set)


def staying(world: World, key: str) -> list[int]:
    return sorted(i for (_, i), pod in world.workload(key).pods.live.items() if pod.phase != "Stopping")


def shrunk(planned: Plan) -> list[tuple[str, str, list[int]]]:
    return [(each.name, each.reason, [pod.index for pod in each.pods]) for each in planned.evictions]


def grown(world: World, **asked: Any) -> str:
    """An elastic workload that runs on all that it found."""
    key = elastic(world, "grows", **asked)
    world.settle()
    say(world, key, "running")
    return key


def grow_words(world: World, key: str) -> str:
    """Why it has no more pods."""
    return why(world.fold, world.workload(key).workload_id, world.now, None).message


# -- growth ------------------------------------------------------------------------------------------------------------


def test_it_starts_with_its_minimum_all_or_nothing() -> None:
    world = cluster(2)
    world.project()
    other = running(world, "other")
    key = elastic(world, "grows", least=2)
    world.settle()
    assert not world.workload(key).pods.live
    assert world.workload(key).reason == "insufficient_gpu"

    world.fact(other, "succeeded")
    world.settle()
    assert staying(world, key) == [0, 1]
    assert not world.check().violations


def test_it_grows_by_what_is_left_to_its_most_in_the_same_plan() -> None:
    world = cluster(8)
    world.project()
    key = elastic(world, "grows", least=2, most=5)
    world.cycle()
    assert staying(world, key) == [0, 1, 2, 3, 4]
    assert world.plan().empty, "planning again changes nothing"
    assert not world.check().violations


def test_it_grows_when_another_ends() -> None:
    world = cluster(4)
    world.project()
    other = running(world, "other", gpus=2)
    key = grown(world)
    assert staying(world, key) == [0, 1]

    world.fact(other, "succeeded")
    world.settle()

    assert staying(world, key) == [0, 1, 2, 3]
    assert world.workload(key).phase is Phase.RUNNING
    assert world.workload(key).attempt == 1


def test_everybody_who_waits_comes_before_growth() -> None:
    world = cluster(4)
    world.project()
    key = elastic(world, "grows", **HIGH)
    other = world.submit("other", gpu_devices_request=1, **LOW)
    world.cycle()
    assert world.places(other)
    assert len(staying(world, key)) == 3


def test_it_does_not_grow_where_somebody_who_waits_could_run() -> None:
    world = cluster(5, 2)
    world.project()
    running(world, "other", gpus=3)
    wide = world.submit("wide", gpu_devices_request=5)
    key = elastic(world, "grows", least=1)
    world.settle()
    assert not world.places(wide)

    nodes = {index: pod.node_name for (_, index), pod in world.workload(key).pods.live.items()}

    assert set(nodes.values()) - {nodes[0]} <= {"n1"}, "the other one is too large for that node"
    assert len(nodes) == 2 + (nodes[0] == "n0")
    assert world.plan().empty
    assert "1 workload that waits could use" in grow_words(world, key)


@pytest.mark.parametrize(("limit", "quota"), [(3_000, None), (None, 3_000)])
def test_it_grows_within_the_limit_and_a_non_preemptible_one_within_the_quota(
    limit: int | None, quota: int | None
) -> None:
    world = cluster(8)
    world.project(limit=limit, quota=quota)
    key = elastic(world, "grows", preemptibility="non-preemptible" if quota else "preemptible")
    world.settle()
    assert len(staying(world, key)) == 3


def test_those_with_fewer_than_they_would_like_grow_first_and_then_all_in_turn() -> None:
    world = cluster(9)
    world.project()
    content = elastic(world, "content", least=1, workers=1, most=8)
    wishes = elastic(world, "wishes", least=1, workers=4, most=8)
    world.settle()
    assert (len(staying(world, content)), len(staying(world, wishes))) == (5, 4)


def test_it_grows_again_only_some_time_after_its_number_has_changed() -> None:
    world = cluster(4)
    world.project()
    others = [running(world, "one", gpus=1), running(world, "two", gpus=1)]
    key = grown(world)
    world.fact(others[0], "succeeded")
    world.settle()
    assert len(staying(world, key)) == 3
    world.fact(others[1], "succeeded")
    world.settle()
    assert len(staying(world, key)) == 3
    due = world.fold.next_due()
    assert due is not None
    assert due <= world.now + GROWS_AGAIN_AFTER

    world.now += GROWS_AGAIN_AFTER
    world.settle()

    assert len(staying(world, key)) == 4


# -- what it gives up --------------------------------------------------------------------------------------------------


def test_what_it_grew_by_goes_to_whoever_waits_the_newest_first_and_it_goes_on() -> None:
    world = cluster(4)
    world.project()
    key = grown(world, **HIGH)
    other = world.submit("other", project_id=world.project("poor"), gpu_devices_request=1, **LOW)

    planned = world.cycle()

    assert shrunk(planned) == [("grows", "shrunk", [3])]
    assert "a workload of project poor waits for the place" in planned.evictions[0].message
    assert planned.evictions[0].beneficiary == world.workload(other).workload_id
    state = world.workload(key)
    assert (state.phase, state.attempt) == (Phase.RUNNING, 1)
    assert world.plan().empty
    ends(world, key)
    world.settle()
    assert world.places(other)
    assert staying(world, key) == [0, 1, 2]
    assert not world.workload(key).pods.waiting, "what it gave up waits for nothing"
    assert not world.check().violations


def test_it_shrinks_before_anybody_is_evicted_and_is_evicted_whole_when_only_its_minimum_is_left() -> None:
    world = cluster(4)
    world.project()
    world.project("entitled", quota=4_000)
    key = grown(world, least=2, **LOW)
    plain = workload_key(world.project_id, "plain")
    urgent = world.submit("urgent", gpu_devices_request=1, parallelism=2, completions=2, **HIGH)
    assert shrunk(world.cycle()) == [("grows", "shrunk", [3]), ("grows", "shrunk", [2])]
    ends(world, key)
    world.settle()
    assert len(world.places(urgent)) == 2
    assert staying(world, key) == [0, 1]

    world.submit("more", gpu_devices_request=1, **HIGH)
    planned = world.cycle()

    assert shrunk(planned) == [("grows", "preempted", [0, 1])]
    assert world.workload(key).attempt == 2
    assert plain not in world.fold.workloads
    ends(world, key)
    assert sorted(world.workload(key).pods.waiting) == [("worker", 0), ("worker", 1)]
    world.settle()
    assert not world.check().violations


def test_one_that_needs_more_than_it_grew_by_takes_the_rest_by_right_and_all_of_it_goes_at_once() -> None:
    world = cluster(4)
    world.project()
    key = grown(world, least=2, **LOW)
    world.submit("urgent", gpu_devices_request=4, **HIGH)
    planned = world.cycle()
    assert shrunk(planned) == [("grows", "preempted", [0, 1, 2, 3])]
    ends(world, key)
    world.settle()
    assert sorted(world.workload(key).pods.waiting) == [("worker", 0), ("worker", 3)], "as many as it needs"
    assert not world.check().violations


def test_a_gang_that_waits_gets_what_others_grew_by() -> None:
    world = cluster(4, 4)
    world.project()
    key = grown(world, least=2, most=8)
    assert len(staying(world, key)) == 8
    other = elastic(world, "other", least=4, most=4, project_id=world.project("second"))
    planned = world.cycle()
    assert [each.reason for each in planned.evictions] == ["shrunk"] * 4
    ends(world, key)
    world.settle()
    assert len(staying(world, other)) == 4
    assert len(staying(world, key)) == 4


def test_a_non_preemptible_one_gives_up_what_it_grew_by_and_no_more() -> None:
    world = cluster(4)
    world.project(quota=4_000)
    key = grown(world, preemptibility="non-preemptible")
    world.submit("small", gpu_devices_request=2, **HIGH)
    assert shrunk(world.cycle()) == [("grows", "shrunk", [3]), ("grows", "shrunk", [2])]
    ends(world, key)
    world.settle()
    world.submit("more", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == []


def test_what_would_end_for_good_when_it_is_preempted_shrinks_all_the_same() -> None:
    world = cluster(4)
    world.project()
    key = grown(world, terminate_after_preemption=True)
    world.submit("other", gpu_devices_request=1)
    world.cycle()
    assert world.workload(key).phase is Phase.RUNNING
    assert staying(world, key) == [0, 1, 2]


def test_where_all_meet_goes_with_all_of_them() -> None:
    """Torchrun's agents meet at worker 0."""
    world = cluster(1, 1, 1, 1)
    world.project()
    key = grown(world)
    home = world.workload(key).pods["worker", 0].node_name
    world.do("node", world_node(world, home), DrainNode(cluster_id=world.cluster_id, name=home))
    planned = world.cycle()
    assert shrunk(planned) == [("grows", "drained", [0, 1, 2, 3])]
    assert "3 more of its pods go with it" in planned.evictions[0].message


def test_a_drain_takes_what_is_on_the_node_and_it_goes_on_and_grows_elsewhere() -> None:
    world = cluster(1, 1, 1, 1)
    world.project()
    key = grown(world)
    away = world.workload(key).pods["worker", 1].node_name
    world.do("node", world_node(world, away), DrainNode(cluster_id=world.cluster_id, name=away))
    assert shrunk(world.cycle()) == [("grows", "drained", [1])]
    world.node("fresh", gpu_count=1)
    ends(world, key)
    world.now += GROWS_AGAIN_AFTER
    world.settle()
    assert staying(world, key) == [0, 2, 3, 4]
    assert world.workload(key).phase is Phase.RUNNING or say(world, key, "running", 4) is None
    assert not world.check().violations


def world_node(world: World, name: str) -> str:
    from events.ids import node_key

    return node_key(world.cluster_id, name)


def test_a_cordoned_node_takes_no_growth() -> None:
    world = cluster(2, 4)
    world.project()
    world.cordon("n1", CordonNode)
    assert staying(world, grown(world)) == [0, 1]


# -- runs that end -----------------------------------------------------------------------------------------------------


def test_what_fails_beyond_the_minimum_comes_back_as_growth_and_worker_0_before_anybody_else() -> None:
    world = cluster(4)
    world.project()
    key = grown(world)
    say(world, key, "failed", 0)
    other = world.submit("other", gpu_devices_request=1)
    world.now += timedelta(minutes=5)
    world.settle()
    assert staying(world, key)[0] == 0, "it came first"
    assert not world.places(other) or len(staying(world, key)) == 3


def test_it_completes_when_all_have_ended_and_grows_no_more_from_the_first_on() -> None:
    world = cluster(4)
    world.project()
    key = grown(world, most=6)
    say(world, key, "succeeded", 0, 1, 2)
    world.node("more", gpu_count=4)
    world.now += GROWS_AGAIN_AFTER
    world.settle()
    assert staying(world, key) == [3]
    assert world.workload(key).phase is Phase.RUNNING
    say(world, key, "succeeded", 3)
    assert world.workload(key).phase is Phase.COMPLETED
    world.settle()
    assert not world.check().violations


def test_those_that_are_left_while_others_have_succeeded_give_up_nothing_alone() -> None:
    world = cluster(4)
    world.project()
    key = grown(world)
    say(world, key, "succeeded", 0, 1)
    wide = world.submit("wide", gpu_devices_request=3)
    assert evicted(world.cycle()) == []
    say(world, key, "succeeded", 2, 3)
    assert world.workload(key).phase is Phase.COMPLETED
    world.settle()
    assert world.places(wide)


def test_one_that_is_told_to_end_has_not_done_the_work() -> None:
    world = cluster(4)
    world.project()
    key = grown(world)
    world.submit("other", gpu_devices_request=1)
    world.cycle()
    say(world, key, "succeeded", 3)
    assert world.workload(key).succeeded == 0
    say(world, key, "succeeded", 0, 1, 2)
    assert world.workload(key).phase is Phase.COMPLETED


def test_the_masters_end_completes_it_whatever_it_grew_by() -> None:
    world = cluster(4)
    world.project()
    key = grown(world, master=True)
    say(world, key, "running", 0, pod_set="master")
    assert staying(world, key) == [0, 0, 1, 2, 3]
    say(world, key, "succeeded", 0, pod_set="master")
    assert world.workload(key).phase is Phase.COMPLETED


def test_suspended_and_resumed_it_begins_with_its_minimum_and_grows_anew() -> None:
    world = cluster(4)
    world.project()
    key = grown(world)
    world.command(key, SuspendWorkload)
    ends(world, key)
    world.settle()
    other = running(world, "other", gpus=2)
    world.command(key, ResumeWorkload)
    world.settle()
    assert len(staying(world, key)) == 2
    world.fact(other, "succeeded")
    say(world, key, "running")
    world.settle()
    assert len(staying(world, key)) == 4
    world.command(key, DeleteWorkload)
    ends(world, key)
    world.settle()
    assert not world.check().violations


def test_nobody_shrinks_below_the_minimum() -> None:
    world = cluster(4)
    world.project()
    key = grown(world)
    state = world.workload(key)
    refs = tuple(PodRef(pod_set="worker", index=i, attempt=1, try_=0) for i in (1, 2, 3))
    for pods in (refs, (PodRef(pod_set="worker", index=0, attempt=1, try_=0),)):
        command = EvictPods(
            workload_id=state.workload_id, pods=pods, reason="shrunk", message="m", beneficiary="somebody"
        )
        with pytest.raises(RefusedError, match="live together"):
            world.do("workload", key, command)


# -- what people are told ----------------------------------------------------------------------------------------------


def test_the_history_and_the_feed_say_that_it_grew_and_shrank_and_for_whom() -> None:
    world = cluster(4)
    world.project()
    other = running(world, "other", gpus=2)
    key = grown(world)
    world.fact(other, "succeeded")
    world.settle()
    world.submit("later", gpu_devices_request=1)
    world.cycle()

    tables = Tables()
    tables.project(world.commits)
    id_ = world.workload(key).workload_id
    told = [row.message for row in tables.rows["history"].values() if row.workload_id == id_]
    assert told[0].startswith("submitted by ann: distributed training 'grows', 2 to 6 pods, each with 1 GPU")
    (grew,) = [each for each in told if each.startswith("grown")]
    assert grew.startswith("grown by 2 pods, since nobody who waits needs the place: bound pod worker-2 to node n0")
    (shrank,) = [each for each in told if each.startswith("shrunk")]
    assert shrank == (
        "shrunk: later waits for the place, and what it has beyond its 2 is given up first; it goes on; "
        "1 pod told to stop"
    )
    (row,) = [each for each in tables.rows["workloads"].values() if each.name == "grows"]
    assert (row.requested_pods, row.most_pods, row.gpu_request_milli) == (2, 6, 2_000)

    feed = Everything().take(world.commits).told
    scaled = [msgspec.json.decode(each.payload) for each in feed if each.subject.endswith("WorkloadScaled")]
    assert [(each["previousReplicas"], each["replicas"], each["reason"]) for each in scaled] == [
        (2, 4, "grown"),
        (4, 3, "shrunk"),
    ]
