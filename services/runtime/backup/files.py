"""The files of an installation that a backup keeps, and where they are put again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.runtime.backup.archive import BackupError
from services.runtime.backup.holdings import kept_files

KEY: Final = "keys/local.json"
"""The signing key, which has a place of its own outside of a data folder."""
KEY_FILE: Final = "MUSTER_KEY_FILE"


def kept_in_data_dir(folder: Path) -> dict[str, bytes]:
    """By path in the data folder of a `muster up`. Raises BackupError."""
    found: dict[str, bytes] = {}
    for pattern in kept_files():
        for path in sorted(folder.glob(pattern)):
            if path.name.startswith("."):
                continue  # a draft of a file that is being written
            try:
                found[str(path.relative_to(folder))] = path.read_bytes()
            except FileNotFoundError:
                continue  # a cluster was removed just now
            except OSError as error:
                raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    return found


def kept_in_environment(environ: Mapping[str, str]) -> dict[str, bytes]:
    """The same of an installation whose parts are named by variables, as in docker-compose. Raises BackupError."""
    named = environ.get(KEY_FILE)
    if not named:
        return {}
    try:
        return {KEY: Path(named).read_bytes()}
    except FileNotFoundError:
        return {}  # another issuer signs the tokens
    except OSError as error:
        raise BackupError(f"{named} cannot be read: {error.strerror}") from error
