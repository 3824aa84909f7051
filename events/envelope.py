"""What travels between api, gate and commands: requests, admitted commands, and the answer."""

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

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


class _Named(msgspec.Struct, frozen=True, array_like=True):
    """An item: a command that may be the same for many, and what each has of its own."""

    index: int
    command: int
    """Its place among the different ones."""
    name: str
    requested_name: str


class _Packed(msgspec.Struct, frozen=True):
    """Items of a batch. Those that differ in their names alone have one command."""

    commands: tuple[msgspec.Raw, ...]
    items: tuple[_Named, ...]


def packed(items: Sequence[BatchItem]) -> bytes:
    """Items as they travel: alike as they mostly are, a thousand fit one message."""
    places: dict[tuple[object, ...], int] = {}
    commands: list[msgspec.Raw] = []
    named: list[_Named] = []
    for item in items:
        command = item.command
        place = places.setdefault(_but_its_name(command), len(commands))
        if place == len(commands):
            commands.append(msgspec.Raw(_PACKED_ENCODER.encode(command)))
        named.append(_Named(item.index, place, command.name, command.requested_name))
    return zlib.compress(_PACKED_ENCODER.encode(_Packed(tuple(commands), tuple(named))), level=1)


def _but_its_name(command: CreateWorkload) -> tuple[object, ...]:
    """What tells a command from others; specs that are not the very same object may be as different as they like."""
    beside = (id(command.distributed), id(command.inference), id(command.made_from))
    return command.kind, command.project_id, command.cluster_id, command.among, id(command.spec), *beside


def unpacked(data: bytes) -> tuple[BatchItem, ...]:
    """The items in it; those that came with one command have the very same spec. Raises what a decoder raises
    (`UNDECODABLE`), also for more than MAX_UNPACKED_BYTES.
    """
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"these are no packed items: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"items are unfinished, or larger than {MAX_UNPACKED_BYTES} bytes")
    found = _PACKED_DECODER.decode(text)
    if not all(0 <= item.command < len(found.commands) for item in found.items):
        raise ValueError("an item has no command")
    sizes = [memoryview(raw).nbytes for raw in found.commands]
    if sum(sizes[item.command] for item in found.items) > MAX_UNPACKED_BYTES:
        raise ValueError(f"items are larger than {MAX_UNPACKED_BYTES} bytes")
    commands = [_COMMAND_DECODER.decode(raw) for raw in found.commands]
    return tuple(
        BatchItem(
            index=item.index,
            command=replace(commands[item.command], name=item.name, requested_name=item.requested_name),
        )
        for item in found.items
    )


_PACKED_ENCODER: Final = msgspec.json.Encoder()
_PACKED_DECODER: Final = msgspec.json.Decoder(_Packed)
_COMMAND_DECODER: Final = msgspec.json.Decoder(CreateWorkload)


class BatchAnswered(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What became of every item of a part."""

    items: tuple[ItemReply, ...]


BatchReply = BatchAnswered | Refused | OutcomeUnknown
"""Refused: all of it, for one reason; OutcomeUnknown: nobody knows of any item."""
