"""The data folder of `muster up`: its layout, its lock, its version, its secrets and its ports. Standard library only.

version           the layout's version: a folder of a newer one is refused
muster.lock       held while the folder is in use; names the process that holds it
ports.json        loopback ports, kept so that addresses stay the same
secrets/nats/S    password of service S, 0600
secrets/callout   keys of the service that lets subscribers in, 0600
secrets/postgres  password of the database, 0600
clusters/ID       how to reach the Kubernetes cluster of that id (a kubeconfig), 0600; each has an agent of its own
keys/local.json   the key that signs local tokens; keys/jwks.json is its public part
keys/webhooks     the key that keys of webhooks are derived from, 0600
keys/credentials  the keys that open values of credentials, 0600; keys/credentials-public is the public half of one
nats/ postgres/   what the servers keep
local/            what the local cluster keeps: pods, logs
logs/             one file per child process
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

LAYOUT_VERSION: Final = 2
"""Raised with every change that an older program would misread. 2: each stream in an account of its own."""
SECRET_BYTES: Final = 24
"""192 bits: not to be guessed."""
LOCK_WAIT_SECONDS: Final = 10.0
"""Servers of a supervisor that was killed hold the lock until the kernel has ended them: well under a second."""
LOCK_POLL_SECONDS: Final = 0.05
_CLUSTER_ID: Final = re.compile(r"[0-9a-f-]{36}")


class DataDirError(Exception):
    """The folder cannot be used; the message says why and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Loopback ports of one `muster up`, beside the one for HTTP."""

    nats: int
    postgres: int
    control_health: int
    workers_health: int
    proxy: int = 0
    """0 in a folder of before there was one: another is chosen at the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDir:
    """A data folder: where things are in it, its secrets, its ports."""

    root: Path
    lock_fd: int | None = None
    """The lock, inherited by servers, so that it is held while one of them lives. None in a child of the holder."""

    @property
    def inherited_fds(self) -> tuple[int, ...]:
        """What a server must inherit."""
        return () if self.lock_fd is None else (self.lock_fd,)

    @property
    def other_tables(self) -> Path:
        """A mark: it is there while the tables are those of another version of Muster (`tables.py`)."""
        return self.root / "other-tables"

    @property
    def nats_secrets(self) -> Path:
        return self.root / "secrets" / "nats"

    @property
    def key_file(self) -> Path:
        """The key that signs local tokens."""
        return self.root / "keys" / "local.json"

    @property
    def jwks_file(self) -> Path:
        """Its public part."""
        return self.root / "keys" / "jwks.json"

    @property
    def webhook_key_file(self) -> Path:
        """From which keys of webhooks are derived."""
        return self.root / "keys" / "webhooks"

    @property
    def credential_key_file(self) -> Path:
        """What opens the values of credentials."""
        return self.root / "keys" / "credentials"

    @property
    def credential_public_key_file(self) -> Path:
        """What they are sealed to."""
        return self.root / "keys" / "credentials-public"

    @property
    def token_file(self) -> Path:
        """The newest token of the administrator."""
        return self.root / "secrets" / "token"

    @property
    def callout(self) -> Path:
        """Keys of the service `subscriptions`, by name."""
        return self.root / "secrets" / "callout"

    @property
    def nats(self) -> Path:
        return self.root / "nats"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def clusters(self) -> Path:
        """Kubeconfigs of clusters that this `muster up` runs an agent for, each under its cluster's id."""
        return self.root / "clusters"

    def connected_clusters(self) -> dict[str, int]:
        """Their ids, each with a number that changes when the file does."""
        found: dict[str, int] = {}
        for path in self.clusters.glob("*"):
            # Nothing else that lies there may stop everything: a draft (write_private), an editor's copy.
            if _CLUSTER_ID.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):  # removed just now
                    found[path.name] = path.stat().st_mtime_ns
        return found

    def agent_password_file(self, cluster_id: str) -> Path:
        """Of the NATS user of a cluster's own agent."""
        return self.nats_secrets / f"agent-{cluster_id}"

    def secret(self, name: str) -> str:
        """The secret of that name below `secrets/`; made where there is none yet."""
        path = self.root / "secrets" / name
        with contextlib.suppress(FileNotFoundError):
            return path.read_text()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        value = secrets.token_urlsafe(SECRET_BYTES)
        write_private(path, value)
        return value

    def is_in_use(self) -> bool:
        """Whether a `muster up`, or a server that one left behind, holds the folder. A copy of it is not held."""
        try:
            lock_fd = os.open(self.root / "muster.lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock_fd)
        return False

    def choose_ports(self) -> Ports:
        """The ports of last time where they are free, others where they are not. For the holder of the folder."""
        try:
            kept = asdict(self.ports())
        except DataDirError:
            kept = {}
        chosen = free_ports({port.name: kept.get(port.name, 0) for port in fields(Ports)})
        if chosen != kept:
            write_private(self.root / "ports.json", json.dumps(chosen, indent=2))
        return Ports(**chosen)

    def ports(self) -> Ports:
        """The ports that the folder's holder chose. Raises DataDirError where nobody ever did."""
        try:
            return Ports(**json.loads((self.root / "ports.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise DataDirError(f"{self.root} is not a data folder of `muster up`: {error}") from error


def default_data_dir() -> Path:
    """`MUSTER_DATA_DIR`, or `muster` in the folder where this user's programs keep their data."""
    named = os.environ.get("MUSTER_DATA_DIR")
    if named:
        return Path(named).expanduser()
    share = os.environ.get("XDG_DATA_HOME")
    return (Path(share) if share else Path.home() / ".local" / "share") / "muster"


@contextlib.contextmanager
def open_data_dir(root: Path) -> Generator[DataDir]:
    """Take the folder for this process: make it where it is not there, lock it, look at its version.

    Raises DataDirError where another process holds it, where a newer Muster wrote it, or where it is somebody else's.
    """
    # By its own name: a link on the way could be made to lead elsewhere while this runs.
    root = root.expanduser().resolve()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(root / "muster.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirError(f"data folder {root} cannot be made or written: {error.strerror}; pass another") from error
    try:
        _lock(root, lock_fd)
        _check_version(root)
        _check_log(root)
        for folder in (
            "secrets",
            "secrets/nats",
            "secrets/callout",
            "clusters",
            "keys",
            "nats",
            "postgres",
            "local",
            "logs",
        ):
            (root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        yield DataDir(root=root, lock_fd=lock_fd)
    finally:
        os.close(lock_fd)


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _lock(root: Path, lock_fd: int) -> None:
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(lock_fd, 20, 0).decode("ascii", "replace").strip()
            # A holder that is gone leaves servers behind that the kernel is just ending.
            if _is_running(holder) or time.monotonic() > deadline:
                raise DataDirError(
                    f"data folder {root} is in use by process {holder or 'unknown'}: "
                    f"stop that one, or pass another folder with --data-dir"
                ) from None
            time.sleep(LOCK_POLL_SECONDS)
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)


def _check_log(root: Path) -> None:
    """Refuse to begin an empty log beside the tables of another one."""
    data = DataDir(root=root)
    was_ready_once = data.token_file.exists()
    if was_ready_once and not any(data.nats.glob("*/*/*/streams/EVENTS")):
        raise DataDirError(
            f"the event log is gone from {data.nats}, and everything else in {root} is of that log: put the folder "
            f"`nats` back as it was. To begin anew with an empty log, remove {root}, or pass another folder with "
            "--data-dir"
        )


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _check_version(root: Path) -> None:
    path = root / "version"
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        others = sorted(entry.name for entry in root.iterdir() if entry.name != "muster.lock")
        if others:
            raise DataDirError(
                f"folder {root} is not empty and not a data folder of Muster (it holds {others[0]}): "
                f"pass an empty or a new folder with --data-dir"
            ) from None
        write_private(path, f"{LAYOUT_VERSION}\n")
        return
    if not text.isdecimal():
        raise DataDirError(f"{path} should hold a number, not {text[:20]!r}: pass another folder with --data-dir")
    if int(text) > LAYOUT_VERSION:
        raise DataDirError(
            f"data folder {root} was written by a newer Muster (layout {text}, this one knows up to {LAYOUT_VERSION}): "
            f"install the newer one, or pass another folder with --data-dir"
        )
    if int(text) < LAYOUT_VERSION:
        _move_streams(root / "nats" / "jetstream" / "jetstream")
        write_private(path, f"{LAYOUT_VERSION}\n")


def _move_streams(accounts: Path) -> None:
    """From layout 1, where all streams stood in one account. Where that ended half way, it goes on."""
    for stream in accounts.glob("MUSTER/streams/*"):
        place = accounts / f"STORE_{stream.name}" / "streams" / stream.name
        place.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        stream.replace(place)


def free_ports(wanted: dict[str, int]) -> dict[str, int]:
    """A free port for each name, the wanted one where it is free; none twice, since all are held at once."""
    with contextlib.ExitStack() as held:
        chosen: dict[str, int] = {}
        for name, port in wanted.items():
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                holder.bind(("127.0.0.1", 0))
            chosen[name] = holder.getsockname()[1]
    return chosen
