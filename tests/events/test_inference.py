"""Replicas of an inference: how many there are, which go, and what becomes of those that end. S067 to S069, R26."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from events.aggregate import WORKLOAD
from events.phases import SCALED_TO_ZERO, DesiredPhase, Phase, PodPhase
from events.refusal import Refusal
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    PlacePods,
    PodFactKind,
    ReportPods,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
)
from events.workload.fields.inference import Autoscaling, ModelCredential, ServedModel, Serving, ServingPort
from events.workload.fields.process import UserCredentialKey
from events.workload.places import bindable
from events.workload.pod import PodRef
from events.workload.sizes import WorkloadScaled
from events.workload.spec import Inference, TrainingSpec
from tests.events.given import ID, SERVICE, Story, at, context, fact, names, placement, report
from tests.support.draws import draws


def inference(*, replicas: int = 1, model: ServedModel | None = None, **autoscaling: Any) -> CreateWorkload:
    serving = Serving(serving_port=ServingPort(container=8000), autoscaling=Autoscaling(**autoscaling), model=model)
    return CreateWorkload(
        kind="Inference",
        name="train",
        requested_name="train",
        project_id="p1",
        cluster_id="c1",
        spec=TrainingSpec(image="i", priority_class="very-high"),
        inference=Inference(serving=serving, replicas=replicas),
    )


def scale(replicas: int, was: int, reason: Any = "load") -> ScaleInference:
    return ScaleInference(workload_id=ID, replicas=replicas, was=was, reason=reason, message="load 340 requests/s")


def replica(index: int, try_: int = 0, attempt: int = 1) -> PodRef:
    return PodRef(pod_set="replica", index=index, attempt=attempt, try_=try_)


def running(replicas: int, **autoscaling: Any) -> Story:
    """With so many replicas that run."""
    story = Story()
    scaling: dict[str, Any] = {"max_replicas": 10} | autoscaling
    story.when(inference(**scaling))
    story.bound().saw(fact("running", replica(0)))
    if replicas > 1:
        story.when(scale(replicas, 1))
        story.bound().saw(*(fact("running", replica(index)) for index in range(1, replicas)))
    return story


def indexes(story: Story, *phases: PodPhase) -> list[int]:
    return sorted(index for (_, index), pod in story.state.pods.items() if not phases or pod.phase in phases)


def test_it_starts_with_its_least_replicas_and_with_one_at_least() -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"min_replicas": 3}, 3),
        ({"scale_to_zero_retention_seconds": 60}, 1),
    ]
    for given, expected in cases:
        story = Story()
        story.when(inference(**given))
        assert story.state.inference is not None
        assert story.state.inference.replicas == expected
        assert len(bindable(story.state, at(0))) == expected


def test_the_bounds_that_follow_from_each_other_are_written_out_when_it_is_created() -> None:
    cases: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, (1, 1)),
        ({"min_replicas": 3}, (3, 3)),
        ({"max_replicas": 4}, (1, 4)),
        ({"scale_to_zero_retention_seconds": 300}, (0, 1)),
    ]
    for given, expected in cases:
        story = Story()
        story.when(inference(**given))
        assert story.state.inference is not None
        stored = story.state.inference.serving.autoscaling
        assert (stored.min_replicas, stored.max_replicas) == expected
        assert story.state.preemptible is False, "priority very-high is not preempted"


def test_replicas_find_their_port_and_their_model_in_their_environment() -> None:
    story = Story()
    story.when(inference(model=ServedModel(catalog="HuggingFace", name="org/model")))
    (pod_set,) = story.state.pod_sets
    told = {variable.name: variable.value for variable in pod_set.template.environment}
    assert told == {"PORT": "8000", "MODEL_ID": "org/model"}
    assert pod_set.minimum == 0, "replicas start each for itself"


def test_the_token_for_a_models_catalog_is_a_variable_of_the_owners_credential() -> None:
    """S067."""
    for given, key in ((None, "HF_TOKEN"), ("token", "token")):
        story = Story()
        story.when(inference(model=ServedModel(name="org/model", credential=ModelCredential(name="hf", key=given))))
        (pod_set,) = story.state.pod_sets
        (token,) = (one for one in pod_set.template.environment if one.name == "HF_TOKEN")
        assert (token.value, token.user_credential) == (None, UserCredentialKey(name="hf", key=key))


def test_more_replicas_are_further_pods_beside_those_that_run() -> None:
    story = running(1)
    (scaled,) = story.when(scale(3, 1))
    assert scaled == WorkloadScaled(replicas=3, was=1, reason="load", message="load 340 requests/s")
    assert [ref.index for ref in bindable(story.state, at(0))] == [1, 2]
    assert (story.state.phase, indexes(story, PodPhase.RUNNING)) == (Phase.RUNNING, [0])


def test_of_too_many_replicas_the_newest_are_told_to_go_and_the_others_run_on() -> None:
    story = running(4)
    story.when(scale(2, 4))
    assert indexes(story, PodPhase.RUNNING) == [0, 1]
    assert indexes(story, PodPhase.STOPPING) == [2, 3]
    story.saw(fact("stopped", replica(2)), fact("failed", replica(3), exit_code=143))
    assert indexes(story) == [0, 1]
    assert (story.state.phase, bindable(story.state, at(0))) == (Phase.RUNNING, [])


def test_a_replica_that_holds_no_node_goes_before_one_that_runs() -> None:
    story = running(3).saw(fact("failed", replica(0), exit_code=1))
    story.when(scale(2, 3))
    assert indexes(story) == indexes(story, PodPhase.RUNNING) == [1, 2]


def test_the_index_of_a_replica_that_went_is_not_used_again() -> None:
    """A fact, a reservation or a log line of the one would be taken for the other's."""
    story = running(2)
    story.when(scale(1, 2))
    story.saw(fact("stopped", replica(1)))
    story.when(scale(3, 1))
    assert bindable(story.state, at(0)) == [replica(2), replica(3)]


