"""`muster service-account`: programs that act in one project, and their tokens."""

from typing import Annotated, Final

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command, group
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import default_project, find_in_project, find_project
from muster.cli.options import IdempotencyOption, ProjectOption, YesOption, confirm
from muster.cli.output import Column
from muster.cli.values import Row, rows_of, text_of

PATH: Final = "/service-accounts"
ACCOUNT_ROLES: Final = ("researcher", "viewer")
ACCOUNT_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("PROJECT", "projectName"),
    Column("ROLE", "roleName"),
    Column("LAST-USED", "lastUsed", show=lambda row: text_of(row, "lastUsed") or "never"),
    Column("CREATED", "createdAt", time=True),
    Column("BY", "createdBy"),
    Column("ROTATED", "rotatedAt", time=True, wide=True),
    Column("SUBJECT", "subject", wide=True),
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the account, unique in its project.")]


def add_service_accounts(root: typer.Typer) -> None:
    app = group("service-account")
    _add_reads(app)
    _add_tokens(app)
    _add_delete(app)
    root.add_typer(app, name="service-account")


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster service-account list\nmuster service-account list -p vision -o wide",
        columns=ACCOUNT_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        project: Annotated[str | None, typer.Option("--project", "-p", help="Only accounts of this project.")] = None,
    ) -> None:
        """List the service accounts of the projects in which you may grant roles."""
        scope = [("projectId", text_of(find_project(session.api, project), "id"))] if project else []
        rows = rows_of(session.api.get(PATH, scope), "serviceAccounts")
        session.out.rows(rows, ACCOUNT_COLUMNS, empty="no service accounts")

    @command(app, "describe", examples="muster service-account describe ci -p vision")
    def describe(session: Session, name: NameArgument, *, project: ProjectOption = None) -> None:
        """Show a service account. Its token is printed only once, when it is created or rotated."""
        row = _find(session, name, project)
        session.out.one(row, lambda: _show(session, row), columns=ACCOUNT_COLUMNS)


def _show(session: Session, row: Row) -> None:
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Project", text_of(row, "projectName")),
            ("Role", text_of(row, "roleName")),
            ("Subject", text_of(row, "subject")),
            ("Created", f"{session.out.time(row.get('createdAt'))} by {text_of(row, 'createdBy')}"),
            ("Rotated", session.out.time(row.get("rotatedAt"))),
            ("Last used", text_of(row, "lastUsed") or "never"),
        ]
    )


def _add_tokens(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        output=False,
        examples="""
        muster service-account create ci --role researcher -p vision
        export MUSTER_TOKEN=$(muster service-account create nightly --role researcher)
        """,
    )
    def create(
        session: Session,
        name: NameArgument,
        *,
        role: Annotated[
            str, typer.Option("--role", help="Role of the account in the project: researcher or viewer.")
        ] = ACCOUNT_ROLES[0],
        project: ProjectOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Create a service account in a project, and print its token once. The token does not expire."""
        if role not in ACCOUNT_ROLES:
            raise usage(
                f"a service account cannot be {role}",
                todo=did_you_mean(role, list(ACCOUNT_ROLES)) or f"roles: {', '.join(ACCOUNT_ROLES)}",
            )
        where = default_project(session, project)
        body: Row = {"name": name, "projectId": where["id"], "roleName": role}
        answer = session.api.mutate("POST", PATH, body, idempotency_key=idempotency_key)
        _print_token(session, answer.body)
        session.out.talk(f"{name} is {role} in project {text_of(where, 'name')}; the token is shown once")

    @command(
        app,
        "rotate",
        output=False,
        examples="muster service-account rotate ci -p vision > token",
    )
    def rotate(
        session: Session,
        name: NameArgument,
        *,
        project: ProjectOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Give a service account a new token, and print it once. The old token stops working at once."""
        path = _path(_find(session, name, project))
        answer = session.api.mutate("POST", f"{path}/rotate", idempotency_key=idempotency_key)
        _print_token(session, answer.body)
        session.out.talk(f"{name} has a new token; the old one no longer works")


def _add_delete(app: typer.Typer) -> None:
    @command(app, "delete", output=False, examples="muster service-account delete ci -p vision")
    def delete(
        session: Session,
        name: NameArgument,
        *,
        project: ProjectOption = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Delete a service account. Its token stops working at once. Its workloads stay."""
        confirm(f"delete service account {name}?", yes=yes)
        where = default_project(session, project)
        path = f"{PATH}/{text_of(where, 'id')}/{name}"
        session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(f"service account {name} deleted")


def _print_token(session: Session, answer: Row) -> None:
    """Raises Problem where the request was carried out before."""
    token = text_of(answer, "token")
    if not token:
        todo = "`muster service-account rotate NAME` gives it a new one"
        raise Problem("no token is shown", why=(text_of(answer, "message"),), todo=todo, code=ExitCode.FAILURE)
    session.out.write(token + "\n")


def _find(session: Session, wanted: str, project: str | None) -> Row:
    return find_in_project(session, wanted, project, path=PATH, rows="serviceAccounts", noun="service account")


def _path(row: Row) -> str:
    return f"{PATH}/{text_of(row, 'projectId')}/{text_of(row, 'name')}"
