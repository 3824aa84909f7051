"""The passphrase of a backup: from a key file, the environment, or typed by a person."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from muster.cli.exits import usage
from muster.cli.unreadable import unreadable

PASSPHRASE: Final = "MUSTER_BACKUP_PASSPHRASE"  # noqa: S105 (its name)
MOST_BYTES: Final = 64 * 1024
"""Of a key file: more is somebody's data, given by mistake."""

KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help=f"File whose content is the passphrase, at least 12 bytes. Otherwise {PASSPHRASE}, or a prompt.",
    ),
]


def passphrase(key_file: Path | None, *, again: bool) -> bytes:
    """Raises Problem where there is none.

    Args:
        again: whether a person has to type it twice, since nothing tells yet that it is right.
    """
    if key_file is not None:
        return _content(key_file)
    if given := os.environ.get(PASSPHRASE):
        return given.encode()
    if not sys.stdin.isatty():
        raise usage(
            "there is no passphrase for the secrets of the backup",
            todo=f"give --key-file FILE, or set {PASSPHRASE}",
        )
    return str(typer.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=again, err=True)).encode()


def _content(key_file: Path) -> bytes:
    try:
        with key_file.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise unreadable(str(key_file), error) from error
    if len(content) > MOST_BYTES:
        raise usage(f"{key_file} is larger than {MOST_BYTES // 1024} KiB: it is no key file")
    # A line end behind a passphrase belongs to the file.
    return content.rstrip(b"\r\n")
