"""Archives of code: a plain ustar with regular files, folders and links that stay inside, written and read strictly.

Python's tarfile reads far more than we write: hard links, devices, sparse files, extended headers, names beyond a
header; its filters have let links lead out of the folder. Here everything but our own few forms is refused, and what is
unpacked is bounded by the archive's own size: nothing in it is compressed. Standard library only.
"""

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

BLOCK_BYTES: Final = 512
MAX_ENTRIES: Final = 20_000
"""Files, folders and links of one archive; and the folders that are made for them, which need no entry of their own."""
MAX_NAME_BYTES: Final = 255
"""Of a path: what two fields of a ustar header hold."""
MAX_DEPTH: Final = 64
_NAME_BYTES: Final = 100
_PREFIX_BYTES: Final = 155
_COPY_BYTES: Final = 1024 * 1024
_MAGIC: Final = b"ustar\x0000"
_FILE, _LINK, _FOLDER = b"0", b"2", b"5"
_NO_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class ArchiveError(Exception):
    """It is no archive of ours, or would reach out of its folder; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    path: str
    """Relative, parts joined by `/`; bytes that are no UTF-8 as Python has them in file names."""
    kind: bytes
    size: int = 0
    executable: bool = False
    link: str = ""

    @property
    def parts(self) -> list[str]:
        return self.path.split("/")


# -- writing -----------------------------------------------------------------------------------------------------------


def write_archive(folder: Path, paths: Sequence[str], out: BinaryIO) -> None:
    """Files and links of a folder, by relative paths. The same content gives the same bytes, whoever packs it and when.
    Raises ArchiveError for what cannot be sent, OSError.
    """
    folders = {str(parent) for path in paths for parent in Path(path).parents} - {"."}
    if len(folders) > MAX_ENTRIES:
        raise ArchiveError(f"its files are in more than {MAX_ENTRIES} folders")
    for path in sorted(paths, key=os.fsencode):
        _write_one(folder, path, out)
    out.write(bytes(2 * BLOCK_BYTES))


def _write_one(folder: Path, path: str, out: BinaryIO) -> None:
    found = (folder / path).lstat()
    if stat.S_ISLNK(found.st_mode):
        entry = Entry(path=path, kind=_LINK, link=str((folder / path).readlink()))
        check_entry(entry)
        out.write(_header(entry))
        return
    if not stat.S_ISREG(found.st_mode):
        raise ArchiveError(f"{path!r} is neither a file nor a link")
    descriptor = os.open(folder / path, os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        entry = Entry(path=path, kind=_FILE, size=size, executable=bool(found.st_mode & stat.S_IXUSR))
        check_entry(entry)
        out.write(_header(entry))
        left = size
        while left and (block := file.read(min(left, _COPY_BYTES))):
            out.write(block)
            left -= len(block)
        if left:
            raise ArchiveError(f"{path!r} became shorter while it was read; try again")
    out.write(bytes(-size % BLOCK_BYTES))


def _header(entry: Entry) -> bytes:
    name, prefix = _split(os.fsencode(entry.path))
    mode = 0o755 if entry.executable or entry.kind != _FILE else 0o644
    fields = (
        name.ljust(_NAME_BYTES, b"\0"),
        b"%07o\0" % mode,
        b"%07o\0" % 0,
        b"%07o\0" % 0,
        b"%011o\0" % entry.size,
        b"%011o\0" % 0,
        b" " * 8,
        entry.kind,
        os.fsencode(entry.link).ljust(_NAME_BYTES, b"\0"),
        _MAGIC,
        bytes(80),
        prefix.ljust(_PREFIX_BYTES, b"\0"),
        bytes(12),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _split(path: bytes) -> tuple[bytes, bytes]:
    """The name and prefix fields. Raises ArchiveError."""
    if len(path) <= _NAME_BYTES:
        return path, b""
    at = path.find(b"/", max(len(path) - _NAME_BYTES - 1, 1), _PREFIX_BYTES + 1)
    if at < 0:
        raise ArchiveError(f"the path {os.fsdecode(path)!r} is too long to be sent")
    return path[at + 1 :], path[:at]


def check_entry(entry: Entry) -> None:
    """Raises ArchiveError where it could stand for something outside the folder, or no file system holds it."""
    shown = repr(entry.path[:MAX_NAME_BYTES])
    raw = os.fsencode(entry.path)
    if not 0 < len(raw) <= MAX_NAME_BYTES or b"\0" in raw or len(entry.parts) > MAX_DEPTH:
        raise ArchiveError(f"the path {shown} is too long to be sent")
    if any(part in {"", ".", ".."} for part in entry.parts):
        raise ArchiveError(f"the path {shown} is not one of the folder")
    if entry.kind == _LINK:
        _check_link(entry, shown)


def _check_link(entry: Entry, shown: str) -> None:
    raw = os.fsencode(entry.link)
    if not 0 < len(raw) <= _NAME_BYTES or b"\0" in raw:
        raise ArchiveError(f"the link {shown} leads too far to be sent")
    steps = [part for part in entry.link.split("/") if part not in {"", "."}]
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    # Behind a name, `..` may mean another folder than it seems: the name may be a link itself.
    if entry.link.startswith("/") or up >= len(entry.parts) or ".." in steps[up:]:
        raise ArchiveError(f"the link {shown} may lead out of the folder, to {entry.link!r}")


# -- reading -----------------------------------------------------------------------------------------------------------


def unpack(archive: Path, target: Path) -> None:
    """Into a folder that is there and empty. No link is followed while writing, whatever stands there.
    Raises ArchiveError, OSError.
    """
    with archive.open("rb") as file, _opened(str(target), None) as root:
        links: list[Entry] = []
        folders = _Folders(root)
        for entry in _entries(file):
            if entry.kind == _LINK:
                links.append(entry)  # once all files are there: nothing is ever written through one
            elif entry.kind == _FOLDER:
                with folders.of([*entry.parts, ""]):
                    pass
            else:
                _unpack_file(folders, entry, file)
        for entry in links:
            with folders.of(entry.parts) as folder, _told_apart(entry):
                os.symlink(entry.link, entry.parts[-1], dir_fd=folder)


def check(file: BinaryIO) -> None:
    """That `unpack` takes it, without unpacking it: another program will. Raises ArchiveError."""
    tree, links = _Tree(), list[Entry]()
    for entry in _entries(file):
        if entry.kind == _LINK:
            links.append(entry)
        else:
            tree.add(entry)
        left = entry.size
        while left:
            block = file.read(min(left, _COPY_BYTES))
            if not block:
                raise ArchiveError(f"it ends within {entry.path!r}")
            left -= len(block)
        _skip_padding(entry, file)
    for entry in links:
        tree.add(entry)


class _Tree:
    """What an archive would make of an empty folder."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._leaves: set[str] = set()

    def add(self, entry: Entry) -> None:
        """Raises ArchiveError."""
        parts = entry.parts if entry.kind == _FOLDER else entry.parts[:-1]
        while parts and (folder := "/".join(parts)) not in self._folders:
            if folder in self._leaves:
                raise ArchiveError(f"{entry.path!r} is below an entry that is not a folder")
            if len(self._folders) >= MAX_ENTRIES:
                raise ArchiveError(f"its files are in more than {MAX_ENTRIES} folders")
            self._folders.add(folder)
            parts = parts[:-1]
        if entry.kind != _FOLDER:
            if entry.path in self._leaves or entry.path in self._folders:
                raise ArchiveError(f"it contains the path {entry.path!r} twice")
            self._leaves.add(entry.path)


