"""What is decided of what agents say of pods, and what follows from it for the workload."""

from datetime import datetime, timedelta
from typing import Final, assert_never

from events.decision import Context
from events.phases import BACKOFF_LIMIT_EXCEEDED, CLOSING, ENDS_AT_ONCE, FINISHED, DesiredPhase, Phase, PodPhase
from events.workload.at_risk import CheckpointSaved
from events.workload.commands import LIVE_FACTS, PodFact, ReportPods
from events.workload.edit import Edit
from events.workload.kinds import KINDS
from events.workload.life import (
    WorkloadCompleted,
    WorkloadDecision,
    WorkloadDeleted,
    WorkloadEvent,
    WorkloadFailed,
    WorkloadStopped,
    take,
)
from events.workload.lost_cluster import LeftPodEnded
from events.workload.places import LONGEST_RETRY_WAIT
from events.workload.pod import (
    POD_TRANSITIONS,
    Pod,
    PodEvent,
    PodFailed,
    PodInterrupted,
    PodRunning,
    PodStarting,
    PodStopped,
    PodSucceeded,
    PodUnreachable,
    PodWarned,
    failures_in_a_row,
    how_it_failed,
    pod_id,
)
from events.workload.state import Workload, delete_at, is_completed

MAX_WARNINGS_OF_RUN: Final = 10
"""Different reasons; a history with more of them tells nobody more."""

SHORTEST_CHECKPOINT_PAUSE: Final = timedelta(minutes=1)

LONGEST_CHECKPOINT_PAUSE: Final = timedelta(minutes=10)
"""A run that saves its work all the time tells of it some 35 times in its first two hours, and six times an hour then.
"""


def retry_wait(earlier: int) -> timedelta:
    """How long a run waits after `earlier` earlier failures: 1, 2, 4… s, at most LONGEST_RETRY_WAIT."""
    return min(timedelta(seconds=2 ** min(earlier, 16)), LONGEST_RETRY_WAIT)


def report(command: ReportPods, state: Workload, context: Context) -> WorkloadDecision:
    edit = Edit(state)
    events: list[WorkloadEvent] = []
    for fact in sorted(command.facts, key=lambda fact: (fact.pod, fact.at)):
        # Warnings first: they may say why it ended.
        for happened in (
            *_warnings(fact, edit),
            *_saved(fact, edit, context.now),
            *_of_fact(fact, edit, context.now),
            *_of_left(fact, edit),
        ):
            take(edit, happened)
            events.append(happened)
            if isinstance(happened, CheckpointSaved):
                continue
            if (follows := _what_follows(happened, edit, context.now)) is not None:
                take(edit, follows)
                events.append(follows)
    return tuple(events)


def _newest_run(fact: PodFact, edit: Edit) -> Pod | None:
    """The pod, where this run of it is the newest and holds a node: a fact about any other changes nothing."""
    pod = edit.pods.live.get(pod_id(fact.pod))
    if pod is None or (fact.token and fact.token != pod.token):
        return None
    return pod if pod.is_run(fact.pod) else None


def _warnings(fact: PodFact, edit: Edit) -> tuple[PodWarned, ...]:
    pod = _newest_run(fact, edit)
    if pod is None:
        return ()
    told = list(pod.warned)
    events: list[PodWarned] = []
    for warning in fact.warnings:
        if warning.reason not in told and len(told) < MAX_WARNINGS_OF_RUN:
            told.append(warning.reason)
            events.append(PodWarned(pod=fact.pod, at=warning.at, reason=warning.reason, message=warning.message))
    return tuple(events)


def _saved(fact: PodFact, edit: Edit, now: datetime) -> tuple[CheckpointSaved, ...]:
    """That there is a newer file in the checkpoint folder, where that is worth an event: for a run's first minutes each
    minute, then ever less often; and when it ends. A file may say any time, so none is later than now. When a run began
    is what its workload knows, and no word of an agent: whoever never ran has saved nothing.
    """
    pod, state = _newest_run(fact, edit), edit.state
    if pod is None or fact.checkpoint_at is None or state.spec.checkpoint is None:
        return ()
    at, before = min(fact.checkpoint_at, now), state.checkpoint_at
    begins = fact.kind == "running" and PodPhase.RUNNING in POD_TRANSITIONS[pod.phase]
    began = pod.running_since or (fact.at if begins else None)
    if began is None:
        return ()
    if fact.kind in LIVE_FACTS:
        told = before is not None and before >= began
        if at < began or (told and before is not None and at - before < checkpoint_pause(at - began)):
            return ()
    return (CheckpointSaved(pod=fact.pod, at=at),) if before is None or at > before else ()


def checkpoint_pause(age: timedelta) -> timedelta:
    """How much newer a file must be than the last one that was told, of a run that is so old."""
    return min(max(age / 10, SHORTEST_CHECKPOINT_PAUSE), LONGEST_CHECKPOINT_PAUSE)