def test_one_that_is_wanted_again_before_it_went_is_run_again_once_it_has() -> None:
    story = running(3)
    story.when(scale(1, 3))
    story.when(scale(2, 1))
    assert bindable(story.state, at(0)) == [], "three are not over yet"
    story.saw(fact("stopped", replica(1)))
    assert indexes(story) == [0, 2], "the first that ends was too many"
    story.saw(fact("stopped", replica(2)))
    assert bindable(story.state, at(0)) == [replica(2, try_=1)]


def test_with_no_replica_left_it_is_running_and_says_why() -> None:
    story = running(2, scale_to_zero_retention_seconds=60)
    story.when(scale(0, 2, "idle"))
    assert (story.state.phase, story.state.reason) == (Phase.RUNNING, SCALED_TO_ZERO)
    story.saw(fact("stopped", replica(0)), fact("stopped", replica(1)))
    assert (story.state.phase, story.state.reason) == (Phase.RUNNING, SCALED_TO_ZERO)
    assert "request" in story.state.message
    assert not story.state.pods
    seen = [story.state.phase]
    story.when(scale(1, 0, "request"))
    seen.append(story.state.phase)
    story.bound()
    seen.append(story.state.phase)
    story.saw(fact("running", replica(2)))
    assert [*seen, story.state.phase] == [Phase.RUNNING, Phase.PENDING, Phase.INITIALIZING, Phase.RUNNING]
    assert (story.state.reason, story.state.message) == ("", "")


def test_it_is_scaled_to_zero_while_it_waits_for_a_node_too() -> None:
    story = Story()
    story.when(inference(scale_to_zero_retention_seconds=60))
    story.when(PlacePods(workload_id=ID, waiting_reason="no_nodes", waiting_message="none"))
    story.when(scale(0, 1, "idle"))
    assert (story.state.phase, story.state.reason) == (Phase.RUNNING, SCALED_TO_ZERO)
    assert bindable(story.state, at(0)) == []


