"""How far public events were delivered, as a backup keeps it: beside the log, as Postgres is in no backup.

A standing says up to which place FEED was taken in, and what of that was not delivered yet. It is taken from the tables
in one moment, so it never counts as delivered what was not: an old one has events delivered again, under the same ids.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec
import structlog
from msgspec import Meta

from events.codec import UNDECODABLE
from events.public.cloudevents import Place, place_of
from events.subjects import WEBHOOKS_STAND, WEBHOOKS_STREAM
from services.runtime.identity.directory import KnownWebhook
from services.runtime.log.jetstream import CONFLICT_CODES, GUARD
from services.runtime.nats.jetstream_api import JetStreamError, decode_ack, last_message
from services.runtime.nats.requests import Requests
from services.runtime.webhooks.protocol import State
from services.webhooks.table import Stand

REQUEST_SECONDS: Final = 3.0
LISTED: Final = 256
"""Events that wait, and that are parked, of one webhook. Where more wait, all behind the last listed one count as not
delivered; of those that are parked, the newest are listed."""
LISTED_IN_ALL: Final = 10_000
"""Of each sort, so that a standing is at most some 600 KB."""
LAST_NUMBER: Final = 999_999
"""Greater than that of any event of a commit."""

log = structlog.get_logger(__name__)


type _Place = Annotated[str, Meta(pattern=r"^[0-9]{16}\.[0-9]{6}\Z")]


class Open(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of the events that were taken in was not delivered to one webhook."""

    waiting: tuple[_Place, ...] = ()
    """Places of events."""
    after: _Place | None = None
    """Where not all that wait are listed: every event behind this place may be one."""
    parked: tuple[_Place, ...] = ()


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Of all webhooks at one moment."""

    incarnation: int
    """Of the log whose places these are."""
    place: _Place
    """Up to here FEED was taken in."""
    webhooks: dict[str, Open]
    """By id, of every webhook that was known."""

    def due(self, webhook_id: str, place: str) -> State | None:
        """As what an event is to be taken in; None: it was delivered. A webhook that was not known had nothing."""
        known = self.webhooks.get(webhook_id)
        if place > self.place or known is None:
            return "waiting"
        if place in known.waiting or (known.after is not None and place > known.after):
            return "waiting"
        return "parked" if place in known.parked else None

    def begin(self, known: Iterable[KnownWebhook]) -> str:
        """The place behind which everything stands that may not have been delivered to these webhooks."""
        return min((self.place, *(place for one in known for place in self._begins(one))))

    def _begins(self, known: KnownWebhook) -> Iterator[str]:
        webhook = self.webhooks.get(known.webhook.id)
        if webhook is None:
            yield Place(known.since, LAST_NUMBER).text()
            return
        yield from map(_before, (*webhook.waiting, *webhook.parked))
        if webhook.after is not None:
            yield webhook.after

    def in_log(self, incarnation: int, end: str) -> "Standing":
        """What it says of a log that was restored up to `end` since: what is behind that came to nothing."""
        if self.incarnation >= incarnation:
            return self
        return Standing(
            incarnation=incarnation,
            place=min(self.place, end),
            webhooks={
                id_: Open(
                    waiting=tuple(place for place in one.waiting if place <= end),
                    after=None if one.after is None else min(one.after, end),
                    parked=tuple(place for place in one.parked if place <= end),
                )
                for id_, one in self.webhooks.items()
            },
        )


def standing_of(stand: Stand, known: Iterable[str], most: int) -> Standing:
    """Of these webhooks. `stand` has up to `most` + 1 events that wait for each, by place, and `most` parked ones."""
    waiting: dict[str, list[str]] = {}
    parked: dict[str, list[str]] = {}
    for one in stand.events:
        (waiting if one.state == "waiting" else parked).setdefault(one.webhook_id, []).append(one.place)

    def open_of(id_: str) -> Open:
        waits = sorted(waiting.get(id_, ()))
        after = waits[most - 1] if len(waits) > most else None
        return Open(waiting=tuple(waits[:most]), after=after, parked=tuple(sorted(parked.get(id_, ()))))

    return Standing(incarnation=stand.incarnation, place=stand.place, webhooks={id_: open_of(id_) for id_ in known})


def _before(place: str) -> str:
    seq, number = place_of(place)
    return (Place(seq, number - 1) if number else Place(seq - 1, LAST_NUMBER)).text()


class Standings:
    """Those that were written; two services may write beside each other."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def newest(self) -> tuple[Standing | None, int]:
        """With its sequence; None and 0 where there is none. Raises UnansweredError, JetStreamError."""
        found = await last_message(self._requests, WEBHOOKS_STREAM, WEBHOOKS_STAND, seconds=REQUEST_SECONDS)
        if found is None:
            return None, 0
        try:
            return _DECODER.decode(found.data), found.seq
        except UNDECODABLE as error:
            log.warning("webhooks_standing_unreadable", seq=found.seq, error=str(error)[:200])
            return None, found.seq

    async def write(self, standing: Standing) -> None:
        """Unless it says no more than the newest: in one log, places never go back. While the tables are new and events
        are taken in once more, the newest is what says which of them are due. Raises UnansweredError, JetStreamError.
        """
        newest, seq = await self.newest()
        if newest is not None:
            older = (newest.incarnation, newest.place) > (standing.incarnation, standing.place)
            if older or newest == standing:
                return
        headers = {GUARD: str(seq)}
        payload = msgspec.json.encode(standing)
        answer = await self._requests.ask(WEBHOOKS_STAND, payload, seconds=REQUEST_SECONDS, headers=headers)
        error = decode_ack(answer).error
        if error is not None and error.err_code not in CONFLICT_CODES:  # another service has just written one
            raise JetStreamError(error)


_DECODER: Final = msgspec.json.Decoder(Standing)
