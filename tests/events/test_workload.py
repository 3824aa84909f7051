"""The workload's decider: what each command does to a workload, as given/when/then."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from events.phases import FINISHED, PODS_RUN_AGAIN, TRANSITIONS, UNBUILT_PHASES, DesiredPhase, Phase, PodPhase
from events.workload.changes import WorkloadChanged
from events.workload.commands import (
    Changeable,
    ChangeWorkload,
    DeleteWorkload,
    EndAtLimit,
    PlacePods,
    PodFactKind,
    PodWarning,
    ReportPods,
    ResumeWorkload,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
)
from events.workload.decide import final_name
from events.workload.fields.distribution import Distribution
from events.workload.fields.metadata import Label
from events.workload.fields.storage import EmptyDirVolume, PvcVolume, SecretVolume, StorageSpec
from events.workload.places import bindable, next_retry_at
from events.workload.pod import PodAddress, PodRef, PortAddress
from events.workload.reports import retry_wait
from events.workload.spec import NO_SPEC, Distributed
from events.workload.state import schedulable
from tests.events.given import (
    ALICE,
    BOB,
    ID,
    NOW,
    SERVICE,
    Story,
    at,
    context,
    creation,
    fact,
    names,
    placement,
    ref,
    report,
)

SUSPEND, RESUME, DELETE = (
    SuspendWorkload(workload_id=ID),
    ResumeWorkload(workload_id=ID),
    DeleteWorkload(workload_id=ID),
)


def _report(kind: PodFactKind, pod: PodRef | None = None, **more: Any) -> ReportPods:
    return report(fact(kind, pod, **more))


def running(**spec: object) -> Story:
    return Story().created(**spec).bound().saw(fact("starting"), fact("running"))


def completed(**spec: object) -> Story:
    return Story().created(**spec).bound().saw(fact("running"), fact("succeeded"))


def test_a_training_goes_from_creating_to_completed() -> None:
    story = Story()
    seen = [story.state.phase]
    story.when(creation())
    seen.append(story.state.phase)
    assert names(story.when(PlacePods(workload_id=ID, waiting_reason="no_nodes", waiting_message="none"))) == [
        "WorkloadQueued",
        "WorkloadWaiting",
    ]
    seen.append(story.state.phase)
    for step in (story.bound, lambda: story.saw(fact("running")), lambda: story.saw(fact("succeeded"))):
        step()
        seen.append(story.state.phase)
    assert seen == [
        Phase.CREATING,
        Phase.CREATING,
        Phase.PENDING,
        Phase.INITIALIZING,
        Phase.RUNNING,
        Phase.COMPLETED,
    ]
    assert not story.state.pods
    assert story.state.reason == ""


def test_defaults_are_written_out_when_it_is_created() -> None:
    """S045, S046, S071, S072, C1, C3, C15: a later change of a default changes no stored workload."""
    spec = Story().created().state.spec
    assert (spec.priority_class, spec.preemptibility) == ("low", "preemptible")
    assert (spec.backoff_limit, spec.completions, spec.parallelism) == (6, 1, 1)
    assert spec.auto_deletion_time_after_completion_seconds == 30 * 24 * 3600
    assert spec.termination_grace_period_seconds == 30


def test_a_0_is_given_and_takes_no_default() -> None:
    """No grace, no retry, and gone at its end."""
    story = completed(
        termination_grace_period_seconds=0, auto_deletion_time_after_completion_seconds=0, backoff_limit=0
    )
    assert (story.state.spec.termination_grace_period_seconds, story.state.spec.backoff_limit) == (0, 0)
    assert story.state.delete_at == at(0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "preemptible"),
        ({"priority_class": "medium-high"}, "preemptible"),
        ({"priority_class": "high"}, "non-preemptible"),
        ({"priority_class": "very-high", "preemptibility": "preemptible"}, "preemptible"),
        ({"priority_class": "very-low", "preemptibility": "non-preemptible"}, "non-preemptible"),
    ],
)
def test_preemptibility_is_the_explicit_one_or_follows_the_priority_class(given: dict[str, str], expected: str) -> None:
    """R19."""
    assert Story().created(**given).state.spec.preemptibility == expected


def test_a_name_is_taken_while_a_workload_of_that_name_lives_and_free_once_it_is_deleted() -> None:
    """S010, R38."""
    story = running()
    refusal = story.refused(creation(), context(command_id="create-2"))
    assert (refusal.code, refusal.field) == ("name_taken", "name")
    story.when(DELETE)
    assert story.refused(creation(), context(command_id="create-2")).code == "name_taken"
    story.saw(fact("stopped"))
    first = story.state.workload_id
    story.when(creation(), context(command_id="create-2"))
    assert story.state.workload_id != first
    assert story.state.phase is Phase.CREATING
    assert story.refused(SUSPEND).code == "not_found", "the old id must not reach the new incarnation"


def test_a_prefix_gets_the_same_suffix_for_the_same_command() -> None:
    """S011, R38."""
    assert final_name("train", as_prefix=False, command_id="c") == "train"
    name = final_name("train", as_prefix=True, command_id="c")
    assert name.startswith("train-")
    assert name == final_name("train", as_prefix=True, command_id="c")
    assert name != final_name("train", as_prefix=True, command_id="d")


def test_a_failing_pod_is_run_again_with_growing_waits_until_the_backoff_limit_is_spent() -> None:
    """S071: 1, 2, 4… s between the runs; then Failed, with the exit code."""
    story = Story().created(backoff_limit=2)
    now = NOW
    for failed_runs, wait_seconds in ((1, 1), (2, 2)):
        story.bound(now)
        story.saw(fact("running", ref(try_=failed_runs - 1)), now=now)
        story.saw(fact("failed", ref(try_=failed_runs - 1), exit_code=3), now=now)
        assert story.state.phase is Phase.PENDING
        assert story.state.failures == failed_runs
        assert next_retry_at(story.state, now) == now + timedelta(seconds=wait_seconds)
        assert bindable(story.state, now) == []
        now += timedelta(seconds=wait_seconds)
        assert bindable(story.state, now) == [ref(try_=failed_runs)]
    story.bound(now).saw(fact("failed", ref(try_=2), exit_code=3), now=now)
    assert story.state.phase is Phase.FAILED
    assert story.state.reason == "backoff_limit_exceeded"
    assert story.state.message == "pod main-0 ended with exit code 3; 3 failed runs, backoff limit 2"


@pytest.mark.parametrize("reason", ["node_port_taken", "no_claim", "no_command", "no_volume"])
def test_a_taken_node_port_or_a_missing_claim_fails_the_workload_at_once_and_says_so(reason: str) -> None:
    """S030, S096: however many retries it has, for whoever has the port may keep it, and nobody makes the claim."""
    story = Story().created(backoff_limit=6)
    story.bound(NOW)
    told = "node port 30080 of this machine is in use: give another one, or none"
    story.saw(fact("failed", reason=reason, message=told), now=NOW)
    assert (story.state.phase, story.state.reason, story.state.message) == (Phase.FAILED, reason, told)


def test_where_a_pod_answers_is_told_with_that_it_runs_and_forgotten_with_its_run() -> None:
    story = Story().created(backoff_limit=1)
    story.bound(NOW)
    address = PodAddress(host="127.0.0.1", ports=(PortAddress(container=8888, port=20_000),))
    story.saw(fact("running", address=address), now=NOW)
    assert [pod.address for pod in story.state.pods.live.values()] == [address]
    assert address.port(8888) == 20_000
    assert address.port(80) == 80
    story.saw(fact("failed", exit_code=1), now=NOW)
    assert [pod.address for pod in story.state.pods.waiting.values()] == [None]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"exit_code": 1, "reason": "exit_code"}, "ended with exit code 1"),
        ({"exit_code": 127, "reason": "x", "message": "no 'y' here"}, "ended with exit code 127 (no 'y' here)"),
        ({"reason": "working_dir", "message": "cannot enter '/y'"}, "failed: cannot enter '/y'"),
        ({"reason": "bad_annotation"}, "failed: bad annotation"),
    ],
)
def test_a_failed_workload_says_in_words_what_its_last_run_failed_of(more: dict[str, Any], said: str) -> None:
    story = Story().created(backoff_limit=0).bound()
    story.saw(replace(fact("failed"), **more))
    assert story.state.message == f"pod main-0 {said}; 1 failed run, backoff limit 0"


def test_a_backoff_limit_of_zero_fails_at_the_first_failed_run() -> None:
    """C1: 0..100."""
    story = Story().created(backoff_limit=0).bound().saw(fact("failed", exit_code=1))
    assert story.state.phase is Phase.FAILED


def test_waits_between_runs_double_and_stop_growing_at_five_minutes() -> None:
    assert [retry_wait(n).total_seconds() for n in (0, 1, 2, 8, 9, 60, 100)] == [1, 2, 4, 256, 300, 300, 300]


def test_an_interrupted_pod_is_run_again_at_once_and_spends_no_retry() -> None:
    story = Story().created(backoff_limit=0).bound().saw(fact("running"))
    story.saw(fact("interrupted", reason="shutdown"))
    assert story.state.failures == 0
    assert bindable(story.state, NOW) == [ref(try_=1)]


def test_a_node_that_refuses_again_and_again_is_asked_ever_more_slowly() -> None:
    story = Story().created().bound().saw(fact("refused", reason="OutOfcpu"))
    assert bindable(story.state, NOW) == [ref(try_=1)]
    story.bound().saw(fact("refused", ref(try_=1), reason="OutOfcpu"))
    assert bindable(story.state, NOW) == []
    assert next_retry_at(story.state, NOW) == at(1)
    story.bound(at(1)).saw(fact("refused", ref(try_=2)), now=at(1))
    assert next_retry_at(story.state, at(1)) == at(3)
    assert story.state.failures == 0


def test_five_completions_with_parallelism_two_never_have_three_live_pods() -> None:
    """S061, S062, R25."""
    story = Story().created(completions=5, parallelism=2)
    for done in range(5):
        story.bound()
        live = [pod for pod in story.state.pods.values() if pod.phase is not PodPhase.PENDING]
        assert len(live) == min(2, 5 - done)
        assert story.refused(PlacePods(workload_id=ID, placements=(placement(ref(4)),))).code == "stale_placement" or (
            done >= 3
        )
        first = min(index for _, index in story.state.pods)
        story.saw(fact("succeeded", ref(first)))
        assert story.state.succeeded == done + 1
    assert story.state.phase is Phase.COMPLETED


def test_a_pod_that_failed_keeps_its_place_within_parallelism() -> None:
    story = Story().created(completions=3, parallelism=1).bound().saw(fact("failed", exit_code=1))
    assert bindable(story.state, NOW) == [], "index 1 must not start while index 0 waits for its retry"
    assert bindable(story.state, at(1)) == [ref(0, try_=1)]


def test_suspend_tells_the_pods_to_go_and_is_stopped_once_they_are_gone() -> None:
    story = running()
    assert names(story.when(SUSPEND)) == ["WorkloadSuspended"]
    assert (story.state.phase, story.state.desired) == (Phase.STOPPING, DesiredPhase.STOPPED)
    assert story.when(SUSPEND) == (), "suspending what is being suspended changes nothing (C21)"
    assert names(story.when(_report("stopped"))) == ["PodStopped", "WorkloadStopped"]
    assert story.state.phase is Phase.STOPPED
    assert bindable(story.state, NOW) == []


def test_suspend_of_what_has_no_pods_stops_at_once() -> None:
    story = Story().created()
    assert names(story.when(SUSPEND)) == ["WorkloadSuspended", "WorkloadStopped"]


def test_resume_begins_a_new_attempt_with_a_fresh_budget_and_keeps_what_succeeded() -> None:
    story = Story().created(completions=3, parallelism=1, backoff_limit=1).bound().saw(fact("succeeded"))
    story.bound().saw(fact("failed", ref(1), exit_code=1))
    story.when(SUSPEND)
    assert story.state.phase is Phase.STOPPED
    assert names(story.when(RESUME)) == ["WorkloadResumed"]
    assert (story.state.phase, story.state.attempt, story.state.failures) == (Phase.RESUMING, 2, 0)
    assert story.when(RESUME) == (), "resuming what runs changes nothing (C21)"
    assert bindable(story.state, NOW) == [ref(1, attempt=2)]
    assert story.state.succeeded == 1


def test_a_resume_before_the_old_pod_is_gone_waits_for_it() -> None:
    """Never two live runs of one pod."""
    story = running()
    story.when(SUSPEND)
    story.when(RESUME)
    assert story.state.phase is Phase.RESUMING
    assert bindable(story.state, NOW) == []
    story.saw(fact("stopped"))
    assert bindable(story.state, NOW) == [ref(attempt=2)]


def test_a_pod_that_succeeds_while_it_is_being_stopped_counts() -> None:
    story = running()
    story.when(SUSPEND)
    assert names(story.when(_report("succeeded"))) == ["PodSucceeded", "WorkloadCompleted"]


def test_a_pod_killed_by_a_suspend_is_stopped_not_failed() -> None:
    story = running()
    story.when(SUSPEND)
    assert names(story.when(_report("failed", exit_code=143))) == ["PodStopped", "WorkloadStopped"]
    assert story.state.failures == 0


def test_a_pod_out_of_sight_makes_the_workload_unknown_until_it_is_seen_again() -> None:
    """S094: its node stays held, so nothing is placed a second time."""
    story = running()
    events = story.when(_report("unreachable", reason="node_unreachable", message="silent for 1 h"))
    assert names(events) == ["PodUnreachable"]
    assert (events[0].reason, events[0].message) == ("node_unreachable", "silent for 1 h")
    assert (story.state.phase, story.state.reason) == (Phase.UNKNOWN, "node_unreachable")
    assert "node-1 does not answer" in story.state.message
    assert not story.state.pods.waiting
    assert bindable(story.state, at(10_000)) == []
    assert story.when(_report("unreachable")) == ()
    assert names(story.when(_report("running"))) == ["PodRunning"]
    assert (story.state.phase, story.state.reason, story.state.message) == (Phase.RUNNING, "", "")


def test_a_pod_that_had_not_begun_to_run_is_starting_again_when_it_is_seen() -> None:
    story = Story().created().bound().saw(fact("starting"), fact("unreachable", seconds=1))
    assert story.state.phase is Phase.UNKNOWN
    story.saw(fact("starting", seconds=2))
    assert story.state.phase is Phase.INITIALIZING
    assert story.state.pods["main", 0].phase is PodPhase.STARTING


def test_one_pod_out_of_sight_is_told_before_all_that_run() -> None:
    story = Story().created(completions=2, parallelism=2).bound()
    story.saw(fact("running", ref(0)), fact("running", ref(1)), fact("unreachable", ref(1), seconds=1))
    assert story.state.phase is Phase.UNKNOWN
    story.saw(fact("succeeded", ref(0), seconds=2))
    assert (story.state.phase, story.state.succeeded) == (Phase.UNKNOWN, 1)
    story.saw(fact("succeeded", ref(1), seconds=3))
    assert story.state.phase is Phase.COMPLETED, "an end is an end, also of what was out of sight"


def test_a_pod_out_of_sight_that_is_known_to_be_gone_is_placed_again_and_spends_no_retry() -> None:
    story = running().saw(fact("unreachable")).saw(fact("interrupted", reason="node_lost"))
    assert (story.state.phase, story.state.reason, story.state.failures) == (Phase.PENDING, "", 0)
    assert bindable(story.state, NOW) == [ref(try_=1)]


@pytest.mark.parametrize(("command", "phase"), [(SUSPEND, Phase.STOPPING), (DELETE, Phase.DELETING)])
def test_an_unknown_workload_can_be_suspended_and_deleted_and_waits_for_its_pods_end(
    command: object, phase: Phase
) -> None:
    story = running().saw(fact("unreachable"))
    story.when(command)
    assert story.state.phase is phase
    live: tuple[PodFactKind, ...] = ("unreachable", "running", "starting")
    for kind in live:
        assert story.when(_report(kind)) == (), "the stop stays wanted"
    story.saw(fact("stopped"))
    assert not story.state.pods.live
    assert (story.state.phase is Phase.STOPPED) == (command is SUSPEND)
    assert (story.state.deleted_at is not None) == (command is DELETE)


def test_a_warning_is_told_once_for_each_run_and_reason() -> None:
    pull = PodWarning(reason="image_pull", message="image cannot be pulled: not found", at=NOW)
    again = replace(pull, message="image cannot be pulled: waiting", at=at(30))
    story = Story().created().bound()
    told = story.when(_report("starting", warnings=(pull, again)))
    assert [(type(event).__name__, getattr(event, "message", "")) for event in told] == [
        ("PodWarned", pull.message),
        ("PodStarting", ""),
    ]
    assert story.when(_report("starting", warnings=(again,))) == ()
    assert names(story.when(_report("starting", warnings=(again, replace(pull, reason="mount"))))) == ["PodWarned"]
    assert story.state.phase is Phase.INITIALIZING
    story.saw(fact("interrupted", reason="shutdown"))
    story.bound()
    assert names(story.when(_report("starting", pod=ref(try_=1), warnings=(pull,)))) == ["PodWarned", "PodStarting"]


def test_a_run_tells_ten_different_warnings_at_most() -> None:
    warnings = tuple(PodWarning(reason=f"w{n}", message="m", at=NOW) for n in range(12))
    story = Story().created().bound()
    assert len(story.when(_report("starting", warnings=warnings))) == 10 + 1
    assert story.when(_report("starting", warnings=warnings)) == ()


def test_a_warning_that_comes_with_the_end_is_told_before_it() -> None:
    killed = PodWarning(reason="memory", message="low", at=NOW)
    story = Story().created(backoff_limit=0).bound()
    events = story.when(_report("failed", exit_code=137, warnings=(killed,)))
    assert names(events) == ["PodWarned", "PodFailed", "WorkloadFailed"]
    assert story.when(_report("failed", exit_code=137, warnings=(killed,))) == ()


@pytest.mark.parametrize("stale", [ref(attempt=0), ref(attempt=1, try_=0), ref(index=7)])
def test_a_fact_about_an_older_run_changes_nothing(stale: object) -> None:
    story = Story().created().bound().saw(fact("failed", exit_code=1)).bound(at(1))
    before = story.state
    story.saw(fact("succeeded", stale), fact("failed", stale, exit_code=1))  # type: ignore[arg-type]
    assert story.state == before


def test_the_same_fact_again_changes_nothing() -> None:
    story = running()
    assert story.when(_report("running")) == ()
    story.saw(fact("succeeded"))
    assert story.when(_report("succeeded")) == ()


def test_delete_ends_the_pods_first_and_the_record_stays() -> None:
    story = running()
    assert names(story.when(DELETE)) == ["WorkloadDeletionRequested"]
    assert (story.state.phase, story.state.desired) == (Phase.DELETING, DesiredPhase.DELETED)
    assert names(story.when(_report("stopped"))) == ["PodStopped", "WorkloadDeleted"]
    assert story.state.deleted_at == NOW
    assert story.when(DELETE) == ()


def test_a_deleted_workload_keeps_the_phase_it_ended_in() -> None:
    story = completed()
    assert names(story.when(DELETE)) == ["WorkloadDeletionRequested", "WorkloadDeleted"]
    assert story.state.phase is Phase.COMPLETED


def test_a_priority_of_what_has_ended_would_do_nothing_and_is_refused() -> None:
    story = completed()
    refusal = story.refused(ChangeWorkload(workload_id=story.state.workload_id, priority_class="very-high"))
    assert (refusal.code, refusal.field) == ("workload_finished", "priorityClass")
    later = ChangeWorkload(workload_id=story.state.workload_id, auto_deletion_time_after_completion_seconds=60)
    assert names(story.when(later)) == ["WorkloadChanged"]


def test_r30_of_volumes_only_paths_and_rights_of_files_change_and_not_once_it_has_ended() -> None:
    claim, secret = (
        PvcVolume(path="/data", existing_pvc=True, claim_name="c"),
        SecretVolume(secret="s", mount_path="/s"),
    )
    before = StorageSpec(pvc=(claim,), secret_volume=(secret,))
    story = running(storage=before)
    elsewhere = replace(before, pvc=(replace(claim, path="/x"),), secret_volume=(replace(secret, default_mode="0400"),))
    for other in (
        replace(elsewhere, pvc=(replace(claim, claim_name="d"),)),
        replace(elsewhere, pvc=()),
        replace(elsewhere, empty_dir_volume=(EmptyDirVolume(path="/e"),)),
    ):
        refusal = story.refused(ChangeWorkload(workload_id=ID, storage=other))
        assert (refusal.code, refusal.field) == ("volumes_fixed", "storage")
    assert names(story.when(ChangeWorkload(workload_id=ID, storage=elsewhere))) == ["WorkloadChanged"]
    assert story.state.spec.storage == elsewhere
    assert story.when(ChangeWorkload(workload_id=ID, storage=elsewhere)) == ()
    back = undoing("WorkloadChanged", made=Changeable(storage=elsewhere), before=Changeable(storage=before))
    assert names(story.when(back)) == ["ActUndone", "WorkloadChanged"]
    assert story.state.spec.storage == before
    over = completed()
    assert over.refused(ChangeWorkload(workload_id=over.state.workload_id, storage=before)).code == "workload_finished"


def test_r30_of_a_masters_own_volumes_likewise_and_the_workers_stay_where_they_are() -> None:
    """S066."""

    def at(path: str, claim: str) -> StorageSpec:
        return StorageSpec(pvc=(PvcVolume(path=path, existing_pvc=True, claim_name=claim),))

    workers, own, elsewhere = at("/data", "w"), at("/data", "m"), at("/x", "m")
    distribution = Distribution(distributed_framework="PyTorch")
    master = replace(NO_SPEC, image="m", storage=own)
    beside = Distributed(distribution=distribution, master=master)
    story = Story()
    story.when(replace(creation(storage=workers), kind="Distributed", distributed=beside))
    refusal = story.refused(ChangeWorkload(workload_id=ID, master_storage=workers))
    assert (refusal.code, refusal.field) == ("volumes_fixed", "masterSpec.storage")

    def places() -> tuple[str | None, str | None]:
        distributed = story.state.distributed
        assert distributed is not None
        assert distributed.master is not None
        return story.state.spec.storage.pvc[0].path, distributed.master.storage.pvc[0].path

    assert names(story.when(ChangeWorkload(workload_id=ID, master_storage=elsewhere))) == ["WorkloadChanged"]
    assert places() == ("/data", "/x")
    assert story.when(ChangeWorkload(workload_id=ID, master_storage=elsewhere)) == ()
    back = undoing("WorkloadChanged", made=Changeable(master_storage=elsewhere), before=Changeable(master_storage=own))
    assert names(story.when(back)) == ["ActUndone", "WorkloadChanged"]
    assert places() == ("/data", "/data")
    without = Story().created()
    assert without.refused(ChangeWorkload(workload_id=ID, master_storage=own)).code == "volumes_fixed"


@pytest.mark.parametrize("command", [SUSPEND, RESUME])
def test_what_has_ended_or_is_deleted_can_neither_be_suspended_nor_resumed(command: object) -> None:
    assert completed().refused(command).code == "workload_finished"
    deleting = running()
    deleting.when(DELETE)
    assert deleting.refused(command).code == "workload_deleted"


def test_a_failed_workload_stops_the_pods_that_still_run() -> None:
    story = Story().created(completions=2, parallelism=2, backoff_limit=0).bound()
    story.saw(fact("running", ref(0)), fact("running", ref(1)))
    story.saw(fact("failed", ref(0), exit_code=1))
    assert story.state.phase is Phase.FAILED
    assert {pod_id: pod.phase for pod_id, pod in story.state.pods.items()} == {("main", 1): PodPhase.STOPPING}
    assert names(story.when(_report("failed", pod=ref(1), exit_code=143))) == ["PodStopped"]
    assert not story.state.pods


class TestAutoDeletion:
    """S072, R27, C3."""

    def test_it_is_due_the_given_time_after_the_end(self) -> None:
        assert completed(auto_deletion_time_after_completion_seconds=2).state.delete_at == at(2)

    def test_what_is_due_is_deleted_by_the_service_in_its_generation_only(self) -> None:
        story = completed(auto_deletion_time_after_completion_seconds=2)
        due = DeleteWorkload(workload_id=ID, generation=story.state.generation)
        service = context(actor=SERVICE, now=at(1))
        assert story.when(due, service) == (), "not due yet"
        stale = DeleteWorkload(workload_id=ID, generation=story.state.generation - 1)
        assert story.when(stale, context(actor=SERVICE, now=at(3))) == ()
        story.when(due, context(actor=SERVICE, now=at(3)))
        assert story.state.deletion_reason == "auto_deletion"

    def test_a_changed_time_moves_the_generation_on(self) -> None:
        story = completed(auto_deletion_time_after_completion_seconds=2)
        generation = story.state.generation
        old = DeleteWorkload(workload_id=ID, generation=generation)
        story.when(ChangeWorkload(workload_id=ID, auto_deletion_time_after_completion_seconds=60))
        assert story.state.delete_at == at(60)
        assert story.when(old, context(actor=SERVICE, now=at(61))) == (), "it is about the time before"
        story.when(DeleteWorkload(workload_id=ID, generation=generation + 1), context(actor=SERVICE, now=at(61)))
        assert story.state.deletion_reason == "auto_deletion"

    def test_a_change_to_what_it_already_is_changes_nothing(self) -> None:
        story = completed(auto_deletion_time_after_completion_seconds=2)
        assert story.when(ChangeWorkload(workload_id=ID, auto_deletion_time_after_completion_seconds=2)) == ()


def test_changing_the_priority_does_not_rewrite_the_preemptibility() -> None:
    """R19."""
    story = Story().created()
    story.when(ChangeWorkload(workload_id=ID, priority_class="very-high"))
    assert (story.state.spec.priority_class, story.state.spec.preemptibility) == ("very-high", "preemptible")


class TestTransfer:
    """Issue 13 section 3: transfer of ownership; C14."""

    TO_BOB = TransferWorkload(workload_id=ID, subject="bob", actor="bob")

    def test_the_new_owner_has_it_from_then_on_and_a_repeated_request_changes_nothing(self) -> None:
        story = running()
        assert names(story.when(self.TO_BOB)) == ["WorkloadTransferred"]
        assert (story.state.owner, story.state.created_by) == ("bob", "alice")
        assert story.when(self.TO_BOB) == ()
        assert story.refused(SUSPEND, context(protected=True)).code == "not_owner"
        assert names(story.when(SUSPEND, context(actor=BOB, protected=True))) == ["WorkloadSuspended"]

    def test_only_the_owner_or_an_administrator_gives_it_away_also_without_protection(self) -> None:
        to_carol = TransferWorkload(workload_id=ID, subject="carol", actor="carol")
        assert running().refused(to_carol, context(actor=BOB)).code == "not_owner"
        assert names(running().when(to_carol, context(actor=BOB, override=True))) == ["WorkloadTransferred"]

    def test_what_is_over_can_be_given_away_and_what_is_deleted_cannot(self) -> None:
        story = completed()
        assert names(story.when(self.TO_BOB)) == ["WorkloadTransferred"]
        story.when(DELETE, context(actor=BOB))
        assert story.refused(self.TO_BOB, context(actor=BOB)).code == "workload_deleted"


def undoing(act: str, **more: Any) -> UndoAct:
    return UndoAct(workload_id=ID, sequence=7, act=act, **more)  # pyright: ignore[reportArgumentType]


class TestUndo:
    """Issue 13 section 3: undo of suspend, resume and changes."""

    def test_the_opposite_follows_the_undoing(self) -> None:
        story = running()
        story.when(SUSPEND)
        assert names(story.when(undoing("WorkloadSuspended", attempt=1))) == ["ActUndone", "WorkloadResumed"]
        assert (story.state.desired, story.state.attempt) == (DesiredPhase.RUNNING, 2)
        assert names(story.when(undoing("WorkloadResumed", attempt=2))) == ["ActUndone", "WorkloadSuspended"]

    def test_a_change_goes_back_to_what_was_before_it_and_leaves_the_rest(self) -> None:
        story = running()
        story.when(ChangeWorkload(workload_id=ID, priority_class="high"))
        story.when(ChangeWorkload(workload_id=ID, labels=(Label(name="a"),)))
        back = undoing(
            "WorkloadChanged", made=Changeable(priority_class="high"), before=Changeable(priority_class="low")
        )
        assert names(story.when(back)) == ["ActUndone", "WorkloadChanged"]
        assert (story.state.spec.priority_class, story.state.spec.labels) == ("low", (Label(name="a"),))

    @pytest.mark.parametrize(
        "command",
        [
            undoing("WorkloadSuspended", attempt=1),
            undoing("WorkloadResumed", attempt=2),
            undoing("WorkloadChanged", made=Changeable(priority_class="high"), before=Changeable(priority_class="low")),
        ],
    )
    def test_what_no_longer_stands_is_not_undone(self, command: UndoAct) -> None:
        assert running().refused(command).code == "act_overtaken"

    def test_what_has_ended_is_neither_suspended_nor_resumed_by_it(self) -> None:
        assert completed().refused(undoing("WorkloadResumed", attempt=1)).code == "workload_finished"
        story = running()
        story.when(DELETE)
        assert story.refused(undoing("WorkloadResumed", attempt=1)).code == "workload_deleted"

    def test_ownership_protection_holds_for_it(self) -> None:
        story = running()
        story.when(SUSPEND)
        command = undoing("WorkloadSuspended", attempt=1)
        assert story.refused(command, context(actor=BOB, protected=True)).code == "not_owner"


class TestOwnershipProtection:
    """S084, C14: the decider checks the owner once more from the state."""

    @pytest.mark.parametrize(
        "command", [SUSPEND, RESUME, DELETE, ChangeWorkload(workload_id=ID, priority_class="high")]
    )
    def test_another_is_refused_where_protection_is_on(self, command: object) -> None:
        assert running().refused(command, context(actor=BOB, protected=True)).code == "not_owner"

    @pytest.mark.parametrize(
        "allowed",
        [
            context(actor=ALICE, protected=True),
            context(actor=BOB, protected=True, override=True),
            context(actor=BOB, protected=False),
            context(actor=SERVICE, protected=True),
        ],
    )
    def test_the_creator_an_override_a_service_and_anybody_without_protection_may(self, allowed: object) -> None:
        assert names(running().when(SUSPEND, allowed)) == ["WorkloadSuspended"]  # type: ignore[arg-type]


def test_a_placement_made_from_an_older_view_is_refused() -> None:
    story = Story().created().bound()
    refusal = story.refused(PlacePods(workload_id=ID, placements=(placement(ref()),)))
    assert refusal.code == "stale_placement"
    stopped = Story().created()
    stopped.when(SUSPEND)
    assert stopped.refused(PlacePods(workload_id=ID, placements=(placement(ref()),))).code == "stale_placement"


def test_one_run_is_placed_once_in_one_command() -> None:
    twice = (placement(ref()), replace(placement(ref()), node_key="n2", node_name="node-2"))
    refusal = Story().created().refused(PlacePods(workload_id=ID, placements=twice))
    assert refusal.code == "placed_twice"
    assert refusal.message == "run 0 of pod main-0 in attempt 1 stands twice in one placement: on node-1 and on node-2"


def test_a_waiting_reason_is_told_once() -> None:
    story = Story().created()
    waiting = PlacePods(workload_id=ID, waiting_reason="insufficient_gpu", waiting_message="2 nodes lack GPU")
    assert names(story.when(waiting)) == ["WorkloadQueued", "WorkloadWaiting"]
    assert story.when(waiting) == ()


def test_new_pods_are_bound_in_order_so_that_none_is_left_out_for_ever() -> None:
    """Of a plan of several batches one may not be stored; the next one is decided all the same."""
    story = Story().created(completions=5, parallelism=5)
    gap = story.refused(PlacePods(workload_id=ID, placements=(placement(ref(2)), placement(ref(3)))))
    assert (gap.code, gap.message) == ("stale_placement", "pods of 'main' are bound in order, and 0 comes before 2")
    story.when(PlacePods(workload_id=ID, placements=(placement(ref(1)), placement(ref(0)))))
    story.when(PlacePods(workload_id=ID, placements=(placement(ref(2)),)))


def test_tokens_of_one_name_only_rise() -> None:
    story = running()
    first = story.state.pods["main", 0].token
    story.saw(fact("failed", exit_code=1)).bound(at(1))
    second = story.state.pods["main", 0].token
    story.when(DELETE)
    story.saw(fact("stopped", ref(try_=1)))
    story.when(creation(), context(command_id="create-2"))
    new = story.state.workload_id
    story.when(PlacePods(workload_id=new, placements=(placement(ref()),)))
    assert first < second < story.state.pods["main", 0].token


def test_a_phase_is_either_entered_by_something_or_told_as_not_built_yet() -> None:
    """S094."""
    entered = {after for followers in TRANSITIONS.values() for after in followers} | {Phase.CREATING}
    assert entered == set(Phase) == TRANSITIONS.keys()
    assert {Phase.UPDATING} == UNBUILT_PHASES.keys()
    assert all(TRANSITIONS[phase] & FINISHED for phase in UNBUILT_PHASES)


def test_a_workload_that_a_limit_ends_takes_nothing_new_and_fails_once_its_pods_are_gone() -> None:
    """S094."""
    story = running()
    limit = EndAtLimit(workload_id=ID, limit="runtime", seconds=60, attempt=1)
    assert story.when(replace(limit, attempt=2)) == ()
    assert story.when(replace(limit, limit="pending")) == ()
    assert names(story.when(limit)) == ["WorkloadLimitReached"]
    assert (story.state.phase, story.state.reason) == (Phase.TERMINATING, "runtime_limit")
    assert not schedulable(story.state)
    for command in (SUSPEND, RESUME):
        assert story.refused(command).code == "workload_finished"
    assert story.when(limit) == ()
    story.saw(fact("stopped"))
    assert (story.state.phase, story.state.reason) == (Phase.FAILED, "runtime_limit")


def test_it_is_degraded_while_some_pods_run_and_others_are_to_run_again() -> None:
    """S094: entered from Running, and left to Running, Completed and Failed, or as every other phase is."""

    def two(**spec: object) -> Story:
        story = Story().created(completions=2, parallelism=2, **spec)
        story.when(PlacePods(workload_id=ID, placements=(placement(ref(0)), placement(ref(1)))))
        return story.saw(fact("running", ref(0)), fact("running", ref(1)))

    def lame(**spec: object) -> Story:
        story = two(**spec).saw(fact("failed", ref(0), exit_code=1))
        told = "1 of its pods ended, and is to run again; the others run"
        assert (story.state.phase, story.state.reason, story.state.message) == (Phase.DEGRADED, PODS_RUN_AGAIN, told)
        return story

    story = lame()
    story.when(PlacePods(workload_id=ID, placements=(placement(ref(0, try_=1)),)), context(now=at(5)))
    assert story.state.phase is Phase.DEGRADED
    story.saw(fact("starting", ref(0, try_=1)))
    assert story.state.phase is Phase.DEGRADED
    story.saw(fact("running", ref(0, try_=1)))
    assert (story.state.phase, story.state.reason, story.state.message) == (Phase.RUNNING, "", "")
    story.saw(fact("succeeded", ref(0, try_=1)), fact("succeeded", ref(1)))
    assert story.state.phase is Phase.COMPLETED
    assert lame(backoff_limit=1).saw(fact("failed", ref(1), exit_code=1)).state.phase is Phase.FAILED
    assert lame().saw(fact("unreachable", ref(1))).state.phase is Phase.UNKNOWN
    assert lame().saw(fact("unreachable", ref(1)), fact("running", ref(1))).state.phase is Phase.DEGRADED
    assert lame().saw(fact("interrupted", ref(1))).state.phase is Phase.PENDING
    suspended = lame()
    suspended.when(SUSPEND)
    assert suspended.state.phase is Phase.STOPPING
    suspended.saw(fact("stopped", ref(1)))
    suspended.when(RESUME)
    attempt = {"attempt": 2}
    suspended.when(PlacePods(workload_id=ID, placements=(placement(ref(0, **attempt)),)))
    assert suspended.saw(fact("running", ref(0, **attempt))).state.phase is Phase.RUNNING
    deleted = lame()
    deleted.when(DELETE)
    assert deleted.state.phase is Phase.DELETING


def test_rights_of_a_changed_volume_that_are_none_are_no_event_that_can_be_decoded() -> None:
    """As those of a creation: what folds a log could not say which volumes its pods have."""
    said = '{"storage": {"configMapVolume": [{"configMap": "c", "mountPath": "/c", "defaultMode": "%s"}]}}'
    changed = msgspec.json.decode(said % "0400", type=WorkloadChanged)
    assert changed.storage is not None
    with pytest.raises(msgspec.ValidationError, match="invalid literal"):
        msgspec.json.decode(said % "b", type=WorkloadChanged)