@pytest.mark.parametrize(
    ("replicas", "was", "answer"),
    [
        (1, 2, "replicas_out_of_bounds"),
        (6, 2, "replicas_out_of_bounds"),
        (-1, 2, "replicas_out_of_bounds"),
        (2**40, 2, "replicas_out_of_bounds"),
        (3, 4, ()),  # decided on what was so before
        (2, 2, ()),  # already so
    ],
)
def test_nobody_scales_beyond_what_its_person_set_or_on_old_news(replicas: int, was: int, answer: object) -> None:
    story = Story()
    story.when(inference(replicas=2, min_replicas=2, max_replicas=5))
    story.bound()
    decision = story.decide(scale(replicas, was))
    assert (decision.code if isinstance(decision, Refusal) else decision) == answer


def test_what_should_not_run_is_not_scaled() -> None:
    fresh = Story()
    fresh.when(inference(max_replicas=4))
    assert fresh.decide(scale(2, 1)) == (), "the scheduler has not taken it up"
    story = running(2)
    story.when(SuspendWorkload(workload_id=ID))
    assert story.decide(scale(3, 2)) == ()
    training = Story().created()
    assert training.refused(scale(2, 1)).code == "no_inference"


def test_resumed_it_begins_as_at_first() -> None:
    story = running(4)
    story.when(SuspendWorkload(workload_id=ID))
    story.saw(*(fact("stopped", replica(index)) for index in range(3)))
    story.when(ResumeWorkload(workload_id=ID))
    story.saw(fact("stopped", replica(3)))
    assert [(ref.index, ref.attempt) for ref in bindable(story.state, at(0))] == [(0, 2)]
    assert story.state.inference is not None
    assert (story.state.inference.replicas, len(story.state.pods)) == (1, 1)


def test_scaled_to_zero_and_suspended_it_stops_at_once_and_resumes_with_one() -> None:
    story = running(1, scale_to_zero_retention_seconds=60)
    story.when(scale(0, 1, "idle"))
    story.saw(fact("stopped", replica(0)))
    assert names(story.when(SuspendWorkload(workload_id=ID))) == ["WorkloadSuspended", "WorkloadStopped"]
    story.when(ResumeWorkload(workload_id=ID))
    assert (story.state.phase, len(bindable(story.state, at(0)))) == (Phase.RESUMING, 1)


@pytest.mark.parametrize(("kind", "code"), [("succeeded", 0), ("failed", 3)])
def test_a_replica_that_ends_is_run_again_however_it_ended(kind: PodFactKind, code: int) -> None:
    """R26: it has no backoff limit, and neither completes nor fails."""
    story = running(1)
    waits: list[float] = []
    for try_ in range(12):
        now = at(1000 * try_)
        (failed,) = story.when(
            report(fact(kind, replica(0, try_), seconds=1000 * try_, exit_code=code)), context(now=now)
        )
        assert failed.exit_code == code
        assert failed.retry_at is not None
        waits.append((failed.retry_at - now).total_seconds())
        later = at(1000 * try_ + 999)
        story.bound(now=later)
        story.when(report(fact("running", replica(0, try_ + 1), seconds=1000 * try_ + 999)), context(now=later))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300], "ever more slowly"
    assert story.state.phase is Phase.RUNNING


def test_a_replica_that_worked_for_long_is_run_again_soon() -> None:
    story = running(1)
    for try_ in range(5):
        story.when(report(fact("failed", replica(0, try_), seconds=400 * try_)), context(now=at(400 * try_)))
        later = at(400 * try_ + 399)
        story.bound(now=later).saw(fact("running", replica(0, try_ + 1), seconds=400 * try_ + 399), now=later)
    end = 2000 + 600
    (failed,) = story.when(report(fact("failed", replica(0, 5), seconds=end)), context(now=at(end)))
    assert failed.retry_at == at(end + 1)


