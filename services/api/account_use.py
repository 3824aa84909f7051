"""When service accounts were used: told to the log once for each account and day, beside the request.

The command goes through the gate with the account's own token, as everything that somebody asks for. Where it gets no
answer, a later request of the account tries again.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Final
from uuid import uuid4

import structlog

from events.envelope import Accepted, CommandRequest
from events.service_accounts import NoteServiceAccountUse, ServiceAccount
from services.runtime.nats.bus import CommandClient, GateAwayError

AGAIN_SECONDS: Final = 60.0
"""After which an unanswered note is tried again, with the next request."""

log = structlog.get_logger(__name__)


class AccountUse:
    """Notes what is not noted yet. Call `close` at the end."""

    def __init__(self, commands: CommandClient, *, clock: Callable[[], float]) -> None:
        self._commands = commands
        self._clock = clock
        self._tried: dict[str, tuple[date, float]] = {}
        """By actor: the day that is noted, and when that was tried last."""
        self._under_way: set[asyncio.Task[None]] = set()

    def note(self, account: ServiceAccount, project_id: str, token: str, *, min_roles: int) -> None:
        """The account was used now. Returns at once.

        Args:
            min_roles: sequence of the newest change of accounts that is known here: the gate may lag behind it.
        """
        today, now = datetime.now(UTC).date(), self._clock()
        if account.last_used is not None and account.last_used >= today:
            self._tried.pop(account.actor, None)
            return
        day, at = self._tried.get(account.actor, (None, 0.0))
        if day == today and now - at < AGAIN_SECONDS:
            return
        self._tried[account.actor] = (today, now)
        command = NoteServiceAccountUse(project_id=project_id, name=account.name, on=today)
        request = CommandRequest(command_id=str(uuid4()), token=token, command=command, min_roles=min_roles)
        telling = asyncio.create_task(self._tell(request), name="account use")
        self._under_way.add(telling)
        telling.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _tell(self, request: CommandRequest) -> None:
        try:
            reply = await self._commands.send(request)
        except GateAwayError as error:
            log.info("account_use_not_noted", error=str(error))
            return
        if not isinstance(reply, Accepted):
            log.info("account_use_not_noted", answer=type(reply).__name__)
