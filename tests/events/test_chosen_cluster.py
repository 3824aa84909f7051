"""The decider of a workload for which nobody named a cluster: given events, when it is placed, then events (S007)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from events.aggregate import WORKLOAD
from events.commit import Actor
from events.decision import Context
from events.refusal import Refusal
from events.workload.commands import CreateWorkload, PlacePods
from events.workload.pod import Placement, PodRef
from events.workload.spec import TrainingSpec
from events.workload.state import ClusterChosen, Workload, bindable

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
