"""What a pod on this machine cannot see: Muster's data folder, keys and processes. Linux namespaces, by system calls.

A pod gets a mount, a PID and an IPC namespace of its own, and no capability. It stays the same user, so that it works
in its user's folders as any program of theirs does. Where we are not root, a user namespace that knows this one user
gives the rights to set that up; they end before the pod's command begins.

`python -m services.agent.backends.local.isolation` tries it: it prints nothing where it works, and the cause where not.
Standard library only, and little of it: it is part of every pod's start.
"""

# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH118, PTH120, PTH123, PTH208, PTH211
# pathlib takes longer to import than everything else here together.

import contextlib
import ctypes
import errno
import fnmatch
import json
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CAPABILITY_VERSION_3 = 0x20080522
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
SYS_MOUNT_SETATTR = 442
"""mount_setattr(2), since Linux 5.12; the same number on every architecture."""
AT_FDCWD = -100
AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 1

SYSTEM_FOLDERS = (
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib",
    "/var/spool",
)
"""What only root may change. A pod of root's may not either: it would be a way out."""
KERNEL_FILES = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""What root may write without any capability, and through which it could run programs outside."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "nvidia*", "dri", "kfd", "accel*", "infiniband")
"""What a pod finds in /dev, where this machine has it. No disks: root reads them without any capability."""
RUN_FOLDERS = ("/run", "/var/run")
"""Sockets of the system's services, through which programs can be started outside."""
MNT_DETACH = 2
MOST_MIRRORED = 1_000
"""Entries of a folder that is laid out anew for a volume: each is a mount."""
STAGES = ("/tmp", "/run", "/mnt", "/dev")  # noqa: S108 (covered while a new root is built on it)
OF_PATHS = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP),
        *(errno.ENAMETOOLONG, errno.EISDIR, errno.EINVAL),
    }
)
"""What the kernel says of a path that is not, or is not for us: the same each time. Other errors may pass."""
NEEDED = "Linux 5.12 or later that lets this user make namespaces"


class IsolationError(Exception):
    """A pod could not be shut off from the rest of this machine; the message says what failed."""


class VolumeError(Exception):
    """A volume could not be laid where it was asked for; the message says why."""

    def __init__(self, message: str, *, for_ever: bool = True) -> None:
        super().__init__(message)
        self.for_ever = for_ever
        """Whether it cannot be until somebody changes something on this machine."""


class Volume:
    """What a pod finds at a path."""

    def __init__(
        self, *, kind: str, target: str, source: str = "", read_only: bool = False, most_bytes: int = 0
    ) -> None:
        self.kind = kind
        """own: a folder or file of Muster's, whatever is hidden. node: a path, as the pod sees it. memory: empty, in
        memory.
        """
        self.target = target
        self.source = source
        self.read_only = read_only
        self.most_bytes = most_bytes
        """Of memory; 0: half of the machine's."""


class Cell:
    """The namespaces of one pod, kept by their first process, which ends with the one that made them."""

    def __init__(self, init_pid: int) -> None:
        self.init_pid = init_pid
        folder = f"/proc/{init_pid}/ns"
        self._namespaces = [os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "ipc")]

    def join(self) -> None:
        """Be inside: for a process that is about to become the pod's command."""
        for namespace in self._namespaces:
            os.setns(namespace)

    def close(self) -> None:
        for namespace in self._namespaces:
            os.close(namespace)


class Walls:
    """What is different for pods: of all of them folders, by absolute paths."""

    def __init__(
        self,
        *,
        hidden: "Sequence[str]" = (),
        read_only: "Sequence[str]" = (),
        closed: "Sequence[str]" = (),
        kept: "Sequence[str]" = (),
        volumes: "Sequence[Volume]" = (),
        untouched: "Sequence[str]" = (),
    ) -> None:
        self.hidden = hidden
        """They are empty inside."""
        self.read_only = read_only
        """Nothing in them can be changed, at any depth."""
        self.closed = closed
        """Files in them cannot be changed, and nothing new be made; but what is in their folders can."""
        self.kept = kept
        """Below a hidden one, and there all the same."""
        self.volumes = volumes
        self.untouched = untouched
        """In these and below, no folder is made for a volume."""


