"""`--code FOLDER`: what git would keep of a folder, as an archive that is sent once and known by its digest."""

import base64
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.values import Row, format_bytes, number_of, text_of
from services.runtime.code.archive import BLOCK_BYTES, MAX_ENTRIES, ArchiveError, write_archive

if TYPE_CHECKING:
    from muster.cli.command import Session

_SHOWN: Final = 5
"""Of the largest files, where all together are too large."""
_READ_BYTES: Final = 1024 * 1024
_GIT_SECONDS: Final = 60
_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-c", "safe.directory=*")
"""Nothing that a repository's own configuration names is run."""
_LEFT_OUT: Final = "put what is not needed into .gitignore, or have the program read it from elsewhere"


def send_code(session: "Session", request: Row, cluster: Row, given: str, *, dry_run: bool) -> str:
    """The digest of a folder, which the server has then (not in a dry run). Raises Problem."""
    folder = Path(given).resolve()
    if not folder.is_dir():
        if folder.is_file():
            raise usage(f"--code {given!r} is a file", todo="give its folder, such as --code .")
        raise usage(f"--code {given!r}: there is no folder {str(folder)!r}", todo="give the path of a folder")
    places: list[tuple[str, str | int]] = [(name, text_of(request, name)) for name in ("projectId", "clusterId")]
    limits = session.api.get("/code", places)
    paths = listed(folder)
    _check_size(folder, given, paths, int(number_of(limits, "maxBytes") or 0), cluster)
    with tempfile.TemporaryFile() as archive:
        digest = _pack(folder, given, paths, archive)
        if dry_run or session.api.get("/code", [*places, ("digest", digest)]).get("kept") is True:
            return digest
        parts = list(_parts(archive, int(number_of(limits, "partBytes") or 1)))
        session.out.talk(f"sending {len(paths)} files of {str(folder)!r}, {format_bytes(archive.tell())}")
        for number, part in enumerate(parts):
            sent: Row = {
                **dict(places),
                "digest": digest,
                "part": number,
                "parts": len(parts),
                "data": base64.b64encode(part).decode(),
            }
            session.api.mutate("POST", "/code", sent)
    return digest


def _check_size(folder: Path, given: str, paths: Sequence[str], most: int, cluster: Row) -> None:
    """Raises Problem (rejected)."""
    if not paths:
        raise usage(f"--code {given!r}: there is nothing to send", todo="git ignores all of it, or it is empty")
    if len(paths) > MAX_ENTRIES:
        raise Problem(
            f"--code {given!r} has {len(paths)} files; at most {MAX_ENTRIES} may be sent",
            todo=_LEFT_OUT,
            code=ExitCode.REJECTED,
        )
    try:
        sizes = {path: (folder / path).lstat().st_size for path in paths}
    except OSError as error:
        raise usage(f"--code: {error.filename!r} cannot be read: {error.strerror}", todo=_LEFT_OUT) from None
    total = sum(BLOCK_BYTES + size + -size % BLOCK_BYTES for size in sizes.values()) + 2 * BLOCK_BYTES
    if total > most:
        largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:_SHOWN]
        where = f"to cluster {text_of(cluster, 'name')!r}, of kind {text_of(cluster, 'kind')}"
        most_sent = f"at most {format_bytes(most)} may be sent {where}"
        raise Problem(
            f"--code {given!r} has {format_bytes(total)} in {len(paths)} files; {most_sent}",
            why=tuple(f"{format_bytes(sizes[path])}  {path}" for path in largest),
            todo=_LEFT_OUT + (", or have an image that holds it" if text_of(cluster, "kind") == "kubernetes" else ""),
            code=ExitCode.REJECTED,
        )


def _pack(folder: Path, given: str, paths: Sequence[str], archive: BinaryIO) -> str:
    """Raises Problem (usage)."""
    try:
        write_archive(folder, paths, archive)
    except (ArchiveError, OSError) as error:
        raise usage(f"--code {given!r}: {error}", todo=_LEFT_OUT) from None
    digest = hashlib.sha256()
    for block in _parts(archive, _READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _parts(archive: BinaryIO, size: int) -> Iterator[bytes]:
    archive.seek(0)
    while part := archive.read(size):
        yield part


# -- what git would keep -----------------------------------------------------------------------------------------------


def listed(folder: Path) -> list[str]:
    """Files and links below a folder that git does not ignore, as git itself reads every .gitignore; in no repository,
    too. Raises Problem.
    """
    try:
        inside = _git(folder, "rev-parse", "--is-inside-work-tree").returncode == 0
        if inside:
            found = _listed_by(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        else:
            with tempfile.TemporaryDirectory() as empty:
                _git(Path(empty), "init", "-q")
                apart = (f"--git-dir={empty}/.git", f"--work-tree={folder}")
                found = _listed_by(folder, *apart, "ls-files", "-z", "--others", "--exclude-standard")
    except FileNotFoundError:
        found = _without_git(folder)
    paths: list[str] = []
    for path in dict.fromkeys(found):
        place = folder / path
        try:
            if place.is_dir() and not place.is_symlink():  # a repository within this one, with rules of its own
                paths += [f"{path.rstrip('/')}/{below}" for below in listed(place)]
            elif os.path.lexists(place):
                paths.append(path)
        except OSError as error:
            raise usage(f"--code: {str(place)!r} cannot be read: {error.strerror}", todo=_LEFT_OUT) from None
    return paths


def _listed_by(folder: Path, *arguments: str) -> list[str]:
    ran = _git(folder, *arguments)
    if ran.returncode:
        said = os.fsdecode(ran.stderr).strip()
        raise Problem(f"git could not list {str(folder)!r}", why=(said,), code=ExitCode.FAILURE)
    return [os.fsdecode(path) for path in ran.stdout.split(b"\0") if path]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Raises FileNotFoundError where there is no git, Problem where it takes too long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            [*_GIT, *arguments],
            cwd=folder,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Problem(f"git did not list {str(folder)!r} within {_GIT_SECONDS} s", code=ExitCode.FAILURE) from None


def _without_git(folder: Path) -> list[str]:
    """All files, where nothing says that some are to be left out. Raises Problem (usage)."""
    paths: list[str] = []
    above = [parent for parent in (folder, *folder.parents) if (parent / ".git").exists()]
    for place, folders, files in folder.walk():
        links = [name for name in folders if (place / name).is_symlink()]
        paths += [(place / name).relative_to(folder).as_posix() for name in (*files, *links)]
    ignoring = [path for path in paths if path.rpartition("/")[2] == ".gitignore"]
    if above or ignoring:
        raise usage(
            "--code needs git to read .gitignore, and there is no git on this machine",
            todo="install git, or send a folder that is no repository and has no .gitignore",
        )
    return paths
