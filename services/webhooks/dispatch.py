"""Posts what is due, stores what came of it, and tidies up.

What is posted at once is bounded: of one webhook, of one project and in all. So a receiver that hangs takes the room of
nobody else, and ten thousand deliveries that wait cost a place in a table.
"""

import asyncio
import contextlib
import random
import time
from collections import Counter as Counts
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import structlog
from prometheus_client import Counter, Gauge

from events.webhooks import DisabledBecause
from services.runtime.identity.directory import Directory, KnownWebhook
from services.runtime.process import failpoints
from services.runtime.process.host import Health
from services.runtime.webhooks.protocol import Try
from services.webhooks.due import Breaker, Outcome, after
from services.webhooks.feed import AWAY, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from services.webhooks.keys import WebhookKeys
from services.webhooks.post import Poster
from services.webhooks.table import CLAIM_SECONDS, Claimed, Table

OF_WEBHOOK: Final = 8
"""Requests at once."""
OF_PROJECT: Final = 32
IN_ALL: Final = 256
"""Each holds a connection, an event and an answer's beginning: some 100 KB with TLS."""
LOOK_SECONDS: Final = 0.5
"""How often the table is looked at where nobody here knows of anything new: retries fall due, and other services take
events in."""
IDLE_SECONDS: Final = 5.0
"""The same while there are no webhooks."""
STOP_SECONDS: Final = 4.0
"""What is under way gets this long when the service stops; the rest is posted again."""
TIDY_SECONDS: Final = 30.0
TIDY_ON_SECONDS: Final = 0.1
"""Where there is more to delete."""
STORE_PAUSE_SECONDS: Final = 0.2
CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_TROUBLE: Final = "webhook deliveries"

_TRIES: Final = Counter("muster_webhook_tries", "Requests to receivers of webhooks", ["outcome"])
_UNDER_WAY: Final = Gauge("muster_webhook_tries_under_way", "Requests to receivers of webhooks that are under way")

type CatchUp = Callable[[], Awaitable[None]]
"""Waits until the directory is where the log is now; raises one of AWAY."""
type Disable = Callable[[KnownWebhook, DisabledBecause], Awaitable[None]]

log = structlog.get_logger(__name__)


