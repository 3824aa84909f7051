"""What each Idempotency-Key stands for: one record per command id, kept for a day (docs/adr/0028).

A record is only ever written over the one before it, guarded by that one's sequence, so that of two writers one learns
of the other. What the records mean for a command is decided in `pledge.py`.
"""

from typing import Final, Protocol

import msgspec

from events.envelope import Accepted
from events.subjects import KEYS_STREAM, key_subject
from services.runtime.log.jetstream import CONFLICT_CODES, GUARD
from services.runtime.nats.jetstream_api import JetStreamError, decode_ack, last_message
from services.runtime.nats.requests import Requests

KEY_SECONDS: Final = 2.0
"""One question to the stream: as an append, a restarted server is back after 1.6 s."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Settings that all records share."""


class Pledged(_Entry, frozen=True, kw_only=True):
    """The request is being carried out, or was: then its commit stands in the target's chain."""

    target: str
    """Subject of the aggregate that the request is about."""
    body_hash: str
    after_seq: int = 0
    """A commit of it can stand only behind this sequence."""


class Settled(_Entry, frozen=True, kw_only=True):
    """The request was accepted and changed nothing: no commit tells its answer."""

    target: str
    body_hash: str
    answer: Accepted


class Released(_Entry, frozen=True, kw_only=True):
    """The request was refused: the key is free again."""


Entry = Pledged | Settled | Released


class Kept(msgspec.Struct, frozen=True):
    """The newest record of a key."""

    entry: Entry
    seq: int
    """The guard of what is written over it."""


class Keys(Protocol):
    """Raises LogUnavailableError where no answer comes; a write may have been stored then."""

    async def read(self, command_id: str) -> Kept | None:
        """The newest record, as the stream's leader has it."""
        ...

    async def write(self, command_id: str, entry: Entry, *, over: int) -> int | None:
        """Its sequence, durable; None where the newest record is not the one of sequence `over` (0: none)."""
        ...


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Entry)


class JetStreamKeys:
    """`Keys` on the KEYS stream."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def read(self, command_id: str) -> Kept | None:
        found = await last_message(self._requests, KEYS_STREAM, key_subject(command_id), seconds=KEY_SECONDS)
        return None if found is None else Kept(_DECODER.decode(found.data), found.seq)

    async def write(self, command_id: str, entry: Entry, *, over: int) -> int | None:
        ack = decode_ack(
            await self._requests.ask(
                key_subject(command_id), _ENCODER.encode(entry), seconds=KEY_SECONDS, headers={GUARD: str(over)}
            )
        )
        if ack.error is None:
            return ack.seq
        if ack.error.err_code in CONFLICT_CODES:
            return None
        raise JetStreamError(ack.error)
