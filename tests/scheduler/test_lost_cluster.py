"""A preemptible workload for which nobody named a cluster leaves the one that was chosen, once that is lost for longer
than its project waits; what it held there stays held until its old pods are known to be gone (issue 14 section 2, S007,
ADR 0138).
"""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events.cluster import RemoveCluster, ReportCluster
from events.ids import cluster_key, node_key, project_key
from events.node import NodeRemoved
from events.phases import Phase
from events.project import ChangeProject
from events.workload.commands import DeleteWorkload, PlacePods, PodFact, ReportPods, ResumeWorkload, SuspendWorkload
from events.workload.lost_cluster import ClusterLeft
from events.workload.pod import Pod, PodId, PodRef
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from services.scheduler.simulation.ledger import RefusedError
from services.scheduler.why import why
from tests.scheduler.test_among import cluster_of, nodes_of, submit, two
from tests.scheduler.test_elastic import elastic, say
from tests.scheduler.test_elastic import ends as all_end
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World
from tests.support.draws import draws

WAIT = 600


def lose(world: World, cluster_id: str, name: str, *, seconds: int = WAIT) -> None:
    """A cluster does not report, and so much time passes."""
    world.connect(cluster_id, name, connected=False)
    world.now += timedelta(seconds=seconds)


def old_pods(world: World, key: str, cluster_id: str) -> list[tuple[PodId, Pod]]:
    pods = world.workload(key).left.get(cluster_id)
    return [] if pods is None else sorted(pods.items())


def left_pod_ends(world: World, key: str, cluster_id: str, at: int = 0, kind: Any = "stopped") -> None:
    (name, index), pod = old_pods(world, key, cluster_id)[at]
    ref = PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
    facts = (PodFact(pod=ref, kind=kind, at=world.now, token=pod.token),)
    world.do("workload", key, ReportPods(workload_id=world.workload(key).workload_id, facts=facts))


def held_on(world: World, name: str) -> int:
    """How many reservations a node has."""
    return sum(
        len(chain.state.reservations)
        for (kind, _), chain in world.chains.items()
        if kind == "node" and chain.state.name == name
    )


def moved(**spec: Any) -> tuple[World, tuple[str, str], str]:
    """A workload that ran on a, and runs on b now."""
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1, **spec)
    world.settle()
    for index in list(world.places(key)):
        world.fact(key, "running", index=index)
    assert cluster_of(world, key) == "a"
    lose(world, both[0], "a")
    world.settle()
    return world, both, key


# -- leaving -----------------------------------------------------------------------------------------------------------


def test_it_leaves_once_its_cluster_is_lost_for_as_long_as_its_project_waits() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.fact(key, "running")
    lose(world, both[0], "a", seconds=WAIT - 1)
    assert world.plan().empty
    assert world.fold.next_due() == world.now + timedelta(seconds=1)

    world.now += timedelta(seconds=1)
    planned = world.cycle()

    assert [each.key for each in planned.departures] == [key]
    state = world.workload(key)
    assert (state.phase, state.reason, state.cluster_id, state.attempt) == (Phase.PENDING, "cluster_lost", "", 2)
    assert state.message == (
        "cluster a has not reported since 2026-03-01 00:00:01 UTC, which is longer than its project waits (600 s)"
    )
    world.settle()
    assert (cluster_of(world, key), nodes_of(world, key)) == ("b", {"b0"})
    assert not world.check().violations


def test_what_its_old_pods_hold_stays_held_until_they_are_known_to_be_gone() -> None:
    world, both, key = moved(parallelism=2, completions=2)
    assert (cluster_of(world, key), held_on(world, "a0"), held_on(world, "b0")) == ("b", 2, 2)
    world.connect(both[0], "a")
    world.settle()
    other = world.submit("other", cluster_id=both[0], gpu_devices_request=4)
    world.settle()
    assert (held_on(world, "a0"), world.workload(other).reason) == (2, "insufficient_gpu")

    left_pod_ends(world, key, both[0])
    world.settle()
    assert held_on(world, "a0") == 1
    left_pod_ends(world, key, both[0])
    world.settle()
    assert (nodes_of(world, other), old_pods(world, key, both[0])) == ({"a0"}, [])
    assert not world.check().violations


