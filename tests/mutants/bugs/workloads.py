"""In what a workload decides, and in its fold."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _one_is_enough(_: Any) -> Any:
    return lambda state: state.succeeded >= 1


def _one_more_failure(original: Any) -> Any:
    def failed(fact: Any, state: Any, now: Any) -> Any:
        from msgspec.structs import replace

        limit = state.spec.backoff_limit
        if state.failures == limit:
            state = replace(state, spec=replace(state.spec, backoff_limit=limit + 1))
        return original(fact, state, now)

    return failed


def _counts_interruptions(original: Any) -> Any:
    def take_of_pod(edit: Any, event: Any, pod: Any) -> None:
        from msgspec.structs import replace

        from events.workload.pod import PodInterrupted

        original(edit, event, pod)
        if isinstance(event, PodInterrupted):
            edit.state = replace(edit.state, failures=edit.state.failures + 1)

    return take_of_pod


def _keeps_failures(original: Any) -> Any:
    def resume(edit: Any, event: Any) -> None:
        from msgspec.structs import replace

        failures = edit.state.failures
        original(edit, event)
        edit.state = replace(edit.state, failures=failures)

    return resume


def _waiting_leaves_room(original: Any) -> Any:
    def new_indexes(state: Any, pod_set: Any) -> range:
        from msgspec.structs import replace

        more = sum(name == pod_set.name for name, _ in state.pods.waiting)
        return original(state, replace(pod_set, parallelism=pod_set.parallelism + more))

    return new_indexes


def _deleted_at_once(original: Any) -> Any:
    def delete(command: Any, state: Any, context: Any) -> Any:
        from events.workload.life import WorkloadDeleted

        decided = original(command, state, context)
        return (*decided, WorkloadDeleted(at=context.now)) if len(decided) == 1 else decided

    return delete


def _stopped_before_its_pods(original: Any) -> Any:
    def suspend(state: Any, context: Any) -> Any:
        from events.phases import PodPhase
        from events.workload.life import WorkloadStopped

        decided = original(state, context)
        begun = any(pod.phase is PodPhase.RUNNING for pod in state.pods.values())
        if isinstance(decided, tuple) and len(decided) == 1 and not begun:
            return (*decided, WorkloadStopped(at=context.now))
        return decided

    return suspend


def _running_comes_first(original: Any) -> Any:
    def derive(edit: Any) -> None:
        from msgspec.structs import replace

        from events.phases import Phase

        original(edit)
        if edit.state.phase is Phase.UNKNOWN and edit.pods.running:
            edit.state = replace(edit.state, phase=Phase.RUNNING, reason="", message="")
            edit.names_unseen = False

    return derive


def _same_attempt(original: Any) -> Any:
    def resume(state: Any) -> Any:
        from events.workload.life import WorkloadResumed

        decided = original(state)
        if isinstance(decided, tuple) and decided:
            return (WorkloadResumed(attempt=state.attempt),)
        return decided

    return resume


def _token_of_the_attempt(original: Any) -> Any:
    def place(command: Any, state: Any, context: Any) -> Any:
        from msgspec.structs import replace

        from events.workload.pod import PodsBound

        decided = original(command, state, context)
        if not isinstance(decided, tuple):
            return decided
        return tuple(replace(e, token=state.attempt) if isinstance(e, PodsBound) else e for e in decided)

    return place


def _any_run(_: Any) -> Any:
    def newest_run(fact: Any, edit: Any) -> Any:
        return edit.pods.live.get((fact.pod.pod_set, fact.pod.index))

    return newest_run


def _due_whatever_changed(original: Any) -> Any:
    def delete(command: Any, state: Any, context: Any) -> Any:
        from msgspec.structs import replace

        if command.generation is None:
            return original(command, state, context)
        moved_on = replace(command, generation=state.generation)
        return original(moved_on, replace(state, delete_at=context.now), context)

    return delete


def _keeps_the_due_time(original: Any) -> Any:
    def change(command: Any, state: Any, context: Any) -> Any:
        from msgspec.structs import replace

        decided = original(command, state, context)
        return tuple(replace(event, delete_at=None) for event in decided) if isinstance(decided, tuple) else decided

    return change


def _keeps_the_generation(original: Any) -> Any:
    def changed(state: Any, event: Any) -> Any:
        from msgspec.structs import replace

        return replace(original(state, event), generation=state.generation)

    return changed


def _zero_is_not_given(original: Any) -> Any:
    def with_defaults(spec: Any) -> Any:
        from msgspec.structs import replace

        from events.workload.spec import NO_SPEC

        field = "auto_deletion_time_after_completion_seconds"
        return original(replace(spec, **{field: getattr(spec, field) or getattr(NO_SPEC, field)}))

    return with_defaults


def _one_device(original: Any) -> Any:
    def pod_request(compute: Any) -> Any:
        from msgspec.structs import replace

        request = original(compute)
        if compute is None or compute.gpu_request_type is None:
            return request
        return replace(request, gpu_devices=min(request.gpu_devices, 1))

    return pod_request


WORKLOADS: Final[list[Mutant]] = [
    Mutant(
        name="one-completion-is-enough",
        function="events.workload.state:is_completed",
        invariant="completions",
        bug="A workload is Completed as soon as one of its pods has succeeded.",
        make=_one_is_enough,
    ),
    Mutant(
        name="one-retry-too-many",
        function="events.workload.reports:_failed",
        invariant="completions",
        bug="A workload fails one failed run too late.",
        make=_one_more_failure,
    ),
    Mutant(
        name="interruptions-spend-retries",
        function="events.workload.life:_take_of_pod",
        invariant="completions",
        bug="An interrupted run counts against the backoff limit.",
        make=_counts_interruptions,
    ),
    Mutant(
        name="resume-keeps-failures",
        function="events.workload.life:_resume",
        invariant="completions",
        bug="A resumed workload starts with the failed runs of the attempt before.",
        make=_keeps_failures,
    ),
    Mutant(
        name="retries-do-not-wait",
        function="events.workload.places:_is_due",
        invariant="completions",
        bug="A failed pod is placed again at once, without its delay.",
        make=lambda _: lambda pod, now: True,
    ),
    Mutant(
        name="waiting-pods-leave-parallelism",
        function="events.workload.places:new_indexes",
        invariant="asked",
        bug="A pod that waits for its retry does not count, so another index takes its place, and later more pods run "
        "at once "
        "than `parallelism` allows.",
        make=_waiting_leaves_room,
    ),
    Mutant(
        name="deleted-at-once",
        function="events.workload.decide:_delete",
        invariant="life",
        bug="A workload is Deleted as soon as somebody asks for it, although its pods still exist.",
        make=_deleted_at_once,
    ),
    Mutant(
        name="stopped-before-its-pods",
        function="events.workload.decide:_suspend",
        invariant="life",
        bug="A suspended workload whose pods are bound but do not run yet is Stopped before they are gone.",
        make=_stopped_before_its_pods,
    ),
    Mutant(
        name="unseen-pods-are-hidden",
        function="events.workload.status:derive",
        invariant="life",
        bug="A workload is Running, not Unknown, while one of its pods is out of sight and another runs.",
        make=_running_comes_first,
    ),
    Mutant(
        name="resume-keeps-the-attempt",
        function="events.workload.decide:_resume",
        invariant="one run",
        bug="Resuming does not raise the attempt, so runs before and after it cannot be told apart.",
        make=_same_attempt,
    ),
    Mutant(
        name="token-of-the-attempt",
        function="events.workload.placing:place",
        invariant="one run",
        bug="The token of a run is its attempt number, so it does not rise with each try or with the next workload of "
        "the name.",
        make=_token_of_the_attempt,
    ),
    Mutant(
        name="old-runs-are-believed",
        function="events.workload.reports:_newest_run",
        invariant="facts",
        bug="A fact about an earlier run of a pod is applied to its current run.",
        make=_any_run,
    ),
    Mutant(
        name="due-whatever-changed",
        function="events.workload.decide:_delete",
        invariant="due",
        bug="An auto-deletion is carried out although the due time was moved after it was sent.",
        make=_due_whatever_changed,
    ),
    Mutant(
        name="the-old-due-time-stays",
        function="events.workload.changing:change",
        invariant="due",
        bug="Changing the auto-deletion of an ended workload does not change when it is due.",
        make=_keeps_the_due_time,
    ),
    Mutant(
        name="change-without-a-generation",
        function="events.workload.changes:after_change",
        invariant="due",
        bug="The fold changes the due time but not its generation, so the deletion is ignored when it is due.",
        make=_keeps_the_generation,
    ),
    Mutant(
        name="zero-is-not-given",
        function="events.workload.spec:with_defaults",
        invariant="due",
        bug="A 0 counts as not given, so a workload that should be deleted at its end stays for thirty days.",
        make=_zero_is_not_given,
    ),
    Mutant(
        name="one-device-of-many",
        function="events.workload.spec:pod_request",
        invariant="asked",
        bug="A request for shares of several devices gets a share of one.",
        make=_one_device,
    ),
]