def test_nothing_can_be_said_of_the_end_of_what_has_none() -> None:
    story = running(1)
    change = ChangeWorkload(workload_id=ID, auto_deletion_time_after_completion_seconds=5)
    assert story.refused(change).code == "never_ends"
    assert story.refused(change).field == "autoDeletionTimeAfterCompletionSeconds"


MOST = 5


class InferenceMachine(RuleBasedStateMachine):
    """Random scaling, suspending and facts, stale ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.clock = 0.0
        self.story.when(inference(max_replicas=MOST, scale_to_zero_retention_seconds=60))
        self.bound: set[PodRef] = set()

    def step(self, command: object) -> None:
        ctx = context(now=at(self.clock), actor=SERVICE)
        if not isinstance(self.story.decide(command, ctx), Refusal):
            self.story.when(command, ctx)
            again = self.story.decide(command, ctx)
            assert isinstance(again, Refusal) or again == (), f"deciding {command} twice changed something: {again}"

    @rule(seconds=st.floats(0.1, 400))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds

    @rule(count=st.integers(1, MOST))
    def bind(self, count: int) -> None:
        pods = bindable(self.story.state, at(self.clock))[:count]
        assert not self.bound & {*pods}, "a run is bound once"
        self.bound |= {*pods}
        self.step(PlacePods(workload_id=ID, placements=tuple(placement(pod) for pod in pods)))

    @rule(replicas=st.integers(-1, MOST + 1), stale=st.booleans())
    def scale(self, replicas: int, stale: bool) -> None:
        wanted = self.story.state.inference
        assert wanted is not None
        before = self.story.state
        self.step(scale(replicas, wanted.replicas + stale))
        if stale or not 0 <= replicas <= MOST:
            assert self.story.state is before

    @rule(
        at_most=st.integers(0, 30),
        kind=st.sampled_from(["starting", "running", "succeeded", "failed", "stopped", "interrupted", "unreachable"]),
    )
    def observe(self, at_most: int, kind: PodFactKind) -> None:
        pods = sorted(self.story.state.pods.items())
        if not pods:
            return
        (name, index), pod = pods[at_most % len(pods)]
        seen = PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
        self.step(ReportPods(workload_id=ID, facts=(fact(kind, seen, seconds=self.clock),)))

    @rule()
    def suspend(self) -> None:
        self.step(SuspendWorkload(workload_id=ID))

    @rule()
    def resume(self) -> None:
        self.step(ResumeWorkload(workload_id=ID))

    @invariant()
    def no_more_replicas_are_there_than_are_wanted_beside_those_on_their_way_out(self) -> None:
        state = self.story.state
        assert state.inference is not None
        staying = [pod for pod in state.pods.values() if pod.phase is not PodPhase.STOPPING]
        if state.desired is DesiredPhase.RUNNING:
            assert len(staying) <= state.inference.replicas
        assert 0 <= state.inference.replicas <= MOST

    @precondition(lambda self: self.story.state.desired is DesiredPhase.RUNNING)
    @invariant()
    def whatever_is_wanted_is_there_or_can_be_placed_or_comes_once_another_is_gone(self) -> None:
        state = self.story.state
        assert state.inference is not None
        new = [ref for ref in bindable(state, at(self.clock + 10**6)) if (ref.pod_set, ref.index) not in state.pods]
        assert max(len(state.pods), state.inference.replicas) == len(state.pods) + len(new)

    @invariant()
    def it_neither_completes_nor_fails(self) -> None:
        assert self.story.state.phase not in {Phase.COMPLETED, Phase.FAILED}
        assert WORKLOAD.fold is not None


TestInferences = InferenceMachine.TestCase
TestInferences.settings = settings(max_examples=draws(60), stateful_step_count=40, deadline=None)
