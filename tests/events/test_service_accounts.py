"""Service accounts of a project, and the end of a project: what is decided, and what ends what."""

from datetime import date
from typing import Any

import msgspec
import pytest

from events.actors import fit_subject, is_account, shown_without_record
from events.aggregate import TENANT
from events.authorize import ACCOUNT_PERMISSIONS, ROLE_PERMISSIONS, Permission
from events.codec import encode_event
from events.commands import UserCommand
from events.commit import Actor
from events.project import (
    ChangeProject,
    CreateProject,
    DeleteProject,
    GrantProjectRole,
    RevokeProjectRole,
)
from events.refusal import Refusal
from events.service_accounts import (
    MAX_ACCOUNTS,
    AccountRole,
    CreateServiceAccount,
    DeleteServiceAccount,
    NoteServiceAccountUse,
    RotateServiceAccount,
    token_hash,
)
from events.tenant import GrantTenantRole
from tests.events.given import ALICE, NOW, ProjectGiven, context

CI = "service-account:vision/ci"
TODAY = NOW.date()


class Given(ProjectGiven):
    def account(self, name: str = "ci", token: str = "t", role: AccountRole = "researcher") -> CreateServiceAccount:
        return CreateServiceAccount(project_id=self.id, name=name, role=role, token_hash=token_hash(token))


@pytest.fixture
def given() -> Given:
    return Given()


def test_an_account_has_its_role_under_an_id_of_its_own_and_says_who_made_it(given: Given) -> None:
    given.do(given.account())
    made = given.state.accounts["ci"]
    assert (made.actor, made.created_by, made.created_at, made.last_used) == (CI, ALICE.id, NOW, None)
    assert given.state.roles == {CI: ("researcher",)}
    assert is_account(made.actor)
    assert shown_without_record(made.actor).subject == CI


def test_the_token_stands_nowhere_in_what_is_stored_and_its_hash_is_of_the_whole_token(given: Given) -> None:
    token = "muster_sa_secret"
    (event,) = given.do(given.account(token=token))
    stored = bytes(encode_event(event).data)
    assert b"secret" not in stored
    assert token_hash(token).encode() in stored


def test_a_name_is_taken_once_and_the_same_creation_again_changes_nothing(given: Given) -> None:
    given.do(given.account())
    assert given.do(given.account()) == ()
    assert given.refusal(given.account(token="another")) == "name_taken"
    given.do(DeleteServiceAccount(project_id=given.id, name="ci"))
    given.do(given.account(token="another"))


def test_a_project_has_at_most_so_many_accounts(given: Given) -> None:
    for number in range(MAX_ACCOUNTS):
        given.do(given.account(name=f"a{number}", token=str(number)))
    assert given.refusal(given.account()) == "too_many_accounts"


def test_a_rotated_account_has_the_new_token_only(given: Given) -> None:
    given.do(given.account(token="old"))
    new = RotateServiceAccount(project_id=given.id, name="ci", token_hash=token_hash("new"))
    given.do(new)
    assert given.state.accounts["ci"].token_hash == token_hash("new")
    assert given.state.accounts["ci"].rotated_at == NOW
    assert given.state.roles == {CI: ("researcher",)}
    assert given.do(new) == ()
    nobody = RotateServiceAccount(project_id=given.id, name="nobody", token_hash=token_hash("new"))
    assert given.refusal(nobody) == "not_found"


ENDS: dict[str, Any] = {
    "it is deleted": lambda id_: DeleteServiceAccount(project_id=id_, name="ci"),
    "its role is taken away": lambda id_: RevokeProjectRole(project_id=id_, subject=CI, role="researcher", actor=CI),
    "the project is deleted": lambda id_: DeleteProject(project_id=id_),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_an_account_ends_when(given: Given, end: Any) -> None:
    given.do(given.account())
    given.do(end(given.id))
    assert given.state.accounts == {}
    assert given.state.roles == {}


def test_what_is_taken_from_a_person_leaves_the_accounts_alone(given: Given) -> None:
    given.do(given.account())
    given.do(GrantProjectRole(project_id=given.id, subject="ann", role="viewer", actor="a_ann"))
    given.do(RevokeProjectRole(project_id=given.id, subject="ann", role="viewer", actor="a_ann"))
    assert set(given.state.accounts) == {"ci"}


def test_an_account_is_given_no_further_role_anywhere(given: Given) -> None:
    given.do(given.account())
    grant = GrantProjectRole(project_id=given.id, subject=CI, role="project-admin", actor=CI)
    assert given.refusal(grant) == "not_for_accounts"
    everywhere = TENANT.decide(GrantTenantRole(subject=CI, role="administrator", actor=CI), TENANT.initial, context())
    assert isinstance(everywhere, Refusal)
    assert everywhere.code == "not_for_accounts"


@pytest.mark.parametrize("role", ["project-admin", "administrator", "root"])
def test_no_account_can_have_a_role_that_gives_roles(given: Given, role: str) -> None:
    wire = msgspec.json.encode(given.account()).replace(b"researcher", role.encode())
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wire, type=UserCommand)
    # Into pods go people.
    assert ROLE_PERMISSIONS["researcher"] - {Permission.EXEC} <= ACCOUNT_PERMISSIONS


@pytest.mark.parametrize("name", ["", "CI", "a b", "a/b", "../x", "-a", "a" * 64, "a\n"])
def test_what_is_no_name_of_an_account_is_refused_where_the_command_is_read(given: Given, name: str) -> None:
    """By the gate and commands as well: a broken api sends it in vain."""
    wire = msgspec.json.encode(msgspec.to_builtins(given.account()) | {"name": name})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wire, type=UserCommand)


@pytest.mark.parametrize("given_hash", ["", "t", "A" * 64, "0" * 63])
def test_what_is_no_hash_is_refused_where_the_command_is_read(given: Given, given_hash: str) -> None:
    for command in (given.account(), RotateServiceAccount(project_id=given.id, name="ci", token_hash=token_hash("t"))):
        wire = msgspec.json.encode(msgspec.to_builtins(command) | {"token_hash": given_hash})
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wire, type=UserCommand)


def test_the_day_of_use_is_told_once_by_the_account_itself_and_never_for_the_future(given: Given) -> None:
    given.do(given.account())
    itself = Actor(id=CI)
    used = NoteServiceAccountUse(project_id=given.id, name="ci", on=TODAY)
    assert given.refusal(used) == "not_permitted"
    assert len(given.do(used, actor=itself)) == 1
    assert given.do(used, actor=itself) == ()
    assert given.do(NoteServiceAccountUse(project_id=given.id, name="ci", on=date(9999, 1, 1)), actor=itself) == ()
    assert given.state.accounts["ci"].last_used == TODAY


def test_no_person_can_have_the_subject_of_an_account() -> None:
    assert not fit_subject(CI)
    assert fit_subject("system:serviceaccount:ns:ci")


def test_a_deleted_project_is_no_more_and_its_name_makes_another_one(given: Given) -> None:
    given.do(GrantProjectRole(project_id=given.id, subject="ann", role="viewer", actor="a_ann"))
    given.do(DeleteProject(project_id=given.id))
    assert not given.state.exists
    assert (given.state.roles, given.state.deleted_at) == ({}, NOW)
    assert given.refusal(ChangeProject(project_id=given.id)) == "not_found"
    assert given.refusal(DeleteProject(project_id=given.id)) == "not_found"
    assert given.refusal(given.account()) == "not_found"
    before = given.id
    given.do(CreateProject(name="vision"), command_id="again")
    assert given.state.exists
    assert given.state.project_id != before
    assert given.refusal(ChangeProject(project_id=before)) == "not_found"
