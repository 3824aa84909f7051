"""`muster backup`: writes a backup of an installation, running or stopped, or checks one.

It works on NATS directly, with a credential that can read what a backup holds and write nothing.
"""

import contextlib
import os
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.command import Session, command
from muster.cli.directly import DataDirOption, log_to_stderr
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.operator_connection import operator_connection
from muster.cli.operator_settings import named_in_environment
from muster.cli.passphrase import KeyFileOption, passphrase
from muster.cli.progress import progress_bar

if TYPE_CHECKING:
    from services.runtime.backup.archive import Manifest
    from services.runtime.backup.check import Head
    from services.runtime.backup.source import Source

USER: Final = "backup"
"""On NATS."""

PlaceArgument = Annotated[
    str, typer.Argument(metavar="DIR", help="Folder of the backup, or a place such as s3://bucket/folder.")
]


def add_backup(root: typer.Typer) -> None:
    @command(
        root,
        "backup",
        examples="""
        muster backup /srv/backup --key-file ~/backup.key
        muster backup --verify /srv/backup
        muster backup --verify /srv/backup --head 1234:5f3c…
        muster backup s3://bucket/muster --key-file ~/backup.key
        """,
    )
    def backup(
        session: Session,
        place: PlaceArgument,
        *,
        verify: Annotated[
            bool,
            typer.Option("--verify", help="Check the backup, and compare it with the server's log. Write nothing."),
        ] = False,
        head: Annotated[
            str | None,
            typer.Option(
                "--head",
                metavar="SEQ:HASH",
                help="With --verify: compare with this head, as a backup printed it, and not with a server.",
            ),
        ] = None,
        offline: Annotated[
            bool, typer.Option("--offline", help="With --verify: compare with nothing; check the backup by itself.")
        ] = False,
        key_file: KeyFileOption = None,
        data_dir: DataDirOption = None,
    ) -> None:
        """Back up the log and all that cannot be made again from it, or check a backup.

        The installation may be running. A second backup into the same folder adds what is new. People, code, audit,
        the signing key and credentials are encrypted with the passphrase. The log is not, and what people wrote into
        workloads stands there, also in environment variables.
        """
        if (head is not None or offline) and not verify:
            raise usage("--head and --offline belong to --verify")
        folder = data_dir or (Path(session.target.data_dir) if session.target.data_dir else None)
        log_to_stderr(session)
        if verify:
            _verify(session, place, head, None if head is not None or offline else folder, offline=offline)
        else:
            _back_up(session, place, key_file, folder)


def _back_up(session: Session, url: str, key_file: Path | None, folder: Path | None) -> None:
    from muster.cli.doctor import client_version
    from services.runtime.backup.archive import MANIFEST
    from services.runtime.backup.files import kept_in_data_dir, kept_in_environment
    from services.runtime.backup.holdings import left_out
    from services.runtime.backup.place import Place
    from services.runtime.backup.write import Done, back_up

    async def run() -> Done:
        place = Place(url)
        secret = passphrase(key_file, again=not place.exists(MANIFEST))
        async with _source(folder) as source:
            files = kept_in_environment(os.environ) if folder is None or named_in_environment(tables=False) else {}
            files = files or (kept_in_data_dir(folder) if folder is not None else {})
            with progress_bar(session.out, "backup") as report:
                return await back_up(source, place, secret, files, version=client_version(), progress=report)

    done = run_or_explain(run())
    manifest = done.manifest
    rate = done.new_messages / max(done.seconds, 0.001)
    session.out.one(
        {
            "head": manifest.head,
            "sequence": manifest.seq,
            "newMessages": done.new_messages,
            "newBytes": done.new_bytes,
            "seconds": round(done.seconds, 3),
            "leftOut": [{"name": one.name, "why": one.reason} for one in left_out()],
        },
        lambda: session.out.pairs(
            [
                ("Log", f"up to {manifest.seq:,}, {done.new_messages:,} of it new ({rate:,.0f}/s)"),
                ("Written", f"{done.new_bytes:,} bytes in {done.seconds:.1f} s"),
                *(("Left out", f"{one.name}: {one.reason}") for one in left_out()),
                ("Head", manifest.head),
            ]
        ),
    )
    session.out.talk("note the head somewhere else: with it `muster backup --verify --head` shows that nothing changed")


def _verify(session: Session, url: str, head: str | None, folder: Path | None, *, offline: bool) -> None:
    from services.runtime.backup.check import check, compare, parse_head, read_manifest, unlisted
    from services.runtime.backup.place import Place

    async def run() -> "tuple[Manifest, int | None, list[str]]":
        wanted: Head | None = None if head is None else parse_head(head)
        place = Place(url)
        manifest = read_manifest(place)
        end: int | None = None
        with progress_bar(session.out, "verify") as report:
            if offline or wanted is not None:
                check(place, manifest, report, wanted)
            else:
                async with _source(folder) as source:
                    end = await compare(place, manifest, source, report)
        return manifest, end, unlisted(place, manifest)

    manifest, end, others = run_or_explain(run())
    if end is not None:
        compared = f"equal to the server's log, which goes up to {end:,}"
    else:
        compared = "with no server" if head is None else f"has the head {head}"
    session.out.one(
        {
            "head": manifest.head,
            "sequence": manifest.seq,
            "messages": manifest.seq - manifest.first + 1,
            "madeAt": manifest.made_at.isoformat(),
            "serverSequence": end,
            "unlisted": list(others),
        },
        lambda: session.out.pairs(
            [
                ("Backup", f"whole; {manifest.seq - manifest.first + 1:,} messages up to {manifest.seq:,}"),
                ("Compared", compared),
                ("Made at", manifest.made_at.isoformat(timespec="seconds")),
                ("Head", manifest.head),
            ]
        ),
    )
    if others:
        session.out.talk(
            f"{len(others)} files are in no manifest, such as {others[0]}: of a backup that was cut off, or the "
            "manifest is an older one"
        )


@contextlib.asynccontextmanager
async def _source(folder: Path | None) -> "AsyncGenerator[Source]":
    """The streams of the installation."""
    from services.runtime.backup.source import Source
    from services.runtime.nats.requests import Requests

    async with operator_connection(folder, USER) as connection:
        yield Source(Requests(connection))


def run_or_explain[T](work: Coroutine[Any, Any, T]) -> T:
    """Does the work. Raises Problem."""
    from muster.embedded.datadir import DataDirError
    from muster.embedded.processes import StartError
    from services.runtime.backup.archive import BackupError
    from services.runtime.log.store import LogUnavailableError
    from services.runtime.nats.connection import ConnectionLostError
    from services.runtime.nats.streams import StreamError
    from services.runtime.process.host import run_loop

    try:
        return run_loop(work)
    except (BackupError, StreamError) as error:
        raise Problem(str(error), code=ExitCode.FAILURE) from error
    except (DataDirError, StartError) as error:
        raise Problem("the data folder cannot be used", why=(str(error),), code=ExitCode.FAILURE) from error
    except (ConnectionLostError, LogUnavailableError, FileNotFoundError) as error:
        raise Problem(
            "the log cannot be reached",
            why=(str(error) or type(error).__name__,),
            todo="is `muster up` running, and --data-dir its folder?",
            code=ExitCode.UNREACHABLE,
        ) from error
