"""What holds for every command, whatever it means: repetition, versions, services (S083, C21)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from events.aggregate import PROJECT, TENANT, WORKLOAD, Aggregate, Chain, Draft, apply
from events.commands import UserCommand, target
from events.commit import Actor
from events.envelope import Accepted, AdmittedCommand, CommandReply, Refused
from events.project import CreateProject
from events.tenant import GrantTenantRole
from events.workload.commands import CreateWorkload, DeleteWorkload, SuspendWorkload
from events.workload.life import WorkloadStopped
from events.workload.spec import TrainingSpec
from services.commands.decide import decide_on, not_for_service

NOW = datetime(2027, 1, 1, tzinfo=UTC)
ADA = Actor(id="ada")
CREATE = CreateWorkload(
    kind="Training", name="t", requested_name="t", project_id="p", cluster_id="c", spec=TrainingSpec(image="i")
)


class Story:
    """A chain, and the commands that are carried out on it one after the other."""

    def __init__(self, aggregate: Aggregate[Any], command: UserCommand) -> None:
        place = target(command)
        assert place is not None
        self.aggregate, self.key = aggregate, place[1]
        self.chain: Chain[Any] = Chain(state=aggregate.initial)

    def when(self, command: UserCommand, command_id: str, **envelope: Any) -> Draft | CommandReply:
        envelope = {"body_hash": "b", "actor": ADA} | envelope
        admitted = AdmittedCommand(command_id=command_id, command=command, **envelope)
        decided = decide_on(self.aggregate, self.key, self.chain, admitted, NOW)
        if isinstance(decided, Draft):
            self.chain = apply(self.aggregate, self.chain, decided.committed(self.chain.version + 10))
        return decided


@pytest.fixture
def workload() -> Story:
    story = Story(WORKLOAD, CREATE)
    assert isinstance(story.when(CREATE, "create"), Draft)
    return story


def code(answer: Draft | CommandReply) -> str:
    assert isinstance(answer, Refused)
    return answer.refusal.code


def test_a_commit_carries_who_asked_and_the_hash_of_what_was_asked(workload: Story) -> None:
    suspend = SuspendWorkload(workload_id=workload.chain.state.workload_id)
    made = workload.when(suspend, "s", body_hash="hash", correlation_id="request-7")
    assert isinstance(made, Draft)
    record = made.record
    assert (record.actor, record.command_id, record.body_hash) == (ADA, "s", "hash")
    assert (record.correlation_id, record.parent_seq, record.occurred_at) == ("request-7", 10, NOW)
    assert record.about.owner == "ada"


def test_the_same_request_again_is_answered_as_the_first_time_and_changes_nothing(workload: Story) -> None:
    workload_id = workload.chain.state.workload_id
    workload.when(SuspendWorkload(workload_id=workload_id), "s")

    again = workload.when(CREATE, "create")

    assert again == Accepted(seq=10, id=workload_id, at=NOW)
    assert workload.chain.version == 20


def test_the_same_key_with_another_body_is_refused(workload: Story) -> None:
    assert code(workload.when(CREATE, "create", body_hash="other")) == "idempotency_key_reused"


def test_a_creation_is_recognised_after_the_chain_has_forgotten_the_command(workload: Story) -> None:
    workload.chain = Chain(state=workload.chain.state, version=900, recent=())

    assert workload.when(CREATE, "create") == Accepted(seq=900, id=workload.chain.state.workload_id, at=NOW)
    assert code(workload.when(CREATE, "somebody else's")) == "name_taken"


def test_a_refusal_is_not_remembered(workload: Story) -> None:
    wrong = SuspendWorkload(workload_id="no-such")
    assert code(workload.when(wrong, "s")) == "not_found"
    assert code(workload.when(wrong, "s", body_hash="other")) == "not_found"


def test_what_is_already_so_is_accepted_without_a_commit() -> None:
    story = Story(TENANT, GrantTenantRole(subject="ada", actor="ada", role="viewer"))
    grant = GrantTenantRole(subject="ada", actor="ada", role="viewer")
    story.when(grant, "1")
    assert story.when(grant, "2") == Accepted(seq=10, changed=False)


@pytest.mark.parametrize(("expected", "moved"), [(10, False), (9, True), (11, True), (0, True)])
def test_a_stale_version_is_refused(workload: Story, expected: int, moved: bool) -> None:
    answer = workload.when(
        SuspendWorkload(workload_id=workload.chain.state.workload_id), "s", expected_version=expected
    )
    assert (isinstance(answer, Refused) and answer.refusal.code == "version_moved") == moved


def test_a_repeated_request_is_answered_even_though_its_own_commit_moved_the_version(workload: Story) -> None:
    suspend = SuspendWorkload(workload_id=workload.chain.state.workload_id)
    workload.when(suspend, "s", expected_version=10)
    assert workload.when(suspend, "s", expected_version=10) == Accepted(seq=20, at=NOW)


def test_decide_checks_the_owner_once_more_with_what_the_gate_stamped(workload: Story) -> None:
    """A defect in the gate alone opens nothing: the state has the last word (S084)."""
    delete = DeleteWorkload(workload_id=workload.chain.state.workload_id)
    other = Actor(id="bob")
    assert code(workload.when(delete, "d", actor=other, protected=True)) == "not_owner"
    assert isinstance(workload.when(delete, "e", actor=other, protected=True, override=True), Draft)


def test_what_is_made_is_named_by_the_command_that_makes_it() -> None:
    story = Story(PROJECT, CreateProject(name="vision"))
    assert isinstance(story.when(CreateProject(name="vision"), "c"), Draft)
    assert story.when(CreateProject(name="vision"), "c") == Accepted(seq=10, id=story.chain.state.project_id, at=NOW)


@pytest.mark.parametrize(
    ("service", "command", "may"),
    [
        ("auto_deletion", DeleteWorkload(workload_id="w", generation=1), True),
        ("auto_deletion", DeleteWorkload(workload_id="w"), False),
        ("auto_deletion", SuspendWorkload(workload_id="w"), False),
        ("scheduler", DeleteWorkload(workload_id="w", generation=1), False),
        ("auto_deletion.more", DeleteWorkload(workload_id="w", generation=1), False),
        ("", DeleteWorkload(workload_id="w", generation=1), False),
    ],
)
def test_a_service_gives_only_the_commands_of_its_table(service: str, command: UserCommand, may: bool) -> None:
    assert (not_for_service(service, command) is None) == may


def test_a_due_auto_deletion_that_moved_on_does_nothing(workload: Story) -> None:
    """A changed time or a deletion cancels what was due (architecture.md section 5)."""
    workload_id = workload.chain.state.workload_id
    due = DeleteWorkload(workload_id=workload_id, generation=7)
    service = Actor(id="muster.auto_deletion", kind="service")
    assert workload.when(due, "due", actor=service) == Accepted(seq=10, changed=False)


def test_what_nobody_could_read_again_is_refused_and_not_written() -> None:
    """Given a decider that lets in a time that no reader of the log takes, then that one command is refused."""
    before_all = datetime(1, 1, 1, tzinfo=UTC)
    broken = Aggregate(
        name=WORKLOAD.name,
        state=WORKLOAD.state,
        initial=WORKLOAD.initial,
        evolve=WORKLOAD.evolve,
        decide=lambda *_: (WorkloadStopped(at=before_all),),
        about=WORKLOAD.about,
        fold_version=1,
    )
    answer = Story(broken, CREATE).when(CREATE, "create")
    assert code(answer) == "invalid"
