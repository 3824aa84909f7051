"""A connection as any user of NATS, and what the server refuses it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import nats
from nats.aio.client import Client

from development.servers import NatsServer
from services.runtime.nats.inboxes import inbox_prefix


@contextlib.asynccontextmanager
async def raw(server: NatsServer, user: str) -> AsyncGenerator[tuple[Client, list[str]]]:
    """The connection, and a list that grows with what is refused."""
    refusals: list[str] = []

    async def on_error(error: Exception) -> None:
        refusals.append(str(error).lower())

    client = await nats.connect(
        server.url,
        user=user,
        password=server.passwords[user],
        inbox_prefix=inbox_prefix(user).encode(),
        error_cb=on_error,
        allow_reconnect=False,
    )
    try:
        yield client, refusals
    finally:
        await client.close()


async def settle(client: Client) -> None:
    """Until the server has answered all that was sent. The client's ping overtakes what waits to be sent."""
    await asyncio.sleep(0.05)
    await client.flush()
    await client.flush()


def refused(refusals: Sequence[str], subject: str) -> bool:
    return any("permissions violation" in refusal and f'"{subject.lower()}"' in refusal for refusal in refusals)
