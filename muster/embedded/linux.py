"""What the kernel does for a supervisor: children that die with it, orphans that come to it, a user that is not root.

Only on Linux; elsewhere each of these does nothing, and the supervisor cleans up as well as it can. Functions whose
name begins with `child_` run between fork and exec, in a process with one thread: they only make system calls.
"""

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_KEEPCAPS: Final = 8
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAP_DAC_OVERRIDE: Final = 1

_LINUX: Final = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Whom a child runs as, where that is not who we are."""

    uid: int
    gid: int


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def unprivileged_user() -> User | None:
    """`nobody`, where we are root; None where we are somebody else, who is fit to run anything."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return User(uid=entry.pw_uid, gid=entry.pw_gid)


def become_subreaper() -> None:
    """From now on, orphans among our descendants become our children: none can get away."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def child_setup(user: User | None) -> Callable[[], None]:
    """What a child does before it becomes its program: be somebody else, and ask to be killed when we die."""
    parent = os.getpid()

    def run() -> None:
        if user is not None:
            child_become(user)
        # Last, because a change of user clears it.
        child_die_with(parent)

    return run


def child_die_with(parent: int) -> None:
    """Have the kernel kill us when the thread of `parent` (a process id) that started us ends."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # we were orphaned before we had asked


def child_become(user: User) -> None:
    """Be that user, but keep the right to enter folders that only root may enter, where the kernel lets us.

    So a data folder and an installation below root's home work, and nobody's home has to be opened to everybody.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    if _libc is None:
        return
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_DAC_OVERRIDE
    data = (_CapData * 2)(_CapData(bit, bit, bit), _CapData(0, 0, 0))
    if _libc.capset(ctypes.byref(header), data) == 0:
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


def children_of_this_process() -> list[int]:
    """Our children by process id, adopted ones included."""
    own = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split()]
    except OSError:
        return [pid for pid, parent in _parents().items() if parent == own]


def descendants_of_this_process() -> list[int]:
    """Everything below us in the process tree that still runs, parents before their children."""
    parents = _parents()
    found = [os.getpid()]
    for ancestor in found:
        found += [pid for pid, parent in parents.items() if parent == ancestor]
    return found[1:]


def _parents() -> dict[int, int]:
    """Parent of each running process; zombies are left out, they only wait to be collected."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name of the program, in parentheses, may itself hold spaces and parentheses.
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # gone meanwhile
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    return parents
