"""Writing a backup: what is new in the log since the last one, and what cannot be made again from it.

The manifest is written last. A backup that was cut off leaves files that no manifest lists; the next one writes them
again and removes the old ones.
"""

import asyncio
import base64
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from events.codec import UNDECODABLE
from events.subjects import EVENTS_STREAM
from services.runtime.backup.archive import (
    FILES,
    FORMAT,
    KEPT_FOLDER,
    MANIFEST,
    NO_HASH,
    BackupError,
    Kept,
    Manifest,
    Message,
    Packer,
    Segment,
    SegmentWriter,
    decode_manifest,
    encode_manifest,
    sha256,
)
from services.runtime.backup.check import last_message
from services.runtime.backup.holdings import kept_streams
from services.runtime.backup.place import Place
from services.runtime.backup.seal import Sealer, new_sealer, sealer_of
from services.runtime.backup.source import Source
from services.runtime.nats.jetstream_api import StreamInfo

type Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""

RUN_BYTES: Final = 4
"""Of the mark in the names of what one run writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    manifest: Manifest
    new_messages: int
    new_bytes: int
    """Written by this run."""
    seconds: float


class _Place(msgspec.Struct, frozen=True):
    """Of a commit in its atomic batch."""

    index: int
    count: int


class _Record(msgspec.Struct, frozen=True):
    batch: _Place | None = None


async def back_up(
    source: Source, place: Place, passphrase: bytes, files: Mapping[str, bytes], *, version: str, progress: Progress
) -> Done:
    """Bring the backup up to the end of the log as it is now. Raises BackupError, UnansweredError, JetStreamError.

    `files` are those of the installation that are kept, by their paths.
    """
    place.make()
    with place.held():
        raw = place.read(MANIFEST) if place.exists(MANIFEST) else b""
        before = decode_manifest(raw) if raw else None
        # Half a second of CPU: the connection goes on meanwhile.
        sealer = await asyncio.to_thread(_sealer, before, passphrase)
        return await _Run(source, place, sealer, version, raw, before).run(files, progress)


def _sealer(before: Manifest | None, passphrase: bytes) -> Sealer:
    return new_sealer(passphrase) if before is None else sealer_of(before.sealing, passphrase)


class _Run:
    def __init__(  # noqa: PLR0917
        self, source: Source, place: Place, sealer: Sealer, version: str, raw: bytes, before: Manifest | None
    ) -> None:
        self._source = source
        self._place = place
        self._version = version
        self._raw, self._before = raw, before
        """The manifest that was there at the beginning, as it is stored, and decoded."""
        self._sealer = sealer
        self._mark = secrets.token_hex(RUN_BYTES)
        self._written: list[str] = []
        """Files of this run."""
        self._ending = False
        """Whether a manifest may have been written that lists them."""
        self._new_messages = self._new_bytes = 0

    async def run(self, files: Mapping[str, bytes], progress: Progress) -> Done:
        began = time.monotonic()
        try:
            manifest = await self._write_files(files, progress)
            self._write_manifest(manifest)
        except BaseException:
            self._take_back()
            raise
        return Done(
            manifest=manifest,
            new_messages=self._new_messages,
            new_bytes=self._new_bytes,
            seconds=time.monotonic() - began,
        )

    async def _write_files(self, files: Mapping[str, bytes], progress: Progress) -> Manifest:
        kept = [part for name in kept_streams(before_log=True) for part in await self._keep(name)]
        first, segments, chain = await self._log(progress)
        kept += [part for name in kept_streams(before_log=False) for part in await self._keep(name)]
        kept.append(self._keep_files(files))
        return Manifest(
            format=FORMAT,
            made_at=datetime.now(UTC),
            muster=self._version,
            first=first,
            seq=segments[-1].last if segments else first - 1,
            chain=chain.hex(),
            segments=tuple(segments),
            kept=tuple(kept),
            sealing=self._sealer.sealing,
        )

    def _write(self, name: str, data: bytes) -> None:
        self._written.append(name)
        self._place.write(name, data)
        self._new_bytes += len(data)

    # -- the log -----------------------------------------------------------------------------------------------------

    async def _log(self, progress: Progress) -> tuple[int, list[Segment], bytes]:
        """What is there of the log, with what is new: its first sequence, the segments, the hash at its end."""
        state, before = (await self._source.info(EVENTS_STREAM)).state, self._before
        first = state.first_seq if state.messages else state.last_seq + 1
        if before is None:
            segments, chain, wanted = list[Segment](), NO_HASH, first
        else:
            await self._check_same_log(before, first, state.last_seq)
            segments, chain, wanted = list(before.segments), bytes.fromhex(before.chain), before.seq + 1
            first = before.first
        writer, begin, end, last = SegmentWriter(chain), wanted, state.last_seq, None
        while wanted <= end:
            async for messages in self._source.log(wanted, end):
                for message in messages:
                    writer.add(message)
                    if writer.packer.full:
                        segments.append(self._finish(writer))
                        writer = SegmentWriter(writer.chain)
                last = messages[-1]
                progress(last.seq - begin + 1, end - begin + 1)
            wanted = end + 1
            # An atomic batch is one fact: a backup never ends inside one.
            end += _rest_of_batch(last)
        if writer.packer.messages:
            segments.append(self._finish(writer))
        return first, segments, writer.chain

    async def _check_same_log(self, before: Manifest, first: int, end: int) -> None:
        """Raises BackupError where the server's log is not the one that was backed up here."""
        todo = "back up into another folder"
        if not before.segments:
            if first != before.first:
                raise BackupError(f"the log begins at {first}, the backup at {before.first}: {todo}")
            return
        if end < before.seq:
            raise BackupError(
                f"the log ends at {end:,}, and this backup goes up to {before.seq:,}: it is of another log, or the log "
                f"was restored to an earlier moment; {todo}"
            )
        kept = last_message(self._place, before)
        async for messages in self._source.log(before.seq, before.seq):
            now = messages[0]
            if (now.subject, now.data) != (kept.subject, kept.data):
                raise BackupError(
                    f"message {before.seq:,} of the log is not the one in this backup: it is of another log, or the "
                    f"log was restored to an earlier moment and went on differently; {todo}"
                )

    def _finish(self, writer: SegmentWriter) -> Segment:
        segment, data = writer.finish(self._mark)
        self._write(segment.file, data)
        self._new_messages += writer.packer.messages
        return segment

    # -- what is kept ------------------------------------------------------------------------------------------------

    async def _keep(self, stream: str) -> list[Kept]:
        info = await self._source.info(stream)
        state = _told(info)
        there = [part for part in self._before.kept if part.name == stream] if self._before else []
        if there and all(part.state == state for part in there):
            return there
        parts: list[Kept] = []
        packer = Packer()
        async for message in self._source.stream(stream, info):
            packer.add(message)
            if packer.full:
                parts.append(self._seal(stream, len(parts), packer.finish(), packer.messages, state))
                packer = Packer()
        parts.append(self._seal(stream, len(parts), packer.finish(), packer.messages, state))
        return parts

    def _keep_files(self, files: Mapping[str, bytes]) -> Kept:
        packed = msgspec.json.encode({name: base64.b64encode(data).decode() for name, data in sorted(files.items())})
        return self._seal(FILES, 0, packed, len(files), "")

    def _seal(self, name: str, part: int, data: bytes, entries: int, state: str) -> Kept:
        sealed = self._sealer.seal(f"{name}/{part}", data)
        file = f"{KEPT_FOLDER}/{name}-{part:04d}-{self._mark}.sealed"
        self._write(file, sealed)
        return Kept(
            name=name,
            part=part,
            file=file,
            bytes=len(sealed),
            sha256=sha256(sealed),
            entries=entries,
            state=state,
        )

    # -- the end -----------------------------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """Remove the files of a run that failed, where no manifest can list them: on a full disk they would take the
        room of the next one.
        """
        with contextlib.suppress(BackupError):
            if self._ending and (not self._place.lockable or self._stored_manifest() != self._raw):
                return
            for name in self._written:
                self._place.remove(name)

    def _stored_manifest(self) -> bytes:
        return self._place.read(MANIFEST) if self._place.exists(MANIFEST) else b""

    def _write_manifest(self, manifest: Manifest) -> None:
        if self._stored_manifest() != self._raw:
            raise BackupError(f"another backup into {self._place.url} has ended meanwhile: run this one again")
        self._ending = True
        self._place.write(MANIFEST, encode_manifest(manifest))
        listed = {segment.file for segment in manifest.segments} | {part.file for part in manifest.kept}
        with contextlib.suppress(BackupError):
            for name in self._place.leftovers(
                listed, [part.file for part in self._before.kept] if self._before else []
            ):
                self._place.remove(name)


def _rest_of_batch(last: Message | None) -> int:
    """How many messages of its atomic batch stand behind it."""
    if last is None:
        return 0
    try:
        batch = msgspec.json.decode(last.data, type=_Record).batch
    except UNDECODABLE:
        return 0
    return max(0, batch.count - batch.index) if batch is not None else 0


def _told(info: StreamInfo) -> str:
    state: Any = info.state
    return f"{info.created} {state.first_seq} {state.last_seq} {state.messages}"
