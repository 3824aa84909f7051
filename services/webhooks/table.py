"""The tables of deliveries, and how far FEED was taken in. They lie beside the projections, which a rebuild makes anew.

What is to be delivered and how far FEED was read move in one transaction, so that no event is lost or taken in twice.
A delivery is claimed for a while before it is posted: two services never hold the same one, and what a killed one held
is free again after that.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from projections.postgres import Pool, Record
from services.runtime.webhooks.protocol import Delivery, State, Try

CLAIM_SECONDS: Final = 30
"""Twice what a try takes at most; the rest is for storing what came of it."""
MAX_WAITING: Final = 50_000
"""Of one webhook; beyond it, it is disabled. Some 100 MB."""
KEPT_DAYS: Final = 30
KEPT_DELIVERED: Final = 10_000
"""Of one webhook, the newest."""
KEPT_TRIES: Final = 20
"""Of one delivery, the newest: those before it was delivered again go first."""
AT_ONCE: Final = 5_000
"""Deleted or changed in one statement: other writers hardly notice, and it is over long before a statement must be."""
LOOKED_AT: Final = 256
"""Of the events that a webhook was never told of, the first so many are looked at for those that may be told now, which
are the first of each workload: where much waits, most stand behind others. The very first always may, so they come on.
"""
AGAIN_SECONDS: Final = 3.0
"""For which what is parked is set to be delivered again; the rest takes another request."""

_TRIES: Final = msgspec.json.Decoder(tuple[Try, ...])
_ENCODER: Final = msgspec.json.Encoder()

_CLAIM: Final = """
WITH wanted AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::int[]) AS w (webhook_id, slots, project_id, room)
), found AS (
    SELECT d.id, w.project_id, w.room FROM wanted w CROSS JOIN LATERAL (
        SELECT id FROM muster.webhook_deliveries d
        WHERE d.id = ANY (ARRAY(
            (SELECT id FROM (
                SELECT DISTINCT ON (about) id, claimed_until FROM (
                    SELECT id, about, place, claimed_until FROM muster.webhook_deliveries
                    WHERE webhook_id = w.webhook_id AND state = 'waiting' AND first_tried_at IS NULL
                    ORDER BY place LIMIT $7
                ) n ORDER BY about, place
            ) f WHERE claimed_until IS NULL OR claimed_until < now())
            UNION ALL
            (SELECT id FROM muster.webhook_deliveries WHERE webhook_id = w.webhook_id AND state = 'waiting'
            AND first_tried_at IS NOT NULL AND due_at <= now() AND (claimed_until IS NULL OR claimed_until < now())
            ORDER BY due_at LIMIT w.slots)
        ))
        AND d.state = 'waiting' AND d.due_at <= now() AND (d.claimed_until IS NULL OR d.claimed_until < now())
        ORDER BY d.due_at, d.place LIMIT w.slots FOR UPDATE SKIP LOCKED
    ) d
), chosen AS (
    SELECT id FROM (SELECT id, room, row_number() OVER (PARTITION BY project_id) AS n FROM found) f
    WHERE n <= room LIMIT $5
)
UPDATE muster.webhook_deliveries d SET claimed_until = now() + make_interval(secs => $6), claim = d.claim + 1
FROM chosen WHERE d.id = chosen.id
RETURNING d.id, d.claim, d.webhook_id, d.event_id, d.body, d.tries, d.tried, d.is_test
"""
"""Those that are due, the oldest first. An event is first tried after the one before it of the same workload was: from
then on they go their own ways. Only the oldest of each webhook are looked at, so that a long row of events about one
workload costs no more than a short one."""


_UNDELIVERED: Final = """
SELECT w.id, o.place, o.state FROM unnest($1::text[]) w (id) CROSS JOIN LATERAL (
    (SELECT place, state FROM muster.webhook_deliveries WHERE webhook_id = w.id AND state = 'waiting' AND NOT is_test
    ORDER BY place LIMIT $2 + 1)
    UNION ALL
    (SELECT place, state FROM muster.webhook_deliveries WHERE webhook_id = w.id AND state = 'parked' AND NOT is_test
    ORDER BY id DESC LIMIT $2)
) o
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A new delivery."""

    webhook_id: str
    event_id: str
    type: str
    place: str
    about: str
    body: str
    """A CloudEvent in JSON."""
    state: State = "waiting"


class Undelivered(NamedTuple):
    """An event that was not delivered to a webhook, by its place."""

    webhook_id: str
    place: str
    state: State
    """`waiting` or `parked`."""


class Stand(NamedTuple):
    """How far all was delivered, at one moment."""

    incarnation: int
    place: str
    """Up to here FEED was taken in."""
    events: list[Undelivered]


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that this service holds for a while."""

    id: int
    claim: int
    """Counts claims: who holds an old one changes nothing."""
    post_by: float
    """By the clock of `time.monotonic`: whoever posts it later may still be at it when it is free again."""
    webhook_id: str
    event_id: str
    body: str
    tries: int
    tried: tuple[Try, ...]
    is_test: bool


