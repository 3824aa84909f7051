"""The rule of the gate as a table: roles × commands × project × protection × owner (S084, C14)."""

import itertools
from datetime import date

import pytest

from events.authorize import ROLE_PERMISSIONS, Grants, Permission
from events.cluster import AddCluster, NodePool, RemoveCluster, RemoveNodePool, SetNodePool, SetOwnershipProtection
from events.commands import COMMANDS, UserCommand
from events.commit import About
from events.node import CordonNode, UncordonNode
from events.project import ChangeProject, CreateProject, DeleteProject, GrantProjectRole, RevokeProjectRole
from events.refusal import REFUSALS, Refusal
from events.service_accounts import (
    CreateServiceAccount,
    DeleteServiceAccount,
    NoteServiceAccountUse,
    RotateServiceAccount,
)
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    ResumeWorkload,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
)
from events.workload.spec import TrainingSpec
from services.ownership.decide import Admission, Facts, decide

OURS, THEIRS = "project-ours", "project-theirs"
WORKLOAD_ID = "workload-1"
HASH = "0" * 64
CI = "service-account:ours/ci"

ROLES = {
    "administrator": Grants(tenant_roles=("administrator",)),
    "tenant researcher": Grants(tenant_roles=("researcher",)),
    "tenant viewer": Grants(tenant_roles=("viewer",)),
    "project-admin": Grants(project_roles={OURS: ("project-admin",)}),
    "researcher": Grants(project_roles={OURS: ("researcher",)}),
    "viewer": Grants(project_roles={OURS: ("viewer",)}),
    "researcher elsewhere": Grants(project_roles={"project-third": ("researcher",)}),
    "nobody": Grants(),
}
EVERYWHERE = {"administrator", "tenant researcher", "tenant viewer"}
OPERATES = {"administrator", "tenant researcher", "project-admin", "researcher"}
HERE = {"project-admin", "researcher", "viewer"}

OF_WORKLOADS = [
    SuspendWorkload(workload_id=WORKLOAD_ID),
    ResumeWorkload(workload_id=WORKLOAD_ID),
    DeleteWorkload(workload_id=WORKLOAD_ID),
    ChangeWorkload(workload_id=WORKLOAD_ID, priority_class="high"),
    UndoAct(workload_id=WORKLOAD_ID, sequence=7, act="WorkloadSuspended"),
]
OF_CLUSTERS = [
    AddCluster(name="c", kind="kubernetes"),
    RemoveCluster(cluster_id="c"),
    SetOwnershipProtection(cluster_id="c", enabled=False),
    SetNodePool(cluster_id="c", pool=NodePool(name="p", label_key="k", label_value="v")),
    RemoveNodePool(cluster_id="c", name="p"),
    CordonNode(cluster_id="c", name="n"),
    UncordonNode(cluster_id="c", name="n"),
]
OF_THE_TENANT = [
    *OF_CLUSTERS,
    CreateProject(name="p"),
    ChangeProject(project_id=OURS),
    DeleteProject(project_id=OURS),
    GrantTenantRole(subject="ada", actor="ada", role="viewer"),
    RevokeTenantRole(subject="ada", actor="ada", role="viewer"),
]


def of_project(project_id: str) -> list[UserCommand]:
    return [
        GrantProjectRole(project_id=project_id, subject="ada", actor="ada", role="viewer"),
        RevokeProjectRole(project_id=project_id, subject="ada", actor="ada", role="viewer"),
        CreateServiceAccount(project_id=project_id, name="ci", role="researcher", token_hash=HASH),
        RotateServiceAccount(project_id=project_id, name="ci", token_hash=HASH),
        DeleteServiceAccount(project_id=project_id, name="ci"),
    ]


def submit(project_id: str) -> CreateWorkload:
    return CreateWorkload(
        kind="Training",
        name="t",
        requested_name="t",
        project_id=project_id,
        cluster_id="c",
        spec=TrainingSpec(image="i"),
    )


def verdict(command: UserCommand, role: str, subject: str = "ada", **facts: object) -> str:
    """`admitted`, or the code of the refusal."""
    decided = decide(command, subject, Facts(grants=ROLES[role], **facts))  # pyright: ignore[reportArgumentType]
    if isinstance(decided, Refusal):
        assert decided.code in REFUSALS
        return decided.code
    return "admitted"


def expected_of_workload(role: str, project_id: str, protection: bool | None, subject: str) -> str:
    """The rule in other words than the code's: written from the specification."""
    sees = role in EVERYWHERE or (role in HERE and project_id == OURS)
    if not sees:
        return "not_found"
    if role not in OPERATES:
        return "not_permitted"
    if protection is not False and subject != "owner" and role != "administrator":
        return "not_owner"
    return "admitted"


