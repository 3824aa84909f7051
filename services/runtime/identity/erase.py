"""Forgetting a person: their id in the log stays, and nothing that Muster keeps says any more whom it meant.

ACTORS gets a blank record for the id, and loses the one that names the person. Records of the audit that name the
person are written again with the id in place of the name, and the old ones are lost. The server overwrites what is
lost. What is killed halfway is finished by the next run (docs/adr/0072).
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace
from nats.aio.client import Client

from events.actors import Person
from events.aggregate import TENANT
from events.audit import AuditRecord, Speaker
from events.codec import UNDECODABLE
from events.ids import TENANT_KEY
from events.project import GrantProjectRole, RevokeProjectRole
from events.subjects import (
    ACTORS_STREAM,
    AUDIT_STREAM,
    FORGOTTEN,
    REFUSALS_STREAM,
    actor_of_subject,
    actor_subject,
)
from events.tenant import GrantTenantRole, RevokeTenantRole, TenantRole
from services.runtime.backup.archive import Message
from services.runtime.backup.source import Source
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.calls import call
from services.runtime.nats.jetstream_api import NO_MESSAGE_CODE, ApiError, JetStreamError, decode_ack
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import stream_config
from services.runtime.services import ERASED_STREAMS

USER: Final = "erase"
"""On NATS."""
ASK_SECONDS: Final = 5.0
TRIES: Final = 5
"""With pauses that double, three seconds beside the waiting."""
FIRST_PAUSE_SECONDS: Final = 0.2
NOBODY: Final = "forgotten"
"""In the audit, instead of the name of somebody who never had an id."""

_NAMES_PERSON: Final = frozenset(
    type_.__name__ for type_ in (GrantProjectRole, GrantTenantRole, RevokeProjectRole, RevokeTenantRole)
)
"""Commands whose target, in the audit, begins with a person's subject."""
_PERSON: Final = msgspec.json.Decoder(Person)
_RECORD: Final = msgspec.json.Decoder(AuditRecord)
_ENCODER: Final = msgspec.json.Encoder()

type Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


class EraseError(Exception):
    """Nothing, or not all of it, can be erased; the message says why, and what to do."""


class _Deleted(msgspec.Struct, frozen=True):
    error: ApiError | None = None


@dataclass(slots=True, kw_only=True)
class Erased:
    """What was done."""

    actors: list[str] = field(default_factory=list[str])
    """Ids of the log that name nobody now."""
    records: int = 0
    """Of the audit, written again without the name."""
    unreadable: int = 0
    """Of the audit, which nobody can read but which contained the name: they are gone."""

    @property
    def anything(self) -> bool:
        return bool(self.actors or self.records or self.unreadable)


async def erase(connection: Client, subject: str, issuer: str | None, progress: Progress) -> Erased:
    """Erase the person whose tokens have this subject, and this issuer, where there are several.

    Raises EraseError, UnansweredError, JetStreamError; then it is to be run again.
    """
    for stream in ERASED_STREAMS:
        await _check_stream(connection, stream)
    tenant = await JetStreamEventStore(connection).load(TENANT, TENANT_KEY)
    return await _Eraser(Requests(connection), subject, progress, tenant.state.roles).run(issuer)


async def _check_stream(connection: Client, stream: str) -> None:
    config = await stream_config(connection, stream)
    if config is None:
        raise EraseError(f"the stream {stream} is not there: run `python -m services.setup` once")
    if config.get("deny_delete"):
        raise EraseError(
            f"the stream {stream} of this installation forbids deleting (deny_delete), as those of earlier versions "
            "do, and the server does not let that be changed: back up, restore into a new installation, and erase there"
        )


