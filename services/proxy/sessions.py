"""How a browser signs in: a ticket, which its user fetches with their token, is exchanged once for a cookie.

Both are sealed with a secret that all proxies share, and hold no token. A cookie is good for one address and one
workload, since what a workload serves is not to be trusted with the cookies of another.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from services.runtime.identity.sealed import BadSealError, Seal
from services.runtime.identity.used import Used

TICKET_SECONDS: Final = 30
CLOCK_SECONDS: Final = 5
"""By which the clock of another process may differ."""
_TICKET: Final = b"muster proxy ticket 1"
_COOKIE: Final = b"muster proxy session 1"


class BadTicketError(Exception):
    """It signs nobody in; the message says why."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who is signed in to what."""

    label: str
    """Of the address."""
    workload_id: str
    who: str
    """Subject of the token."""
    until: float
    """Seconds since the epoch."""
    account: str = ""
    """Of a service account: the hash of its token, which may be taken back at any time."""


class _Ticket(msgspec.Struct, frozen=True, kw_only=True):
    session: Session
    expires_at: float


class Sessions:
    """Makes and opens tickets and cookies.

    Args:
        secret: what all proxies share, and nobody else has.
        clock: seconds since the epoch.
    """

    def __init__(self, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        self._tickets = Seal(secret, _TICKET)
        self._cookies = Seal(secret, _COOKIE)
        self._clock = clock
        self._used = Used(clock=clock)

    async def ticket(self, session: Session) -> tuple[str, float]:
        """One, and when it expires."""
        until = self._clock() + TICKET_SECONDS
        return await self._tickets.close(msgspec.msgpack.encode(_Ticket(session=session, expires_at=until))), until

    async def exchange(self, given: str, label: str) -> tuple[str, Session]:
        """(cookie, session) for a ticket of this address, which is used up in this process. Raises BadTicketError."""
        try:
            mark, plain = await self._tickets.open(given)
            ticket = msgspec.msgpack.decode(plain, type=_Ticket)
        except (BadSealError, msgspec.MsgspecError):
            raise BadTicketError("this is no ticket of this Muster; ask for a new one") from None
        if ticket.session.label != label:
            raise BadTicketError("the ticket is for another address; ask for one for this")
        if ticket.expires_at + CLOCK_SECONDS < self._clock():
            raise BadTicketError(f"the ticket has expired, {TICKET_SECONDS} s after it was made; ask for a new one")
        if not self._used.use(mark, ticket.expires_at + CLOCK_SECONDS):
            raise BadTicketError("the ticket was used already, and is good once; ask for a new one")
        return await self._cookies.close(msgspec.msgpack.encode(ticket.session)), ticket.session

    async def open(self, cookie: str, label: str) -> Session | None:
        """The session of a cookie that is good for this address now."""
        try:
            _, plain = await self._cookies.open(cookie)
            session = msgspec.msgpack.decode(plain, type=Session)
        except (BadSealError, msgspec.MsgspecError):
            return None
        return session if session.label == label and session.until > self._clock() else None
