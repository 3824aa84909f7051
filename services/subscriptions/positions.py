"""How far each subscription has read, as places in the log: what is known of it while FEED, and with it all consumers,
is made anew. Disposable: without it, a subscriber is told again what it knows.
"""

import msgspec
import structlog

from events.codec import UNDECODABLE
from events.public.cloudevents import Place
from events.subjects import fold_snapshot
from services.runtime.log.snapshots import Snapshots
from services.subscriptions.feed import Feed

NAME = fold_snapshot("subscriptions")
VERSION = 1
MAX_LOOKED_UP = 500
"""In one round; the rest are looked up in the next."""

log = structlog.get_logger(__name__)
_DECODER = msgspec.msgpack.Decoder(dict[str, Place])


class Positions:
    """By subscription."""

    def __init__(self, snapshots: Snapshots, feed: Feed) -> None:
        self._snapshots = snapshots
        self._feed = feed
        self._floors: dict[str, int] = {}
        """In FEED, as it was at the last look."""
        self._places: dict[str, Place] = {}
        self._changed = False

    async def load(self) -> None:
        found = await self._snapshots.load(NAME, VERSION)
        if found is None:
            return
        try:
            self._places = _DECODER.decode(found[1])
        except UNDECODABLE as error:
            log.warning("snapshot_not_understood", name=NAME, error=str(error))

    def get(self, subscription_id: str) -> Place | None:
        """The last event that it has acknowledged, with all before it."""
        return self._places.get(subscription_id)

    def forget(self, subscription_id: str) -> None:
        self._floors.pop(subscription_id, None)
        self._changed |= self._places.pop(subscription_id, None) is not None

    async def note(self, floors: dict[str, int]) -> None:
        """Take in how far consumers are. Raises UnansweredError, JetStreamError."""
        moved = [name for name, floor in floors.items() if floor and self._floors.get(name) != floor]
        for name in moved[:MAX_LOOKED_UP]:
            place = await self._feed.place_at(floors[name])
            if place is not None and self._places.get(name) != place:
                self._places[name] = place
                self._changed = True
            self._floors[name] = floors[name]

    async def save(self, seq: int) -> None:
        if self._changed:
            self._changed = not await self._snapshots.save(NAME, VERSION, seq, msgspec.msgpack.encode(self._places))
