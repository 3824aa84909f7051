"""Reads the logs that shims write (shim.py, class Log), in batches, also while they grow and rotate."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from events.cluster_protocol import LogLine

BLOCK_BYTES: Final = 128 * 1024
"""Read and handed on at once: some hundreds of usual lines, and far below a NATS message's limit."""
POLL_SECONDS: Final = 0.2
"""How soon a reader that follows sees a new line; only while somebody follows."""


async def read_log(
    path: Path, *, tail_lines: int | None, since: datetime | None, running: Callable[[], bool] | None
) -> AsyncIterator[Sequence[LogLine]]:
    """Lines of `<path>.1` and `<path>`, oldest first; then, with `running`, what is added until it says no.

    A line longer than the shim's piece size comes in pieces. Bytes that are no UTF-8 are shown as U+FFFD.
    """
    earliest = _stamp(since) if since is not None else b""
    skip = await asyncio.to_thread(_tail_offset, path, tail_lines) if tail_lines is not None else 0
    files = _Files(path)
    try:
        for file in files.both():
            size = os.fstat(file.fileno()).st_size
            file.seek(min(skip, size))
            skip = max(skip - size, 0)
            async for lines in _to_end(file, earliest):
                yield lines
        if running is not None:
            async for lines in _grow(files, earliest, running):
                yield lines
    finally:
        files.close()


class _Files:
    """The two files of a log as they were opened; the newer one changes as the log rotates."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Opened newest first: should the shim rotate between the two, both are the same file, read once.
        self.current = _open(path)
        self._before = _open(Path(f"{path}.1"))
        if self._before is not None and self.current is not None and _same(self._before, self.current):
            self._before.close()
            self._before = None

    def both(self) -> list[BinaryIO]:
        return [file for file in (self._before, self.current) if file is not None]

    def moved(self) -> bool:
        """Whether the newer file is an older one by now."""
        return self.current is None or not _is_at(self._path, self.current)

    def next(self) -> None:
        if self.current is not None:
            self.current.close()
        self.current = _open(self._path)

    def close(self) -> None:
        for file in self.both():
            file.close()


async def _grow(files: _Files, earliest: bytes, running: Callable[[], bool]) -> AsyncIterator[Sequence[LogLine]]:
    rest = b""
    while True:
        # Both asked before reading: what was written until then is read in this very turn.
        last_turn = not running()
        moved = files.moved()
        while files.current is not None and (block := files.current.read(BLOCK_BYTES)):
            whole, rest = _split(rest + block)
            if lines := _parse(whole, earliest):
                yield lines
        if moved:
            files.next()
            rest = b""
        if not moved or files.current is None:
            if last_turn:
                return
            await asyncio.sleep(POLL_SECONDS)


async def _to_end(file: BinaryIO, earliest: bytes) -> AsyncIterator[Sequence[LogLine]]:
    rest = b""
    while block := file.read(BLOCK_BYTES):
        whole, rest = _split(rest + block)
        if lines := _parse(whole, earliest):
            yield lines
        await asyncio.sleep(0)
    file.seek(-len(rest), os.SEEK_CUR)


def _split(data: bytes) -> tuple[bytes, bytes]:
    at = data.rfind(b"\n") + 1
    return data[:at], data[at:]


def _parse(data: bytes, earliest: bytes) -> list[LogLine]:
    lines: list[LogLine] = []
    for raw in data.split(b"\n"):
        parts = raw.split(b" ", 3)
        # Times have one fixed width in the file, so bytes compare as times do.
        if len(parts) != 4 or parts[0] < earliest:  # noqa: PLR2004 (time, stream, mark, text)
            continue
        lines.append(
            LogLine(
                at=datetime.fromisoformat(parts[0].decode()),
                stream=parts[1].decode(),
                text=parts[3].decode(errors="replace"),
            )
        )
    return lines


def _stamp(at: datetime) -> bytes:
    utc = at.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond * 1000:09d}Z".encode()


def _tail_offset(path: Path, tail_lines: int) -> int:
    """Where the last lines begin, counted in bytes over `<path>.1` and `<path>` together."""
    files = _Files(path)
    try:
        return _offset_of_tail(files.both(), tail_lines)
    finally:
        files.close()


def _offset_of_tail(files: Sequence[BinaryIO], tail_lines: int) -> int:
    sizes = [os.fstat(file.fileno()).st_size for file in files]
    end = sum(sizes)
    missing = tail_lines + 1
    for file, size in zip(reversed(files), reversed(sizes), strict=True):
        start_of_file, at = end - size, size
        while at > 0:
            begin = max(at - BLOCK_BYTES, 0)
            file.seek(begin)
            block = file.read(at - begin)
            count = block.count(b"\n")
            if count >= missing:
                for _ in range(count - missing + 1):
                    found = block.find(b"\n") + 1
                    block, begin = block[found:], begin + found
                return start_of_file + begin
            missing -= count
            at = begin
        end = start_of_file
    return 0


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.sameopenfile(one.fileno(), other.fileno())


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        there = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    here = os.fstat(file.fileno())
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
