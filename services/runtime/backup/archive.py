"""The form of a backup: a manifest, segments of the log, and sealed files. Says what is wrong with one, by name.

    manifest.json              what belongs to the backup; written last, whole or not at all
    events/FIRST-LAST-N.zst    messages of the log, one JSON object a line, compressed with zstd
    kept/NAME-N.sealed         what cannot be made again from the log, encrypted (seal.py)

Every message of the log is linked to the one before it: its hash is the SHA-256 of the hash before it, its sequence,
the length of its subject, its subject and its payload. So the hash at the end stands for the whole log. Time and
headers of a message are under the hash of their segment.
"""

import base64
import binascii
import hashlib
import io
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

import msgspec
import zstandard
from msgspec import Meta

FORMAT: Final = 1
"""Raised when an older program would misread a backup. A newer one is refused."""
MANIFEST: Final = "manifest.json"
EVENTS_FOLDER: Final = "events"
KEPT_FOLDER: Final = "kept"
FILES: Final = "files"
"""Name of the sealed file that holds files of the installation."""
LEVEL: Final = 3
"""Of zstd: its own default; higher ones cost more time than they save space."""
SEGMENT_MESSAGES: Final = 50_000
SEGMENT_BYTES: Final = 64 * 1024**2
"""Of the lines of one segment, before they are compressed: it is put together in memory."""
LONGEST_LINE: Final = 8 * 1024**2
"""A message has at most 1 MiB; as base64 in JSON it is longer."""
NO_HASH: Final = bytes(32)
"""What the first message is linked to."""

type _Count = Annotated[int, Meta(ge=0, le=2**62)]
"""Also of bytes, and sequences: far more than a server counts to."""
type _Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
type _EventsFile = Annotated[
    str, Meta(pattern=rf"^{EVENTS_FOLDER}/[0-9]{{12,20}}-[0-9]{{12,20}}-[0-9a-f]{{1,32}}\.zst\Z")
]
"""No name leads out of a backup's folders: whoever can write a backup chooses what stands in its manifest."""
type _KeptFile = Annotated[
    str, Meta(pattern=rf"^{KEPT_FOLDER}/[A-Za-z_]{{1,64}}-[0-9]{{4,9}}-[0-9a-f]{{1,32}}\.sealed\Z")
]


class BackupError(Exception):
    """The backup cannot be used, written or restored; the message says why, and names the file."""


class Message(msgspec.Struct, frozen=True):
    """One message of a stream."""

    seq: int
    subject: str
    time: str
    """When the server stored it, as the server writes it (RFC 3339, nanoseconds)."""
    headers: dict[str, str]
    data: bytes


