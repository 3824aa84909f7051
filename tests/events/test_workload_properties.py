"""Whatever happens to a workload, in whatever order: what always holds."""

from typing import get_args

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from events.aggregate import WORKLOAD, Chain, apply, draft
from events.codec import decode_commit, encode_commit
from events.ids import workload_key
from events.phases import FINISHED, DesiredPhase, Phase, PodPhase
from events.refusal import Refusal
from events.workload.commands import (
    ChangeWorkload,
    DeleteWorkload,
    PlacePods,
    PodFactKind,
    PodWarning,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
)
from events.workload.places import bindable
from events.workload.pod import PodRef
from events.workload.reports import MAX_WARNINGS_OF_RUN
from events.workload.state import Workload
from tests.events.given import ALICE, at, context, creation, fact, placement
from tests.support.draws import draws

KINDS: list[PodFactKind] = list(get_args(PodFactKind))
COMPLETIONS, PARALLELISM = 4, 2


class WorkloadMachine(RuleBasedStateMachine):
    """Random commands and facts, stale ones among them, through the real codec and chain."""

    def __init__(self) -> None:
        super().__init__()
        self.chain: Chain[Workload] = Chain(state=WORKLOAD.initial)
        self.clock = 0.0
        self.commands = 0
        self.runs: set[tuple[str, PodRef]] = set()
        self.last_token = -1

    @property
    def state(self) -> Workload:
        return self.chain.state

    def step(self, command: object) -> None:
        self.commands += 1
        ctx = context(now=at(self.clock), command_id=f"c{self.commands}", version=self.chain.version)
        decision = WORKLOAD.decide(command, self.state, ctx)
        if isinstance(decision, Refusal) or not decision:
            return
        made = draft(
            WORKLOAD,
            workload_key("p1", "train"),
            self.chain,
            decision,
            command_id=ctx.command_id,
            actor=ALICE,
            now=ctx.now,
        )
        state = self.state
        for event in decision:
            before, state = state, WORKLOAD.evolve(state, event)
            assert state is not before, f"{event} was decided, and does not fit"
        commit = decode_commit(made.subject, self.chain.version + 1, encode_commit(made.record))
        self.chain = apply(WORKLOAD, self.chain, commit)
        again = WORKLOAD.decide(command, self.state, ctx)
        assert isinstance(again, Refusal) or again == (), f"deciding {command} twice changed something: {again}"

    @rule()
    def create(self) -> None:
        self.step(creation(completions=COMPLETIONS, parallelism=PARALLELISM, backoff_limit=2))

    @rule(seconds=st.floats(0.1, 400))
    def time_passes(self, seconds: float) -> None:
        self.clock += seconds

    @rule(count=st.integers(1, 3))
    def bind(self, count: int) -> None:
        pods = bindable(self.state, at(self.clock))[:count]
        for pod in pods:
            assert (self.state.workload_id, pod) not in self.runs, f"{pod} would run twice"
            self.runs.add((self.state.workload_id, pod))
        self.step(PlacePods(workload_id=self.state.workload_id, placements=tuple(placement(pod) for pod in pods)))
        for pod in pods:
            token = self.state.pods[pod.pod_set, pod.index].token
            assert token > self.last_token
        self.last_token = max([self.last_token, *(p.token for p in self.state.pods.values())])

    @rule(
        kind=st.sampled_from(KINDS),
        index=st.integers(0, COMPLETIONS),
        stale=st.booleans(),
        warned=st.sets(st.integers(0, 20), max_size=12),
    )
    def observe(self, kind: PodFactKind, index: int, stale: bool, warned: set[int]) -> None:
        pod = self.state.pods.get(("main", index))
        attempt, try_ = (pod.attempt, pod.try_) if pod else (1, 0)
        if stale:
            attempt, try_ = (attempt, try_ - 1) if try_ else (attempt - 1, 0)
        ref = PodRef(pod_set="main", index=index, attempt=attempt, try_=try_)
        before = self.state
        warnings = tuple(PodWarning(reason=f"w{n}", message="m", at=at(self.clock)) for n in sorted(warned))
        seen = fact(kind, ref, seconds=self.clock, exit_code=1, warnings=warnings)
        self.step(ReportPods(workload_id=before.workload_id, facts=(seen,)))
        if stale:
            assert self.state == before

    @rule()
    def suspend(self) -> None:
        self.step(SuspendWorkload(workload_id=self.state.workload_id))

    @rule()
    def resume(self) -> None:
        self.step(ResumeWorkload(workload_id=self.state.workload_id))

    @rule(due=st.booleans())
    def delete(self, due: bool) -> None:
        generation = self.state.generation if due else None
        self.step(DeleteWorkload(workload_id=self.state.workload_id, generation=generation))

    @rule(seconds=st.integers(0, 1000))
    def change(self, seconds: int) -> None:
        self.step(
            ChangeWorkload(workload_id=self.state.workload_id, auto_deletion_time_after_completion_seconds=seconds)
        )

    @invariant()
    def pods_stay_within_parallelism_and_completions(self) -> None:
        assert len(self.state.pods.live) <= PARALLELISM
        assert len(self.state.pods) <= PARALLELISM or self.state.phase in FINISHED
        assert self.state.succeeded <= COMPLETIONS

    @precondition(lambda self: self.state.exists and self.state.desired is not DesiredPhase.DELETED)
    @invariant()
    def completed_means_that_all_succeeded(self) -> None:
        assert (self.state.phase is Phase.COMPLETED) == (self.state.succeeded == COMPLETIONS)

    @invariant()
    def stopped_and_deleted_workloads_hold_no_node(self) -> None:
        if self.state.phase is Phase.STOPPED or self.state.deleted_at is not None:
            assert not self.state.pods.live

    @invariant()
    def unknown_means_that_some_pod_of_what_should_run_is_out_of_sight(self) -> None:
        unseen = any(pod.phase is PodPhase.UNKNOWN for pod in self.state.pods.values())
        assert (self.state.phase is Phase.UNKNOWN) == unseen

    @invariant()
    def no_run_keeps_more_than_ten_warnings_and_none_twice(self) -> None:
        for pod in self.state.pods.values():
            assert len(set(pod.warned)) == len(pod.warned) <= MAX_WARNINGS_OF_RUN

    @invariant()
    def nothing_new_runs_for_what_should_not_run(self) -> None:
        if self.state.desired is not DesiredPhase.RUNNING:
            assert all(pod.phase in {PodPhase.STOPPING, PodPhase.PENDING} for pod in self.state.pods.values())

    @invariant()
    def a_snapshot_is_the_state(self) -> None:
        packed = msgspec.msgpack.encode(self.chain)
        assert msgspec.msgpack.decode(packed, type=Chain[Workload]) == self.chain


WorkloadMachine.TestCase.settings = settings(max_examples=draws(150), stateful_step_count=40, deadline=None)
TestWorkloadMachine = WorkloadMachine.TestCase
