"""The decider of a workload for which nobody named a cluster: given events, when it is placed, then events (S007)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import WORKLOAD
from events.commit import Actor
from events.decision import Context
from events.refusal import Refusal
from events.workload.commands import CreateWorkload, LeaveCluster, OpenSession, PlacePods, PodFact, ReportPods
from events.workload.fields.saving import CheckpointSpec
from events.workload.life import ClusterChosen
from events.workload.lost_cluster import LeftPodEnded
from events.workload.places import bindable
from events.workload.pod import DeviceShare, Placement, PodRef
from events.workload.spec import ComputeSpec, TrainingSpec
from events.workload.state import Workload

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CONTEXT = Context(now=NOW, actor=Actor(id="ann"), command_id="6f1d3b0a-52a8-4d0e-9c2e-6d7573746572", version=0)


def created(*, cluster_id: str = "", among: tuple[str, ...] = ("a", "b"), **spec: Any) -> Workload:
    command = CreateWorkload(
        kind="Training",
        name="w",
        requested_name="w",
        project_id="p",
        cluster_id=cluster_id,
        among=among,
        spec=TrainingSpec(image="i", **spec),
    )
    return after(WORKLOAD.initial, command)


def decided(state: Workload, command: Any) -> tuple[Any, ...] | Refusal:
    return WORKLOAD.decide(command, state, CONTEXT)


def after(state: Workload, command: Any) -> Workload:
    events = decided(state, command)
    assert not isinstance(events, Refusal), events
    return WORKLOAD.after(state, events)


def placing(state: Workload, cluster_id: str, *pods: PodRef) -> PlacePods:
    placements = tuple(
        Placement(pod=pod, node_key="n", node_name="n", pool="default", devices=())
        for pod in pods or bindable(state, NOW)[:1]
    )
    return PlacePods(
        workload_id=state.workload_id, placements=placements, cluster_id=cluster_id, cluster_name=cluster_id.upper()
    )


def test_its_first_placement_chooses_the_cluster() -> None:
    state = created()
    events = decided(state, placing(state, "b"))
    assert not isinstance(events, Refusal)
    assert [type(event).__name__ for event in events] == ["WorkloadQueued", "ClusterChosen", "PodsBound"]
    assert events[1] == ClusterChosen(cluster_id="b", name="B")
    then = WORKLOAD.after(state, events)
    assert (then.cluster_id, then.among, len(then.pods.live)) == ("b", ("a", "b"), 1)
    assert WORKLOAD.about(then).cluster_id == "b"


def test_later_ones_choose_none_and_are_on_that_one() -> None:
    state = created(completions=2, parallelism=2)
    first, second = bindable(state, NOW)
    state = after(state, placing(state, "b", first))
    events = decided(state, placing(state, "b", second))
    assert not isinstance(events, Refusal)
    assert [type(event).__name__ for event in events] == ["PodsBound"]
    refusal = decided(state, placing(state, "a", second))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "stale_placement"


@pytest.mark.parametrize("given", ["", "c"])
def test_a_placement_on_none_of_its_clusters_is_refused(given: str) -> None:
    state = created()
    refusal = decided(state, placing(state, given))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, "one of a, b" in refusal.message) == ("stale_placement", True)


def test_why_it_waits_chooses_nothing() -> None:
    state = created()
    waits = PlacePods(workload_id=state.workload_id, waiting_reason="insufficient_gpu", waiting_message="full")
    assert after(state, waits).cluster_id == ""


def test_one_that_named_its_cluster_is_placed_there_without_a_choice() -> None:
    state = created(cluster_id="a", among=())
    for given in ("", "a"):
        events = decided(state, placing(state, given))
        assert not isinstance(events, Refusal)
        assert [type(event).__name__ for event in events] == ["WorkloadQueued", "PodsBound"]
    assert isinstance(decided(state, placing(state, "b")), Refusal)


def test_a_second_choice_changes_nothing() -> None:
    state = created()
    state = after(state, placing(state, "b"))
    assert WORKLOAD.evolve(state, ClusterChosen(cluster_id="a", name="A")).cluster_id == "b"


# -- leaving it again --------------------------------------------------------------------------------------------------


def leaving(state: Workload, **given: Any) -> LeaveCluster:
    usual: dict[str, Any] = {
        "workload_id": state.workload_id,
        "cluster_id": "b",
        "cluster_name": "B",
        "attempt": state.attempt,
        "among": ("a", "b"),
        "lost_since": NOW - timedelta(hours=1),
        "seconds": 600,
    }
    return LeaveCluster(**usual | given)


def running(**spec: Any) -> Workload:
    """On b, for two hours."""
    state = created(preemptibility="preemptible", compute=ComputeSpec(gpu_devices_request=1), **spec)
    (pod, *_) = bindable(state, NOW)
    share = (DeviceShare(device=0, milli=1000),)
    at = Placement(pod=pod, node_key="n", node_name="n", pool="default", devices=share)
    place = PlacePods(workload_id=state.workload_id, placements=(at,), cluster_id="b", cluster_name="B")
    state = after(state, place)
    began = PodFact(pod=pod, kind="running", at=NOW - timedelta(hours=2))
    return after(state, ReportPods(workload_id=state.workload_id, facts=(began,)))


def test_it_leaves_with_all_that_belongs_to_the_old_pods() -> None:
    state = running(checkpoint=CheckpointSpec())
    ref = PodRef(pod_set="main", index=0, attempt=1, try_=0)
    saved = PodFact(pod=ref, kind="running", at=NOW, checkpoint_at=NOW - timedelta(hours=1))
    state = after(state, ReportPods(workload_id=state.workload_id, facts=(saved,)))
    opened = OpenSession(
        workload_id=state.workload_id, session_id="s", kind="exec", pod_set="main", index=0, seconds=60, command=("sh",)
    )
    state = after(state, opened)
    assert (state.checkpoint_at, len(state.sessions)) == (NOW - timedelta(hours=1), 1)

    events = decided(state, leaving(state))
    assert not isinstance(events, Refusal)
    assert [type(event).__name__ for event in events] == ["ClusterLeft", "SessionClosed"]
    then = WORKLOAD.after(state, events)

    assert (then.cluster_id, then.attempt, then.reason, then.phase) == ("", 2, "cluster_lost", "Pending")
    assert (then.sessions, then.checkpoint_at) == ((), None)
    assert then.gpu_milli_seconds_lost == 2 * 3600 * 1000, "what it saved is on the lost cluster, too"
    assert [(pod.phase, pod.attempt) for pod in then.left["b"].values()] == [("Stopping", 1)]
    assert [(pod.phase, pod.attempt, pod.try_) for pod in then.pods.values()] == [("Pending", 2, 0)]
    assert (then.pods.gpu_milli, WORKLOAD.about(then).cluster_id) == (0, None)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"cluster_id": "a"}, id="it runs on another cluster"),
        pytest.param({"attempt": 2}, id="it is in another attempt"),
        pytest.param({"among": ("b",)}, id="no other cluster will do"),
        pytest.param({"among": ("b", "c")}, id="the other one is none of its clusters"),
    ],
)
def test_it_does_not_leave_where_that_was_decided_on_something_else(given: dict[str, Any]) -> None:
    state = running()
    refusal = decided(state, leaving(state, **given))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "stale_leave"


def test_events_of_leaving_that_do_not_fit_change_nothing() -> None:
    state = running()
    events = decided(state, leaving(state))
    assert not isinstance(events, Refusal)
    (left,) = events
    then = WORKLOAD.after(state, events)
    assert WORKLOAD.evolve(then, left) is then
    old = PodRef(pod_set="main", index=0, attempt=1, try_=0)
    ended = LeftPodEnded(pod=old, cluster_id="b", at=NOW, how="stopped")
    assert WORKLOAD.evolve(state, ended) is state
    gone = WORKLOAD.evolve(then, ended)
    assert (gone.left, gone.pods) == ({}, then.pods)
    assert WORKLOAD.evolve(gone, ended) is gone
    assert WORKLOAD.evolve(then, replace(ended, cluster_id="a")) is then
