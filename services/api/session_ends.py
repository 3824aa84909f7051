"""What an api process keeps of ways into pods: how many are open, their bounds, and that each end reaches the log.

An end that cannot be told is found by cluster_sync: no agent speaks of that session any more.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from events.commit import service_actor
from events.envelope import AdmittedCommand, OutcomeUnknown
from events.ids import derived_command_id
from events.workload.commands import CloseSession
from services.api.limits import Slots
from services.runtime.nats.bus import CommandClient, GateAwayError

MOST_SESSIONS: Final = 500
"""Open at once in one process, of all users."""
FIRST_PAUSE_SECONDS: Final = 0.5
LAST_PAUSE_SECONDS: Final = 8.0
"""Between tries to tell an end; then it is left to cluster_sync."""
STOP_SECONDS: Final = 2.0
"""For ends that are being told when the process stops."""
NAME: Final = "api"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Of each session."""

    longest_seconds: float
    idle_seconds: float
    stalled_seconds: float
    """How long a client may take nothing of what it is sent."""


class Sessions:
    def __init__(self, commands: CommandClient, *, slots: Slots, limits: SessionLimits) -> None:
        self.slots = slots
        self.limits = limits
        self._commands = commands
        self._telling: set[asyncio.Task[None]] = set()

    def tell_end(self, command: CloseSession) -> None:
        """Have the log know that it is over."""
        task = asyncio.create_task(self._tell(command))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, command: CloseSession) -> None:
        admitted = AdmittedCommand(
            command_id=derived_command_id(NAME, "close session", command.session_id),
            actor=service_actor(NAME),
            command=command,
        )
        pause = FIRST_PAUSE_SECONDS
        while pause <= LAST_PAUSE_SECONDS:
            try:
                reply = await self._commands.send_system(NAME, admitted)
                if not isinstance(reply, OutcomeUnknown):
                    return
            except GateAwayError:
                pass
            await asyncio.sleep(pause)
            pause *= 2
        log.warning("session_end_not_told", session=command.session_id, reason="commands do not answer")

    async def close(self) -> None:
        if self._telling:
            await asyncio.wait(self._telling, timeout=STOP_SECONDS)
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)
