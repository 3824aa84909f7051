"""Streams for tests: every test that writes gets them empty."""

import asyncio
import time
from typing import Final

import msgspec
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from events.subjects import (
    ACTORS_STREAM,
    AUDIT_STREAM,
    CODE_STREAM,
    EVENTS_STREAM,
    FEED_STREAM,
    KEYS_STREAM,
    OBSERVED_STREAM,
    REFUSALS_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
    WEBHOOKS_STREAM,
)
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.jetstream_api import NOT_FOUND
from services.runtime.nats.streams import DECLARED, Declared, StreamError, create_streams, differences
from services.runtime.process.settings import Settings

STREAMS = (
    EVENTS_STREAM,
    WANTED_STREAM,
    OBSERVED_STREAM,
    AUDIT_STREAM,
    REFUSALS_STREAM,
    SNAPSHOTS_STREAM,
    KEYS_STREAM,
    ACTORS_STREAM,
    CODE_STREAM,
    FEED_STREAM,
    WEBHOOKS_STREAM,
)
RECREATE_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 20.0


async def recreate_streams(settings: Settings) -> None:
    """Make all streams as new; `settings` are those of the user who may do everything."""
    nc = await connect(settings, EVERYTHING)
    give_up = time.monotonic() + RECREATE_SECONDS
    try:
        while True:
            try:
                used = [one for one in DECLARED if not await _is_as_new(nc, one, settings.replicas)]
                await delete_streams(nc, *(one.name for one in used))
                await create_streams(nc, settings.replicas, used)
            except (StreamError, TimeoutError):
                # The server removes a deleted stream's folder in the background, and a new stream of the same name
                # cannot be stored before that is done. Only tests make a stream again under a name that was just used.
                # A cluster that has just lost its leader answers a request late, or never.
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(0.2)
            else:
                return
    finally:
        await nc.close()


async def _is_as_new(nc: Client, declared: Declared, replicas: int) -> bool:
    """Whether it is as it was made: to make it again would take longer than many a test."""
    answer = await nc.request(call("STREAM.INFO", declared.name), b"", timeout=ANSWER_SECONDS)
    info = msgspec.json.decode(answer.data)
    if "error" in info:
        return False
    made, config, state = declared.config(replicas), info["config"], info["state"]
    labels = {key: value for key, value in (config.get("metadata") or {}).items() if not key.startswith("_nats.")}
    return (
        state["last_seq"] == state["consumer_count"] == 0
        and labels == (made.get("metadata") or {})
        and config["max_bytes"] == made["max_bytes"]
        and not differences(declared, config, replicas)
    )


async def delete_streams(nc: Client, *streams: str) -> None:
    """Raises StreamError where one of them is still there, as far as is known, and TimeoutError without an answer."""
    for stream in streams:
        answer = await nc.request(call("STREAM.DELETE", stream), b"", timeout=ANSWER_SECONDS)
        error = msgspec.json.decode(answer.data).get("error")
        if error is not None and error["code"] != NOT_FOUND:
            raise StreamError(f"stream {stream} is not deleted: {error}")


async def stored(server: NatsServer) -> dict[str, int]:
    """How many messages each stream holds."""
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        return {stream: (await nc.jetstream().stream_info(stream)).state.messages for stream in STREAMS}
    finally:
        await nc.close()