@pytest.mark.parametrize("kind", ["succeeded", "failed", "interrupted", "refused"])
def test_however_an_old_pod_ended_the_new_attempt_goes_on(kind: str) -> None:
    world, both, key = moved()
    world.fact(key, "running")
    before = world.workload(key)
    left_pod_ends(world, key, both[0], kind=kind)
    after = world.workload(key)
    assert (after.phase, after.pods, after.succeeded, after.failures) == (Phase.RUNNING, before.pods, 0, 0)
    assert not after.left
    world.fact(key, "succeeded")
    assert world.workload(key).phase is Phase.COMPLETED
    world.settle()
    assert held_on(world, "a0") == 0
    assert not world.check().violations


@pytest.mark.parametrize("kind", ["starting", "running", "unreachable"])
def test_that_an_old_pod_still_lives_changes_nothing(kind: str) -> None:
    world, both, key = moved()
    before = world.workload(key)
    left_pod_ends(world, key, both[0], kind=kind)
    assert world.workload(key) == before


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        pytest.param({"preemptibility": "non-preemptible"}, "among", id="non-preemptible"),
        pytest.param({}, "named", id="that named its cluster"),
    ],
)
def test_other_workloads_stay(spec: dict[str, Any], where: str) -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    given: dict[str, Any] = {"among": both} if where == "among" else {"cluster_id": both[0]}
    key = world.submit("w", gpu_devices_request=1, **given, **spec)
    world.settle()
    world.fact(key, "running")
    lose(world, both[0], "a", seconds=10 * WAIT)
    assert not any(each.departures for each in world.settle())
    assert (cluster_of(world, key), world.workload(key).attempt) == ("a", 1)


@pytest.mark.parametrize(
    ("own", "of_department", "leaves"),
    [
        pytest.param(None, None, False, id="nobody says it"),
        pytest.param(None, WAIT, True, id="the department does"),
        pytest.param(0, WAIT, False, id="never, says the project"),
        pytest.param(WAIT, 0, True, id="the project goes first"),
        pytest.param(WAIT + 1, WAIT, False, id="and waits for longer"),
    ],
)
def test_the_time_is_that_of_the_project_else_of_its_department(
    own: int | None, of_department: int | None, leaves: bool
) -> None:
    world, both = two(a=(4,), b=(2,))
    where = department(world, "research", cluster_lost_seconds=of_department)
    project = world.project("p", cluster_lost_seconds=own, **where)
    key = world.submit("w", project_id=project, among=both, gpu_devices_request=1)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    assert (cluster_of(world, key) == "b") == leaves