class Table:
    """Asks Postgres. Everything raises what asyncpg raises."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    # -- what comes in ------------------------------------------------------------------------------------------------

    async def place(self) -> str | None:
        """Up to which event FEED was taken in; None where it never was."""
        return await self._pool.fetchval("SELECT place FROM muster.webhook_position")

    async def begin(self, place: str, incarnation: int) -> None:
        """At this place of the log, unless it was begun before."""
        await self._pool.execute(
            "INSERT INTO muster.webhook_position (place, incarnation) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            place,
            incarnation,
        )

    async def go_back(self, place: str, incarnation: int) -> None:
        """To this place, since the log was restored up to there; nothing where that was done before."""
        await self._pool.execute(
            "UPDATE muster.webhook_position SET place = least(place, $1), incarnation = $2 WHERE incarnation < $2",
            place,
            incarnation,
        )

    async def take_in(self, rows: Sequence[Row], place: str, *, since: str) -> bool:
        """Store those that are not there yet, and that FEED was taken in up to `place`. False, and nothing is stored,
        where it was not taken in up to `since`: these are other tables than those that said so.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await connection.fetchval("SELECT place FROM muster.webhook_position FOR UPDATE")
            if before is None or before < since:
                return False
            new = [row for row in rows if row.place > before]
            if new:
                await connection.execute(
                    # The clock, and not when the transaction began: another may have begun before it, and came later.
                    "INSERT INTO muster.webhook_deliveries "
                    "(webhook_id, event_id, type, place, about, body, state, due_at, ended_at) "
                    "SELECT *, clock_timestamp(), CASE WHEN state = 'parked' THEN clock_timestamp() END FROM unnest("
                    "$1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]"
                    ") AS new (webhook_id, event_id, type, place, about, body, state) ON CONFLICT DO NOTHING",
                    *([getattr(row, field) for row in new] for field in Row.__struct_fields__),
                )
            if place > before:
                await connection.execute("UPDATE muster.webhook_position SET place = $1", place)
            return True

    async def undelivered(self, known: Sequence[str], most: int) -> Stand | None:
        """What was not delivered to these webhooks: of each the first `most` + 1 that wait, by place, and the newest
        `most` that are parked; None where nothing was taken in yet.
        """
        async with (
            self._pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            position = await connection.fetchrow("SELECT place, incarnation FROM muster.webhook_position")
            found = await connection.fetch(_UNDELIVERED, list(known), most)
        if position is None:
            return None
        return Stand(position["incarnation"], position["place"], [Undelivered(*record) for record in found])

    # -- what goes out ------------------------------------------------------------------------------------------------

    async def claim(self, wanted: Sequence[tuple[str, int, str, int]], most: int) -> list[Claimed]:
        """Up to `most` that are due.

        Args:
            wanted: webhook, how many of it, its project, how many of that.
        """
        columns = zip(*wanted, strict=True)
        post_by = time.monotonic() + CLAIM_SECONDS / 2
        found = await self._pool.fetch(_CLAIM, *map(list, columns), most, float(CLAIM_SECONDS), LOOKED_AT)
        return [_claimed(record, post_by) for record in found]

    async def finish(self, held: Claimed, last: Try, state: State, pause: timedelta | None, *, free: bool) -> bool:
        """Store what came of a try; whether the delivery was still held. `free`: it is over. Done twice, since nobody
        learnt whether it was done, it counts one try.
        """
        tried = (*held.tried, last)[-KEPT_TRIES:]
        done = await self._pool.execute(
            "UPDATE muster.webhook_deliveries SET state = $3, tries = $7, tried = $4, claimed_until = NULL, "
            "due_at = now() + $5, first_tried_at = coalesce(first_tried_at, now()), "
            "ended_at = CASE WHEN $6 THEN now() END WHERE id = $1 AND claim = $2",
            held.id,
            held.claim,
            state,
            _ENCODER.encode(tried).decode(),
            pause or timedelta(),
            free,
            held.tries + 1,
        )
        return done != "UPDATE 0"

    async def failed_throughout(self, delivery: int) -> bool:
        """Whether nothing was delivered to the same webhook since this one was first tried."""
        return await self._pool.fetchval(
            "SELECT NOT EXISTS (SELECT FROM muster.webhook_deliveries o WHERE o.webhook_id = d.webhook_id "
            "AND o.state = 'delivered' AND o.ended_at > d.first_tried_at) "
            "FROM muster.webhook_deliveries d WHERE d.id = $1",
            delivery,
        )

    # -- what is asked ------------------------------------------------------------------------------------------------

    async def deliveries(
        self, webhook_id: str, state: State | None, before: int | None, limit: int
    ) -> tuple[Delivery, ...]:
        """The newest first."""
        found = await self._pool.fetch(
            f"SELECT {_SHOWN} FROM muster.webhook_deliveries WHERE webhook_id = $1 "  # noqa: S608 (our own names)
            "AND ($2::text IS NULL OR state = $2) AND ($3::bigint IS NULL OR id < $3) ORDER BY id DESC LIMIT $4",
            webhook_id,
            state,
            before,
            limit,
        )
        return tuple(map(_delivery, found))

    async def again(self, webhook_id: str, numbers: Sequence[int] | None) -> int:
        """Have these delivered again, or all that are parked; how many there are. Of very many, as many as can be set
        so in AGAIN_SECONDS, the oldest.
        """
        if numbers is not None:
            return await self._again("id = ANY ($2) AND state IN ('parked', 'delivered')", webhook_id, list(numbers))
        until, count = time.monotonic() + AGAIN_SECONDS, 0
        chosen = (
            "id = ANY (ARRAY(SELECT id FROM muster.webhook_deliveries WHERE webhook_id = $1 AND state = 'parked' "
            "ORDER BY id LIMIT $2)) AND state = 'parked'"
        )
        while done := await self._again(chosen, webhook_id, AT_ONCE):
            count += done
            if done < AT_ONCE or time.monotonic() >= until:
                break
        return count

    async def _again(self, condition: str, webhook_id: str, given: "list[int] | int") -> int:
        done = await self._pool.execute(
            "UPDATE muster.webhook_deliveries SET state = 'waiting', tries = 0, first_tried_at = now(), "  # noqa: S608 (our own words)
            "ended_at = NULL, due_at = now(), claim = claim + 1 WHERE webhook_id = $1 AND NOT is_test "
            f"AND {condition}",
            webhook_id,
            given,
        )
        return _count(done)

    async def test(self, row: Row) -> tuple[Claimed | None, Delivery]:
        """Store a test, and hold it; None where it was stored before."""
        post_by = time.monotonic() + CLAIM_SECONDS / 2
        made = await self._pool.fetchrow(
            "INSERT INTO muster.webhook_deliveries (webhook_id, event_id, type, place, about, body, state, is_test, "
            "claim, claimed_until) VALUES ($1, $2, $3, $4, $5, $6, $7, true, 1, now() + make_interval(secs => $8)) "
            "ON CONFLICT DO NOTHING RETURNING *",
            *(getattr(row, field) for field in Row.__struct_fields__),
            float(CLAIM_SECONDS),
        )
        return (None if made is None else _claimed(made, post_by), await self.delivery(row.webhook_id, row.event_id))

    async def delivery(self, webhook_id: str, event_id: str) -> Delivery:
        found = await self._pool.fetchrow(
            f"SELECT {_SHOWN} FROM muster.webhook_deliveries WHERE webhook_id = $1 AND event_id = $2",  # noqa: S608
            webhook_id,
            event_id,
        )
        assert found is not None, "it was stored just now"
        return _delivery(found)

    # -- what is tidied -----------------------------------------------------------------------------------------------

    async def held(self) -> tuple[list[str], int]:
        """The webhooks that have deliveries, and the number of the newest delivery."""
        # Each is found in the index behind the one before it: reading all deliveries takes long.
        found = await self._pool.fetch(
            "WITH RECURSIVE w (id) AS ((SELECT min(webhook_id) FROM muster.webhook_deliveries) UNION ALL "
            "SELECT (SELECT min(webhook_id) FROM muster.webhook_deliveries WHERE webhook_id > w.id) FROM w "
            "WHERE w.id IS NOT NULL) SELECT id FROM w WHERE id IS NOT NULL"
        )
        newest = await self._pool.fetchval("SELECT max(id) FROM muster.webhook_deliveries")
        return [record["id"] for record in found], newest or 0

    async def park(self, webhook_ids: Iterable[str], newest: int) -> int:
        """A bounded number of what waits for webhooks that are disabled, up to this number; how many that were."""
        waits = "state = 'waiting' AND NOT is_test AND (claimed_until IS NULL OR claimed_until < now())"
        done = await self._pool.execute(
            "UPDATE muster.webhook_deliveries SET state = 'parked', ended_at = now() WHERE id = ANY (ARRAY("  # noqa: S608 (our own words)
            f"SELECT id FROM muster.webhook_deliveries WHERE webhook_id = ANY ($1) AND id <= $2 AND {waits} LIMIT $3)) "
            f"AND {waits}",
            list(webhook_ids),
            newest,
            AT_ONCE,
        )
        return _count(done)

    async def overfull(self) -> list[str]:
        """Webhooks for which too many wait."""
        found = await self._pool.fetch(
            "SELECT webhook_id FROM muster.webhook_deliveries WHERE state = 'waiting' GROUP BY webhook_id "
            "HAVING count(*) > $1",
            MAX_WAITING,
        )
        return [record["webhook_id"] for record in found]

    async def forget(self, known: Sequence[str], gone: Sequence[str]) -> int:
        """A bounded number of what is old, or of webhooks that are no more; how many that were."""
        done = [
            await self._pool.execute(statement, *arguments, AT_ONCE)
            for statement, arguments in (
                (_delete("webhook_id = ANY ($1)", "$2"), (gone,)),
                (
                    _delete("state <> 'waiting' AND created_at < now() - $1::interval", "$2"),
                    (timedelta(days=KEPT_DAYS),),
                ),
                (
                    _delete(
                        "id IN (SELECT o.id FROM unnest($1::text[]) w CROSS JOIN LATERAL (SELECT id FROM "
                        "muster.webhook_deliveries WHERE webhook_id = w AND state = 'delivered' "
                        "ORDER BY id DESC OFFSET $2) o)",
                        "$3",
                    ),
                    (known, KEPT_DELIVERED),
                ),
            )
        ]
        return sum(map(_count, done))


_SHOWN: Final = "id, event_id, type, state, created_at, CASE WHEN state = 'waiting' THEN due_at END AS due_at, tried"


def _delete(condition: str, limit: str) -> str:
    return (
        "DELETE FROM muster.webhook_deliveries WHERE id = ANY (ARRAY("  # noqa: S608 (our own words)
        f"SELECT id FROM muster.webhook_deliveries WHERE {condition} LIMIT {limit}))"
    )


def _claimed(record: Record, post_by: float) -> Claimed:
    return Claimed(
        id=record["id"],
        claim=record["claim"],
        post_by=post_by,
        webhook_id=record["webhook_id"],
        event_id=record["event_id"],
        body=record["body"],
        tries=record["tries"],
        tried=_TRIES.decode(record["tried"]),
        is_test=record["is_test"],
    )


def _delivery(record: Record) -> Delivery:
    due: datetime | None = record["due_at"]
    return Delivery(
        number=record["id"],
        event_id=record["event_id"],
        type=record["type"],
        state=record["state"],
        created_at=record["created_at"],
        due_at=due,
        tries=_TRIES.decode(record["tried"]),
    )


def _count(answer: str) -> int:
    """Of `UPDATE 3` or `DELETE 3`."""
    return int(answer.rpartition(" ")[2])
