"""Checking a backup: by itself, against a head that was noted elsewhere, and against the log of a server."""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from events.subjects import EVENTS_STREAM
from services.runtime.backup.archive import (
    MANIFEST,
    NO_HASH,
    BackupError,
    Manifest,
    Message,
    decode_manifest,
    segment_messages,
    sha256,
)
from services.runtime.backup.place import Place
from services.runtime.backup.source import Source

_HEAD: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A place in a log, and the hash of all of the log up to it."""

    seq: int
    chain: str


def parse_head(text: str) -> Head:
    """Raises BackupError."""
    found = _HEAD.fullmatch(text)
    if found is None:
        raise BackupError(
            f"a head is SEQUENCE:HASH as `muster backup` prints it, with 64 digits of 0-9a-f, not {text!r}"
        )
    return Head(seq=int(found[1]), chain=found[2])


def read_manifest(place: Place) -> Manifest:
    """The manifest of a backup, whose segments follow one another. Raises BackupError."""
    if not place.exists(MANIFEST):
        raise BackupError(f"{place.url} holds no backup: {MANIFEST} is missing")
    manifest = decode_manifest(place.read(MANIFEST))
    wanted = manifest.first
    for segment in manifest.segments:
        if segment.first != wanted or segment.last < segment.first:
            raise BackupError(f"{MANIFEST} is damaged: {segment.file} does not begin at {wanted}")
        wanted = segment.last + 1
    end = manifest.segments[-1].chain if manifest.segments else NO_HASH.hex()
    if wanted != manifest.seq + 1 or end != manifest.chain:
        raise BackupError(f"{MANIFEST} is damaged: its segments do not end at its head")
    return manifest


def messages_of(place: Place, manifest: Manifest) -> Iterator[tuple[Message, bytes]]:
    """The whole log of a backup, checked, each message with the hash of the log there. Raises BackupError."""
    chain = NO_HASH
    for segment in manifest.segments:
        yield from segment_messages(segment, place.read(segment.file), chain)
        chain = bytes.fromhex(segment.chain)


def last_message(place: Place, manifest: Manifest) -> Message:
    """Of a backup that has some. Raises BackupError."""
    *before, segment = manifest.segments
    chain = bytes.fromhex(before[-1].chain) if before else NO_HASH
    return deque(segment_messages(segment, place.read(segment.file), chain), maxlen=1)[0][0]


def check_kept(place: Place, manifest: Manifest) -> None:
    """Whether the sealed files are as they were written. Raises BackupError."""
    for part in manifest.kept:
        data = place.read(part.file)
        if len(data) != part.bytes or sha256(data) != part.sha256:
            raise BackupError(f"{part.file} is damaged: it does not have the size and the hash that {MANIFEST} names")


def check(place: Place, manifest: Manifest, progress: Callable[[int, int], None], head: Head | None = None) -> None:
    """Check everything, and that the log has this head. Raises BackupError."""
    check_kept(place, manifest)
    if head is not None:
        _check_reaches(manifest, head)
    total = manifest.seq - manifest.first + 1
    for message, chain in messages_of(place, manifest):
        done = message.seq - manifest.first + 1
        if head is not None and message.seq == head.seq and chain.hex() != head.chain:
            raise BackupError(f"the head differs: at {head.seq:,} the hash of the backup is {chain.hex()}")
        if done % 1_000 == 0 or done == total:
            progress(done, total)


def _check_reaches(manifest: Manifest, head: Head) -> None:
    if head.seq > manifest.seq:
        raise BackupError(f"the head differs: the backup ends at {manifest.seq:,}, before {head.seq:,}")
    if head.seq < manifest.first - 1 or (head.seq == manifest.first - 1 and head.chain != NO_HASH.hex()):
        raise BackupError(f"the head differs: the backup begins at {manifest.first:,}, after {head.seq:,}")


async def compare(place: Place, manifest: Manifest, source: Source, progress: Callable[[int, int], None]) -> int:
    """Compare every message with the server's, after `check_kept`; where the server's log ends. Raises BackupError at
    the first difference.
    """
    check_kept(place, manifest)
    state = (await source.info(EVENTS_STREAM)).state
    first = state.first_seq if state.messages else state.last_seq + 1
    if first != manifest.first:
        raise BackupError(f"the server's log begins at {first:,}, the backup at {manifest.first:,}")
    if state.last_seq < manifest.seq:
        raise BackupError(
            f"the server's log ends at {state.last_seq:,}, and the backup goes up to {manifest.seq:,}: it is of "
            "another log, or the server has lost part of it"
        )
    ours, total = messages_of(place, manifest), manifest.seq - manifest.first + 1
    async for messages in source.log(manifest.first, manifest.seq):
        for theirs in messages:
            kept, _ = next(ours)
            if (kept.subject, kept.data) != (theirs.subject, theirs.data):
                raise BackupError(f"message {kept.seq:,} of the server's log is not the one in the backup")
        progress(messages[-1].seq - manifest.first + 1, total)
    for _ in ours:  # its last segment is checked once it has been read to its end
        pass
    return state.last_seq


def unlisted(place: Place, manifest: Manifest) -> list[str]:
    """Files of backups that were cut off, or of a newer manifest than this one."""
    listed: set[str] = {segment.file for segment in manifest.segments} | {part.file for part in manifest.kept}
    return [name for name in place.names() if name not in listed]
