"""Streams that go on for as long as somebody listens: their place, and whether their listener still may.

A token that expires, or a role that is revoked, ends a stream that is open; so does a reader that stands still. The
last line says why.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from typing import Final

from starlette.responses import Response

from events.actors import STRANGER
from events.authorize import Permission, authorize
from events.refusal import Refusal
from services.api.context import Look
from services.api.streamed import Streamed
from services.runtime.identity.actors import ActorsAwayError
from services.runtime.identity.authentication import Identity

FOLLOWS: Final = 500
"""Open at once in one process, of all users."""
CHECK_SECONDS: Final = 3.0
"""How often it is asked whether the listener still may: what was revoked ends within five seconds."""
STALLED: Final = Refusal(
    code="stalled", message="what was sent was not read for too long; ask again, from where you are"
)

type LastLine = Callable[[Refusal], bytes]
"""A reason as the last line of a stream."""


def followed_answer(
    call: Look,
    pieces: AsyncGenerator[bytes],
    *,
    media_type: str,
    permission: Permission,
    project_id: str | None,
    last_line: LastLine,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A stream of pieces, for as long as the caller has the permission. Raises 429 where too many are open."""
    held = AsyncExitStack()
    held.callback(call.take_slot(call.api.follows, "follows"))
    content = _while_permitted(call, pieces, permission, project_id, last_line)
    return Streamed(content, media_type=media_type, held=held, last_words=last_line(STALLED), headers=headers)


async def _while_permitted(
    call: Look, pieces: AsyncGenerator[bytes], permission: Permission, project_id: str | None, last_line: LastLine
) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    check_at = loop.time() + CHECK_SECONDS
    upcoming: asyncio.Task[bytes | None] | None = None
    async with aclosing(pieces):
        try:
            while True:
                if loop.time() >= check_at:
                    check_at = loop.time() + CHECK_SECONDS
                    if refusal := await _refusal(call, permission, project_id):
                        yield last_line(refusal)
                        return
                upcoming = upcoming or asyncio.create_task(_next(pieces))
                done, _ = await asyncio.wait({upcoming}, timeout=check_at - loop.time())
                if not done:
                    continue
                piece, upcoming = upcoming.result(), None
                if piece is None:
                    return
                yield piece
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)


async def _next(pieces: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _refusal(call: Look, permission: Permission, project_id: str | None) -> Refusal | None:
    """Why the caller may no longer listen; None while they may."""
    refusal = await token_refusal(call)
    return refusal or authorize(call.api.roles.grants(call.actor), permission, project_id)


async def token_refusal(call: Look) -> Refusal | None:
    """Why the token with which a stream was opened is good no longer; None while it is."""
    identity = await call.api.identities.verify(call.token)
    if isinstance(identity, Refusal):
        return identity
    # Without the leeway of a new request: whoever has a newer token asks again.
    if identity.expires_at <= datetime.now(UTC):
        return Refusal(code="not_authenticated", message="the token has expired; get a new one")
    if call.actor != STRANGER and await _actor(call, identity) != call.actor:
        return Refusal(code="not_permitted", message="whose token this is was forgotten, and has no roles any more")
    return None


async def _actor(call: Look, identity: Identity) -> str:
    """Who that is now: people can be forgotten, but not while nobody can be looked up."""
    try:
        return await call.api.identities.actor(identity)
    except ActorsAwayError:
        return call.actor