@pytest.mark.parametrize("command", OF_WORKLOADS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("role", ROLES)
def test_who_may_act_on_a_workload(role: str, command: UserCommand) -> None:
    table = itertools.product([OURS, THEIRS], [True, False, None], ["owner", "ada"])
    for project_id, protection, subject in table:
        about = About(id=WORKLOAD_ID, owner="owner", project_id=project_id, cluster_id="c")
        decided = verdict(command, role, subject, about=about, protection=protection)
        assert decided == expected_of_workload(role, project_id, protection, subject), (project_id, protection, subject)


@pytest.mark.parametrize("role", ROLES)
def test_who_may_give_a_workload_to_whom(role: str) -> None:
    """Its owner or an administrator, whether protection is on or not, to whoever may submit there."""
    table = itertools.product([True, False, None], ["owner", "ada"], ROLES)
    for protection, subject, heir in table:
        about = About(id=WORKLOAD_ID, owner="owner", project_id=OURS, cluster_id="c")
        command = TransferWorkload(workload_id=WORKLOAD_ID, subject="bob", actor="a_bob")
        decided = verdict(command, role, subject, about=about, protection=protection, heir=ROLES[heir])
        expected = expected_of_workload(role, OURS, True, subject)
        if expected == "admitted" and heir not in {"administrator", "tenant researcher", "project-admin", "researcher"}:
            expected = "heir_not_permitted"
        assert decided == expected, (protection, subject, heir)


def test_what_is_given_already_may_be_asked_for_again_by_who_had_it() -> None:
    about = About(id=WORKLOAD_ID, owner="a_bob", project_id=OURS, cluster_id="c")
    command = TransferWorkload(workload_id=WORKLOAD_ID, subject="bob", actor="a_bob")
    assert verdict(command, "researcher", "ada", about=about, protection=True) == "admitted"
    assert verdict(command, "viewer", "ada", about=about, protection=True) == "not_permitted"
    assert verdict(command, "nobody", "ada", about=about, protection=True) == "not_found"


@pytest.mark.parametrize("about", [None, About(), About(id="workload-2", owner="ada", project_id=OURS)])
@pytest.mark.parametrize("command", OF_WORKLOADS, ids=lambda command: type(command).__name__)
def test_an_earlier_incarnation_is_not_found_even_by_an_administrator(
    command: UserCommand, about: About | None
) -> None:
    assert verdict(command, "administrator", about=about, protection=False) == "not_found"


@pytest.mark.parametrize(
    ("role", "ours", "theirs"),
    [
        ("administrator", "admitted", "admitted"),
        ("tenant researcher", "admitted", "admitted"),
        ("tenant viewer", "not_permitted", "not_permitted"),
        ("project-admin", "admitted", "not_in_project"),
        ("researcher", "admitted", "not_in_project"),
        ("viewer", "not_permitted", "not_in_project"),
        ("researcher elsewhere", "not_in_project", "not_in_project"),
        ("nobody", "not_in_project", "not_in_project"),
    ],
)
def test_who_may_submit(role: str, ours: str, theirs: str) -> None:
    assert verdict(submit(OURS), role) == ours
    assert verdict(submit(THEIRS), role) == theirs


@pytest.mark.parametrize("command", OF_THE_TENANT, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("role", ROLES)
def test_only_administrators_change_what_belongs_to_the_tenant(role: str, command: UserCommand) -> None:
    assert verdict(command, role) == ("admitted" if role == "administrator" else "not_permitted")


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_a_project_are_given_by_its_administrators(role: str) -> None:
    for command in of_project(OURS):
        if role in {"administrator", "project-admin"}:
            assert verdict(command, role) == "admitted"
        else:
            known = role in EVERYWHERE | HERE
            assert verdict(command, role) == ("not_permitted" if known else "not_in_project")
    for command in of_project(THEIRS):
        assert (verdict(command, role) == "admitted") == (role == "administrator")


def admission(role: str, subject: str, *, protection: bool) -> Admission:
    about = About(id=WORKLOAD_ID, owner="owner", project_id=OURS, cluster_id="c")
    facts = Facts(grants=ROLES[role], about=about, protection=protection)
    decided = decide(DeleteWorkload(workload_id=WORKLOAD_ID), subject, facts)
    assert isinstance(decided, Admission)
    return decided


def test_the_stamps_tell_decide_what_the_gate_saw() -> None:
    assert admission("researcher", "owner", protection=True) == Admission(protected=True)
    assert admission("researcher", "owner", protection=False) == Admission()
    assert admission("researcher", "ada", protection=False) == Admission(others_unprotected=True)
    assert admission("administrator", "ada", protection=False) == Admission(override=True)
    assert admission("administrator", "ada", protection=True) == Admission(
        protected=True, override=True, special_right=Permission.OVERRIDE_OWNERSHIP
    )


def test_administrative_acts_are_told_to_the_audit_and_everyday_work_is_not() -> None:
    for command in [*OF_THE_TENANT, *of_project(OURS)]:
        decided = decide(command, "ada", Facts(grants=ROLES["administrator"]))
        assert isinstance(decided, Admission)
        assert decided.special_right is COMMANDS[type(command)].permission
    decided = decide(submit(OURS), "ada", Facts(grants=ROLES["administrator"]))
    assert isinstance(decided, Admission)
    assert decided.special_right is None


@pytest.mark.parametrize(
    ("command", "shared", "expected"),
    [
        (GrantTenantRole(subject="ada", actor="ada", role="viewer"), True, "pods_not_isolated"),
        (GrantTenantRole(subject="ada", actor="ada", role="viewer"), False, "admitted"),
        (GrantProjectRole(project_id=OURS, subject="ada", actor="ada", role="researcher"), True, "pods_not_isolated"),
        (GrantTenantRole(subject="root", actor="root", role="viewer"), True, "admitted"),
        (CreateServiceAccount(project_id=OURS, name="ci", role="viewer", token_hash=HASH), True, "pods_not_isolated"),
        (RotateServiceAccount(project_id=OURS, name="ci", token_hash=HASH), True, "admitted"),
        (RevokeTenantRole(subject="ada", actor="ada", role="viewer"), True, "admitted"),
        (RevokeProjectRole(project_id=OURS, subject="ada", actor="ada", role="researcher"), True, "admitted"),
    ],
)
def test_where_pods_can_read_the_keys_nobody_else_is_given_a_role(
    command: UserCommand, shared: bool, expected: str
) -> None:
    decided = decide(command, "root", Facts(grants=ROLES["administrator"], shared_pods=shared))
    assert (decided.code if isinstance(decided, Refusal) else "admitted") == expected


@pytest.mark.parametrize("role", ["administrator", "project-admin", "researcher", "viewer"])
def test_an_account_works_in_its_project_and_administers_nothing_whatever_role_it_was_given(role: str) -> None:
    """It cannot make anybody an administrator, make accounts, or touch clusters and projects."""
    for command in [*OF_THE_TENANT, *of_project(OURS), *of_project(THEIRS)]:
        assert verdict(command, role, CI) == "not_permitted"
    expected = "admitted" if role != "viewer" else "not_permitted"
    assert verdict(submit(OURS), role, CI) == expected
    assert verdict(NoteServiceAccountUse(project_id=OURS, name="ci", on=date(2026, 1, 1)), role, CI) == "admitted"


def test_an_account_is_bound_to_ownership_protection_as_people_are() -> None:
    about = About(id=WORKLOAD_ID, owner=CI, project_id=OURS, cluster_id="c")
    delete = DeleteWorkload(workload_id=WORKLOAD_ID)
    assert verdict(delete, "researcher", CI, about=about, protection=True) == "admitted"
    assert verdict(delete, "researcher", "ada", about=about, protection=True) == "not_owner"
    others = About(id=WORKLOAD_ID, owner="owner", project_id=OURS, cluster_id="c")
    assert verdict(delete, "researcher", CI, about=others, protection=True) == "not_owner"


def test_nobody_makes_an_account_with_rights_beyond_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today whoever may make accounts has all that accounts can have; it must hold of roles to come, too."""
    monkeypatch.setitem(ROLE_PERMISSIONS, "viewer", frozenset({Permission.READ, Permission.GRANT_PROJECT_ROLES}))
    assert (
        verdict(CreateServiceAccount(project_id=OURS, name="ci", role="viewer", token_hash=HASH), "viewer")
        == "admitted"
    )
    beyond = CreateServiceAccount(project_id=OURS, name="ci", role="researcher", token_hash=HASH)
    decided = decide(beyond, "ada", Facts(grants=ROLES["viewer"]))
    assert isinstance(decided, Refusal)
    assert decided.message.endswith("would have rights that you do not have here: operate, submit")


def test_that_an_account_was_used_is_no_administrative_act() -> None:
    used = NoteServiceAccountUse(project_id=OURS, name="ci", on=date(2026, 1, 1))
    decided = decide(used, CI, Facts(grants=ROLES["viewer"]))
    assert isinstance(decided, Admission)
    assert decided.special_right is None
