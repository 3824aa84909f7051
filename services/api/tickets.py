"""Tickets: what a browser's EventSource, which cannot send a header, gives in place of a token, for one stream.

A ticket is sealed, so that nobody can read or change it, and is stored nowhere: every api process opens those of all
others. It holds the token that it was made with, which is verified again for as long as the stream goes on.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from services.runtime.identity.sealed import BadSealError, Seal
from services.runtime.identity.used import Used

TICKET_SECONDS: Final = 30
"""From its making to the opening of the stream."""
CLOCK_SECONDS: Final = 5
"""By which the clock of another process may differ."""
_PURPOSE: Final = b"muster event stream ticket 1"
"""Nothing else that is sealed with the same secret is a ticket."""


class BadTicketError(Exception):
    """It opens no stream; the message says why."""


class Ticket(msgspec.Struct, frozen=True):
    """What one is good for."""

    token: str
    expires_at: float
    """Seconds since the epoch."""
    project_id: str = ""
    workload_id: str = ""
    types: tuple[str, ...] = ()


class Tickets:
    """Makes and opens them.

    Args:
        secret: what all api processes share, and nobody else has; empty: only this process opens its own.
        clock: seconds since the epoch.
    """

    def __init__(self, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        self._seal = Seal(secret, _PURPOSE)
        self._clock = clock
        self._used = Used(clock=clock)

    async def make(
        self, token: str, *, project_id: str = "", workload_id: str = "", types: tuple[str, ...] = ()
    ) -> tuple[str, float]:
        """One, and when it expires."""
        until = self._clock() + TICKET_SECONDS
        ticket = Ticket(token, until, project_id, workload_id, types)
        return await self._seal.close(msgspec.msgpack.encode(ticket)), until

    async def open(self, given: str) -> Ticket:
        """What it is good for; it is used up in this process. Raises BadTicketError."""
        try:
            mark, plain = await self._seal.open(given)
            ticket = msgspec.msgpack.decode(plain, type=Ticket)
        except (BadSealError, msgspec.MsgspecError):
            raise BadTicketError("this is no ticket of this Muster; ask for a new one") from None
        if ticket.expires_at + CLOCK_SECONDS < self._clock():
            raise BadTicketError(f"the ticket has expired, {TICKET_SECONDS} s after it was made; ask for a new one")
        if not self._used.use(mark, ticket.expires_at + CLOCK_SECONDS):
            raise BadTicketError("the ticket was used already, and is good for one stream; ask for a new one")
        return ticket
