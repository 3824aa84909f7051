"""The files of an installation that a backup keeps, and where they are put again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.runtime.backup.archive import BackupError
from services.runtime.backup.holdings import kept_files

KEYS: Final = {
    "keys/local.json": "MUSTER_KEY_FILE",
    "keys/webhooks": "MUSTER_WEBHOOK_KEY_FILE",
    "keys/credentials": "MUSTER_CREDENTIAL_KEY_FILE",
}
"""Keys that have a place of their own outside of a data folder, and the variables that name it."""


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
    found: dict[str, bytes] = {}
    for key, variable in KEYS.items():
        named = environ.get(variable)
        if not named:
            continue
        try:
            found[key] = Path(named).read_bytes()
        except FileNotFoundError:
            continue  # another issuer signs the tokens, or there are no webhooks
        except OSError as error:
            raise BackupError(f"{named} cannot be read: {error.strerror}") from error
    return found
