"""How a simulation in a process of its own is given its job, and tells how far it is and what came out."""

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
_JOBS: Final = msgspec.msgpack.Decoder(Job)


def encode_job(job: Job) -> bytes:
    return _ENCODER.encode(job)


def decode_job(data: bytes) -> Job:
    return _JOBS.decode(data)


def write(to: BinaryIO, message: Message) -> None:
    data = _ENCODER.encode(message)
    to.write(len(data).to_bytes(_LENGTH_BYTES) + data)
    to.flush()


def read(from_: BinaryIO) -> Message | None:
    """The next message; None where the other end is gone."""
    length = from_.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    data = from_.read(int.from_bytes(length))
    return _MESSAGES.decode(data) if len(data) == int.from_bytes(length) else None
