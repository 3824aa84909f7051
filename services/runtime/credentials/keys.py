"""The keys of the store of credentials: one file with the private ones, for who opens, and one with the public half of
the newest, for who seals. Both are read each time that they are needed, which is seldom: a rotation needs no restart.
"""

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from services.runtime.credentials.sealed import KEY_BYTES, SealError, derived, new_private, public_of

PRIVATE_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
LOCK: Final = ".lock"
"""After the name of the file with the private keys: held by who replaces them."""
ID_CHARACTERS: Final = 16
"""Of the public key in hexadecimal digits: they name a key."""


class KeyFileError(Exception):
    """A key file is not fit for use; the message says what to do."""


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """Of which keys are derived that nobody keeps, in hexadecimal digits."""

    since: datetime
    """For workloads that are submitted from then on, until the next one's."""
    key: str


MOST_SEEDS: Final = 100
"""That are kept: a rotation adds one."""
_EVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OF_KEY: Final = "seed 1"


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """Private keys, in hexadecimal digits."""

    keys: tuple[str, ...]
    """The newest first; the others open what was sealed before a rotation that has not come to its end."""
    seeds: tuple[Seed, ...] = ()
    """The newest first. None: there is one, which is derived from the oldest key, and for all workloads."""

    def private(self, name: str) -> bytes | None:
        """The key of this name."""
        return next((bytes.fromhex(key) for key in self.keys if key_name(public_of(bytes.fromhex(key))) == name), None)

    @property
    def public(self) -> bytes:
        """To seal to."""
        return public_of(bytes.fromhex(self.keys[0]))

    def seed_of(self, created_at: datetime | None) -> bytes | None:
        """For a workload that was submitted then: always the same, whatever is rotated. None where it is forgotten."""
        at = created_at or _EVER
        return next((bytes.fromhex(one.key) for one in self._seeds() if one.since <= at), None)

    def with_seeds(self, *, new_since: datetime | None = None) -> "Ring":
        """With its seeds written down, so that they outlive its keys; with one more, for workloads from then on."""
        new = () if new_since is None else (Seed(since=new_since, key=secrets.token_hex(KEY_BYTES)),)
        return replace(self, seeds=(*new, *self._seeds())[:MOST_SEEDS])

    def _seeds(self) -> tuple[Seed, ...]:
        first = derived(bytes.fromhex(self.keys[-1]), _OF_KEY)
        return self.seeds or (Seed(since=_EVER, key=first.hex()),)


def key_name(public: bytes) -> str:
    return public.hex()[:ID_CHARACTERS]


def new_ring() -> Ring:
    return Ring(keys=(new_private().hex(),))


def read_ring(path: Path) -> Ring:
    """Raises KeyFileError."""
    try:
        ring = msgspec.json.decode(path.read_bytes(), type=Ring)
        keys = [bytes.fromhex(key) for key in ring.keys]
        fit = bool(keys) and all(len(public_of(key)) == KEY_BYTES for key in keys)
        fit = fit and all(len(bytes.fromhex(seed.key)) == KEY_BYTES for seed in ring.seeds)
    except FileNotFoundError as error:
        raise KeyFileError(f"there is no {path}: restore it from a backup, or make all credentials again") from error
    except (OSError, msgspec.MsgspecError, ValueError, SealError) as error:
        raise KeyFileError(f"{path} does not hold keys of Muster ({type(error).__name__})") from error
    if not fit:
        raise KeyFileError(f"{path} does not hold keys of Muster")
    return ring


def read_public(path: Path) -> bytes:
    """The key to seal to. Raises KeyFileError."""
    try:
        public = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise KeyFileError(f"{path} does not hold the public key of the store ({type(error).__name__})") from error
    if len(public) != KEY_BYTES:
        raise KeyFileError(f"{path} does not hold the public key of the store")
    return public


@contextlib.contextmanager
def alone_with(path: Path) -> Generator[None]:
    """For who replaces keys: two at once would each make a key, and one of the two would be forgotten with all that is
    sealed to it. Raises KeyFileError where another one is at work, OSError.
    """
    descriptor = os.open(path.with_name(f"{path.name}{LOCK}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise KeyFileError(f"another rotation of {path} is at work; wait for its end, or stop it") from error
        for left in path.parent.glob(f".{path.name}.*"):
            left.unlink()  # of one that was killed while it wrote; it holds keys
        yield
    finally:
        os.close(descriptor)


def write_ring(path: Path, ring: Ring) -> None:
    """Replace the file as a whole, with the rights that it has. Raises OSError."""
    _write(path, msgspec.json.encode(ring), PRIVATE_MODE)


def write_public(path: Path, ring: Ring) -> None:
    """Likewise. Raises OSError."""
    _write(path, ring.public.hex().encode(), PUBLIC_MODE)


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode if before is None else before.st_mode & 0o777)
            if before is not None and os.geteuid() == 0:
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
