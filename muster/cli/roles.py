"""`muster role` and `muster user`: who may do what where."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command, group
from muster.cli.erase import add_erase
from muster.cli.exits import usage
from muster.cli.names import default_project, find_project, project_names
from muster.cli.options import IdempotencyOption, ProjectOption, YesOption, confirm
from muster.cli.output import Column
from muster.cli.values import Json, Row, rows_of, text_of

if TYPE_CHECKING:
    from muster.cli.client import Api

ROLES: Final = ("administrator", "project-admin", "researcher", "viewer")
ADMINISTRATOR: Final = ROLES[0]
"""Only everywhere, as project-admin is only in a project."""
_RULES: Final = "/authorization/access-rules"

ROLE_COLUMNS: Final = (
    Column("USER", "user"),
    Column("ROLE", "role"),
    Column("WHERE", "where"),
    Column("PROJECT-ID", "projectId", wide=True),
)
USER_COLUMNS: Final = (Column("USER", "user"), Column("ROLES", "roles"))


def role_names(incomplete: str) -> list[str]:
    return [role for role in ROLES if role.startswith(incomplete)]


UserArgument = Annotated[str, typer.Argument(metavar="USER", help="User: the subject of their token.")]
RoleArgument = Annotated[
    str, typer.Argument(metavar="ROLE", help=f"One of {', '.join(ROLES)}.", autocompletion=role_names)
]
EverywhereOption = Annotated[
    bool, typer.Option("--everywhere", help="In all projects. The role administrator always applies everywhere.")
]


def add_role(root: typer.Typer) -> None:
    app = group("role")
    _add_list(app)
    _add_changes(app)
    root.add_typer(app, name="role")


def add_user(root: typer.Typer) -> None:
    app = group("user")

    @command(app, "list", examples="muster user list\nmuster user list -o yaml", columns=USER_COLUMNS)
    def list_(session: Session) -> None:
        """List users and those of their roles that you may see. Users log in at the issuer of their tokens."""
        users: dict[str, list[Json]] = {}
        for row in _roles(session.api):
            users.setdefault(text_of(row, "user"), []).append(f"{text_of(row, 'role')} {_in(row)}")
        rows: list[Row] = [{"user": user, "roles": roles} for user, roles in sorted(users.items())]
        session.out.rows(rows, USER_COLUMNS, name="user", empty="nobody has a role that you may see")

    add_erase(app)
    root.add_typer(app, name="user")


def _add_list(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="""
        muster role list
        muster role list --user ann
        muster role list -p vision -o json
        """,
        columns=ROLE_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        project: Annotated[
            str | None, typer.Option("--project", "-p", help="Only roles in this project (name or id).")
        ] = None,
        user: Annotated[str | None, typer.Option("--user", "-u", help="Only roles of this user.")] = None,
    ) -> None:
        """List who has which role, where you may grant roles."""
        wanted = text_of(find_project(session.api, project), "id") if project else None
        rows = [
            row
            for row in _roles(session.api)
            if (wanted is None or row["projectId"] == wanted) and user in {None, text_of(row, "user")}
        ]
        session.out.rows(rows, ROLE_COLUMNS, name="user", empty="nobody has such a role")


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "grant",
        output=False,
        examples="""
        muster role grant ann researcher -p vision
        muster role grant bob viewer --everywhere
        muster role grant root administrator
        """,
    )
    def grant(
        session: Session,
        user: UserArgument,
        role: RoleArgument,
        *,
        project: ProjectOption = None,
        everywhere: EverywhereOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Give a user a role. If they have it already, nothing changes."""
        where = _where(session, role, project, everywhere=everywhere)
        give(session.api, user, role, where, idempotency_key)
        session.out.talk(f"{user} is {role} {told(where)}")

    @command(
        app,
        "revoke",
        output=False,
        examples="""
        muster role revoke ann researcher -p vision
        muster role revoke bob viewer --everywhere -y
        """,
    )
    def revoke(
        session: Session,
        user: UserArgument,
        role: RoleArgument,
        *,
        project: ProjectOption = None,
        everywhere: EverywhereOption = False,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Take a role away from a user. It takes effect within seconds."""
        where = _where(session, role, project, everywhere=everywhere)
        confirm(f"take the role {role} {told(where)} away from {user}?", yes=yes)
        session.api.mutate("DELETE", _RULES, _rule(user, role, where), idempotency_key=idempotency_key)
        session.out.talk(f"{user} is no longer {role} {told(where)}")


def give(api: "Api", user: str, role: str, where: Row | None, idempotency_key: str | None = None) -> None:
    """Gives the role in a project, or everywhere."""
    api.mutate("POST", _RULES, _rule(user, role, where), idempotency_key=idempotency_key)


def told(where: Row | None) -> str:
    """Where a role holds, in words."""
    return "everywhere" if where is None else f"in project {text_of(where, 'name')}"


def check_role(role: str) -> None:
    """Raises Problem where there is no such role."""
    if role not in ROLES:
        listed = ", ".join(ROLES)
        raise usage(f"there is no role {role!r}", todo=did_you_mean(role, list(ROLES)) or f"roles: {listed}")


def _where(session: Session, role: str, project: str | None, *, everywhere: bool) -> Row | None:
    """The project that a role is for; None: everywhere. Raises Problem."""
    check_role(role)
    if project and role == ADMINISTRATOR:
        raise usage(f"{role} always applies to all projects", todo="leave -p out")
    if project and everywhere:
        raise usage(f"--everywhere and --project {project!r} cannot be used together", todo="leave one of them out")
    if everywhere or role == ADMINISTRATOR:
        return None
    return default_project(session, project)


def _rule(user: str, role: str, where: Row | None) -> Row:
    rule: Row = {"subjectId": user, "roleName": role, "scopeType": "tenant" if where is None else "project"}
    return rule if where is None else rule | {"scopeId": where["id"]}


def _roles(api: "Api") -> list[Row]:
    """Who has which role where, with the names of projects."""
    rules = rows_of(api.get(_RULES), "accessRules")
    projects = project_names(api)
    return [
        {
            "user": rule.get("subjectId"),
            "role": rule.get("roleName"),
            "where": projects.get(text_of(rule, "scopeId"), rule.get("scopeId")) or "everywhere",
            "projectId": rule.get("scopeId"),
        }
        for rule in rules
    ]


def _in(row: Row) -> str:
    return "everywhere" if row["projectId"] is None else f"in {text_of(row, 'where')}"
