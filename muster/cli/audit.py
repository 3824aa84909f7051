"""`muster audit`: what took a special right, and what was refused."""

from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.names import project_names
from muster.cli.options import duration_option
from muster.cli.output import Column
from muster.cli.values import Row, rows_of, text_of

AUDIT_COLUMNS: Final = (
    Column("WHEN", "at", time=True),
    Column("WHO", "actor.sub"),
    Column("OUTCOME", "outcome"),
    Column("TYPE", "command"),
    Column("TARGET", "target"),
    Column("PROJECT", "projectName"),
    Column("CODE", "code"),
    Column("MESSAGE", "message"),
    Column("PROJECT-ID", "projectId", wide=True),
    Column("COMMAND", "commandId", wide=True),
    Column("CORRELATION", "correlationId", wide=True),
)


def command_names(incomplete: str) -> list[str]:
    # Only the table that shells complete from is made of it.
    from events.commands import COMMANDS

    return sorted(command.__name__ for command in COMMANDS if command.__name__.startswith(incomplete))


def outcomes(incomplete: str) -> list[str]:
    return [outcome for outcome in ("admitted", "refused") if outcome.startswith(incomplete)]


def add_audit(root: typer.Typer) -> None:
    app = group("audit")

    @command(
        app,
        "list",
        examples="""
        muster audit list
        muster audit list --since 2h --outcome refused
        muster audit list --actor ann --type DeleteWorkload --limit 20 -o json
        """,
        columns=AUDIT_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        since: Annotated[
            str | None, typer.Option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
        ] = None,
        actor: Annotated[str | None, typer.Option("--actor", metavar="USER", help="Only acts of this user.")] = None,
        type_: Annotated[
            str | None,
            typer.Option(
                "--type",
                metavar="COMMAND",
                help="Only this command, such as GrantTenantRole.",
                autocompletion=command_names,
            ),
        ] = None,
        outcome: Annotated[
            str | None,
            typer.Option(
                "--outcome",
                metavar="admitted|refused",
                help="Only acts with this outcome. Default: both.",
                autocompletion=outcomes,
            ),
        ] = None,
        limit: Annotated[
            int, typer.Option("--limit", metavar="N", help="Maximum number of records.", min=1, max=500)
        ] = 100,
    ) -> None:
        """List administrative acts and refused requests, newest first.

        Admitted means that the user had the right to do it. `muster log list` shows what happened then.
        """
        parameters: list[tuple[str, str | int]] = [("limit", limit)]
        parameters += [("since", f"{duration_option('--since', since)}s")] if since else []
        parameters += [("actor", actor)] if actor is not None else []
        parameters += [("type", type_)] if type_ else []
        parameters += [("outcome", outcome)] if outcome else []
        answer = session.api.get("/audit", parameters)
        names = project_names(session.api)
        rows: list[Row] = [
            record | {"projectName": names.get(text_of(record, "projectId"), record.get("projectId"))}
            for record in rows_of(answer, "records")
        ]
        session.out.rows(rows, AUDIT_COLUMNS, name="sequence", empty="no such records in the audit")
        if searched := text_of(answer, "searchedBackTo"):
            session.out.talk(f"searched back to {searched}; older records may be there, too: narrow it with --since")
        elif len(rows) == limit:
            session.out.talk(f"the newest {limit} are shown; --limit shows up to 500")

    root.add_typer(app, name="audit")