def _of_fact(fact: PodFact, edit: Edit, now: datetime) -> tuple[PodEvent, ...]:
    """The cause in one fact; none where it says nothing new of the run."""
    pod = _newest_run(fact, edit)
    if pod is None:
        return ()
    next_phases = POD_TRANSITIONS[pod.phase]
    match fact.kind:
        case "starting":
            starting = PodStarting(pod=fact.pod, at=fact.at, message=fact.message)
            return (starting,) if PodPhase.STARTING in next_phases else ()
        case "running":
            running = PodRunning(pod=fact.pod, at=fact.at, address=fact.address)
            return (running,) if PodPhase.RUNNING in next_phases else ()
        case "unreachable":
            unseen = PodUnreachable(pod=fact.pod, at=fact.at, reason=fact.reason, message=fact.message)
            return (unseen,) if PodPhase.UNKNOWN in next_phases else ()
        # One of an elastic workload that ends well when it is told to has not done the work of all.
        case "succeeded" if edit.state.inference is None and not (
            pod.phase is PodPhase.STOPPING and edit.state.elastic
        ):
            return (PodSucceeded(pod=fact.pod, at=fact.at),)
        # The workload of a pod that outlives it has its end already.
        case "stopped" | "succeeded" | "failed" | "interrupted" | "refused" if (
            pod.phase is PodPhase.STOPPING or edit.state.phase in CLOSING
        ):
            return (PodStopped(pod=fact.pod, at=fact.at, exit_code=fact.exit_code),)
        case "succeeded":
            return (_replica_ended(fact, pod, now),)
        case "failed":
            return (_failed(fact, pod, edit.state, now),)
        case "stopped" | "interrupted" | "refused":
            return (_interrupted(fact, pod.interruptions, now),)
        case _:
            assert_never(fact.kind)


def _of_left(fact: PodFact, edit: Edit) -> tuple[LeftPodEnded, ...]:
    """That a run is over which was left on a lost cluster. Whatever came of it, the attempts after it go on."""
    kind = fact.kind
    if kind == "starting" or kind == "running" or kind == "unreachable":  # noqa: PLR1714 (so the type is narrowed)
        return ()
    for cluster_id, pods in edit.state.left.items():
        run = pods.get(pod_id(fact.pod))
        if run is not None and run.is_run(fact.pod) and fact.token in {0, run.token}:
            ended = LeftPodEnded(pod=fact.pod, cluster_id=cluster_id, at=fact.at, how=kind, exit_code=fact.exit_code)
            return (ended,)
    return ()


def _failed(fact: PodFact, pod: Pod, state: Workload, now: datetime) -> PodFailed:
    limit = KINDS[state.kind].backoff_limit(state.spec)
    if limit is None:
        # For ever, and ever more slowly while it does not get going.
        retry_at = now + retry_wait(failures_in_a_row(pod, fact.at) - 1)
    else:
        # S030: whoever has the node port may keep it for ever.
        over = fact.reason in ENDS_AT_ONCE or state.failures >= limit
        retry_at = None if over else now + retry_wait(state.failures)
    return PodFailed(
        pod=fact.pod,
        at=fact.at,
        exit_code=fact.exit_code,
        reason=fact.reason or "exit_code",
        message=fact.message,
        retry_at=retry_at,
    )


def _replica_ended(fact: PodFact, pod: Pod, now: datetime) -> PodFailed:
    """A replica's process ended without an error, though nobody told it to."""
    return PodFailed(
        pod=fact.pod,
        at=fact.at,
        exit_code=0,
        reason="replica_ended",
        message="a replica is to run until it is told to end",
        retry_at=now + retry_wait(failures_in_a_row(pod, fact.at) - 1),
    )


def _interrupted(fact: PodFact, interruptions: int, now: datetime) -> PodInterrupted:
    # The first time at once; a node that refuses again and again is asked ever more slowly.
    retry_at = now + retry_wait(interruptions - 1) if interruptions else None
    return PodInterrupted(
        pod=fact.pod, at=fact.at, reason=fact.reason or fact.kind, message=fact.message, retry_at=retry_at
    )


def _what_follows(event: PodEvent | LeftPodEnded, edit: Edit, now: datetime) -> WorkloadEvent | None:
    """The workload's own end, or stop, where this was the end of the last run that it waited for."""
    state = edit.state
    if state.desired is DesiredPhase.DELETED and isinstance(event, LeftPodEnded):
        return None if edit.pods.live.size or state.left else WorkloadDeleted(at=now)
    if not isinstance(event, PodSucceeded | PodStopped | PodFailed | PodInterrupted) or state.phase in FINISHED:
        return None
    if isinstance(event, PodFailed) and event.retry_at is None:
        return _spent(event, state, now)
    if isinstance(event, PodFailed | PodInterrupted) and not state.elastic:
        return None
    if state.desired is DesiredPhase.DELETED:
        return None if edit.pods.live.size or state.left else WorkloadDeleted(at=now)
    if is_completed(state, edit.pods):
        return WorkloadCompleted(at=now, succeeded=state.succeeded, delete_at=delete_at(state, now))
    if state.phase is Phase.STOPPING and not edit.pods.live.size:
        return WorkloadStopped(at=now)
    if state.phase is Phase.TERMINATING and not edit.pods.live.size:
        return WorkloadFailed(at=now, reason=state.reason, message=state.message, delete_at=delete_at(state, now))
    return None


def _spent(event: PodFailed, state: Workload, now: datetime) -> WorkloadFailed:
    if event.reason in ENDS_AT_ONCE:
        return WorkloadFailed(at=now, reason=event.reason, message=event.message, delete_at=delete_at(state, now))
    runs = "1 failed run" if state.failures == 1 else f"{state.failures} failed runs"
    pod = f"{event.pod.pod_set}-{event.pod.index}"
    limit = KINDS[state.kind].backoff_limit(state.spec) or 0
    return WorkloadFailed(
        at=now,
        reason=BACKOFF_LIMIT_EXCEEDED,
        message=f"pod {pod} {how_it_failed(event)}; {runs}, backoff limit {limit}",
        exit_code=event.exit_code,
        delete_at=delete_at(state, now),
    )
