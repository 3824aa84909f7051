"""`muster credentials rotate-key`: a new key for the store of credentials.

It works on NATS directly, with a credential that no service has, and on the files of the keys.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from muster.cli.backup import run_or_explain
from muster.cli.command import Session, command
from muster.cli.directly import DataDirOption, log_to_stderr
from muster.cli.exits import ExitCode, Problem
from muster.cli.operator_connection import operator_connection
from muster.cli.operator_settings import named_in_environment
from muster.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Sequence


def add_rotate_key(app: typer.Typer) -> None:
    @command(app, "rotate-key", examples="muster credentials rotate-key")
    def rotate_key(session: Session, *, data_dir: DataDirOption = None) -> None:
        """Seal all values of credentials to a new key, and forget the old one.

        The installation may be running, and runs that need credentials start meanwhile. What is stopped halfway is
        finished by the next run. Backups that were made before hold the old key, and open with it.
        """
        folder = data_dir or (Path(session.target.data_dir) if session.target.data_dir else None)
        log_to_stderr(session)
        done = run_or_explain(_rotate(session, folder))
        session.out.one({"values": done}, lambda: session.out.pairs([("Sealed anew", f"{done} values")]))


async def _rotate(session: Session, folder: Path | None) -> int:
    from services.runtime.credentials.keys import KeyFileError
    from services.runtime.credentials.rotate import USER, RotationError, rotate
    from services.runtime.nats.requests import Requests

    key_file, public_file = _files(folder)
    async with operator_connection(folder, USER) as connection:
        with progress_bar(session.out, "rotate") as report:
            try:
                return await rotate(Requests(connection), key_file, public_file, report)
            except (KeyFileError, RotationError, OSError) as error:
                raise Problem("the key is not rotated", why=(str(error),), code=ExitCode.FAILURE) from error


def _files(folder: Path | None) -> "Sequence[Path]":
    """Raises Problem."""
    from muster.embedded.datadir import DataDir
    from services.runtime.process.settings import Settings

    if folder is not None and not named_in_environment(tables=False):
        data = DataDir(root=folder)
        return data.credential_key_file, data.credential_public_key_file
    settings = Settings()
    if settings.credential_key_file is None or settings.credential_public_key_file is None:
        raise Problem(
            "where the keys of credentials are is not known",
            todo="set MUSTER_CREDENTIAL_KEY_FILE and MUSTER_CREDENTIAL_PUBLIC_KEY_FILE, or give --data-dir",
            code=ExitCode.USAGE,
        )
    return settings.credential_key_file, settings.credential_public_key_file
