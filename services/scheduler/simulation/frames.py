"""How a simulation in a process of its own is given its job, and tells how far it is and what came out."""

from io import RawIOBase
from typing import BinaryIO, Final

import msgspec

from services.scheduler.simulation.figures import Figures
from services.scheduler.simulation.script import Job

_LENGTH_BYTES: Final = 4


class Far(msgspec.Struct, frozen=True, tag=True):
    """How far it is, in seconds of virtual time."""

    done: float
    total: float


class Outcome(msgspec.Struct, frozen=True, tag=True):
    figures: Figures
    wall_seconds: float
    """What it took."""
    plans: int
    """That the scheduler made."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """It could not be played."""

    message: str


Message = Far | Outcome | Broken
_ENCODER: Final = msgspec.msgpack.Encoder()
_MESSAGES: Final = msgspec.msgpack.Decoder(Message)
_JOBS: Final = msgspec.json.Decoder(Job)
"""As JSON: events stand in it as the log has them."""


def encode_job(job: Job) -> bytes:
    return msgspec.json.encode(job)


def decode_job(data: bytes) -> Job:
    return _JOBS.decode(data)


def write(to: BinaryIO, message: Message) -> None:
    data = _ENCODER.encode(message)
    to.write(len(data).to_bytes(_LENGTH_BYTES) + data)
    to.flush()


def read(from_: RawIOBase) -> Message | None:
    """The next message; None where the other end is gone."""
    length = _exactly(from_, _LENGTH_BYTES)
    data = None if length is None else _exactly(from_, int.from_bytes(length))
    return None if data is None else _MESSAGES.decode(data)


def _exactly(from_: RawIOBase, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        piece = from_.read(count - len(found))
        if not piece:
            return None
        found += piece
    return found
