"""Ways into pods, as the log has them: when one may be opened, and that each is closed once."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from events.aggregate import WORKLOAD
from events.authorize import Grants, Permission
from events.cluster_protocol import ObservedCluster
from events.commit import About, Actor
from events.refusal import Refusal
from events.workload.commands import ChangeWorkload, CloseSession, DeleteWorkload, OpenSession, TransferWorkload
from events.workload.fields.process import EnvironmentVariable, UserCredentialKey
from events.workload.fields.storage import GitSecretRef, GitVolume, PvcVolume, StorageSpec
from events.workload.letting_in import shut_to
from events.workload.sessions import MOST_COMMAND_CHARACTERS, MOST_OPEN, MOST_PORTS, SessionClosed, SessionOpened
from services.cluster_sync.observe import lost_session
from services.ownership.decide import Admission, Facts, decide
from tests.events.given import ALICE, BOB, ID, NOW, SERVICE, Story, context, fact, names, ref

OPEN = OpenSession(
    workload_id=ID, session_id="s1", kind="exec", pod_set="main", index=0, seconds=3600, command=("bash",), tty=True
)
CLOSE = CloseSession(workload_id=ID, session_id="s1", reason="ended", exit_code=3, bytes_in=1, bytes_out=2)


def running() -> Story:
    return Story().created().bound().saw(fact("running"))


def closed(story: Story) -> tuple[Any, ...]:
    return story.when(CLOSE, context(actor=SERVICE))


def test_one_is_opened_into_a_running_pod_and_closed_once() -> None:
    story = running()
    (opened,) = story.when(OPEN)
    assert isinstance(opened, SessionOpened)
    assert (opened.pod, opened.ends_at - opened.at) == (ref(), timedelta(hours=1))
    assert story.when(OPEN) == ()
    (told,) = closed(story)
    assert isinstance(told, SessionClosed)
    assert (told.exit_code, told.bytes_in, told.bytes_out, story.state.sessions) == (3, 1, 2, ())
    assert closed(story) == ()


@pytest.mark.parametrize(
    "command",
    [
        replace(OPEN, index=1),
        replace(OPEN, pod_set="other"),
        replace(OPEN, command=("x" * (MOST_COMMAND_CHARACTERS + 1),)),
        replace(OPEN, ports=tuple(range(MOST_PORTS + 1))),
    ],
)
def test_what_leads_nowhere_or_is_too_large_is_refused(command: OpenSession) -> None:
    assert running().refused(command).code in {"pod_not_running", "invalid"}


@pytest.mark.parametrize(("actor", "override"), [(BOB, False), (BOB, True), (ALICE, True)])
def test_r10_into_pods_that_hold_credentials_only_who_brought_them_is_let(actor: Actor, override: bool) -> None:
    held = EnvironmentVariable(name="TOKEN", user_credential=UserCredentialKey(name="wandb", key="password"))
    story = Story().created(environment_variables=(held,)).bound().saw(fact("running"))
    who = context(actor=actor, override=override)
    if actor is BOB:
        assert story.refused(OPEN, who).code == "holds_credentials"
        story.when(TransferWorkload(workload_id=ID, subject="bob", actor="bob"), context(override=True))
        assert story.refused(OPEN, who).code == "holds_credentials", "they are those of who submitted it"
    assert names(story.when(OPEN)) == ["SessionOpened"] if actor is ALICE else True


@pytest.mark.parametrize("uses", ["variable", "repository"])
@pytest.mark.parametrize("override", [False, True], ids=["unprotected", "administrator"])
def test_r10_nobody_else_lays_a_volume_over_the_programs_of_such_pods(uses: str, override: bool) -> None:
    """A run that begins later would start what lies there, and its logs would tell the values."""
    claim = PvcVolume(path="/data", existing_pvc=True, claim_name="c")
    login = GitSecretRef(name="code", user_credential=True, authentication_method="password")
    git = GitVolume(repository="https://git.example.com/code", path="/src", secret_ref=login)
    held = EnvironmentVariable(name="TOKEN", user_credential=UserCredentialKey(name="wandb", key="password"))
    before = StorageSpec(pvc=(claim,), git=(git,) if uses == "repository" else ())
    story = Story().created(storage=before, environment_variables=(held,) if uses == "variable" else ())
    over = ChangeWorkload(workload_id=ID, storage=replace(before, pvc=(replace(claim, path="/usr/bin"),)))
    assert story.refused(over, context(actor=BOB, override=override)).code == "holds_credentials"
    assert names(story.when(over)) == ["WorkloadChanged"]


def test_who_gave_a_workload_away_is_not_let_in_any_more() -> None:
    """It is asked while they are in, too."""
    story = running()
    protected = context(protected=True)
    assert shut_to(story.state, protected) is None
    story.when(TransferWorkload(workload_id=ID, subject="bob", actor="bob"), protected)
    refusal = shut_to(story.state, protected)
    assert refusal is not None
    assert refusal.code == "not_owner"
    assert shut_to(story.state, context(protected=True, override=True)) is None
    assert shut_to(story.state, context()) is None


def test_nobody_is_let_into_a_pod_that_only_starts_and_no_more_than_so_many_into_one_workload() -> None:
    assert Story().created().bound().saw(fact("starting")).refused(OPEN).code == "pod_not_running"
    story = running()
    for number in range(MOST_OPEN):
        story.when(replace(OPEN, session_id=f"s{number}"))
    assert story.refused(replace(OPEN, session_id="one-more")).code == "too_many_sessions"


def test_a_session_is_closed_also_after_its_workload_was_deleted() -> None:
    story = running()
    story.when(OPEN)
    story.when(DeleteWorkload(workload_id=ID))
    story.saw(fact("stopped", seconds=1))
    assert story.state.deleted_at is not None
    assert names(closed(story)) == ["SessionClosed"]
    assert story.state.sessions == ()


def test_an_older_workload_of_the_name_has_nothing_to_close() -> None:
    story = running()
    story.when(OPEN)
    assert story.refused(replace(CLOSE, workload_id="another")).code == "not_found"


def test_one_that_nobody_has_any_more_is_lost() -> None:
    story = running()
    story.when(OPEN)
    (one,) = story.state.sessions
    has = ObservedCluster(at=NOW, sessions=("s1",))
    lost = {
        (seconds, heard is not None and "s1" in heard.sessions): bool(
            lost_session(one, heard, one.at + timedelta(seconds=seconds))
        )
        for seconds in (10, 100, 3500, 3700)
        for heard in (has, ObservedCluster(at=NOW), None)
        if heard is not None
    }
    assert lost == {
        (10, True): False,
        (10, False): False,
        (100, True): False,
        (100, False): True,
        (3500, True): False,
        (3500, False): True,
        (3700, True): True,
        (3700, False): True,
    }
    assert not lost_session(one, None, one.at + timedelta(seconds=100)), "an agent that is away may have it still"


@pytest.mark.parametrize(
    ("role", "actor", "protection", "right"),
    [
        ("researcher", "owner", True, Permission.EXEC),
        ("researcher", "other", False, Permission.EXEC),
        ("researcher", "other", True, None),
        ("viewer", "owner", False, None),
        ("administrator", "other", False, Permission.EXEC),
        ("administrator", "other", True, Permission.OVERRIDE_OWNERSHIP),
        ("researcher", "service-account:p/ci", False, None),
    ],
)
def test_whoever_is_let_in_is_told_by_the_audit(
    role: str, actor: str, protection: bool, right: Permission | None
) -> None:
    facts = Facts(
        grants=Grants(project_roles={"p": (role,)}),
        about=About(id=ID, project_id="p", cluster_id="c", owner="owner"),
        owner="owner",
        protection=protection,
    )
    verdict = decide(OPEN, actor, facts)
    assert (verdict.special_right if isinstance(verdict, Admission) else None) == right
    assert isinstance(verdict, Refusal) is (right is None)


def test_events_that_do_not_fit_change_nothing() -> None:
    fresh = WORKLOAD.initial
    assert WORKLOAD.evolve(fresh, SessionClosed(session_id="s", at=NOW, reason="ended")).sessions == ()