def enter(walls: Walls) -> Cell:
    """Have all children from now on be born in new namespaces. Raises IsolationError, VolumeError."""
    root = os.geteuid() == 0
    try:
        _unshare_processes()
    except OSError as error:
        none_left = error.errno == errno.ENOSPC
        cause = "the limits in /proc/sys/user allow no more" if none_left else error.strerror
        raise IsolationError(f"no namespaces: {cause}; it takes {NEEDED}") from error
    told, tell = os.pipe2(os.O_CLOEXEC)
    lives, live = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(live)
        _be_init(walls, root=root, tell=tell, lives=lives)
    os.close(tell)
    os.close(lives)
    with os.fdopen(live, "wb") as go, os.fdopen(told, "rb") as answer:
        go.write(b"go")
        go.flush()
        said = answer.read()
    if said != b"ready":
        os.waitpid(pid, 0)
        step, number, text = json.loads(said) if said else ("start", 0, "it ended at once")
        if step in {"volume", "no_volume"}:
            raise VolumeError(text, for_ever=step == "no_volume")
        what = os.strerror(number) if number else text
        raise IsolationError(f"namespaces cannot be prepared ({step}: {what}); it takes {NEEDED}")
    return Cell(pid)


def _unshare_processes() -> None:
    """Root can do it as it is, unless it is root of a container without rights; everybody else in a user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        try:
            os.unshare(os.CLONE_NEWPID)
        except PermissionError:
            pass
        else:
            return
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWPID)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "wb") as file:
            file.write(text.encode())


def give_up_rights() -> None:
    """From now on neither this process nor what it becomes has a capability, or can get one by a program's."""
    libc = _libc()
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


# -- the first process inside ------------------------------------------------------------------------------------------


def _be_init(walls: Walls, *, root: bool, tell: int, lives: int) -> None:
    """Prepare what pods see, then wait for orphans until the kernel ends us. Never returns."""
    step = "start"
    try:
        os.setsid()
        # Everything in a PID namespace is ended with its first process.
        _libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.read(lives, 2) != b"go":
            os._exit(1)
        os.unshare(os.CLONE_NEWNS | os.CLONE_NEWIPC)
        step = "mounts"
        _mount(None, "/", None, MS_REC | MS_PRIVATE)
        _arrange(walls, root=root)
        step = "rights"
        give_up_rights()
        # What is open here, or where we stand, could be reached through our entry in /proc.
        os.chdir("/")
        os.write(tell, b"ready")
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    except BaseException as error:  # noqa: BLE001 (nothing may return into the caller's code in this process)
        number = error.errno if isinstance(error, OSError) else 0
        if isinstance(error, VolumeError):
            step = "no_volume" if error.for_ever else "volume"
        os.write(tell, json.dumps([step, number, str(error)]).encode())
        os._exit(1)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigtimedwait([signal.SIGCHLD], 1.0)


def _arrange(walls: Walls, *, root: bool) -> None:
    """Every folder as a pod may see it. Opened first what is laid over others: a name leads to the newest mount."""
    resolver = os.path.dirname(os.path.realpath("/etc/resolv.conf"))
    below_run = any(resolver.startswith(f"{folder}/") for folder in RUN_FOLDERS)
    # The names of this machine's name servers often stand below /run.
    own = [(path, _open(path)) for path in (*walls.kept, *((resolver,) if below_run else ()))]
    opened = os.O_PATH | os.O_CLOEXEC
    of_ours = {volume.target: os.open(volume.source, opened) for volume in walls.volumes if volume.kind == "own"}
    sockets = _sockets()
    # A folder that something is mounted on cannot be moved away: what the next pod is to hide must stay in its place.
    read_only = (*walls.read_only, *(SYSTEM_FOLDERS if root else ()))
    for path in _folders_above((*walls.hidden, *read_only, *walls.closed)):
        _mount(path, path, None, MS_BIND | MS_REC)
    for path in _real(walls.closed):
        _close(path)
    for path in _real(read_only):
        _mount(path, path, None, MS_BIND | MS_REC)
        _set_read_only(path)
    _arrange_devices()
    covered: list[str] = []
    for path in _real((*walls.hidden, *RUN_FOLDERS)):
        if os.path.isdir(path):  # not one below another
            _hide(path)
            covered.append(path)
    for path, folder in own:
        _lay(folder, path)
    for path in sockets:
        with contextlib.suppress(OSError):  # below a folder that is hidden by now
            _mount("/dev/null", path, None, MS_BIND)
    for path in covered:
        _mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if root:
        for path in _real(KERNEL_FILES):
            _mount(path, path, None, MS_BIND | MS_REC)
            _set_read_only(path)
    if walls.volumes:
        _Volumes(walls.untouched).lay(walls.volumes, of_ours)


