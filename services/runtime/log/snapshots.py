"""Snapshots of folds on the SNAPSHOTS stream: disposable, checked in every way, thrown away on any doubt.

A snapshot is a manifest and parts that fit messages. The parts of a new one go beside those of the old one, and the
manifest is written last, so that a reader finds the old one until the new one is whole.
"""

import asyncio
import hashlib
import zlib
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.codec import UNDECODABLE
from events.subjects import EVENTS_STREAM, SNAPSHOTS_STREAM, snapshot_subject
from services.runtime.nats.jetstream_api import JetStreamError, decode_ack, last_message, stream_info
from services.runtime.nats.requests import Requests, UnansweredError

PART_BYTES: Final = 900 * 1024
"""Below the server's largest message, with room for its headers."""
SLOT_PARTS: Final = 100_000
"""Part numbers of a slot; more parts than any snapshot has."""
REQUEST_SECONDS: Final = 5.0
MANIFEST_PART: Final = 0

log = structlog.get_logger(__name__)


class _Manifest(msgspec.Struct, frozen=True):
    fold_version: int
    seq: int
    log_id: str
    slot: int
    parts: int
    digest: str


class Snapshots:
    """Saves and loads the newest snapshot of a name."""

    def __init__(self, nc: Client, requests: Requests | None = None) -> None:
        self._requests = requests or Requests(nc)

    async def save(self, name: str, fold_version: int, seq: int, payload: bytes) -> bool:
        """Keep a fold as it was after commit `seq`; False where that failed, which costs nothing but time later.

        `name` is fit for a subject; `fold_version` changes whenever the fold or the payload's shape does.
        """
        try:
            await self._save(name, fold_version, seq, payload)
        except (UnansweredError, JetStreamError, NatsError) as error:
            log.warning("snapshot_not_saved", name=name, seq=seq, error=str(error))
            return False
        return True

    async def _save(self, name: str, fold_version: int, seq: int, payload: bytes) -> None:
        packed = await asyncio.to_thread(zlib.compress, payload, 1)
        before = await self._manifest(name)
        slot = 1 - before.slot if before is not None else 0
        parts = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
        for number, part in enumerate(parts):
            await self._put(_part_subject(name, slot, number), part)
        manifest = _Manifest(
            fold_version=fold_version,
            seq=seq,
            log_id=await self._log_id(),
            slot=slot,
            parts=len(parts),
            digest=hashlib.sha256(packed).hexdigest(),
        )
        await self._put(snapshot_subject(name, MANIFEST_PART), msgspec.json.encode(manifest))

    async def load(self, name: str, fold_version: int) -> tuple[int, bytes] | None:
        """(sequence, payload) of the newest snapshot; None where there is none that can be trusted."""
        try:
            manifest = await self._manifest(name)
            if manifest is None or manifest.fold_version != fold_version or manifest.log_id != await self._log_id():
                return None
            parts: list[bytes] = []
            for number in range(manifest.parts):
                part = await self._get(_part_subject(name, manifest.slot, number))
                if part is None:
                    return None
                parts.append(part)
        except (UnansweredError, JetStreamError, NatsError) as error:
            log.warning("snapshot_not_read", name=name, error=str(error))
            return None
        packed = b"".join(parts)
        if hashlib.sha256(packed).hexdigest() != manifest.digest:
            return None
        try:
            return manifest.seq, await asyncio.to_thread(zlib.decompress, packed)
        except zlib.error:
            return None

    async def _manifest(self, name: str) -> _Manifest | None:
        found = await self._get(snapshot_subject(name, MANIFEST_PART))
        if found is None:
            return None
        try:
            return msgspec.json.decode(found, type=_Manifest)
        except UNDECODABLE:
            return None

    async def _log_id(self) -> str:
        """Asked every time: a log that was made anew has other commits under the same sequences."""
        return (await stream_info(self._requests, EVENTS_STREAM, seconds=REQUEST_SECONDS)).created

    async def _get(self, subject: str) -> bytes | None:
        message = await last_message(self._requests, SNAPSHOTS_STREAM, subject, seconds=REQUEST_SECONDS)
        return None if message is None else message.data

    async def _put(self, subject: str, payload: bytes) -> None:
        ack = decode_ack(await self._requests.ask(subject, payload, seconds=REQUEST_SECONDS))
        if ack.error is not None:
            raise JetStreamError(ack.error)


def _part_subject(name: str, slot: int, number: int) -> str:
    return snapshot_subject(name, 1 + slot * SLOT_PARTS + number)
