"""Where a backup lies: a folder of this machine, or any place that fsspec knows, such as `s3://bucket/folder`.

A file is written whole or not at all. On this machine it is on the disk before the next one is begun, only its owner
can read it, and one program at a time writes into a folder.
"""

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from services.runtime.backup.archive import EVENTS_FOLDER, KEPT_FOLDER, BackupError

LOCK: Final = "backup.lock"
_PACKAGES: Final = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class Place:
    """Raises BackupError where it cannot be read or written."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._local = Path(url) if "://" not in url else None
        self._fs: Any = None
        self._root = ""
        if self._local is None:
            import fsspec

            protocol = url.partition("://")[0]
            try:
                found = cast("tuple[Any, str]", fsspec.core.url_to_fs(url))  # pyright: ignore[reportUnknownMemberType]
            except ImportError as error:
                package = _PACKAGES.get(protocol, f"fsspec[{protocol}]")
                raise BackupError(
                    f"{protocol}:// needs a Python package that is not installed: pip install {package}"
                ) from error
            except Exception as error:  # each package has errors of its own
                raise BackupError(f"{url} cannot be used: {_words(error)}") from error
            self._fs, self._root = found

    @contextlib.contextmanager
    def _told(self, what: str) -> Generator[None]:
        """What fails as a sentence that begins so, but for what is not there."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            if self._local is not None and not isinstance(error, OSError):
                raise
            # Elsewhere, each package has errors of its own beside those of files.
            raise BackupError(f"{what}: {_words(error)}") from error

    def read(self, name: str) -> bytes:
        try:
            with self._told(f"{name} in {self.url} cannot be read"):
                if self._local is not None:
                    return (self._local / name).read_bytes()
                return bytes(self._fs.cat_file(f"{self._root}/{name}"))
        except FileNotFoundError as error:
            raise BackupError(f"{name} is missing in {self.url}") from error

    def exists(self, name: str) -> bool:
        with self._told(f"{self.url} cannot be read"):
            if self._local is not None:
                return (self._local / name).exists()
            return bool(self._fs.exists(f"{self._root}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        try:
            with self._told(f"{name} in {self.url} cannot be written"):
                if self._local is not None:
                    _write(self._local / name, data)
                else:
                    self._fs.pipe_file(f"{self._root}/{name}", data)
        except FileNotFoundError as error:  # a folder or bucket that is not there
            raise BackupError(f"{name} in {self.url} cannot be written: {_words(error)}") from error

    def names(self) -> list[str]:
        """Of the files that belong to backups, but for the manifest, in order."""
        found: list[str] = []
        for folder in (EVENTS_FOLDER, KEPT_FOLDER):
            with contextlib.suppress(FileNotFoundError), self._told(f"{self.url} cannot be read"):
                if self._local is not None:
                    found += [f"{folder}/{path.name}" for path in (self._local / folder).glob("[!.]*")]
                else:
                    listed = self._fs.ls(f"{self._root}/{folder}", detail=False)
                    found += [f"{folder}/{PurePosixPath(path).name}" for path in listed]
        return sorted(found)

    def leftovers(self, listed: Iterable[str], old: Iterable[str]) -> list[str]:
        """What nobody needs any more. Where others may be writing (`held`), only what the last manifest listed."""
        there = list(old)
        if self._local is not None:
            # Of who was killed while a file was written.
            drafts = (
                path for folder in (EVENTS_FOLDER, KEPT_FOLDER) for path in (self._local / folder).glob(_draft("*"))
            )
            there = [*self.names(), *(str(path.relative_to(self._local)) for path in drafts)]
        return sorted({*there} - {*listed})

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, BackupError), self._told(f"{name} stays"):
            if self._local is not None:
                (self._local / name).unlink()
            else:
                self._fs.rm_file(f"{self._root}/{name}")

    def make(self) -> None:
        """Have the folder. Raises BackupError, also where somebody else's files are in it."""
        if self._local is None:
            return
        try:
            for folder in (self._local, self._local / EVENTS_FOLDER, self._local / KEPT_FOLDER):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BackupError(f"{self.url} cannot be made: {error}") from error

    @property
    def lockable(self) -> bool:
        """Whether `held` keeps others out. Then what was not written by now never will be."""
        return self._local is not None

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Keep other writers of this machine out. Elsewhere they find out when they write the manifest (write.py)."""
        if self._local is None:
            yield
            return
        try:
            lock_fd = os.open(self._local / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BackupError(f"{self.url} cannot be written: {error}") from error
        try:
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(f"another backup into {self.url} is running: wait until it has ended") from None
            yield
        finally:
            os.close(lock_fd)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _draft(name: str) -> str:
    return f".{name}.new"


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(_draft(path.name))
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        # On a full disk, what is left would take the room that the next backup needs.
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
