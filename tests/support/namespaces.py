"""A kernel that refuses namespaces, for one process and what it starts."""

import os
from collections.abc import Callable
from pathlib import Path


def without_namespaces() -> Callable[[], None]:
    """What a child does before it becomes its program: go into a user namespace in which no other may be made."""
    us = os.getuid()

    def refuse() -> None:
        os.unshare(os.CLONE_NEWUSER)
        Path("/proc/self/uid_map").write_text(f"0 {us} 1")
        for name in ("max_pid_namespaces", "max_user_namespaces"):
            Path(f"/proc/sys/user/{name}").write_text("0")

    return refuse
