"""When a workload saved its work last: the newest file of its checkpoint folder.

The folder is the workload's own, so anything may be in it: links, loops of them, millions of files, deep trees,
folders that nobody may read, times that are still to come. No link is followed, no file is opened, and what one look
may cost is bounded. Standard library only.
"""

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple

MOST_ENTRIES: Final = 20_000
"""Files and folders that one look takes in, some 0.1 s."""
MOST_SECONDS: Final = 2.0
"""Likewise where the disk is slow."""
MOST_DEPTH: Final = 20
LOOK_SECONDS: Final = 30.0
"""How often a folder is looked at."""
NOT_WHOLE: Final = "checkpoints_not_all_seen"
"""Reason of the warning that there is too much in it."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Newest(NamedTuple):
    at: float | None
    """Unix seconds; None where no file was found."""
    whole: bool
    """Whether all was looked at. Where it was not, there may be newer files."""


class _Look:
    def __init__(self, entries: int, until: float) -> None:
        self._left = entries
        self._until = until
        self.at: float | None = None
        self.whole = True

    def folder(self, opened: int, depth: int) -> None:
        """All that is in an open folder; the folders that changed last are looked at first."""
        folders: list[tuple[float, str]] = []
        with os.scandir(opened) as found:
            for entry in found:
                if self._left <= 0 or time.monotonic() > self._until:
                    self.whole = False
                    return
                self._left -= 1
                with contextlib.suppress(OSError):
                    told = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(told.st_mode):
                        self.at = max(self.at or 0.0, told.st_mtime)
                    elif stat.S_ISDIR(told.st_mode):
                        folders.append((told.st_mtime, entry.name))
        if folders and depth >= MOST_DEPTH:
            self.whole = False
            return
        for _, name in sorted(folders, reverse=True):
            with contextlib.suppress(OSError):
                # By its name within the open one: what it is called from outside may be something else by now.
                below = os.open(name, _FOLDER, dir_fd=opened)
                try:
                    self.folder(below, depth + 1)
                finally:
                    os.close(below)


def newest_file(folder: Path, *, entries: int = MOST_ENTRIES, seconds: float = MOST_SECONDS) -> Newest:
    """Of the plain files in it, at any depth."""
    look = _Look(entries, time.monotonic() + seconds)
    with contextlib.suppress(OSError):
        opened = os.open(folder, _FOLDER)
        try:
            look.folder(opened, 0)
        finally:
            os.close(opened)
    return Newest(look.at, look.whole)
