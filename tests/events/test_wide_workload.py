"""A workload of many pods: folded on one copy, counted as it changes, and as dear as a small one."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from events.aggregate import WORKLOAD
from events.phases import PodPhase
from events.workload.commands import PlacePods, ReportPods
from events.workload.edit import Edit
from events.workload.life import evolve, fold, take
from events.workload.places import bindable, bindable_among
from events.workload.pod import LIVE_POD_PHASES, PodRunning, PodStarting
from events.workload.pods import CHUNK_PODS, Pods, PodsEdit, changed
from events.workload.state import Workload
from tests.events.given import ID, NOW, SERVICE, Story, at, context, fact, placement, ref
from tests.support.any_events import any_workload_events
from tests.support.draws import draws


def recounted(pods: Pods) -> Pods:
    """The same pods, put together one by one."""
    edit = PodsEdit(Pods())
    for pod_id, pod in pods.items():
        edit.put(pod_id, pod)
    return edit.value()


def counted_right(pods: Pods) -> None:
    phases = Counter(pod.phase for pod in pods.values())
    assert len(pods) == len(dict(pods.items())) == phases.total()
    assert all(pod.phase in LIVE_POD_PHASES for pod in pods.live.values())
    assert all(pod.phase is PodPhase.PENDING for pod in pods.waiting.values())
    assert len(pods.live) == phases.total() - phases[PodPhase.PENDING]
    assert pods.running == phases[PodPhase.RUNNING]
    assert pods.coming == phases[PodPhase.BOUND] + phases[PodPhase.STARTING]
    assert dict(pods.unseen) == Counter(pod.node_name for pod in pods.values() if pod.phase is PodPhase.UNKNOWN)
    assert pods.gpu_milli == sum(share.milli for pod in pods.live.values() for share in pod.devices)
    memory = ((share.milli, pod.gpu_memory_bytes) for pod in pods.live.values() for share in pod.devices)
    assert pods.gpu_memory_bytes == sum(milli * of_device // 1000 for milli, of_device in memory)
    assert pods == recounted(pods)


@settings(max_examples=draws(300), deadline=None)
@given(events=any_workload_events(), cut=st.integers(0, 20))
def test_a_commit_folded_on_one_copy_is_its_events_folded_one_by_one(events: Sequence[Any], cut: int) -> None:
    first, second = fold(Workload(), events[:cut]), Workload()
    before = (first, dict(first.pods.items()))
    one_by_one = first
    for event in events[cut:]:
        one_by_one = evolve(one_by_one, event)
    second = fold(first, events[cut:])
    assert second == one_by_one
    assert before == (first, dict(first.pods.items())), "the state before is changed"
    counted_right(second.pods)
    assert fold(second, ()) is second
    differ = {id_ for id_ in {*first.pods, *second.pods} if first.pods.get(id_) is not second.pods.get(id_)}
    assert changed(first.pods, second.pods).keys() == differ


@settings(max_examples=draws(300), deadline=None)
@given(events=any_workload_events())
def test_an_event_that_does_not_fit_changes_nothing(events: Sequence[Any]) -> None:
    edit, state = Edit(Workload()), Workload()
    for event in events:
        after = evolve(state, event)
        assert take(edit, event) == (after is not state)
        state = after
    assert edit.value() == state


def wide(pods: int) -> Story:
    story = Story().created(completions=pods, parallelism=pods)
    for start in range(0, pods, 500):
        refs = [ref(index) for index in range(start, min(start + 500, pods))]
        story.when(PlacePods(workload_id=ID, placements=tuple(map(placement, refs))), context(now=NOW))
    return story


class Chunk(dict[int, Any]):
    """Counts the pods that are copied."""

    copied = 0

    def copy(self) -> "Chunk":
        Chunk.copied += len(self)
        return Chunk(self)


@pytest.mark.parametrize("pods", [1, 100, 5_000])
def test_a_fact_of_one_pod_copies_no_more_than_one_chunk(pods: int) -> None:
    before = wide(pods).state
    for chunk_id, chunk in before.pods.live.chunks.items():
        before.pods.live.chunks[chunk_id] = Chunk(chunk)
    Chunk.copied = 0
    after = WORKLOAD.after(before, (PodStarting(pod=ref(), at=NOW), PodRunning(pod=ref(), at=NOW)))
    assert after.pods.running == 1
    assert 0 < Chunk.copied <= CHUNK_PODS
    assert changed(before.pods, after.pods).keys() == {("main", 0)}
    shared = [id_ for id_, chunk in after.pods.live.chunks.items() if before.pods.live.chunks[id_] is chunk]
    assert len(shared) == len(before.pods.live.chunks) - 1


def test_the_ends_of_five_thousand_pods_in_several_commits_complete_the_workload() -> None:
    story = wide(5_000)
    ends = [fact("succeeded", ref(index)) for index in range(5_000)]
    for start in range(0, 5_000, 500):
        assert story.state.phase == "Initializing"
        story.when(ReportPods(workload_id=ID, facts=tuple(ends[start : start + 500])), context(now=NOW, actor=SERVICE))
    assert (story.state.phase, story.state.succeeded, len(story.state.pods)) == ("Completed", 5_000, 0)


def test_what_may_be_bound_among_some_is_what_may_be_bound_of_all() -> None:
    story = Story().created(completions=6, parallelism=4)
    story.when(PlacePods(workload_id=ID, placements=(placement(ref(0)), placement(ref(1)))))
    story.saw(fact("running", ref(0)), fact("failed", ref(0), exit_code=1), fact("succeeded", ref(1)))
    some = [ref(index, attempt, try_) for index in range(8) for attempt in (1, 2) for try_ in (0, 1)]
    for seconds in (0, 0.5, 1):
        assert bindable_among(story.state, some, at(seconds)) == set(bindable(story.state, at(seconds)))
