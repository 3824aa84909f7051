"""`muster log`: comparing every table to the log, and declaring messages void that cannot be read."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Session, command, group
from muster.cli.directly import DataDirOption, directly
from muster.cli.exits import ExitCode
from muster.cli.log_commits import add_commits
from muster.cli.output import Format
from muster.cli.progress import progress_bar
from muster.cli.projections import DIFFERENCE_COLUMNS, difference_rows
from muster.cli.values import Row

if TYPE_CHECKING:
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore


def add_log(root: typer.Typer) -> None:
    app = group("log")
    add_commits(app)

    @command(
        app,
        "void",
        output=False,
        examples='muster log void 1234 --reason "written by the forged credential of 3 May"',
    )
    def void(
        session: Session,
        sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The sequence that the alarm shows.")],
        *,
        reason: Annotated[str, typer.Option("--reason", help="Why. The reason stays in the log for ever.")],
    ) -> None:
        """Declare a message void that cannot be read, so that every reader skips it. For administrators."""
        session.api.mutate("POST", "/events/voids", {"sequence": sequence, "reason": reason})
        session.out.talk(f"message {sequence} is void; readers go on within seconds. `muster doctor` tells")

    @command(app, "verify", examples="muster log verify\nmuster log verify --data-dir /srv/muster -o jsonl")
    def verify(session: Session, *, data_dir: DataDirOption = None) -> int:
        """Compute every table again from the log, and compare row by row. Exit 1 on a difference."""
        from services.projector.verify import verify as verify_all

        differences: list[Row] = []
        voids: list[str] = []
        compared, end = 0, 0

        async def work(store: "JetStreamEventStore", actors: "Actors", postgres_url: str) -> None:
            nonlocal compared, end
            with progress_bar(session.out, "verify") as report:

                def heard(done: int, total: int) -> None:
                    nonlocal compared
                    compared = total
                    report(done, total)

                found = await verify_all(store, postgres_url, heard)
            end = await store.last_seq()
            await actors.subjects_of(store.voids.declared_by())
            voids.extend((*store.voids.told(actors.subject), *store.voids.doubted(actors.subject)))
            differences.extend(difference_rows(found))

        directly(session, data_dir, work)
        for told in voids:
            session.out.talk(told)
        if differences or session.out.style.format not in {Format.TABLE, Format.WIDE}:
            session.out.rows(differences, DIFFERENCE_COLUMNS, name="key")
        if differences:
            session.out.talk(f"{len(differences)} differences; `muster projections rebuild` makes the tables anew")
            return ExitCode.FAILURE
        part = (
            f" up to {compared}; the log goes on to {end}: `muster projections status` shows how far the tables are"
            if compared < end
            else ""
        )
        session.out.talk(f"no difference: every row follows from the log{part}")
        return ExitCode.OK

    root.add_typer(app, name="log")
