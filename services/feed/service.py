"""The feed's shell: follows the log, and writes to FEED what of it is public.

Everything it writes follows from the log, so a crash loses nothing, a second one beside it is harmless, and FEED can be
deleted at any time: it is written anew, with the same ids and bytes.
"""

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.aggregate import BrokenChainError
from events.codec import UNDECODABLE
from events.subjects import FEED_STREAM
from services.feed.fold import FOLDED, SNAPSHOT_SHAPE, PublicState
from services.feed.publish import FeedEnd, Kept, beginning
from services.feed.writer import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    FeedRemadeError,
    ForeignMessageError,
    Writer,
    check_log,
    read_end,
)
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import as_chosen
from services.runtime.nats.jetstream_api import JetStreamError
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import StreamError, assert_streams, create_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings

NAME: Final = "feed"
CHECK_SECONDS: Final = 5.0
"""How often a quiet feed looks whether FEED is still the one that it wrote to."""

log = structlog.get_logger(__name__)


class Feed:
    """One run, from where FEED ends; a second instance beside it is harmless."""

    def __init__(self, nc: Client, store: JetStreamEventStore, settings: Settings) -> None:
        self._nc = nc
        self._store = store
        self._requests = Requests(nc)
        self._settings = settings
        self._days = settings.feed_retention_days
        self._snapshots = FoldSnapshots(store.snapshots, NAME, shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)
        self._at_rest = False
        """Whether all that the fold made is in FEED."""

    async def run(self, health: Health, stop: asyncio.Event, *, from_snapshot: bool = True) -> None:
        """Until `stop`. Raises FeedRemadeError, and BrokenChainError where the fold began from a snapshot that was
        doubted, and forgotten: begin again.
        """
        following = asyncio.create_task(self._follow(health, from_snapshot=from_snapshot))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            for task in (following, stopping):
                task.cancel()
            await asyncio.gather(following, stopping, return_exceptions=True)

    async def _follow(self, health: Health, *, from_snapshot: bool) -> None:
        end = await self._end(health)
        found = await self._snapshots.load() if from_snapshot else None
        kept = _kept(self._snapshots.beside) if found else None
        begin = beginning(kept, end, now=datetime.now(UTC), retention_days=self._days)
        fold = PublicState(not_before=begin.not_before, written=begin.written)
        if begin.from_snapshot and found is not None and kept is not None:
            fold.restore(*found)
            fold.previous = dict(kept.previous)
        writer = Writer(self._nc, self._requests, health, end, begin.written)
        log.info("feed_begins", seq=fold.seq, feed_seq=end.last_seq, written=begin.written and begin.written.text())
        health.ready()
        try:
            await self._write(fold, writer, health)
        except BrokenChainError:
            # The snapshot's fault, perhaps: without it, only the log's own is left.
            await self._snapshots.forget()
            raise
        except asyncio.CancelledError:
            if self._at_rest:
                await self._save(fold, writer)
            raise

    async def _write(self, fold: PublicState, writer: Writer, health: Health) -> None:
        checked = time.monotonic()
        async with contextlib.aclosing(follow_into(self._store, fold, on_standing=health.reader())) as arrivals:
            async for _ in arrivals:
                self._at_rest = False
                await writer.write(*fold.take_made())
                self._at_rest = True
                if time.monotonic() - checked > CHECK_SECONDS:
                    await writer.look()
                    checked = time.monotonic()
                if self._snapshots.due(fold.seq, datetime.now(UTC)):
                    await self._save(fold, writer)
                await asyncio.sleep(0)  # a long log must not keep the process from everything else

    async def _save(self, fold: PublicState, writer: Writer) -> None:
        last = "" if writer.written is None else writer.written.text()
        kept = Kept(previous=fold.previous, last=last, feed=writer.created, feed_seq=writer.last_seq)
        await self._snapshots.save(fold.seq, fold.chains, datetime.now(UTC), beside=msgspec.msgpack.encode(kept))

    async def _end(self, health: Health) -> FeedEnd:
        """How far FEED goes; it is made where it is not there."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                end = await read_end(self._requests)
                if end is not None:
                    await check_log(self._requests, end)
                    return end
                await _make_feed(self._nc, self._settings)
                log.warning("feed_made", days=self._days)
            except (UnansweredError, JetStreamError, NatsError, StreamError, ForeignMessageError) as error:
                health.not_ready(f"FEED cannot be read: {error}")
                log.warning("feed_away", error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _make_feed(nc: Client, settings: Settings) -> None:
    """Where it is not there."""
    streams = as_chosen(feed_retention_days=settings.feed_retention_days)
    await create_streams(nc, settings.replicas, [stream for stream in streams if stream.name == FEED_STREAM])


def _kept(beside: bytes) -> Kept | None:
    try:
        return msgspec.msgpack.decode(beside, type=Kept)
    except UNDECODABLE:
        return None


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Run until `stop`."""
    nc = await connect(settings, NAME)
    try:
        await _make_feed(nc, settings)  # whoever deleted it while nobody wrote to it
        await assert_streams(nc, replicas=settings.replicas)
        store = JetStreamEventStore(nc)
        from_snapshot = True
        while not stop.is_set():
            try:
                await Feed(nc, store, settings).run(health, stop, from_snapshot=from_snapshot)
            except FeedRemadeError as error:
                log.warning("feed_begins_again", reason=str(error))
            except BrokenChainError as error:
                if not from_snapshot:
                    raise
                log.warning("fold_begins_again", error=str(error))
                from_snapshot = False
    finally:
        await nc.close()
