"""Tickets: what a browser's EventSource, which cannot send a header, gives in place of a token, for one stream.

A ticket is sealed, so that nobody can read or change it, and is stored nowhere: every api process opens those of all
others. It holds the token that it was made with, which is verified again for as long as the stream goes on.
"""

import asyncio
import base64
import binascii
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TICKET_SECONDS: Final = 30
"""From its making to the opening of the stream."""
CLOCK_SECONDS: Final = 5
"""By which the clock of another process may differ."""
MOST_REMEMBERED: Final = 10_000
"""Tickets that were used and have not expired; the oldest give way."""
_NONCE_BYTES: Final = 12
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
        self._secret = secret.encode() or os.urandom(32)
        self._clock = clock
        self._cipher: AESGCM | None = None
        self._deriving = asyncio.Lock()
        self._used: OrderedDict[bytes, float] = OrderedDict()

    async def make(
        self, token: str, *, project_id: str = "", workload_id: str = "", types: tuple[str, ...] = ()
    ) -> tuple[str, float]:
        """One, and when it expires."""
        until = self._clock() + TICKET_SECONDS
        ticket = Ticket(token, until, project_id, workload_id, types)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = (await self._sealing()).encrypt(nonce, msgspec.msgpack.encode(ticket), _PURPOSE)
        return base64.urlsafe_b64encode(nonce + sealed).rstrip(b"=").decode(), until

    async def open(self, given: str) -> Ticket:
        """What it is good for; it is used up in this process. Raises BadTicketError."""
        try:
            raw = base64.urlsafe_b64decode(given.encode("ascii") + b"=" * (-len(given) % 4))
            nonce = raw[:_NONCE_BYTES]
            plain = (await self._sealing()).decrypt(nonce, raw[_NONCE_BYTES:], _PURPOSE)
            ticket = msgspec.msgpack.decode(plain, type=Ticket)
        except (ValueError, binascii.Error, InvalidTag, msgspec.MsgspecError):
            raise BadTicketError("this is no ticket of this Muster; ask for a new one") from None
        if ticket.expires_at + CLOCK_SECONDS < self._clock():
            raise BadTicketError(f"the ticket has expired, {TICKET_SECONDS} s after it was made; ask for a new one")
        if nonce in self._used:
            raise BadTicketError("the ticket was used already, and is good for one stream; ask for a new one")
        self._remember(nonce, ticket.expires_at + CLOCK_SECONDS)
        return ticket

    def _remember(self, nonce: bytes, until: float) -> None:
        self._used[nonce] = until
        now = self._clock()
        while self._used and (len(self._used) > MOST_REMEMBERED or next(iter(self._used.values())) < now):
            self._used.popitem(last=False)

    async def _sealing(self) -> AESGCM:
        async with self._deriving:
            if self._cipher is None:
                # Slow by intention, some 50 ms: a person may have chosen the password.
                key = await asyncio.to_thread(
                    hashlib.scrypt, self._secret, salt=_PURPOSE, n=2**14, r=8, p=1, maxmem=2**26, dklen=32
                )
                self._cipher = AESGCM(key)
            return self._cipher
