"""Takes public events from FEED into the table of deliveries: each once, for every webhook that it is due to.

Places, not sequences, say how far it came: FEED can be deleted and written again, with the same events.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import asyncpg
import msgspec
import structlog
from nats.errors import Error as NatsError

from events.aggregate import LOG
from events.installation import LOG_KEY
from events.public.cloudevents import PREFIX, Place, as_json, attributes_of, place_of
from events.subjects import ALL_FEED, EVENTS_STREAM, FEED_STREAM, NO_WORKLOAD, split_feed_subject
from events.webhooks import Webhook
from projections.postgres import CUT_OFF
from services.runtime.identity.directory import KINDS, Directory, KnownWebhook
from services.runtime.log.store import EventStore
from services.runtime.nats.calls import call
from services.runtime.nats.jetstream_api import NOT_FOUND, JetStreamError, StreamInfo, message_at, stream_info
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.wire import headers_of
from services.runtime.process import failpoints
from services.runtime.process.host import Health
from services.runtime.webhooks.protocol import State
from services.webhooks.standing import LAST_NUMBER, LISTED, LISTED_IN_ALL, Standing, Standings, standing_of
from services.webhooks.table import Row, Table

AT_ONCE: Final = 200
"""Messages read at once, some 200 KB."""
ROWS_AT_ONCE: Final = 1_000
"""Stored in one transaction, by its events: 200 of them that 100 webhooks want would take longer than a statement may,
and that again with every try."""
BYTES_AT_ONCE: Final = 8 * 1024 * 1024
"""Of these rows."""
RESTORED_WITHIN: Final = timedelta(days=1)
REQUEST_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 0.1
"""Between looks where nothing comes: an event is posted so much later, and a look costs a third of a millisecond."""
NO_WEBHOOKS_SECONDS: Final = 5.0
"""Between looks while there are none."""
LOOK_SECONDS: Final = 2.0
"""How often a quiet FEED is looked at: it may be another one."""
CATCH_UP_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0
AWAY: Final = (
    UnansweredError,
    JetStreamError,
    NatsError,
    asyncpg.PostgresError,
    *CUT_OFF,
    OSError,
    TimeoutError,
)
WRITE_SECONDS: Final = 5.0
"""Between two standings at least."""
_TROUBLE: Final = "webhooks"

log = structlog.get_logger(__name__)


class Message(NamedTuple):
    """One public event, as it stands in FEED."""

    project_id: str
    about: str
    type: str
    place: str
    event_id: str
    headers: dict[str, str]
    payload: bytes


class FeedChangedError(Exception):
    """FEED, or the tables, are not those that were read: find the place in it again."""


class Reader:
    """One service's reading of FEED; a second one beside it is harmless."""

    def __init__(
        self,
        table: Table,
        requests: Requests,
        store: EventStore,
        directory: Directory,
        wake: Callable[[], None],
    ) -> None:
        self._table = table
        self._requests = requests
        self._store = store
        self._directory = directory
        self._wake = wake
        self._standings = Standings(requests)
        self._before: Standing | None = None
        """What was delivered of the events that are taken in once more, since the tables are older than it."""
        self._place = ""
        """Up to here FEED was taken in."""
        self._created = ""
        self._next = 0
        """Sequence of FEED that is read next."""
        self._looked_at = 0.0

    async def run(self, health: Health, stop: asyncio.Event) -> None:
        """Until `stop`. What is away only delays."""
        pause = FIRST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                await self._begin()
                # At once: what is lost with Postgres before the first standing, nobody knows of.
                await self.write_standing()
                health.ready()
                health.warnings.pop(_TROUBLE, None)
                pause = FIRST_PAUSE_SECONDS
                while not stop.is_set():
                    await self._step()
            except FeedChangedError as error:
                log.info("feed_found_again", reason=str(error))
            except AWAY as error:
                told = str(error) or type(error).__name__
                health.warnings[_TROUBLE] = f"public events cannot be taken in for webhooks: {told}"
                log.warning("webhooks_take_nothing_in", error=told)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _begin(self) -> None:
        """Find the place in FEED that was come to."""
        chain = await self._store.load(LOG, LOG_KEY)
        restored = chain.state
        up_to = Place(restored.restored_seq, LAST_NUMBER).text()
        if restored.incarnation:
            # Tables of before may be there still. What came after the backup came to nothing, and its places are given
            # out again.
            await self._table.go_back(up_to, restored.incarnation)
        standing, _ = await self._standings.newest()
        if standing is not None:
            standing = standing.in_log(restored.incarnation, up_to)
        place = await self._table.place()
        if place is None:
            if standing is not None:
                await catch_up(self._store, self._directory)
                begin = standing.begin(self._directory.webhooks.values())
            elif restored.incarnation and await self._is_new(chain.version):
                begin = up_to
            else:
                begin = Place(await self._store.last_seq(), LAST_NUMBER).text()
            await self._table.begin(begin, restored.incarnation)
            place = await self._table.place()
        assert place is not None, "it was begun just now"
        self._before = standing if standing is not None and place < standing.place else None
        self._place = place
        info = await self._info()
        self._created = info.created
        self._next = await self._first_after(place, info)
        self._looked_at = asyncio.get_running_loop().time()

    async def _is_new(self, seq: int) -> bool:
        """Whether the commit that says that the log was restored is so new that webhooks are to be told of it, and of
        what came after it. Later, somebody has lost the tables alone.
        """
        message = await message_at(self._requests, EVENTS_STREAM, seq, seconds=REQUEST_SECONDS)
        return message is not None and datetime.now(UTC) - message.time < RESTORED_WITHIN

    async def _step(self) -> None:
        if not self._directory.webhooks:
            await self._pass_by()
            return
        messages, after = await self._read()
        loop = asyncio.get_running_loop()
        if after > self._next or loop.time() - self._looked_at > LOOK_SECONDS:
            # A FEED that was made anew meanwhile may hold other events under these sequences.
            info = await self._info()
            if info.created != self._created or info.state.last_seq + 1 < self._next:
                raise FeedChangedError("it was made anew")
            self._looked_at = loop.time()
        if after == self._next:
            await asyncio.sleep(IDLE_SECONDS)
            return
        await self._take_in(messages)
        self._next = after

    async def _pass_by(self) -> None:
        """While there are no webhooks, everything is taken in."""
        info = await self._info()
        place = await self._place_at(info.state.last_seq) if info.state.messages else ""
        await catch_up(self._store, self._directory)
        # One that was made meanwhile is known by now, and wants what came after it.
        if place > self._place and not self._directory.webhooks:
            await self._store_taken((), place)
            self._created, self._next = info.created, info.state.last_seq + 1
        await self._directory.moved(NO_WEBHOOKS_SECONDS)

    async def _take_in(self, messages: list[Message]) -> None:
        # What FEED holds follows from commits of before: with the directory at the log's end by now, no webhook that
        # was there then is missed.
        await catch_up(self._store, self._directory)
        by_project: dict[str, list[KnownWebhook]] = {}
        for known in self._directory.webhooks.values():
            if known.webhook.disabled is None or self._before is not None:
                by_project.setdefault(known.project_id, []).append(known)
        new = (message for message in messages if message.place > self._place)
        for rows, place in taken_in_at_once(new, by_project, self._before):
            await self._store_taken(rows, place)
            failpoints.reached("webhook_taken_in")
            if rows:
                self._wake()
        if self._before is not None and self._place >= self._before.place:
            self._before = None

    async def _store_taken(self, rows: Sequence[Row], place: str) -> None:
        if not await self._table.take_in(rows, place, since=self._place):
            # Postgres was put back, or is new. What it lacks is due from its own place on, not from ours.
            raise FeedChangedError("the tables of deliveries are others")
        self._place = place

    async def keep(self, stop: asyncio.Event) -> None:
        """Write how far all was delivered, for backups, until `stop`. What is away only delays."""
        while not stop.is_set():
            await asyncio.sleep(WRITE_SECONDS * random.uniform(1.0, 1.2))  # noqa: S311 (jitter)
            await self.write_standing()

    async def write_standing(self) -> None:
        """Once; not while events are taken in that the newest one speaks of."""
        if not self._place or self._before is not None:
            return
        try:
            known = list(self._directory.webhooks)
            most = max(1, min(LISTED, LISTED_IN_ALL // max(1, len(known))))
            stand = await self._table.undelivered(known, most)
            if stand is not None:
                await self._standings.write(standing_of(stand, known, most))
        except AWAY as error:
            log.warning("webhooks_standing_not_written", error=str(error) or type(error).__name__)

    # -- FEED ---------------------------------------------------------------------------------------------------------

    async def _info(self) -> StreamInfo:
        return await stream_info(self._requests, FEED_STREAM, seconds=REQUEST_SECONDS)

    async def _read(self) -> tuple[list[Message], int]:
        """What comes next, if anything, and the sequence behind it. What no feed service wrote is passed by."""
        question = msgspec.json.encode({"seq": self._next, "next_by_subj": ALL_FEED, "batch": AT_ONCE})
        answer = await self._requests.ask_many(call("DIRECT.GET", FEED_STREAM), question, seconds=REQUEST_SECONDS)
        answer.pop()  # says that it ends
        found: list[Message] = []
        after = self._next
        for taken in answer:
            headers = taken.headers or {}
            after = int(headers["Nats-Sequence"]) + 1
            try:
                found.append(message_of(headers["Nats-Subject"], headers, taken.data))
            except ValueError as error:
                log.warning("no_public_event", seq=after - 1, error=str(error))
        return found, after

    async def _first_after(self, place: str, info: StreamInfo) -> int:
        """Sequence of the first message behind this place, or the next that will be stored."""
        low, high = max(info.state.first_seq, 1), info.state.last_seq + 1
        if low < high and low > 1:
            self._tell_gap(await self._place_at(low), place)
        while low < high:
            middle = (low + high) // 2
            found = await self._place_at(middle)
            if found == "":
                low = middle + 1
            elif found > place:
                high = middle
            else:
                low = middle + 1
        return low

    async def _place_at(self, seq: int) -> str:
        try:
            message = await message_at(self._requests, FEED_STREAM, seq, seconds=REQUEST_SECONDS)
        except JetStreamError as error:
            if error.error.code == NOT_FOUND:
                return ""
            raise
        return "" if message is None else _place_in(headers_of(message.headers) or {})

    def _tell_gap(self, first: str, place: str) -> None:
        if first and place_of(first).seq > place_of(place).seq + 1:
            log.warning("webhooks_may_miss_events", taken_in=place, feed_begins=first)


async def catch_up(store: EventStore, directory: Directory) -> None:
    """Wait until the directory is where the log is now. Raises UnansweredError, and what the store raises."""
    newest = await store.last_seq(aggregates=KINDS)
    if not await directory.reached(newest, timeout_seconds=CATCH_UP_SECONDS):
        raise UnansweredError(f"webhooks are known up to {directory.seq}, and the log is at {newest}")


def message_of(subject: str, headers: Mapping[str, str], payload: bytes) -> Message:
    """Raises ValueError where it is no public event."""
    project_id, workload_id, type_ = split_feed_subject(subject)
    ours = {name: value for name, value in headers.items() if name.startswith(PREFIX)}
    attributes = attributes_of(ours)
    place = place_of(attributes.get("sequence", "")).text()
    if not attributes.get("id"):
        raise ValueError("it has no id")
    return Message(project_id, workload_id or NO_WORKLOAD, type_, place, attributes["id"], ours, payload)


def _place_in(headers: Mapping[str, str]) -> str:
    """Empty where there is none."""
    text = attributes_of(headers).get("sequence", "")
    try:
        return place_of(text).text()
    except ValueError:
        return ""


def taken_in_at_once(
    messages: Iterable[Message], by_project: dict[str, list[KnownWebhook]], before: Standing | None = None
) -> Iterator[tuple[list[Row], str]]:
    """The deliveries that follow, as many at once as Postgres stores in a moment, and up to which place they go."""
    rows: list[Row] = []
    place, size = "", 0
    for message in messages:
        due = rows_of(message, by_project, before)
        rows += due
        place, size = message.place, size + sum(len(row.body) for row in due)
        if len(rows) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield rows, place
            rows, place, size = [], "", 0
    if place:
        yield rows, place


def rows_of(message: Message, by_project: dict[str, list[KnownWebhook]], before: Standing | None = None) -> list[Row]:
    """The deliveries that follow: for each webhook of an event's project that takes its type and was there before.

    Args:
        before: what was delivered already of the events up to its place.
    """
    due: list[tuple[str, State]] = [
        (known.webhook.id, state)
        for known in by_project.get(message.project_id, ())
        if place_of(message.place).seq > known.since
        and known.webhook.takes(message.type)
        and (state := _state_of(known.webhook, message.place, before)) is not None
    ]
    if not due:
        return []
    body = as_json(message.headers, message.payload).decode()
    return [
        Row(
            webhook_id=webhook_id,
            event_id=message.event_id,
            type=message.type,
            place=message.place,
            about=message.about,
            body=body,
            state=state,
        )
        for webhook_id, state in due
    ]


def _state_of(webhook: Webhook, place: str, before: Standing | None) -> State | None:
    """As what an event is taken in for it; None: not at all."""
    if before is not None and place <= before.place:
        return before.due(webhook.id, place)
    return "waiting" if webhook.disabled is None else None
