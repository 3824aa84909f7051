"""Code as the stream CODE keeps it: parts of one size, and a word that says that they are whole.

    code.<cluster>.<project>.<digest>.size.<parts> room for so many parts is taken; written first
    code.<cluster>.<project>.<digest>.part.<n>     bytes
    code.<cluster>.<project>.<digest>.whole        how many parts, written once their SHA-256 was checked
    code.<cluster>.<project>.<digest>.use.<key>    the workload of this key was created, or is being created, with it

A digest is no key to anything: what stands in the subject, cluster and project, decides who may read.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from events.subjects import CODE_STREAM, code_of, code_sizes_filter
from services.runtime.nats.calls import call
from services.runtime.nats.jetstream_api import ApiError, JetStreamError, decode_ack
from services.runtime.nats.requests import Requests

REQUEST_SECONDS: Final = 5.0
FULL_CODES: Final = frozenset((10077, 10047, 10023))
"""What the server says where the stream, or its disk, is full."""
_NOT_FOUND: Final = "404"
_SUBJECTS_AT_ONCE: Final = 100_000


class CodeError(Exception):
    """There is no such code, or it does not match its digest; the message says which."""


class CodeFullError(Exception):
    """The stream takes no more."""


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    parts: int


class _Purged(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class _State(msgspec.Struct, frozen=True):
    subjects: dict[str, int] = {}
    num_subjects: int = 0


class _Info(msgspec.Struct, frozen=True):
    state: _State = _State()
    error: ApiError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One archive of a project, for one cluster."""

    cluster_id: str
    project_id: str
    digest: str

    @property
    def subject(self) -> str:
        return code_of(self.cluster_id, self.project_id, self.digest)


class KeptCode:
    """Every method raises LogUnavailableError where the stream does not answer."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    # -- reading ---------------------------------------------------------------------------------------------------

    async def whole(self, code: Code) -> Whole | None:
        """None where it is not all there."""
        found = await self._get(f"{code.subject}.whole")
        with contextlib.suppress(msgspec.DecodeError):
            return None if found is None else msgspec.json.decode(found[0], type=Whole)
        return None

    async def parts(self, code: Code) -> AsyncIterator[bytes]:
        """Its bytes, part by part, each asked for when the one before was taken. Raises CodeError."""
        whole = await self.whole(code)
        if whole is None:
            raise CodeError(f"code {code.digest[:12]} is no longer stored; submit the workload again")
        async for part in self._parts(code, whole.parts):
            yield part

    async def _parts(self, code: Code, count: int) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        for number in range(count):
            found = await self._get(f"{code.subject}.part.{number}")
            if found is None:
                raise CodeError(f"part {number + 1} of {count} of code {code.digest[:12]} is missing")
            digest.update(found[0])
            yield found[0]
        if digest.hexdigest() != code.digest:
            raise CodeError(f"code {code.digest[:12]} does not match its digest")

    async def _get(self, subject: str) -> tuple[bytes, datetime] | None:
        question = call("DIRECT.GET", CODE_STREAM, subject)
        answer = await self._requests.ask_message(question, b"", seconds=REQUEST_SECONDS)
        headers = answer.headers or {}
        if headers.get("Status") == _NOT_FOUND:
            return None
        if "Nats-Time-Stamp" not in headers:
            raise JetStreamError(ApiError(description=headers.get("Description", "no message came")))
        return answer.data, datetime.fromisoformat(headers["Nats-Time-Stamp"])

    async def subjects(self, filter_subject: str) -> list[str]:
        """All that there are."""
        found: list[str] = []
        while True:
            asked = {"subjects_filter": filter_subject, "offset": len(found)}
            question = call("STREAM.INFO", CODE_STREAM)
            answer = await self._requests.ask(question, msgspec.json.encode(asked), seconds=REQUEST_SECONDS)
            info = msgspec.json.decode(answer, type=_Info)
            if info.error is not None:
                raise JetStreamError(info.error)
            found += info.state.subjects
            if len(info.state.subjects) < _SUBJECTS_AT_ONCE:
                return found

    async def written_at(self, subject: str) -> datetime:
        """When its newest message was stored; long ago where there is none."""
        found = await self._get(subject)
        return datetime.fromtimestamp(0, UTC) if found is None else found[1]

    # -- writing ---------------------------------------------------------------------------------------------------

    async def begin(self, code: Code, parts: int, most: int) -> int:
        """Take room for so many parts, of at most so many that the project may have: how many are taken then. Where it
        is more, none is.
        """
        mark = f"{code.subject}.size.{parts}"
        # Before it is counted: of two that begin at once, each sees the other.
        await self._put(mark, b"{}")
        subjects = await self.subjects(code_sizes_filter(code.project_id))
        taken = sum(int(subject.rsplit(".", 1)[-1]) for subject in subjects)
        if taken > most:
            await self.purge(mark)
        return taken

    async def begun(self, code: Code, parts: int) -> bool:
        return await self._get(f"{code.subject}.size.{parts}") is not None

    async def put_part(self, code: Code, number: int, data: bytes) -> None:
        """Raises CodeFullError."""
        await self._put(f"{code.subject}.part.{number}", data)

    async def complete(self, code: Code, count: int) -> None:
        """Say that it is whole, once that was checked. Raises CodeError, CodeFullError."""
        async for _ in self._parts(code, count):
            pass
        await self._put(f"{code.subject}.whole", msgspec.json.encode(Whole(parts=count)))

    async def use(self, code: Code, key: str) -> None:
        """Keep it for the workload of this key. Raises CodeFullError."""
        await self._put(f"{code.subject}.use.{key}", b"{}")

    async def purge(self, filter_subject: str) -> None:
        asked = msgspec.json.encode({"filter": filter_subject})
        answer = await self._requests.ask(call("STREAM.PURGE", CODE_STREAM), asked, seconds=REQUEST_SECONDS)
        if (error := msgspec.json.decode(answer, type=_Purged).error) is not None:
            raise JetStreamError(error)

    async def _put(self, subject: str, payload: bytes) -> None:
        ack = decode_ack(await self._requests.ask(subject, payload, seconds=REQUEST_SECONDS))
        if ack.error is not None and ack.error.err_code in FULL_CODES:
            raise CodeFullError
        if ack.error is not None:
            raise JetStreamError(ack.error)
