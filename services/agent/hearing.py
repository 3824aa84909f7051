"""Hears a subject for as long as the agent runs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from nats.aio.client import Client
from nats.aio.msg import Msg


async def hear(
    nc: Client, subject: str, on_message: Callable[[Msg], Awaitable[None]], tasks: Iterable[asyncio.Task[None]]
) -> None:
    """Until it is cancelled; then what is still being answered ends, too.

    Args:
        tasks: those answers, as they are then.
    """
    subscription = await nc.subscribe(subject, cb=on_message)  # pyright: ignore[reportUnknownMemberType]
    try:
        await asyncio.Event().wait()
    finally:
        ending = [*tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if nc.is_connected:
            await subscription.unsubscribe()
