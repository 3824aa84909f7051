"""Whom the ids in the log mean: a fold of the stream ACTORS, and the making of new ids (docs/adr/0048).

The stream has one record per id, at a subject that holds the key of (issuer, subject) and the id. So one guarded write
makes an id: of two who make one for the same person, one loses, and takes the other's. Who knows a person already asks
nobody: the fold answers also while the stream is away.
"""

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec
import structlog
from nats.aio.client import Client

from events.actors import ACTOR_ID, ACTOR_ID_BYTES, Person, actor_id, actor_key, shown_without_record
from events.codec import UNDECODABLE
from events.subjects import (
    ACTORS_STREAM,
    ALL_ACTORS,
    actor_of_subject,
    actor_subject,
    actors_of_key,
    record_of_actor,
)
from services.runtime.log.jetstream import CONFLICT_CODES, GUARD
from services.runtime.log.latest import Latest
from services.runtime.log.store import LogUnavailableError
from services.runtime.nats.jetstream_api import StoredMessage, decode_ack, last_message
from services.runtime.nats.requests import Requests

START_SECONDS: Final = 30.0
"""Reading all there are takes a second or two; after this something is wrong."""
ASK_SECONDS: Final = 1.5
"""One question to the stream's leader: the gate has time for two, and the decision."""
IDLE_SECONDS: Final = 5.0
MAKE_TRIES: Final = 3
"""Each lost only to another maker, and then the next finds what that one made."""
MAX_UNKNOWN: Final = 10_000
"""Ids without a record that are remembered as such: the log can hold them where the stream was lost."""

_GUARDED_SUBJECTS: Final = f"{GUARD}-Subject"
_DECODER: Final = msgspec.json.Decoder(Person)
_ENCODER: Final = msgspec.json.Encoder()

log = structlog.get_logger(__name__)


class ActorsAwayError(Exception):
    """The stream ACTORS does not answer, or is full: who this is cannot be known, or no id be made, now."""


class ActorNames(Protocol):
    """Who ids stand for, as answers show it."""

    @property
    def subjects(self) -> Mapping[str, str]: ...
    def person(self, actor: str) -> Person: ...
    async def subjects_of(self, actors: Iterable[str]) -> dict[str, str]: ...


class Actors:
    """The fold. `start` returns when it has caught up; without it, everything is asked of the stream."""

    def __init__(self, nc: Client, requests: Requests) -> None:
        self._requests = requests
        self._people: dict[str, Person] = {}
        self._ids: dict[tuple[str, str], str] = {}
        self._subjects: dict[str, str] = {}
        self._without_record: set[str] = set()
        self._latest = Latest(nc, requests, ACTORS_STREAM, ALL_ACTORS)
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow, and wait until everything up to now is in. Raises TimeoutError, and what ended the follower."""
        self._latest.start()
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self._latest.complete:
                    await self._take_next(idle_seconds=0.05)
        except TimeoutError:
            raise TimeoutError(f"the stream {ACTORS_STREAM} was not read in {START_SECONDS:.0f} s") from None
        self._follower = asyncio.create_task(self._follow(), name="actors")

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        await self._latest.close()

    @property
    def subjects(self) -> Mapping[str, str]:
        """Subject by id, of all that are known."""
        return self._subjects

    def person(self, actor: str) -> Person:
        """Whom an id means, as far as is known here: else a service's name, or the id itself as subject."""
        known = self._people.get(actor)
        return known if known is not None and known.subject else shown_without_record(actor)

    def subject(self, actor: str) -> str:
        return self.person(actor).subject

    async def learn(self, actors: Iterable[str]) -> None:
        """Have the stream tell of ids that are not known here yet. Raises ActorsAwayError."""
        unknown = {
            actor
            for actor in actors
            if actor not in self._people and actor not in self._without_record and ACTOR_ID.match(actor)
        }
        for actor in unknown:
            found = await self._newest(record_of_actor(actor))
            # An id is made before anything names it: what has no record now never gets one.
            if found is None and len(self._without_record) < MAX_UNKNOWN:
                self._without_record.add(actor)

    async def subjects_of(self, actors: Iterable[str]) -> dict[str, str]:
        """What people call each, also those who came a moment ago. Those whom the stream does not tell of now keep the
        id for a name: a reader can do without.
        """
        wanted = tuple(actors)
        try:
            await self.learn(wanted)
        except ActorsAwayError as error:
            log.warning("actors_not_known", error=str(error))
        return {actor: self.subject(actor) for actor in wanted}

    async def find(self, issuer: str, subject: str) -> str | None:
        """The person's id; None where there is none. Raises ActorsAwayError."""
        known = self._ids.get((issuer, subject))
        if known is not None:
            return known
        await self._newest(actors_of_key(actor_key(issuer, subject)))
        return self._ids.get((issuer, subject))

    async def find_or_make(self, issuer: str, subject: str) -> str:
        """The person's id, and where there is none a new one, durable. Raises ActorsAwayError: then there may be one
        all the same, which the next call finds.
        """
        key = actor_key(issuer, subject)
        for _ in range(MAKE_TRIES):
            newest = await self._newest(actors_of_key(key))
            known = self._ids.get((issuer, subject))
            if known is not None:
                return known
            actor = actor_id(secrets.token_bytes(ACTOR_ID_BYTES))
            if await self._write(key, actor, Person(issuer=issuer, subject=subject), over=newest):
                return actor
        raise ActorsAwayError("other processes kept making ids for the same person; try again")

    async def _write(self, key: str, actor: str, person: Person, *, over: StoredMessage | None) -> bool:
        """Whether it is stored; not where there is a newer record under the key than `over`."""
        headers = {GUARD: str(0 if over is None else over.seq), _GUARDED_SUBJECTS: actors_of_key(key)}
        payload = _ENCODER.encode(person)
        try:
            answer = await self._requests.ask(actor_subject(key, actor), payload, seconds=ASK_SECONDS, headers=headers)
        except LogUnavailableError as error:
            raise ActorsAwayError(str(error)) from error
        ack = decode_ack(answer)
        if ack.error is None:
            self._take(actor_subject(key, actor), payload)
            return True
        if ack.error.err_code in CONFLICT_CODES:
            return False
        raise ActorsAwayError(f"no id can be made: {ack.error.description}")

    async def _newest(self, subject: str) -> StoredMessage | None:
        try:
            found = await last_message(self._requests, ACTORS_STREAM, subject, seconds=ASK_SECONDS)
        except LogUnavailableError as error:
            raise ActorsAwayError(str(error)) from error
        if found is not None:
            self._take(found.subject, found.data)
        return found

    async def _follow(self) -> None:
        while True:
            await self._take_next(idle_seconds=IDLE_SECONDS)

    async def _take_next(self, *, idle_seconds: float) -> None:
        for message in await self._latest.next(idle_seconds):
            self._take(message.subject, message.data)

    def _take(self, subject: str, payload: bytes) -> None:
        try:
            actor, person = actor_of_subject(subject), _DECODER.decode(payload)
        except UNDECODABLE as error:
            log.warning("actor_not_read", subject=subject, error=str(error))
            return
        before = self._people.get(actor)
        if before is not None and not before.subject:
            return  # forgotten, once for all: the record that named them may still be told, until it is erased
        if before is not None and before != person and self._ids.get((before.issuer, before.subject)) == actor:
            del self._ids[before.issuer, before.subject]
        self._people[actor] = person
        self._subjects.pop(actor, None)
        if person.subject:
            self._ids[person.issuer, person.subject] = actor
            self._subjects[actor] = person.subject
