"""Putting a backup back: into streams that are not there yet, at the same sequences, by publishing.

The stream of the log is made first, with a mark that says which backup is being restored, and no service starts beside
that mark. So a restore that was killed leaves nothing that lives: run again, it goes on where it was. What is behind
the last message is one commit that says that the log was restored; then the mark is taken away.
"""

import asyncio
import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import batched, islice
from typing import Final

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.aggregate import LOG, draft
from events.commit import service_actor
from events.decision import Context
from events.ids import derived_command_id
from events.installation import LOG_KEY, RestoreLog
from events.refusal import Refusal
from events.subjects import EVENTS_STREAM
from services.runtime.backup.archive import FILES, MANIFEST, BackupError, Manifest, Message, unpack
from services.runtime.backup.check import check, compare, messages_of
from services.runtime.backup.holdings import kept_streams
from services.runtime.backup.place import Place
from services.runtime.backup.seal import Sealer
from services.runtime.backup.source import Source
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.calls import call
from services.runtime.nats.declared import DECLARED, RESTORING, Config
from services.runtime.nats.jetstream_api import decode_ack, stream_info
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import create_streams, metadata_of, stream_config

USER: Final = "restore"
"""On NATS. Nobody but an operator has its password."""
BATCH: Final = 1_000
"""Messages of one atomic batch; the server's own limit."""
BATCH_BYTES: Final = 32 * 1024**2
"""Of the payloads of one batch: it waits in the server's memory."""
ANSWER_SECONDS: Final = 30.0
TRIES: Final = 6
FIRST_PAUSE_SECONDS: Final = 0.2
UNTIL_FULL: Final = 0.85
"""Of the log's limit: beyond 0.9, a server creates nothing any more."""
AT_ONCE: Final = 200
_OF_WRITING: Final = ("Nats-Batch-", "Nats-Expected-", "Nats-Msg-Id", "Nats-TTL")
"""Headers that say how a message was to be written, and mean nothing, or something else, when it is written again."""

FILLED: Final = frozenset(name for before in (True, False) for name in kept_streams(before_log=before))
"""Streams that are filled beside the log."""

type Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    seq: int
    incarnation: int
    messages: int


async def restore(
    nc: Client,
    place: Place,
    manifest: Manifest,
    sealer: Sealer,
    *,
    replicas: int,
    log_max_bytes: int,
    put_files: Callable[[Mapping[str, bytes]], None],
    now: datetime,
    progress: Progress,
) -> Restored:
    """Restore the backup, or go on with it. Raises BackupError, also where there is an installation already, and then
    nothing was changed; StreamError, UnansweredError.
    """
    check(place, manifest, lambda done, total: progress("check", done, total))
    kept = {part.sealed_as: sealer.unseal(part.sealed_as, place.read(part.file)) for part in manifest.kept}
    files = _files(kept)
    run = _Restore(nc, place, manifest)
    await run.begin(replicas, log_max_bytes)
    put_files(files)
    for before_log in (True, False):
        for stream in kept_streams(before_log=before_log):
            parts = sorted((part for part in manifest.kept if part.name == stream), key=lambda part: part.part)
            await run.fill(stream, (one for part in parts for one in unpack(part.file, kept[part.sealed_as])))
    await run.log(progress)
    incarnation = await run.say_restored(now)
    await compare(place, manifest, run.source, lambda done, total: progress("compare", done, total))
    await run.end()
    return Restored(seq=manifest.seq, incarnation=incarnation, messages=manifest.seq - manifest.first + 1)


