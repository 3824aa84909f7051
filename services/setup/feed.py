"""Deletes FEED, so that the service `feed` writes it again from the log: with the same ids, and the same bytes."""

from typing import Final

import msgspec
from nats.aio.client import Client

from events.subjects import FEED_STREAM
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.jetstream_api import NO_STREAM_CODE
from services.runtime.nats.streams import StreamError
from services.runtime.process.settings import Settings
from services.setup.migrate import USER

DELETE_SECONDS: Final = 30.0


async def rebuild_feed(settings: Settings) -> str:
    """Delete the stream; a sentence on what was done. Raises StreamError."""
    connection = await connect(settings, USER)
    try:
        return await _delete(connection)
    finally:
        await connection.close()


async def _delete(connection: Client) -> str:
    answer = await connection.request(call("STREAM.DELETE", FEED_STREAM), b"", timeout=DELETE_SECONDS)
    error = msgspec.json.decode(answer.data).get("error")
    if error is None:
        return f"stream {FEED_STREAM}: deleted; the service feed writes it again from the beginning of the log"
    if error.get("err_code") == NO_STREAM_CODE:
        return f"stream {FEED_STREAM}: is not there; the service feed writes it from the beginning of the log"
    raise StreamError(f"stream {FEED_STREAM} could not be deleted: {error.get('description')}")
