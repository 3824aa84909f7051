"""A pod's log as it is kept: the lines that Kubernetes gave, in the two files that log_file.py reads.

Kubernetes is asked for lines since a second, so whoever asks again gets some a second time: they are known by their
times, to the nanosecond, and left out.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from services.agent.backends.local.shim import PIECE_BYTES

TAIL_BYTES: Final = 256 * 1024
"""Read again when a log is gone on with: many times the longest piece of a line."""
_WIDTH: Final = len("2026-01-01T00:00:00.000000000Z")
_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)\Z")


class StoredLog:
    """Opens the files, and makes them where there are none. Raises OSError; a disk that is full later loses lines."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._half_bytes = max(max_bytes // 2, PIECE_BYTES)
        last = _cut_torn_line(path) or _tail(Path(f"{path}.1"))
        self._last, self._times = _newest(last)
        self._left = 0
        """Lines of the time `_last` that the present answer will repeat; -1: nothing any more."""
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    def since(self) -> str | None:
        """From when on to ask; None: from the beginning."""
        return self._last[:19].decode() + "Z" if self._last else None

    def skip_second(self) -> None:
        """Go on a second later: there is more within this one than an answer can hold."""
        if self._last:
            after = datetime.fromisoformat(self._last[:19].decode()) + timedelta(seconds=1)
            self._last, self._times = f"{after:%Y-%m-%dT%H:%M:%S}.{0:09d}Z".encode(), 0

    def begin(self) -> None:
        """A new answer begins: what it repeats is left out."""
        self._left = self._times

    def take(self, lines: Sequence[bytes]) -> int:
        """Store what is new among lines that begin with their time; how many that were."""
        out: list[bytes] = []
        for line in lines:
            written, _, text = line.partition(b" ")
            at = _in_utc(written)
            # Without a time it is no line of the pod's, but words of its node.
            if at is not None and self._is_new(at):
                out.append(_stored(at, text))
        self._write(out)
        return len(out)

    def close(self) -> None:
        os.close(self._file)

    def _is_new(self, at: bytes) -> bool:
        if self._left >= 0:
            if at < self._last:
                return False
            if at == self._last and self._left > 0:
                self._left -= 1
                return False
            # Within one answer lines come as they were written, even where their times do not.
            self._left = -1
        if at == self._last:
            self._times += 1
        elif at > self._last:
            self._last, self._times = at, 1
        return True

    def _write(self, lines: Sequence[bytes]) -> None:
        with contextlib.suppress(OSError):
            start = 0
            while start < len(lines):
                end, size = start, 0
                while end < len(lines) and (end == start or self._size + size + len(lines[end]) <= self._half_bytes):
                    size += len(lines[end])
                    end += 1
                if self._size and self._size + size > self._half_bytes:
                    self._rotate()
                    continue
                self._size += os.write(self._file, b"".join(lines[start:end]))
                start = end

    def _rotate(self) -> None:
        self._path.replace(f"{self._path}.1")
        before = self._file
        self._open()
        os.close(before)


def _stored(at: bytes, text: bytes) -> bytes:
    if len(text) <= PIECE_BYTES:
        return b"%s stdout F %s\n" % (at, text)
    pieces = [text[start : start + PIECE_BYTES] for start in range(0, len(text), PIECE_BYTES)]
    return b"".join(b"%s stdout P %s\n" % (at, piece) for piece in pieces[:-1]) + _stored(at, pieces[-1])


def _in_utc(text: bytes) -> bytes | None:
    """A time as the files have it; None where it is none. Nodes write the offset of their own clocks."""
    if len(text) == _WIDTH and text.endswith(b"Z") and text[10:11] == b"T":
        return text
    match = _TIME.match(text)
    if match is None:
        return None
    second, fraction, offset = (part.decode() for part in match.groups(b"0"))
    try:
        utc = datetime.fromisoformat(second + offset).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{fraction:0<9}Z".encode()


def _cut_torn_line(path: Path) -> bytes:
    """The end of the file; a last line that was not written whole is taken away."""
    end = _tail(path)
    whole = end[: end.rfind(b"\n") + 1]
    if len(whole) < len(end):
        with path.open("ab") as file:
            file.truncate(file.tell() - (len(end) - len(whole)))
    return whole


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
            return file.read()
    except FileNotFoundError:
        return b""


def _newest(end: bytes) -> tuple[bytes, int]:
    """The newest time, and how many whole lines have it."""
    lines = [line.split(b" ", 3) for line in end.split(b"\n")]
    times = [(line[0], line[2]) for line in lines if len(line) == 4 and len(line[0]) == _WIDTH]  # noqa: PLR2004 (fields)
    newest = max((at for at, _ in times), default=b"")
    return newest, sum(at == newest and mark == b"F" for at, mark in times)
