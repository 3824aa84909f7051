"""A file system of a few megabytes, that a test can fill and empty. Only root may mount one: others skip."""

import contextlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.support.lacking import lacking

_CHUNK = b"." * 4096


class SmallDisk:
    """A tmpfs, and a file on it that takes what is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    @property
    def free_bytes(self) -> int:
        volume = os.statvfs(self.path)
        return volume.f_bavail * volume.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Use up all of it, but what shall be left."""
        with self._filler.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while self.free_bytes > leave_bytes:
                filler.write(_CHUNK)

    def empty(self) -> None:
        self._filler.unlink()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Generator[SmallDisk]:
    """Mounted at `folder`, which is made."""
    if os.geteuid() != 0:
        lacking("only root may mount a small file system")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "muster-test", str(folder)], check=False
    )
    if mounted.returncode != 0:
        lacking("no small file system can be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: whatever still has a file open there ends soon.
        subprocess.run(["umount", "-l", str(folder)], check=True)