class _Eraser:
    """One run."""

    def __init__(
        self, requests: Requests, subject: str, progress: Progress, roles: Mapping[str, Sequence[TenantRole]]
    ) -> None:
        self._requests = requests
        self._roles = roles
        """Everywhere, by actor id."""
        self._source = Source(requests)
        self._subject = subject
        self._progress = progress
        self._done = Erased()
        self._ids: dict[str, str] = {}
        """By issuer, of the person."""

    async def run(self, issuer: str | None) -> Erased:
        records, blank = await self._people()
        issuers = sorted({person.issuer for _, _, person in records})
        if issuer is None and len(issuers) > 1:
            raise EraseError(
                f"{len(issuers)} people are called {self._subject!r}, by {', '.join(issuers)}: say which with --issuer"
            )
        wanted = [(seq, actor, person) for seq, actor, person in records if issuer in {None, person.issuer}]
        self._check_roles([actor for _, actor, _ in wanted])
        for _, actor, person in wanted:
            self._ids[person.issuer] = actor
            if actor not in blank:
                await self._store(actor_subject(FORGOTTEN, actor), _ENCODER.encode(Person()))
            await KeptCredentials(self._requests).remove_all_of(actor)
        for stream in (AUDIT_STREAM, REFUSALS_STREAM):
            await self._clean(stream, issuer)
        # At last: until then the next run finds the same ids, where this one is killed.
        for seq, actor, _ in wanted:
            await self._delete(ACTORS_STREAM, seq)
            # What they stored while this ran: from now on nobody knows them.
            await KeptCredentials(self._requests).remove_all_of(actor)
            self._done.actors.append(actor)
        return self._done

    def _check_roles(self, actors: Sequence[str]) -> None:
        """Raises EraseError. Nobody can take a role away from an id that names nobody, and as an administrator it would
        count for the last one.
        """
        held = sorted({role for actor in actors for role in self._roles.get(actor, ())})
        if held:
            revoke = " and ".join(f"`muster role revoke {self._subject} {role}`" for role in held)
            raise EraseError(f"{self._subject!r} is {' and '.join(held)} everywhere: take that away first, by {revoke}")

    async def _people(self) -> tuple[Sequence[tuple[int, str, Person]], set[str]]:
        """Records that name the person, with their sequences, and the ids that have a blank one."""
        records: list[tuple[int, str, Person]] = []
        blank: set[str] = set()
        async for message in self._messages(ACTORS_STREAM, 1):
            try:
                actor, person = actor_of_subject(message.subject), _PERSON.decode(message.data)
            except UNDECODABLE:
                continue
            if actor == self._subject:
                state = "of somebody" if person.subject else "of somebody who was forgotten"
                raise EraseError(f"{actor} is the id {state}, and no name: give the subject of their token")
            if not person.subject:
                blank.add(actor)
            elif person.subject == self._subject:
                records.append((message.seq, actor, person))
        return records, blank

    async def _clean(self, stream: str, issuer: str | None) -> None:
        """Until nothing new names the person: the gate may have been writing meanwhile."""
        first = 1
        while True:
            seen: set[bytes] = set()
            naming: list[Message] = []
            start = first
            async for message in self._messages(stream, first):
                first = message.seq + 1
                seen.add(_digest(message.data))
                if self._may_name(message.data):
                    naming.append(message)
            if not naming or first == start:
                return
            for message in naming:
                await self._rewrite(stream, message, issuer, seen)

    def _may_name(self, data: bytes) -> bool:
        """Cheap: most records are of others."""
        return self._subject.encode() in data or b"\\" in data

    async def _rewrite(self, stream: str, message: Message, issuer: str | None, seen: set[bytes]) -> None:
        try:
            record = _RECORD.decode(message.data)
        except UNDECODABLE:
            if self._subject.encode() in message.data:
                await self._delete(stream, message.seq)
                self._done.unreadable += 1
            return
        without = self._without(record, issuer)
        if without == record:
            return
        payload = _ENCODER.encode(without)
        if _digest(payload) not in seen:
            # What was killed before it deleted has written this already.
            await self._store(message.subject, payload)
        await self._delete(stream, message.seq)
        self._done.records += 1

    def _without(self, record: AuditRecord, issuer: str | None) -> AuditRecord:
        speaker, target, message = record.actor, record.target, record.message
        instead = next(iter(self._ids.values()), NOBODY)
        if speaker is not None and speaker.sub == self._subject and issuer in {None, speaker.iss}:
            speaker = Speaker(iss=speaker.iss, sub=self._ids.get(speaker.iss, NOBODY))
        if record.command in _NAMES_PERSON and target.startswith(f"{self._subject}: "):
            target = instead + target[len(self._subject) :]
        # So does the gate name the creator of a workload.
        message = message.replace(repr(self._subject), repr(instead))
        return replace(record, actor=speaker, target=target, message=message)

    # -- the server ---------------------------------------------------------------------------------------------------

    async def _messages(self, stream: str, first: int) -> AsyncGenerator[Message]:
        info = await self._source.info(stream)
        state = replace(info.state, first_seq=max(info.state.first_seq, first))
        async for message in self._source.stream(stream, replace(info, state=state)):
            self._progress(message.seq - state.first_seq + 1, state.last_seq - state.first_seq + 1)
            yield message

    async def _store(self, subject: str, payload: bytes) -> None:
        ack = decode_ack(await self._ask(subject, payload))
        if ack.error is not None:
            raise EraseError(f"a record could not be written ({ack.error.description}): run this again")

    async def _delete(self, stream: str, seq: int) -> None:
        """The server overwrites the message where it is stored."""
        question = msgspec.json.encode({"seq": seq, "no_erase": False})
        answer = msgspec.json.decode(await self._ask(call("STREAM.MSG.DELETE", stream), question), type=_Deleted)
        if answer.error is not None and answer.error.err_code != NO_MESSAGE_CODE:
            raise JetStreamError(answer.error)

    async def _ask(self, subject: str, payload: bytes) -> bytes:
        """Writing or deleting twice does no harm. Raises UnansweredError."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(TRIES - 1):
            try:
                return await self._requests.ask(subject, payload, seconds=ASK_SECONDS)
            except UnansweredError:
                await asyncio.sleep(pause)
                pause *= 2
        return await self._requests.ask(subject, payload, seconds=ASK_SECONDS)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
