"""`muster user erase`: forgets a person.

It works on NATS directly, with a credential that no service has and that deletes where people are named, nowhere else.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.backup import run_or_explain
from muster.cli.command import Session, command
from muster.cli.directly import DataDirOption, log_to_stderr
from muster.cli.exits import ExitCode, Problem
from muster.cli.operator_connection import operator_connection
from muster.cli.options import YesOption, confirm
from muster.cli.progress import progress_bar

if TYPE_CHECKING:
    from services.runtime.identity.erase import Erased


def add_erase(app: typer.Typer) -> None:
    @command(
        app,
        "erase",
        examples="""
        muster user erase ann@example.com
        muster user erase ann --issuer https://id.example.com --yes
        """,
    )
    def erase(
        session: Session,
        user: Annotated[str, typer.Argument(metavar="USER", help="User: the subject of their token.")],
        *,
        issuer: Annotated[
            str | None,
            typer.Option("--issuer", metavar="ISSUER", help="Issuer of their tokens, where several know the user."),
        ] = None,
        yes: YesOption = False,
        data_dir: DataDirOption = None,
    ) -> None:
        """Forget a person: whom their id in the log means is deleted for ever, also from the audit.

        Whoever has a role everywhere is refused: take it away first. What they did and own stays, under an id that
        names nobody.
        Workloads, labels, images, logs of pods and backups that were made before stay as they are. The installation may
        be running.
        """
        confirm(f"forget {user}? Nobody can ever say again what was theirs", yes=yes)
        folder = data_dir or (Path(session.target.data_dir) if session.target.data_dir else None)
        log_to_stderr(session)
        done = run_or_explain(_erase(session, user, issuer, folder))
        if not done.anything:
            raise Problem(
                f"nothing names {user!r}" + (f" of {issuer}" if issuer else ""),
                todo="`muster user list` shows how users are called",
                code=ExitCode.NOT_FOUND,
            )
        unreadable = f", {done.unreadable} that nobody could read are deleted" if done.unreadable else ""
        session.out.one(
            {"ids": list(done.actors), "records": done.records, "unreadable": done.unreadable},
            lambda: session.out.pairs(
                [
                    ("Forgotten", ", ".join(done.actors) or "had no id: they never had a role"),
                    ("Audit", f"{done.records} records do not name them any more{unreadable}"),
                ]
            ),
        )
        session.out.talk("backups that were made before name them still: delete those, or erase again after a restore")


async def _erase(session: Session, user: str, issuer: str | None, folder: Path | None) -> "Erased":
    from services.runtime.identity.erase import USER, EraseError, erase

    async with operator_connection(folder, USER) as connection:
        with progress_bar(session.out, "erase") as report:
            try:
                return await erase(connection, user, issuer, report)
            except EraseError as error:
                raise Problem("not erased", why=(str(error),), code=ExitCode.FAILURE) from error
