"""Files of the local cluster beside the runs' own: the fences, and the clearing away of old logs."""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

SIGNING_KEY: Final = Path("keys") / "local.json"
"""In a data folder of `muster up`: who reads it can be anybody."""
FENCE_SECONDS: Final = 30 * 24 * 3600.0
"""How long a pod's fence is kept after it last moved. Messages that could start an old run are long gone."""


class Fences:
    """Per pod key the smallest token that may be started: a journal of one line per change, shortened at every start.

    It outlives this agent, not a loss of power: after that, no process is left that a second start could double.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tokens: dict[str, int] = {}
        moved: dict[str, float] = {}
        oldest = time.time() - FENCE_SECONDS
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_bytes().splitlines():
                # A line may be torn, or lie where the disk lost what stood there. What is left of a torn one's time is
                # long ago.
                with contextlib.suppress(ValueError):
                    key, token, at = line.decode().split(" ")
                    if float(at) >= oldest:
                        self.tokens[key] = max(self.tokens.get(key, 0), int(token))
                        moved[key] = float(at)
        short = path.with_suffix(".new")
        short.write_text("".join(f"{key} {token} {moved[key]:.0f}\n" for key, token in self.tokens.items()))
        short.replace(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def raise_to(self, pod_key: str, token: int) -> None:
        """Raises OSError where the disk does not take it; then it is not raised."""
        if self.tokens.get(pod_key, 0) >= token:
            return
        # On a line of its own also after one that was torn: a full disk may take a part.
        line = f"\n{pod_key} {token} {time.time():.0f}\n".encode()
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, f"{self._path}: {os.strerror(errno.ENOSPC)}")
        self.tokens[pod_key] = token

    def close(self) -> None:
        os.close(self._file)


def delete_old_logs(
    settled: Path, retention_seconds: float, total_max_bytes: int, *, keep: Collection[Path] = ()
) -> int:
    """Delete settled runs that ended too long ago, and the oldest of the rest where all together are too large; those
    in `keep` are left alone, and not counted.
    """
    runs: list[tuple[float, int, Path]] = []
    for path in set(settled.glob("*/*")).difference(keep):
        files = [file.stat() for file in path.iterdir() if file.is_file()]
        runs.append((max((f.st_mtime for f in files), default=0.0), sum(f.st_size for f in files), path))
    runs.sort(reverse=True)
    oldest, kept_bytes, deleted = time.time() - retention_seconds, 0, 0
    for ended_at, size, path in runs:
        kept_bytes += size
        if ended_at >= oldest and kept_bytes <= total_max_bytes:
            continue
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
        deleted += 1
    return deleted


def with_copies(hidden: Sequence[str]) -> tuple[str, ...]:
    """These folders, and beside each that is a data folder every other one: a backup, or what this one was copied from.

    Looked at anew for each pod, since copies are made while we run.
    """
    found = list(hidden)
    for folder in map(Path, hidden):
        if (folder / SIGNING_KEY).exists():
            # One that we cannot list a pod, who is the same user, cannot either.
            with contextlib.suppress(OSError):
                found += [
                    str(beside) for beside in folder.resolve().parent.iterdir() if (beside / SIGNING_KEY).exists()
                ]
    return tuple(dict.fromkeys(found))
