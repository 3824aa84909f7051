"""Looks after a NATS server that runs: one that cannot write is started again, as soon as its disk has room.

A server that met a full disk does not write again by itself, however much room there is later (measured: ADR 0030).
While the disk is full it is left alone: it still answers what is read, and started anew it could write no more. Where
its disk has damaged the files of a stream that is made again, it is started without them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from muster.embedded.canary import Look, Room
from muster.embedded.damaged import can_go, damaged_stream, throw_away

PERIOD_SECONDS: Final = 2.0
SILENT_LOOKS: Final = 3
"""So often in a row must a canary go unanswered where the server itself finds nothing wrong: the disk may be slow."""
NEEDED_BYTES: Final = 1024**2
"""What a server needs at its start, and for the first things that it is then asked to store."""
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""Between two starts that did not help."""

type Down = Callable[[], None]
"""What is to be done while the server is down."""


class Keeper:
    """`look` asks the server, `restart` ends it, does what it is given, and has it started again; both have deadlines
    of their own.
    """

    def __init__(
        self,
        *,
        look: Callable[[Room], Awaitable[Look]],
        room: Callable[[], Room],
        store: Path,
        restart: Callable[[Down], Awaitable[None]],
        say: Callable[[str], None],
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._look = look
        self._room = room
        self._store = store
        self._restart = restart
        self._say = say
        self._period_seconds = period_seconds
        self._silent = 0
        self._said = ""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._period_seconds)
            await self.once()

    async def once(self) -> None:
        """Look once, and do what has to be done."""
        try:
            room = self._room()
        except OSError as error:
            self._tell(f"the disk of the event log cannot be looked at ({error})")
            return
        look = await self._look(room)
        why = self._trouble(look)
        if not why:
            if look.stored and self._said:
                self._tell("")
                self._pause_seconds = FIRST_PAUSE_SECONDS
            return
        if room.free_bytes < NEEDED_BYTES:
            self._tell(
                f"the disk is full: less than {NEEDED_BYTES // 1024} KiB are left for {self._store}; nothing can be "
                "written until there is room, and then all goes on by itself"
            )
            return
        if time.monotonic() < self._not_before:
            return
        down, what_is_done = self._help_for(damaged_stream(why))
        self._said = f"the event log's server cannot write ({why}): it is started again{what_is_done}"
        self._say(self._said)
        self._not_before = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        self._silent = 0
        await self._restart(down)

    def _help_for(self, damaged: str) -> tuple[Down, str]:
        """What is done while it is down, and in words; `damaged`: the stream whose files are, empty where none are."""
        if not damaged:
            return _nothing, ""
        if not can_go(damaged):
            return _nothing, f"; where that does not help: docs/concepts/operating.md, A damaged stream ({damaged})"
        what = f" without the stream {damaged}, which holds nothing that is not made again; look at the disk"
        return lambda: throw_away(self._store, damaged), what

    def _trouble(self, look: Look) -> str:
        """Why it cannot write; empty where it can, and where that is not known."""
        if not look.answers or look.stored:
            self._silent = 0
        if look.broken:
            return look.broken
        if not look.answers or look.stored:
            return ""
        self._silent += 1
        return f"{self._silent} small writes were not answered" if self._silent >= SILENT_LOOKS else ""

    def _tell(self, what: str) -> None:
        """Say it once."""
        if what == self._said:
            return
        if what:
            self._say(what)
        elif self._said:
            self._say("the event log is written to again")
        self._said = what


def _nothing() -> None:
    pass