class _Volumes:
    """Lays volumes, each at its path. Where a pod's path has no folder on this machine, none is made there: the folder
    above it is laid out anew, of what is in it and of the one that is missing, and nothing else can be made in it.
    """

    def __init__(self, untouched: "Sequence[str]") -> None:
        self._untouched = [os.path.realpath(path) for path in untouched]
        self._made: set[str] = set()
        """Folders of this pod alone, in which others can be made; likewise all below those of `_volumes`."""
        self._volumes: list[str] = []
        self._mirrors: list[str] = []

    def lay(self, volumes: "Sequence[Volume]", of_ours: "dict[str, int]") -> None:
        """The outer ones first. `of_ours`: folders that were opened, by target. Raises VolumeError."""
        sources = [(volume, self._source(volume, of_ours)) for volume in volumes]
        for volume, source in sorted(sources, key=lambda each: each[0].target.rstrip("/").count("/")):
            try:
                self._lay(volume, source)
            except OSError as error:
                message = f"the volume at {volume.target} cannot be laid there: {error.strerror}"
                raise VolumeError(message, for_ever=error.errno in OF_PATHS) from error
        if "/" in self._mirrors:
            # What was `/` before lies on the new one until here: nothing can be mounted from a root that is gone.
            os.chdir("/")
            _unmount(".")
        for path in self._mirrors:
            _mount(None, path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)

    def _source(self, volume: Volume, of_ours: "dict[str, int]") -> int:
        if volume.kind != "node":
            return of_ours.get(volume.target, -1)
        try:
            return os.open(volume.source, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            why = "there is no such path that pods see" if error.errno == errno.ENOENT else error.strerror
            message = f"{volume.source} of this machine cannot be used: {why}"
            raise VolumeError(message, for_ever=error.errno in OF_PATHS) from error

    def _lay(self, volume: Volume, source: int) -> None:
        is_file = source >= 0 and not stat.S_ISDIR(os.fstat(source).st_mode)
        target = self._place(volume.target, is_file=is_file)
        if source < 0:
            size = f",size={volume.most_bytes}" if volume.most_bytes else ""
            _mount("muster", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=777{size}")
        else:
            _mount(f"/proc/self/fd/{source}", target, None, MS_BIND | MS_REC)
            os.close(source)
        if volume.read_only:
            _set_read_only(target)
        self._volumes.append(target)

    def _place(self, path: str, *, is_file: bool) -> str:
        """Where to mount it: a path that is there, or was made for it."""
        place = os.path.realpath(path)
        if os.path.lexists(place):
            return place
        above = os.path.dirname(place)
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if above not in self._made and not any(_is_in(above, volume) for volume in self._volumes):
            self._mirror(above, path)
        folder = above
        for name in os.path.relpath(os.path.dirname(place), above).split("/"):
            if name != ".":
                folder = os.path.join(folder, name)
                os.mkdir(folder)
                self._made.add(folder)
        if is_file:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        else:
            os.mkdir(place)
        return place

    def _mirror(self, folder: str, path: str) -> None:
        if any(_is_in(folder, untouched) for untouched in self._untouched):
            raise VolumeError(
                f"this machine has no folder {path}, and none is made in {folder}, which is yours: make it, or have "
                "the volume elsewhere, such as at /data"
            )
        with os.scandir(folder) as found:
            entries = [(entry.name, os.open(entry.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)) for entry in found]
        if len(entries) > MOST_MIRRORED:
            raise VolumeError(
                f"this machine has no folder {path}, and {folder} has too much in it to be laid out anew with it: make "
                "the folder, or have the volume elsewhere, such as at /data"
            )
        stage = folder if folder != "/" else next(path for path in STAGES if os.path.isdir(path))
        _mount("muster", stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
        for name, descriptor in entries:
            _copy(descriptor, os.path.join(stage, name))
        if folder == "/":
            # What was built on came along, with what lies on it.
            _unmount(f"{stage}{stage}")
            _be_root(stage)
        self._made.add(folder)
        self._mirrors.append(folder)


def _copy(descriptor: int, target: str) -> None:
    """Have what was opened appear there, be it a folder, a file or a link."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink("", dir_fd=descriptor), target)
        os.close(descriptor)
        return
    if stat.S_ISDIR(mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    _mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)
    os.close(descriptor)


def _be_root(folder: str) -> None:
    """From now on `/` is this folder."""
    os.chdir(folder)
    _check(_libc().pivot_root(b".", b"."), "pivot_root")
    os.chdir("/")


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _hide(path: str) -> None:
    """Lay an empty folder over it."""
    _mount("muster", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")


def _close(path: str) -> None:
    """Make it read-only, but not the folders in it."""
    with os.scandir(path) as found:
        folders = [(entry.path, _open(entry.path)) for entry in found if entry.is_dir(follow_symlinks=False)]
    _mount(path, path, None, MS_BIND | MS_REC)
    _set_read_only(path)
    for folder, descriptor in folders:
        _lay(descriptor, folder)


def _lay(descriptor: int, path: str) -> None:
    """Have an opened folder appear there."""
    os.makedirs(path, exist_ok=True)
    _mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
    os.close(descriptor)


def _arrange_devices() -> None:
    names = [name for name in sorted(os.listdir("/dev")) if any(fnmatch.fnmatch(name, known) for known in DEVICES)]
    opened = [
        (name, os.path.isdir(f"/dev/{name}"), os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in names
    ]
    _mount("muster", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name, is_folder, descriptor in opened:
        target = f"/dev/{name}"
        if is_folder:
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        _mount(f"/proc/self/fd/{descriptor}", target, None, MS_BIND | MS_REC)
        os.close(descriptor)
    for name in ("shm", "pts"):
        os.mkdir(f"/dev/{name}")
    _mount("muster", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108 (a pod's own)
    _mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        os.symlink(target, f"/dev/{name}")


def _sockets() -> list[str]:
    """Sockets with a name in the file system: behind them are programs of this user that run outside."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()[1:]
    paths = {line.split(None, 7)[7] for line in lines if len(line.split(None, 7)) == 8}  # noqa: PLR2004 (the columns)
    return sorted(path for path in paths if path.startswith("/") and os.path.exists(path))


def _folders_above(paths: "Sequence[str]") -> list[str]:
    """The outer ones first; not the root, which cannot be moved."""
    above: set[str] = set()
    for path in _real(paths):
        folder = os.path.dirname(path)
        while folder != "/":
            above.add(folder)
            folder = os.path.dirname(folder)
    return sorted(above)


def _real(paths: "Sequence[str]") -> list[str]:
    """Those that are there, each once and by its own name, the outer ones first."""
    return sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})


# -- system calls ------------------------------------------------------------------------------------------------------


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = _libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _check(result, f"mount {target}")


def _unmount(path: str) -> None:
    _check(_libc().umount2(os.fsencode(path), MNT_DETACH), f"umount {path}")


def _set_read_only(path: str) -> None:
    """With every mount below it."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    target = ctypes.c_char_p(os.fsencode(path))
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc().syscall(SYS_MOUNT_SETATTR, AT_FDCWD, target, AT_RECURSIVE, ctypes.byref(attributes), size)
    _check(result, f"mount_setattr {path}")


def main() -> int:
    """Try it, and say what stands in the way."""
    try:
        cell = enter(Walls())
        pid = os.fork()
        if pid == 0:
            try:
                cell.join()
                give_up_rights()
                os._exit(
                    0 if os.listdir("/proc") and not os.path.exists(f"/proc/{cell.init_pid}/root") else errno.EPERM
                )
            except BaseException:  # noqa: BLE001 (this process ends here, whatever it was)
                os._exit(errno.EPERM)
        _, status = os.waitpid(pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            sys.stdout.write(f"a process could not be shut off: {os.strerror(abs(code))}\n")
        return int(code != 0)
    except (IsolationError, OSError) as error:
        sys.stdout.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
