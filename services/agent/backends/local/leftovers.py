"""Finds and kills what a run left on this machine when nobody watches it any more. Touches nothing that is not its."""

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from services.agent.backends.local import shim
from services.agent.backends.local.run_folder import ProcessFile

KILL_ROUNDS: Final = 50
"""How often what a lost run left is looked for and killed, 0.1 s apart, until nothing is found."""


def kill_left(mark: str, session: ProcessFile | None) -> int:
    """Kill every process that carries the run's mark or is in its session; how many there were."""
    found: set[int] = set()
    for _ in range(KILL_ROUNDS):
        left = _processes_of(mark, session)
        if not left:
            break
        found |= left
        shim.kill_found(lambda: _processes_of(mark, session))
        time.sleep(0.1)
    return len(found)


def _processes_of(mark: str, session: ProcessFile | None) -> set[int]:
    table = shim.process_table()
    found: set[int] = set()
    if session is not None and session.first is not None:
        first = table.get(session.first.pid)
        if first is not None and first.start_ticks == session.first.start_ticks and first.state != b"Z":
            found.add(first.pid)
    leader = table.get(session.pid) if session is not None else None
    if session is not None and leader is not None and leader.start_ticks != session.start_ticks:
        # The number belongs to a stranger by now.
        session = None
    for pid, entry in table.items():
        if entry.state == b"Z" or pid == os.getpid():
            continue
        if session is not None and entry.session == session.pid:
            found.add(pid)
            continue
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found
