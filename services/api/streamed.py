"""Answers that come piece by piece and hold something while they do: it is let go however they end."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from services.api.connections import LAST_WORDS


class Streamed(StreamingResponse):
    """A streamed answer.

    Args:
        content: closed at the end, whether it was begun or not.
        held: closed after that: what the answer holds while it goes on.
        last_words: the line that it ends with where its reader stands still; without, it is broken off.
    """

    def __init__(
        self,
        content: AsyncGenerator[bytes],
        *,
        media_type: str,
        held: AsyncExitStack,
        last_words: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._content = content
        self._held = held
        self._last_words = last_words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._last_words is not None:
            scope["state"][LAST_WORDS] = self._last_words
        async with self._held:
            try:
                await super().__call__(scope, receive, send)
            finally:
                await self._content.aclose()