class Dispatcher:
    """One service's deliveries; a second one beside it takes a share."""

    def __init__(
        self,
        table: Table,
        poster: Poster,
        keys: WebhookKeys,
        directory: Directory,
        *,
        catch_up: CatchUp,
        disable: Disable,
    ) -> None:
        self._table = table
        self._poster = poster
        self._keys = keys
        self._directory = directory
        self._catch_up = catch_up
        self._disable = disable
        self._breakers: dict[str, Breaker] = {}
        self._under_way: dict[asyncio.Task[None], KnownWebhook] = {}
        self._something = asyncio.Event()

    def wake(self) -> None:
        """Something may be due."""
        self._something.set()

    async def run(self, health: Health, stop: asyncio.Event) -> None:
        """Until `stop`; then what is under way gets its end. Postgres away only delays."""
        pause = FIRST_PAUSE_SECONDS
        try:
            while not stop.is_set():
                self._something.clear()
                try:
                    begun = await self._round()
                except AWAY as error:
                    told = str(error) or type(error).__name__
                    health.warnings[_TROUBLE] = f"webhooks cannot be delivered: {told}"
                    log.warning("webhooks_not_delivered", error=told)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                    continue
                health.warnings.pop(_TROUBLE, None)
                pause = FIRST_PAUSE_SECONDS
                if not begun:
                    await self._rest()
        finally:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=STOP_SECONDS)
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS if self._directory.webhooks else IDLE_SECONDS):
                await self._something.wait()

    async def _round(self) -> int:
        """Begin what is due and there is room for; how many."""
        wanted = self._room(datetime.now(UTC))
        room = IN_ALL - len(self._under_way)
        if not wanted or room <= 0:
            return 0
        claimed = await self._table.claim(wanted, room)
        for held in claimed:
            known = self._directory.webhooks.get(held.webhook_id)
            if known is None:
                continue  # deleted just now: its deliveries go soon
            self._begin(known, held)
        return len(claimed)

    def _room(self, now: datetime) -> list[tuple[str, int, str, int]]:
        """For which webhooks how many more may begin."""
        of_webhook = Counts(known.webhook.id for known in self._under_way.values())
        of_project = Counts(known.project_id for known in self._under_way.values())
        wanted: list[tuple[str, int, str, int]] = []
        for id_, known in self._directory.webhooks.items():
            breaker = self._breakers.get(id_)
            under_way = of_webhook[id_]
            slots = OF_WEBHOOK - under_way if breaker is None else breaker.slots(OF_WEBHOOK, under_way, now)
            room = OF_PROJECT - of_project[known.project_id]
            if known.webhook.disabled is None and slots > 0 and room > 0:
                wanted.append((id_, slots, known.project_id, room))
        random.shuffle(wanted)  # whose turn it is where there is not room for all
        return wanted

    def _begin(self, known: KnownWebhook, held: Claimed) -> None:
        task = asyncio.create_task(self._deliver(known, held))
        self._under_way[task] = known
        _UNDER_WAY.set(len(self._under_way))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        _UNDER_WAY.set(len(self._under_way))
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhook_delivery_failed", error=repr(error), exc_info=error)
        self._something.set()

    async def deliver_now(self, known: KnownWebhook, held: Claimed) -> None:
        """One that was claimed already, beside all others; back when it is over."""
        await self._deliver(known, held)

    async def _deliver(self, known: KnownWebhook, held: Claimed) -> None:
        if time.monotonic() > held.post_by:
            return  # this process stood still meanwhile: the delivery is free again soon, or another service has it
        outcome, last = await self._try(known, held)
        failpoints.reached("webhook_posted")
        what = after(outcome, held.tries + 1, chance=random.random(), test=held.is_test)  # noqa: S311 (jitter)
        if not held.is_test:
            self._breakers.setdefault(held.webhook_id, Breaker()).note(taken=outcome.taken, now=datetime.now(UTC))
        over = what.state != "waiting"
        if not await self._store(lambda: self._table.finish(held, last, what.state, what.pause, free=over)):
            return
        if what.gone:
            await self._disable(known, "gone")
        elif what.state == "parked" and await self._store(lambda: self._table.failed_throughout(held.id)):
            await self._disable(known, "failing")

    async def _try(self, known: KnownWebhook, held: Claimed) -> tuple[Outcome, Try]:
        began, now = time.monotonic(), datetime.now(UTC)
        webhook, body = known.webhook, held.body.encode()
        signed = self._keys.headers(webhook.id, webhook.signing_keys(now), held.event_id, int(now.timestamp()), body)
        outcome = await self._poster.post(
            webhook.url, {"content-type": CONTENT_TYPE, **signed}, body, project_id=known.project_id
        )
        _TRIES.labels("taken" if outcome.taken else "refused" if outcome.status else "unanswered").inc()
        seconds = round(time.monotonic() - began, 3)
        last = Try(at=now, status=outcome.status, error=outcome.error, excerpt=outcome.excerpt, seconds=seconds)
        return outcome, last

    async def _store(self, do: Callable[[], Awaitable[bool]]) -> bool:
        """What it answers, once Postgres is there; false where that takes longer than the claim holds: then the
        delivery is made again.
        """
        deadline = time.monotonic() + CLAIM_SECONDS
        while True:
            try:
                return await do()
            except AWAY as error:
                log.warning("webhook_outcome_not_stored", error=str(error) or type(error).__name__)
                if time.monotonic() > deadline:
                    return False
            await asyncio.sleep(STORE_PAUSE_SECONDS)

    async def tidy(self, stop: asyncio.Event) -> None:
        """Disable, park and delete what is to be, until `stop`. Postgres or NATS away only delay it."""
        while not stop.is_set():
            pause = TIDY_SECONDS
            try:
                if await self._tidy():
                    pause = TIDY_ON_SECONDS
            except AWAY as error:
                log.warning("webhooks_not_tidied", error=str(error) or type(error).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)

    async def _tidy(self) -> int:
        """Once; how many were parked or deleted."""
        # Looked at before the directory catches up: a webhook that has deliveries then and is not known afterwards is
        # no more, and what waits then for one that is disabled is not what came after it was enabled again.
        with_deliveries, newest = await self._table.held()
        await self._catch_up()
        known = dict(self._directory.webhooks)
        self._breakers = {id_: breaker for id_, breaker in self._breakers.items() if id_ in known}
        for id_ in await self._table.overfull():
            if id_ in known:
                await self._disable(known[id_], "too_many_waiting")
        disabled = (id_ for id_, one in known.items() if one.webhook.disabled is not None)
        parked = await self._table.park(disabled, newest)
        gone = [id_ for id_ in with_deliveries if id_ not in known]
        return parked + await self._table.forget([id_ for id_ in with_deliveries if id_ in known], gone)