def test_a_time_that_is_set_while_the_cluster_is_lost_counts_at_once() -> None:
    world, both = two(a=(4,), b=(2,))
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    assert cluster_of(world, key) == "a"
    project = world.chain("project", project_key("default")).state
    world.do(
        "project", project_key("default"), ChangeProject(project_id=project.project_id, cluster_lost_seconds=WAIT // 2)
    )
    world.settle()
    assert cluster_of(world, key) == "b"


def test_a_cluster_that_comes_back_in_time_keeps_its_workloads() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    lose(world, both[0], "a", seconds=WAIT - 1)
    world.connect(both[0], "a")
    lose(world, both[0], "a", seconds=WAIT - 1)
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("a", 1)


def test_it_stays_where_no_other_cluster_is_there_and_leaves_when_one_comes_back() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.connect(both[1], "b", connected=False)
    lose(world, both[0], "a")
    world.settle()
    assert (cluster_of(world, key), world.fold.next_due()) == ("a", None)
    world.connect(both[1], "b")
    world.settle()
    assert cluster_of(world, key) == "b"


def test_what_really_ran_is_not_moved_to_a_simulated_cluster() -> None:
    world, both = two(a=(1,), b=(1,), cluster_lost_seconds=WAIT)
    demo = world.cluster("demo", simulated=True)
    world.node("d0", cluster_id=demo, gpu_count=8)
    key = world.submit("w", among=(demo, both[0]), gpu_devices_request=1)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("a", 1)

    third = world.submit("third", among=(demo, *both), gpu_devices_request=1)
    world.settle()
    assert cluster_of(world, third) == "b"
    world.connect(both[0], "a")
    lose(world, both[1], "b")
    world.settle()
    assert (cluster_of(world, third), world.workload(third).reason) == ("", "insufficient_gpu"), (
        "a is full; demo is not"
    )
    assert set(world.workload(third).among) == set(both)


def test_it_does_not_go_back_while_its_cluster_is_lost_or_old_pods_may_be_there() -> None:
    world, both, key = moved()
    lose(world, both[1], "b")
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("b", 2), "there is no other one"
    world.connect(both[0], "a")
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("b", 2), "its old pod may run on a"

    left_pod_ends(world, key, both[0])
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("a", 3)
    assert list(world.workload(key).left) == [both[1]]
    assert not world.check().violations


def test_a_placement_where_its_old_pods_may_be_is_refused() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    (binding,) = world.plan().bindings
    world.settle()
    lose(world, both[0], "a")
    world.cycle()
    ref = replace(binding.placement.pod, attempt=2)
    placing = PlacePods(
        workload_id=world.workload(key).workload_id,
        placements=(replace(binding.placement, pod=ref),),
        cluster_id=both[0],
    )
    with pytest.raises(RefusedError, match=r"'w' left cluster .* and pods of it may still be there"):
        world.do("workload", key, placing)


# -- all of its pods ---------------------------------------------------------------------------------------------------


def test_a_gang_leaves_whole_and_starts_whole() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = gang(world, "g", workers=3, among=both)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    assert (world.workload(key).phase, len(old_pods(world, key, both[0]))) == (Phase.PENDING, 3)
    assert world.places(key) == {}
    world.node("b1", cluster_id=both[1], gpu_count=2)
    world.settle()
    assert (cluster_of(world, key), len(world.workload(key).pods.live)) == ("b", 3)
    assert not world.check().violations


def test_an_elastic_training_begins_again_with_those_that_it_needs() -> None:
    world, both = two(a=(6,), b=(2,), cluster_lost_seconds=WAIT)
    key = elastic(world, "e", least=2, most=6, among=both)
    world.settle()
    world.now += timedelta(minutes=2)
    world.settle()
    assert len(world.workload(key).pods.live) == 6
    lose(world, both[0], "a")
    world.settle()
    state = world.workload(key)
    assert (cluster_of(world, key), len(state.pods.live), len(state.pods.waiting)) == ("b", 2, 0)
    assert not world.check().violations


def test_pods_that_have_succeeded_do_not_run_again() -> None:
    world, both = two(a=(2,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1, parallelism=2, completions=5)
    world.settle()
    for index in range(2):
        world.fact(key, "running", index=index)
        world.fact(key, "succeeded", index=index)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    state = world.workload(key)
    assert (sorted(index for _, index in state.pods.live), state.succeeded) == ([2, 3], 2)
    assert {pod.attempt for pod in state.pods.live.values()} == {2}
    assert not world.check().violations


def test_what_waits_on_a_lost_cluster_with_nothing_running_leaves_too() -> None:
    world, both = two(a=(1,), b=(1,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.fact(key, "interrupted")
    lose(world, both[0], "a")
    world.settle()
    assert (cluster_of(world, key), world.workload(key).left) == ("b", {})


def test_a_project_may_hold_as_much_as_before_while_old_pods_hold_nodes() -> None:
    world, both = two(a=(2,), b=(2,), cluster_lost_seconds=WAIT, limit=2_000)
    key = world.submit("w", among=both, gpu_devices_request=1, parallelism=2, completions=2)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    assert (cluster_of(world, key), len(world.places(key))) == ("b", 2)
    restored = restarted(world)
    assert restored.snapshot(world.now).held_in == world.fold.snapshot(world.now).held_in
    assert sum(world.fold.snapshot(world.now).held_in.values()) == 2_000


# -- suspended, deleted, removed ---------------------------------------------------------------------------------------


def test_one_that_is_suspended_is_stopped_when_its_new_pods_are_gone() -> None:
    world, both, key = moved()
    world.command(key, SuspendWorkload)
    world.fact(key, "stopped")
    assert (world.workload(key).phase, len(old_pods(world, key, both[0]))) == (Phase.STOPPED, 1)
    world.command(key, ResumeWorkload)
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("b", 3)
    assert not world.check().violations


def test_one_that_was_suspended_on_a_lost_cluster_leaves_it_when_it_is_resumed() -> None:
    world, both = two(a=(1,), b=(1,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.command(key, SuspendWorkload)
    lose(world, both[0], "a")
    world.settle()
    assert (world.workload(key).phase, cluster_of(world, key)) == (Phase.STOPPING, "a")
    world.command(key, ResumeWorkload)
    world.settle()
    assert (cluster_of(world, key), world.workload(key).attempt) == ("b", 3)
    assert not world.check().violations


@pytest.mark.parametrize("old_first", [True, False])
def test_one_that_is_deleted_is_gone_when_all_its_pods_are(old_first: bool) -> None:
    world, both, key = moved()
    world.command(key, DeleteWorkload)
    for old in (old_first, not old_first):
        assert world.workload(key).phase is Phase.DELETING
        assert world.workload(key).living
        if old:
            left_pod_ends(world, key, both[0])
        else:
            world.fact(key, "stopped")
    assert not world.workload(key).living
    world.settle()
    assert (held_on(world, "a0"), held_on(world, "b0")) == (0, 0)
    assert key not in world.fold.workloads
    assert not world.check().violations


def test_one_that_completed_is_deleted_when_its_old_pods_are_gone() -> None:
    world, both, key = moved()
    world.fact(key, "running")
    world.fact(key, "succeeded")
    world.settle()
    assert world.workload(key).phase is Phase.COMPLETED
    world.command(key, DeleteWorkload)
    assert world.workload(key).phase is Phase.DELETING
    left_pod_ends(world, key, both[0])
    assert not world.workload(key).living
    assert not world.check().violations


@pytest.mark.parametrize("gone", ["node", "cluster"])
def test_where_the_node_or_the_cluster_is_removed_the_old_pods_are_given_up(gone: str) -> None:
    """cluster-sync says that they are interrupted, as of every pod whose place is gone."""
    world, both, key = moved()
    if gone == "node":
        at = next(k for (kind, k), chain in world.chains.items() if kind == "node" and chain.state.name == "a0")
        world.write("node", at, (NodeRemoved(),))
    else:
        world.do("cluster", cluster_key("a"), RemoveCluster(cluster_id=both[0]))
    left_pod_ends(world, key, both[0], kind="interrupted")
    world.settle()
    assert (held_on(world, "a0"), cluster_of(world, key)) == (0, "b")
    assert not world.check().violations


# -- telling -----------------------------------------------------------------------------------------------------------


def test_why_it_waits_is_told_as_of_the_clusters_that_are_left() -> None:
    world, both = two(a=(2,), b=(1,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    assert cluster_of(world, key) == "a"
    world.submit("full", cluster_id=both[1], gpu_devices_request=1, preemptibility="non-preemptible")
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert (found.outcome, found.reason) == ("waits", "insufficient_gpu")
    assert {each.name for each in found.holders} == {"full"}
    assert found.message.endswith(
        "; it left cluster a, which has not reported since 2026-03-01 00:00:02 UTC, and nobody knows whether its old "
        "pods still run there"
    )
    assert found.changes[0].message == (
        "have the agent of cluster a report again; and wait until its old pods on cluster a have ended"
    )

    # When the cluster reports again, and then its old pod ends.
    world.connect(both[0], "a")
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert found.message.endswith("it left cluster a, which reports again, and its old pods there have not ended yet")
    assert found.changes[0].message == "wait until its old pods on cluster a have ended"
    left_pod_ends(world, key, both[0])
    world.settle()
    assert cluster_of(world, key) == "a"


def test_a_cluster_that_would_take_it_is_named_though_it_is_lost_and_was_never_left() -> None:
    world, both = two(a=(2,), b=(1,))
    world.submit("full", cluster_id=both[1], gpu_devices_request=1, preemptibility="non-preemptible")
    world.settle()
    lose(world, both[0], "a")
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert found.message.endswith(
        "; cluster a has not reported since 2026-03-01 00:00:01 UTC, and it may go there once it reports again"
    )
    assert found.changes[0].message == "have the agent of cluster a report again"
    assert {(each.cluster, each.message) for each in found.nodes if each.ground == "takes_pods"} == {
        ("a", "their cluster does not report")
    }
    world.connect(both[0], "a")
    world.settle()
    assert cluster_of(world, key) == "a"


def test_what_fits_nowhere_but_on_the_cluster_that_it_left_is_not_said_to_fit_nowhere_ever() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=4)
    world.settle()
    lose(world, both[0], "a")
    world.settle()
    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert (found.outcome, found.reason) == ("waits", "no_matching_node")
    assert found.changes[0].message.startswith("have the agent of cluster a report again")


@pytest.mark.parametrize(
    ("where", "spec", "of_project", "told"),
    [
        pytest.param(
            "", {"preemptibility": "non-preemptible"}, WAIT, "it stays, since it is not preemptible", id="firm"
        ),
        pytest.param("named", {}, WAIT, "it stays, since cluster a was named for it", id="named"),
        pytest.param(
            "", {}, None, "it stays, since neither its project nor its department says after how long", id="unset"
        ),
        pytest.param(
            "", {}, 20 * WAIT, "it leaves at 2026-03-01 03:20:01 UTC, if another cluster that can", id="later"
        ),
        pytest.param("a", {}, WAIT, "it stays until another cluster that can run it reports", id="nowhere"),
    ],
)
def test_who_stays_on_a_lost_cluster_is_told_that_nobody_knows_whether_it_runs(
    where: str, spec: dict[str, Any], of_project: int | None, told: str
) -> None:
    """Given a workload that runs, its cluster is lost: nobody says that it runs, and it is said why it stays."""
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=of_project)
    wheres: dict[str, dict[str, Any]] = {"named": {"cluster_id": both[0]}, "a": {"among": both[:1]}}
    key = world.submit("w", gpu_devices_request=1, **wheres.get(where, {"among": both}), **spec)
    world.settle()
    world.fact(key, "running")
    id_ = world.workload(key).workload_id
    assert why(world.fold, id_, world.now, None).outcome == "runs"

    lose(world, both[0], "a")
    world.settle()
    found = why(world.fold, id_, world.now, None)
    assert found.outcome == "unknown"
    since = "cluster a has not reported since 2026-03-01 00:00:01 UTC, so nobody knows whether its pods still run there"
    assert found.message.startswith(f"{since}; {told}")
    assert [each.message for place in found.places for each in place.refused] == ["their cluster does not report"]

    world.connect(both[0], "a")
    assert why(world.fold, id_, world.now, None).outcome == "runs"


def test_a_lost_cluster_whose_agent_then_reports_a_problem_is_lost_since_it_was_silent() -> None:
    """Given a cluster that is silent, when its agent says a problem: the time goes on, and the problem is told."""
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.fact(key, "running")
    since = world.now
    lose(world, both[0], "a", seconds=WAIT // 2)
    problem = "its API server refuses the token"
    world.do("cluster", cluster_key("a"), ReportCluster(cluster_id=both[0], connected=False, problem=problem))
    told = f"has been lost since {since:%Y-%m-%d %H:%M:%S} UTC"

    found = why(world.fold, world.workload(key).workload_id, world.now, None)
    assert found.message.startswith(f"cluster a {told} (its agent reports a problem: {problem}), so nobody knows")
    assert [each.message for place in found.places for each in place.refused] == [
        "the agent of their cluster reports a problem"
    ]
    assert world.fold.next_due() == since + timedelta(seconds=WAIT)

    world.now = since + timedelta(seconds=WAIT)
    assert [each.key for each in world.cycle().departures] == [key]
    assert world.workload(key).message == (
        f"cluster a {told}, which is longer than its project waits (600 s): its agent reports {problem}"
    )
    assert not world.check().violations


@pytest.mark.parametrize("first", ["left", "back"])
@pytest.mark.parametrize("end", ["stopped", "succeeded", "failed"])
def test_a_cluster_that_comes_back_while_it_is_left_changes_nothing_whichever_is_stored_first(
    monkeypatch: pytest.MonkeyPatch, first: str, end: Any
) -> None:
    """Given a plan by which a workload leaves, when its cluster is back before that is stored, or right after it: the
    workload goes once, its old pod keeps its place until it ends, and its end counts for nothing else.
    """
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    world.fact(key, "running")
    lose(world, both[0], "a")
    with monkeypatch.context() as patch:
        if first == "back":
            patch.setattr(world, "looked_at", lambda *_: world.connect(both[0], "a"))  # between plan and commit
        assert [each.key for each in world.cycle().departures] == [key]
    if first == "left":
        world.connect(both[0], "a")
    state = world.workload(key)
    assert (state.attempt, state.cluster_id, [*state.left]) == (2, "", [both[0]])

    world.settle()
    assert cluster_of(world, key) == "b", "its old pod is still there"
    held = world.chain("node", node_key(both[0], "a0")).state.reservations
    assert [each.workload_key for each in held.values()] == [key]
    left_pod_ends(world, key, both[0], kind=end)
    world.settle()
    assert not world.chain("node", node_key(both[0], "a0")).state.reservations
    state = world.workload(key)
    assert (state.attempt, cluster_of(world, key), state.phase, state.succeeded) == (2, "b", Phase.INITIALIZING, 0)
    assert not world.check().violations


def test_what_is_deleted_says_for_what_it_waits_and_what_to_do_where_that_never_comes() -> None:
    world, both, key = moved()
    id_ = world.workload(key).workload_id
    world.command(key, DeleteWorkload)
    found = why(world.fold, id_, world.now, None)
    assert found.outcome == "ended"
    assert found.message == (
        "it is deleted, and its name free, once its pods have ended; 1 pod that it left on cluster a may still run, and"
        " that cluster is lost: this waits until it is back. If it never comes back, have an administrator remove it:"
        " muster cluster remove a"
    )
    world.do("cluster", cluster_key("a"), ReportCluster(cluster_id=both[0], connected=True))
    assert why(world.fold, id_, world.now, None).message == (
        "it is deleted, and its name free, once its pods have ended; 1 pod that it left on cluster a is told to end"
    )
    left_pod_ends(world, key, both[0])
    assert "cluster a" not in why(world.fold, id_, world.now, None).message


def test_two_schedulers_that_decide_it_at_once_have_it_leave_once() -> None:
    world, both = two(a=(4,), b=(2,), cluster_lost_seconds=WAIT)
    key = world.submit("w", among=both, gpu_devices_request=1)
    world.settle()
    lose(world, both[0], "a")
    (departure,) = world.plan().departures
    world.cycle()
    with pytest.raises(RefusedError, match="stale_leave"):
        world.do("workload", key, departure.command)
    assert sum(isinstance(event, ClusterLeft) for each in world.commits for event in each.events) == 1


# -- properties --------------------------------------------------------------------------------------------------------


def restarted(world: World) -> SchedulingState:
    """A fold that begins from what is stored of this one."""
    world.fold.settle(world.now)
    restored = SchedulingState()
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    restored.restore(world.fold.seq, chains, beside=world.fold.beside())
    return restored


steps = st.one_of(
    st.tuples(
        st.just("submit"),
        st.fixed_dictionaries(
            {
                "gpus": st.sampled_from([0, 1, 1, 2]),
                "pods": st.integers(1, 3),
                "kind": st.sampled_from(["plain", "plain", "gang", "elastic"]),
                "where": st.sampled_from(["ab", "abc", "abcs", "bc", "a alone"]),
                "priority_class": st.sampled_from(["low", "medium-high"]),
                "preemptibility": st.sampled_from(["preemptible", "preemptible", "non-preemptible"]),
            }
        ),
    ),
    st.tuples(
        st.sampled_from(
            [
                "running",
                "end",
                "succeeded",
                "failed",
                "suspend",
                "delete",
                "cycle",
                "settle",
                "away",
                "back",
                "old ends",
            ]
        ),
        st.integers(0, 50),
    ),
)


def carry_out(world: World, clusters: dict[str, str], keys: list[str], step: tuple[str, Any]) -> None:
    word, what = step
    live = [(key, id_) for key in keys for id_ in sorted(world.workload(key).pods.live)]
    old = [(key, id_) for key in keys for id_ in sorted(world.workload(key).left)]
    world.now += timedelta(seconds=20)
    match word:
        case "submit":
            keys.append(submit(world, clusters, f"w{len(keys)}", what))
        case "cycle":
            world.cycle(max_pods=what % 4 + 1)
        case "settle":
            world.settle(cycles=60)
        case "away" | "back":
            name = "abcs"[what % 4]
            world.connect(clusters[name], name, connected=word == "back")
            world.now += timedelta(seconds=what)
        case "suspend" | "delete":
            living = [key for key in keys if world.workload(key).phase not in {"Completed", "Failed", "Deleting"}]
            living = [key for key in living if world.workload(key).living]
            if living:
                key = living[what % len(living)]
                stops = SuspendWorkload if world.workload(key).desired == "Running" else ResumeWorkload
                world.command(key, DeleteWorkload if word == "delete" else stops)
        case "end":
            for key in keys:
                all_end(world, key)
        case "old ends" if old:
            key, cluster_id = old[what % len(old)]
            left_pod_ends(world, key, cluster_id, kind=["stopped", "succeeded", "failed"][what % 3])
        case "running" | "succeeded" | "failed" if live:
            key, (pod_set, index) = live[what % len(live)]
            if word != "failed" or world.workload(key).pods[pod_set, index].phase != "Stopping":
                say(world, key, word, index, pod_set=pod_set)
        case _:
            pass


@settings(max_examples=draws(120), deadline=None)
@given(st.lists(steps, max_size=40))
def test_every_history_of_clusters_that_are_lost_and_come_back_keeps_the_rules(history: list[tuple[str, Any]]) -> None:
    world, (a, b) = two(a=(2, 1), b=(4,), cluster_lost_seconds=30)
    clusters = {"a": a, "b": b, "c": world.cluster("c"), "s": world.cluster("s", simulated=True)}
    world.node("c0", cluster_id=clusters["c"], gpu_count=2)
    world.node("s0", cluster_id=clusters["s"], gpu_count=4)
    keys: list[str] = []
    for step in history:
        carry_out(world, clusters, keys, step)
        assert_one_copy(world, keys)
    restored, snapshot = restarted(world), world.fold.snapshot(world.now)
    ours, theirs = plan(snapshot), plan(restored.snapshot(world.now))
    assert (ours.bindings, ours.releases, ours.departures) == (theirs.bindings, theirs.releases, theirs.departures)
    assert snapshot.held_in == restored.snapshot(world.now).held_in

    world.now += timedelta(minutes=5)
    world.settle(cycles=60)

    assert world.plan().empty
    assert_one_copy(world, keys)
    assert not world.check().violations
    for key in keys:
        state = world.workload(key)
        view = world.fold.owners.cluster(state.cluster_id)
        alike = [each for each in state.among if (at := world.fold.owners.cluster(each)) is not None and at.connected]
        alike = [each for each in alike if (each == clusters["s"]) == (state.cluster_id == clusters["s"])]
        if state.living and state.desired == "Running" and state.among and state.preemptible and view is not None:
            left = state.phase in {"Completed", "Failed"} or view.connected or not set(alike) - state.left.keys()
            assert left, f"{state.name} stays on {view.name}, which is lost"


def assert_one_copy(world: World, keys: list[str]) -> None:
    """All new pods are on one cluster, and none of the old ones is there; all of them hold their nodes."""
    nodes = {key: chain.state for (kind, key), chain in world.chains.items() if kind == "node"}
    for key in keys:
        state = world.workload(key)
        on = {nodes[pod.node_key].cluster_id for pod in state.pods.live.values()}
        assert on <= {state.cluster_id}
        assert not on & state.left.keys()
        for cluster_id, pods in state.left.items():
            for (name, index), pod in pods.items():
                held = f"{state.workload_id}/{name}-{index}/{pod.attempt}.{pod.try_}"
                assert nodes[pod.node_key].cluster_id == cluster_id
                assert held in nodes[pod.node_key].reservations