class _Line(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    seq: _Count
    subject: str
    time: str
    headers: dict[str, str] = {}
    data: str = ""
    base64: bool = False
    """Whether `data` is base64: the payload is no text."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    file: _EventsFile
    first: _Count
    last: _Count
    bytes: _Count
    sha256: _Hash
    """Of the file."""
    chain: _Hash
    """Hash of the log at its last message."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed file."""

    name: str
    """Of the stream, or `files`."""
    part: _Count
    """A stream that is large is kept in several files, from 0."""
    file: _KeptFile
    bytes: _Count
    sha256: _Hash
    entries: _Count
    state: str = ""
    """Of the stream when it was read: where it is still the same, its files are not written again."""

    @property
    def sealed_as(self) -> str:
        return f"{self.name}/{self.part}"


class Sealing(msgspec.Struct, frozen=True, kw_only=True):
    """How the key of the sealed files follows from the passphrase, and a text to try one on."""

    salt: str
    n: _Count
    r: _Count
    p: _Count
    check: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    made_at: datetime
    muster: str
    """Version of the program that wrote it."""
    first: _Count
    """First sequence of the log; 1 more than `seq` where it is empty."""
    seq: _Count
    chain: _Hash
    """Hash of the log at `seq`: with it the head of the backup."""
    segments: tuple[Segment, ...]
    kept: tuple[Kept, ...]
    sealing: Sealing

    @property
    def head(self) -> str:
        return f"{self.seq}:{self.chain}"


class _Signed(msgspec.Struct, frozen=True):
    manifest: msgspec.Raw
    sha256: str


class _Format(msgspec.Struct, frozen=True):
    format: int


_ENCODER: Final = msgspec.json.Encoder()
_LINE: Final = msgspec.json.Decoder(_Line)


def link(before: bytes, message: Message) -> bytes:
    """The hash of the log at this message."""
    subject = message.subject.encode()
    return hashlib.sha256(
        b"".join((before, message.seq.to_bytes(8, "big"), len(subject).to_bytes(4, "big"), subject, message.data))
    ).digest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    raw = msgspec.json.format(_ENCODER.encode(manifest), indent=1)
    return b'{"sha256":"%b","manifest":%b}' % (sha256(raw).encode(), raw)


def decode_manifest(data: bytes) -> Manifest:
    """Raises BackupError."""
    try:
        signed = msgspec.json.decode(data, type=_Signed)
        if sha256(bytes(signed.manifest)) != signed.sha256:
            raise BackupError(f"{MANIFEST} is damaged: it does not have the hash that it names")
        format_ = msgspec.json.decode(signed.manifest, type=_Format).format
        if format_ > FORMAT:
            raise BackupError(
                f"{MANIFEST} was written by a newer Muster (format {format_}, this one knows up to {FORMAT}): "
                "install the newer one"
            )
        return msgspec.json.decode(signed.manifest, type=Manifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BackupError(f"{MANIFEST} is damaged: {error}") from error


def encode_message(message: Message) -> bytes:
    """One line, with its end."""
    try:
        line = _Line(message.seq, message.subject, message.time, message.headers, message.data.decode())
    except UnicodeDecodeError:
        data = base64.b64encode(message.data).decode()
        line = _Line(message.seq, message.subject, message.time, message.headers, data, base64=True)
    return _ENCODER.encode(line) + b"\n"


def decode_message(line: bytes) -> Message:
    """Raises ValueError where it is none."""
    try:
        found = _LINE.decode(line)
        data = base64.b64decode(found.data, validate=True) if found.base64 else found.data.encode()
    except (msgspec.MsgspecError, binascii.Error, RecursionError) as error:
        raise ValueError(str(error)) from error
    return Message(found.seq, found.subject, found.time, found.headers, data)


class Packer:
    """Puts messages together in memory, as compressed lines."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        """`bytes` counts the lines before they are compressed."""
        self._out = io.BytesIO()
        self._pack = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(self._out, closefd=False)

    @property
    def full(self) -> bool:
        return self.messages >= SEGMENT_MESSAGES or self.bytes >= SEGMENT_BYTES

    def add(self, message: Message) -> None:
        line = encode_message(message)
        self._pack.write(line)
        self.messages += 1
        self.bytes += len(line)

    def finish(self) -> bytes:
        self._pack.close()  # pyright: ignore[reportUnknownMemberType]
        return self._out.getvalue()


class SegmentWriter:
    """Puts one segment of the log together in memory."""

    def __init__(self, chain: bytes) -> None:
        self.chain = chain
        self.packer = Packer()
        self._first = self._last = 0

    def add(self, message: Message) -> None:
        self.packer.add(message)
        self.chain = link(self.chain, message)
        self._first = self._first or message.seq
        self._last = message.seq

    def finish(self, run: str) -> tuple[Segment, bytes]:
        data = self.packer.finish()
        name = f"{EVENTS_FOLDER}/{self._first:012d}-{self._last:012d}-{run}.zst"
        segment = Segment(
            file=name,
            first=self._first,
            last=self._last,
            bytes=len(data),
            sha256=sha256(data),
            chain=self.chain.hex(),
        )
        return segment, data


def unpack(file: str, data: bytes) -> Iterator[Message]:
    """The messages of compressed lines. Raises BackupError that names the file and the line."""
    number = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as unpacking:
            for line in _lines(unpacking):
                number += 1
                yield decode_message(line)
    except (zstandard.ZstdError, ValueError, EOFError) as error:
        raise BackupError(f"{file} is damaged in line {number}: {error}") from error


def _lines(unpacking: zstandard.ZstdDecompressionReader) -> Iterator[bytes]:
    held = b""
    while piece := unpacking.read(1024 * 1024):
        *lines, held = (held + piece).split(b"\n")
        yield from lines
        if len(held) > LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE} bytes")
    if held:
        raise ValueError("its last line has no end")


def segment_messages(segment: Segment, data: bytes, chain: bytes) -> Iterator[tuple[Message, bytes]]:
    """The messages of a segment, each with the hash of the log there; `chain` is that before the first.

    Raises BackupError where anything is not as the manifest says.
    """
    if len(data) != segment.bytes or sha256(data) != segment.sha256:
        _find_damage(segment, data, chain)
        raise BackupError(f"{segment.file} is damaged: it does not have the size and the hash that {MANIFEST} names")
    wanted = segment.first
    for message in unpack(segment.file, data):
        if message.seq != wanted:
            raise BackupError(f"{segment.file} is damaged: message {message.seq} stands where {wanted} should")
        chain = link(chain, message)
        yield message, chain
        wanted += 1
    if wanted != segment.last + 1:
        raise BackupError(f"{segment.file} is damaged: it ends at {wanted - 1} and not at {segment.last}")
    if chain.hex() != segment.chain:
        raise BackupError(f"{segment.file} is damaged: the chain of hashes is another one at {segment.last}")


def _find_damage(segment: Segment, data: bytes, chain: bytes) -> None:
    """Of a file that is not as it was written. Raises BackupError where it shows which line is at fault."""
    wanted = segment.first
    for number, message in enumerate(unpack(segment.file, data), start=1):
        if message.seq != wanted:
            raise BackupError(
                f"{segment.file} is damaged in line {number}: message {message.seq} stands where {wanted} should"
            )
        wanted += 1
        chain = link(chain, message)
    if wanted == segment.last + 1 and chain.hex() != segment.chain:
        raise BackupError(f"{segment.file} is damaged: one of its messages was changed")