def _unpack_file(folders: "_Folders", entry: Entry, file: BinaryIO) -> None:
    with folders.of(entry.parts) as folder:
        mode = 0o755 if entry.executable else 0o644
        with _told_apart(entry):
            made = os.open(entry.parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, mode, dir_fd=folder)
        with os.fdopen(made, "wb") as out:
            left = entry.size
            while left:
                block = file.read(min(left, _COPY_BYTES))
                if not block:
                    raise ArchiveError(f"it ends within {entry.path!r}")
                out.write(block)
                left -= len(block)
    _skip_padding(entry, file)


def _skip_padding(entry: Entry, file: BinaryIO) -> None:
    if file.read(-entry.size % BLOCK_BYTES).strip(b"\0"):
        raise ArchiveError(f"it contains data between {entry.path!r} and the next entry")


@contextmanager
def _told_apart(entry: Entry) -> Generator[None]:
    try:
        yield
    except FileExistsError:
        raise ArchiveError(f"it contains the path {entry.path!r} twice") from None


@contextmanager
def _opened(path: str, within: int | None) -> Generator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Folders:
    """Those of one archive, below an opened one; counted, because a path of few bytes may name MAX_DEPTH of them."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._left = MAX_ENTRIES

    @contextmanager
    def of(self, parts: Sequence[str]) -> Generator[int]:
        """The folder that an entry stands in, made where it is not there; opened part by part."""
        descriptor = os.dup(self._root)
        try:
            for part in parts[:-1]:
                self._make(part, descriptor)
                try:
                    below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=descriptor)
                except NotADirectoryError:
                    raise ArchiveError(f"{'/'.join(parts)!r} is below an entry that is not a folder") from None
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _make(self, name: str, within: int) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=within)
        except FileExistsError:
            return
        self._left -= 1
        if self._left < 0:
            raise ArchiveError(f"its files are in more than {MAX_ENTRIES} folders")


def _entries(file: BinaryIO) -> Iterator[Entry]:
    """What the archive says, each checked; the reader takes a file's content before it asks for the next."""
    for _ in range(MAX_ENTRIES + 1):
        block = file.read(BLOCK_BYTES)
        if len(block) != BLOCK_BYTES:
            raise ArchiveError("it ends too early")
        if not block.strip(b"\0"):
            if file.read(BLOCK_BYTES + 1) != bytes(BLOCK_BYTES):
                raise ArchiveError("it contains data after its end")
            return
        yield _entry(block)
    raise ArchiveError(f"it holds more than {MAX_ENTRIES} files")


def _entry(block: bytes) -> Entry:
    if block[257:265] != _MAGIC or _number(block[148:154]) != sum(block[:148]) + 8 * 32 + sum(block[156:]):
        raise ArchiveError("it is not an archive of code")
    kind = block[156:157]
    if kind not in {_FILE, _LINK, _FOLDER}:
        raise ArchiveError("it contains an entry that is not a file, a folder or a link")
    name, prefix = _text(block[0:100]), _text(block[345:500])
    path = os.fsdecode(prefix + b"/" + name if prefix else name)
    size = _number(block[124:135])
    if kind != _FILE and size:
        raise ArchiveError(f"{path!r} has content but is not a file")
    entry = Entry(
        path=path,
        kind=kind,
        size=size,
        executable=bool(_number(block[100:107]) & stat.S_IXUSR),
        link=os.fsdecode(_text(block[157:257])),
    )
    check_entry(entry)
    return entry


def _number(field: bytes) -> int:
    if field.strip(b"01234567") or not field:
        raise ArchiveError("it contains an invalid number")
    return int(field, 8)


def _text(field: bytes) -> bytes:
    text, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        raise ArchiveError("it contains an invalid name")
    return text