class _Restore:
    def __init__(self, nc: Client, place: Place, manifest: Manifest) -> None:
        self._nc = nc
        self._place = place
        self._manifest = manifest
        self._requests = Requests(nc)
        self.source = Source(self._requests)

    # -- the streams -------------------------------------------------------------------------------------------------

    async def begin(self, replicas: int, log_max_bytes: int) -> None:
        """Have the streams that are filled, that of the log with the mark; setup makes all others. Raises BackupError
        where something lives here.
        """
        found = await stream_config(self._nc, EVENTS_STREAM)
        mark = metadata_of(found).get(RESTORING, "")
        if found is not None and not mark:
            raise BackupError(
                "there is an installation already: the stream EVENTS exists. Restore into a new data folder, or "
                "remove all that is here first (docker-compose: `docker-compose down --volumes`)"
            )
        if mark and mark != self._manifest.head:
            raise BackupError(
                f"another backup is being restored here, with the head {mark}: go on with that one, or remove all that "
                "is here first"
            )
        if found is None:
            await self._refuse_other_streams()
            await self._create_log(replicas, log_max_bytes)
        await create_streams(self._nc, replicas, [one for one in DECLARED if one.name in FILLED])

    async def _refuse_other_streams(self) -> None:
        for declared in DECLARED:
            if declared.name != EVENTS_STREAM and await stream_config(self._nc, declared.name) is not None:
                raise BackupError(
                    f"there is part of an installation already: the stream {declared.name} exists without a log. "
                    "Remove all that is here first"
                )

    async def _create_log(self, replicas: int, log_max_bytes: int) -> None:
        declared = next(one for one in DECLARED if one.name == EVENTS_STREAM)
        config: Config = {
            **declared.config(replicas),
            "max_bytes": log_max_bytes,
            "first_seq": self._manifest.first,
            "metadata": {RESTORING: self._manifest.head},
        }
        await self._change("STREAM.CREATE", config)

    async def end(self) -> None:
        """Take the mark away: from now on services start."""
        config = await stream_config(self._nc, EVENTS_STREAM) or {}
        metadata = {name: value for name, value in metadata_of(config).items() if name != RESTORING}
        await self._change("STREAM.UPDATE", {**config, "metadata": metadata})

    async def _change(self, verb: str, config: Config) -> None:
        answer = await self._requests.ask(
            call(verb, EVENTS_STREAM), msgspec.json.encode(config), seconds=ANSWER_SECONDS
        )
        if error := msgspec.json.decode(answer).get("error"):
            raise BackupError(f"the stream EVENTS could not be made: {error.get('description')}")

    # -- what they hold ----------------------------------------------------------------------------------------------

    async def fill(self, stream: str, messages: Iterable[Message]) -> None:
        """Publish what is not there yet, each at its place, so that a repetition writes nothing twice."""
        there = (await self.source.info(stream)).state.last_seq
        numbered = enumerate(islice(messages, there, None), start=there)
        for several in batched(numbered, AT_ONCE):
            acks = await asyncio.gather(*(self._put(message, before) for before, message in several))
            for error in filter(None, (decode_ack(ack).error for ack in acks)):
                raise BackupError(f"the stream {stream} could not be filled: {error.description}")

    async def _put(self, message: Message, before: int) -> bytes:
        headers = {**_kept_headers(message), "Nats-Expected-Last-Sequence": str(before)}
        return await self._requests.ask(message.subject, message.data, seconds=ANSWER_SECONDS, headers=headers)

    async def log(self, progress: Progress) -> None:
        """Publish the log from where it ends. Raises BackupError."""
        manifest = self._manifest
        there = await self._last_seq()
        total = manifest.seq - manifest.first + 1
        size = sum(segment.bytes for segment in manifest.segments)
        progress("restore", max(0, there - manifest.first + 1), total)
        await self._check_room(size)
        rest = (message for message, _ in messages_of(self._place, manifest) if message.seq > there)
        for batch in _batches(rest):
            await self._publish(batch)
            progress("restore", batch[-1].seq - manifest.first + 1, total)

    async def _check_room(self, compressed: int) -> None:
        info = await self.source.info(EVENTS_STREAM)
        if compressed > info.config.max_bytes * UNTIL_FULL:
            raise BackupError(
                f"the log of the backup does not fit into {info.config.max_bytes:,} bytes: raise MUSTER_LOG_MAX_BYTES"
            )

    async def _publish(self, batch: Sequence[Message]) -> None:
        """All of it at its place, or nothing. Raises BackupError."""
        pause, reason = FIRST_PAUSE_SECONDS, ""
        for number in range(TRIES):
            try:
                ack = decode_ack(await self._try(batch, f"restore-{batch[0].seq}-{number}"))
                if ack.error is None:
                    return
                reason = ack.error.description
            except (UnansweredError, NatsError) as error:
                reason = str(error)
            await asyncio.sleep(pause)
            pause *= 2
            # What became of it: the log says.
            last = await self._last_seq()
            if last == batch[-1].seq:
                return
            if last != batch[0].seq - 1:
                break
        raise BackupError(f"messages {batch[0].seq:,} to {batch[-1].seq:,} could not be written: {reason}")

    async def _try(self, batch: Sequence[Message], batch_id: str) -> bytes:
        for number, message in enumerate(batch, start=1):
            headers = {**_kept_headers(message), "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number == 1:
                headers["Nats-Expected-Last-Sequence"] = str(message.seq - 1)
            if number == len(batch):
                headers["Nats-Batch-Commit"] = "1"
                return await self._requests.ask(message.subject, message.data, seconds=ANSWER_SECONDS, headers=headers)
            await self._nc.publish(message.subject, message.data, headers=headers)
        raise AssertionError("a batch has a last message")

    async def _last_seq(self) -> int:
        return (await stream_info(self._requests, EVENTS_STREAM, seconds=ANSWER_SECONDS)).state.last_seq

    async def say_restored(self, now: datetime) -> int:
        """Append that the log was restored; how often it was, by now."""
        manifest = self._manifest
        store, actor = JetStreamEventStore(self._nc), service_actor(USER)
        command = RestoreLog(seq=manifest.seq, chain=manifest.chain, backed_up_at=manifest.made_at)
        command_id = derived_command_id(USER, "restored", manifest.head)
        for _ in range(TRIES):
            chain = await store.load(LOG, LOG_KEY)
            context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
            events = LOG.decide(command, chain.state, context)
            if isinstance(events, Refusal):
                raise BackupError(events.message)
            if not events:
                return chain.state.incarnation
            made = draft(LOG, LOG_KEY, chain, events, command_id=command_id, actor=actor, now=now)
            if isinstance(await store.append(made), Committed):
                continue
        raise BackupError("the log could not be written: run it again")


def _batches(messages: Iterable[Message]) -> Iterable[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message.data)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _kept_headers(message: Message) -> dict[str, str]:
    return {name: value for name, value in message.headers.items() if not name.startswith(_OF_WRITING)}


def _files(kept: Mapping[str, bytes]) -> dict[str, bytes]:
    """Raises BackupError."""
    sealed = kept.get(f"{FILES}/0")
    if sealed is None:
        raise BackupError(f"{MANIFEST} is damaged: it lists no sealed file `{FILES}`")
    packed = msgspec.json.decode(sealed, type=dict[str, str])
    return {name: base64.b64decode(data) for name, data in packed.items()}
