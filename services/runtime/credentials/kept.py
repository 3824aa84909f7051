"""Values of credentials as the stream CREDENTIALS keeps them: sealed, one message for each value.

    credential.<key of the owner's actor id>.<id of the value>

The id names the credential, too (events.ids): a new value has a new id, and stands beside the one before it until the
log says which of them is the credential's. Whoever stores a value does so before the log speaks of it.
"""

from typing import Final

import msgspec

from events.codec import UNDECODABLE
from events.subjects import ALL_CREDENTIALS, CREDENTIALS_STREAM, credential_subject, credentials_of
from services.runtime.credentials.keys import KeyFileError, Ring, key_name
from services.runtime.credentials.sealed import SealError, seal, unseal
from services.runtime.nats.calls import call
from services.runtime.nats.jetstream_api import ApiError, JetStreamError, decode_ack
from services.runtime.nats.requests import Requests

REQUEST_SECONDS: Final = 5.0
FULL_CODES: Final = frozenset((10077, 10047, 10023))
"""What the server says where the stream, or its disk, is full."""
EXPECTED_LAST: Final = "Nats-Expected-Last-Subject-Sequence"
WRONG_LAST_SEQUENCE: Final = 10071
_NOT_FOUND: Final = "404"
_SUBJECTS_AT_ONCE: Final = 100_000


class CredentialsFullError(Exception):
    """The stream takes no more."""


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    key: str
    """Name of the key that it is sealed to."""
    value: bytes


class _Purged(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class _State(msgspec.Struct, frozen=True):
    subjects: dict[str, int] = {}
    bytes: int = 0


class _Config(msgspec.Struct, frozen=True):
    max_bytes: int = 0


class _Info(msgspec.Struct, frozen=True):
    state: _State = _State()
    config: _Config = _Config()
    error: ApiError | None = None


class KeptCredentials:
    """Every method raises LogUnavailableError where the stream does not answer, JetStreamError where it refuses."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def put(self, owner: str, value_id: str, data: dict[str, str], public: bytes) -> None:
        """Store a value; again, the same one. Raises CredentialsFullError."""
        subject = credential_subject(owner, value_id)
        sealed = seal(public, msgspec.json.encode(data), subject)
        message = msgspec.json.encode(Sealed(key=key_name(public), value=sealed))
        ack = decode_ack(await self._requests.ask(subject, message, seconds=REQUEST_SECONDS))
        if ack.error is not None and ack.error.err_code in FULL_CODES:
            raise CredentialsFullError
        if ack.error is not None:
            raise JetStreamError(ack.error)

    async def get(self, owner: str, value_id: str, ring: Ring) -> dict[str, str] | None:
        """A value; None where it is not there. Raises KeyFileError where no key of the ring opens it, SealError."""
        subject = credential_subject(owner, value_id)
        found = await self._message(subject)
        if found is None:
            return None
        _, plain = _opened(found[0], subject, ring)
        try:
            return msgspec.json.decode(plain, type=dict[str, str])
        except UNDECODABLE as error:
            raise SealError(f"what stands at {subject} is no value of a credential") from error

    async def seal_again(self, subject: str, ring: Ring, newest: str) -> bool:
        """Seal a value to the ring's newest key; whether it was not. One that is gone by now stays so. Raises
        KeyFileError where no key of the ring opens it, SealError.
        """
        found = await self._message(subject)
        if found is None:
            return False
        key, plain = _opened(found[0], subject, ring)
        if key == newest:
            return False
        again = Sealed(key=newest, value=seal(ring.public, plain, subject))
        guard = {EXPECTED_LAST: str(found[1])}
        answer = await self._requests.ask(subject, msgspec.json.encode(again), seconds=REQUEST_SECONDS, headers=guard)
        ack = decode_ack(answer)
        if ack.error is not None and ack.error.err_code != WRONG_LAST_SEQUENCE:
            raise JetStreamError(ack.error)
        return True

    async def remove(self, subject: str) -> None:
        """The value that stands there."""
        await self._purge(subject)

    async def remove_all_of(self, owner: str) -> None:
        await self._purge(credentials_of(owner))

    async def subjects(self, of: str = ALL_CREDENTIALS) -> list[str]:
        """Where all values stand; `of`: those of this subject, with wildcards."""
        found: list[str] = []
        while True:
            info = await self._info(of, len(found))
            found += info.state.subjects
            if len(info.state.subjects) < _SUBJECTS_AT_ONCE:
                return found

    async def kept_of(self, owner: str) -> tuple[list[str], float]:
        """(where the values of one person stand, how full the whole store is, from 0 to 1)."""
        info = await self._info(credentials_of(owner), 0)
        full = info.state.bytes / info.config.max_bytes if info.config.max_bytes > 0 else 0.0
        return [*info.state.subjects], full

    async def _info(self, of: str, offset: int) -> _Info:
        asked = {"subjects_filter": of, "offset": offset}
        question = call("STREAM.INFO", CREDENTIALS_STREAM)
        answer = await self._requests.ask(question, msgspec.json.encode(asked), seconds=REQUEST_SECONDS)
        info = msgspec.json.decode(answer, type=_Info)
        if info.error is not None:
            raise JetStreamError(info.error)
        return info

    async def _message(self, subject: str) -> tuple[bytes, int] | None:
        """With its sequence."""
        question = call("DIRECT.GET", CREDENTIALS_STREAM, subject)
        answer = await self._requests.ask_message(question, b"", seconds=REQUEST_SECONDS)
        headers = answer.headers or {}
        if headers.get("Status") == _NOT_FOUND:
            return None
        if "Nats-Sequence" not in headers:
            raise JetStreamError(ApiError(description=headers.get("Description", "no message came")))
        return answer.data, int(headers["Nats-Sequence"])

    async def _purge(self, filter_subject: str) -> None:
        asked = msgspec.json.encode({"filter": filter_subject})
        answer = await self._requests.ask(call("STREAM.PURGE", CREDENTIALS_STREAM), asked, seconds=REQUEST_SECONDS)
        if (error := msgspec.json.decode(answer, type=_Purged).error) is not None:
            raise JetStreamError(error)


def _opened(message: bytes, subject: str, ring: Ring) -> tuple[str, bytes]:
    """(name of the key that it was sealed to, what it is). Raises SealError, KeyFileError."""
    try:
        sealed = msgspec.json.decode(message, type=Sealed)
    except UNDECODABLE as error:
        raise SealError(f"what stands at {subject} is no value of a credential") from error
    private = ring.private(sealed.key)
    if private is None:
        raise KeyFileError(f"the key file has no key {sealed.key}, which a credential is sealed to")
    return sealed.key, unseal(private, sealed.value, subject)
