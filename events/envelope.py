"""What travels between api, gate and commands: requests, admitted commands, and the answer."""

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from events.commands import UserCommand
from events.commit import Actor
from events.refusal import Refusal
from events.workload.commands import CreateWorkload

MAX_UNPACKED_BYTES: Final = 32 * 1024 * 1024
"""Of the items of one part of a batch, whose body has 16 MiB: with every default written out it may be longer."""


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From the api to the gate, on `cmd.request.<command>`."""

    command_id: str
    token: str
    """The caller's own: the gate verifies it itself."""
    command: UserCommand
    body_hash: str = ""
    """SHA-256 of the request, in hex, where it came with an Idempotency-Key: what else comes with the same key is
    compared with it. Empty without a key: then the command id never comes again."""
    expected_version: int | None = None
    """From If-Match."""
    correlation_id: str = ""
    min_seq: int = 0
    """What the api and the caller know to be in the log, of the target or of all: nothing older is to be decided on."""
    min_roles: int = 0
    """Sequence of the newest change of roles, projects and clusters that the api knows of."""


class AdmittedCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From the gate to commands on `cmd.admitted.<command>`; from a service on `cmd.system.<service>.<command>`."""

    command_id: str
    actor: Actor
    command: UserCommand
    body_hash: str = ""
    expected_version: int | None = None
    correlation_id: str = ""
    protected: bool = False
    override: bool = False
    min_seq: int = 0
    """As in the request."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Durable, or already so."""

    seq: int
    """Version of the aggregate that holds the answer: what a reader may wait for (`min_seq`)."""
    id: str = ""
    """Of what was made."""
    changed: bool = True
    """False where it already was so."""
    at: datetime | None = None
    """When the commit was decided, where this command made one: the api answers a creation without reading it back."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    refusal: Refusal


class OutcomeUnknown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It may or may not have been stored; repeat with the same key to learn which."""


CommandReply = Accepted | Refused | OutcomeUnknown


class BatchItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One creation of a batch."""

    index: int
    """Of the item in the batch: with the batch's id, it gives the command id (`item_command_id`)."""
    command: CreateWorkload


class ItemReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one item."""

    index: int
    reply: CommandReply


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a batch of creations that fits one message: from the api to the gate, on `cmd.request.CreateWorkloads`.

    Fields that a CommandRequest has mean the same here.
    """

    batch_id: str
    """Command id of the whole batch; its parts share it."""
    token: str
    packed: bytes
    """Its items (`packed`)."""
    all_or_nothing: bool = False
    """The items of a batch that is all or nothing are all in one part."""
    body_hash: str = ""
    correlation_id: str = ""
    min_seq: int = 0
    min_roles: int = 0


class AdmittedBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same from the gate to commands, on `cmd.admitted.CreateWorkloads`."""

    batch_id: str
    actor: Actor
    packed: bytes
    """The items that the gate admitted."""
    refused: tuple[ItemReply, ...] = ()
    """Why it did not admit the others."""
    all_or_nothing: bool = False
    body_hash: str = ""
    correlation_id: str = ""
    min_seq: int = 0


def packed(items: Sequence[BatchItem]) -> bytes:
    """Items as they travel: alike as they mostly are, a thousand fit one message."""
    return zlib.compress(_ITEMS_ENCODER.encode(items), level=1)


def unpacked(data: bytes) -> tuple[BatchItem, ...]:
    """The items in it. Raises what a decoder raises (`UNDECODABLE`), also for more than MAX_UNPACKED_BYTES."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"these are no packed items: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"items are unfinished, or larger than {MAX_UNPACKED_BYTES} bytes")
    return _ITEMS_DECODER.decode(text)


_ITEMS_ENCODER: Final = msgspec.json.Encoder()
_ITEMS_DECODER: Final = msgspec.json.Decoder(tuple[BatchItem, ...])


class BatchAnswered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What became of every item of a part."""

    items: tuple[ItemReply, ...]


BatchReply = BatchAnswered | Refused | OutcomeUnknown
"""Refused: all of it, for one reason; OutcomeUnknown: nobody knows of any item."""
