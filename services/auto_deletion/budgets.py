"""Measures a few times a minute what projects with a budget have used in this month, and tells `commands` where that
changes anything.

It keeps nothing: what follows from a measurement is decided in the project's own aggregate, which says it once, however
many measure. Without it nobody is warned and nothing is exhausted; what is exhausted opens by itself with the new
month.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import msgspec
import structlog
from prometheus_client import Counter

from events.budgets import Budget, NoteBudgetUse, measured, period_of
from events.codec import UNDECODABLE
from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand, CommandReply
from events.ids import derived_command_id
from events.money import rounded
from events.prices import PRICES_KEY, Prices
from events.subjects import EVENTS_STREAM
from projections.migrate import CHECKPOINT_NAME
from projections.postgres import CUT_OFF, Connection, Pool, Record
from services.auto_deletion.due import SERVICE
from services.runtime.log.store import LogUnavailableError
from services.runtime.nats.bus import GateAwayError
from services.runtime.nats.jetstream_api import stream_info
from services.runtime.nats.requests import Requests

if TYPE_CHECKING:
    from sqlalchemy import Select

    from projections.use_hours import Amounts, HoursQuery

MEASURE_SECONDS: Final = 5.0
"""Between two measurements: what is exhausted is noticed so much later at most, beside the projector's lag."""
PAUSE_TIMES: Final = 20
"""Behind a measurement that took a second it pauses for twenty: Postgres has other things to do."""
STATEMENT_SECONDS: Final = 60.0
"""A month of a large installation is a million rows and more."""
LONGEST_PAUSE_SECONDS: Final = 60.0
SUMS_AT_ONCE: Final = 20_000
"""Projects times spans with a price each; every one is a row for each GPU model. 400,000 rows took 560 MB, and held up
all else for 14 s."""
BEHIND_SECONDS: Final = 20.0
"""How long a measurement waits until the tables have what the log had when it began: on a busy installation they lag
by seconds all day, and budgets must act there, too."""
LOOK_SECONDS: Final = 0.05
LONGEST_LOOK_SECONDS: Final = 1.0
ASK_SECONDS: Final = 3.0

Send = Callable[[AdmittedCommand], Awaitable[CommandReply]]
LastSeq = Callable[[], Awaitable[int]]
"""Of the log, as its leader has it."""

_TOLD: Final = Counter("muster_budget_commands", "Measurements that change something, told to the log", ["outcome"])

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A project with a budget, and what it used in the month."""

    project_id: str
    version: int
    """Of the project: the sequence of its last commit."""
    budget: Budget
    milli_hours: int = 0
    """Thousandths of GPU hours that were reserved."""
    cost_micros: int = 0
    """What they cost, in millionths; without those that have no price."""

    @property
    def used(self) -> int:
        return max(self.milli_hours if self.budget.micros is None else self.cost_micros, 0)


def to_tell(held: Sequence[Held], until: datetime) -> dict[str, AdmittedCommand]:
    """The commands that would change anything, by project. Pure. Two who measure the same give the same command."""
    period = period_of(until)
    return {
        one.project_id: AdmittedCommand(
            command_id=derived_command_id(SERVICE, one.project_id, "budget", str(one.version)),
            actor=service_actor(SERVICE),
            command=NoteBudgetUse(
                project_id=one.project_id,
                period=period,
                until=until,
                in_money=one.budget.micros is not None,
                used=one.used,
            ),
        )
        for one in held
        if measured(one.budget, period, one.used, until)
    }


class BudgetRows:
    """The tables that say which budgets there are and what was used."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def any(self) -> bool:
        """Whether any project has a budget."""
        return bool(await self._pool.fetchval(_ANY.format(schema=await self._schema())))

    async def reached(self) -> int:
        """The sequence of the log that the tables are at."""
        statement = 'SELECT seq FROM "{schema}".checkpoint WHERE name = $1'
        return int(await self._pool.fetchval(statement.format(schema=await self._schema()), CHECKPOINT_NAME) or 0)

    async def measure(self, until: datetime) -> list[Held]:
        """All projects with a budget, and what they used in the month up to this moment, as of one snapshot."""
        async with (
            self._pool.acquire(timeout=ASK_SECONDS) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            schema = await connection.fetchval(_CURRENT)
            held = await _budgets(connection, schema)
            begin = period_of(until)
            if not held or begin == until:
                return held
            prices = await _prices(connection, schema)
            return await _used(connection, schema, held, prices, (begin, until))

    async def _schema(self) -> str:
        return await self._pool.fetchval(_CURRENT)


_CURRENT: Final = "SELECT schema_name FROM muster.current_projection"
_ANY: Final = "SELECT EXISTS (SELECT 1 FROM \"{schema}\".projects WHERE deleted_at IS NULL AND budget::text <> 'null')"


async def _budgets(connection: Connection, schema: str) -> list[Held]:
    rows = await connection.fetch(
        f'SELECT id, version, budget::text AS budget FROM "{schema}".projects '  # noqa: S608 (our own names)
        "WHERE deleted_at IS NULL AND budget::text <> 'null' ORDER BY id"
    )
    held: list[Held] = []
    for row in rows:
        try:
            budget = msgspec.json.decode(row["budget"], type=Budget)
        except UNDECODABLE as error:
            log.warning("budget_not_understood", project_id=row["id"], error=str(error))
            continue
        held.append(Held(project_id=row["id"], version=row["version"], budget=budget))
    return held


async def _prices(connection: Connection, schema: str) -> Prices:
    row = await connection.fetchrow(
        f'SELECT currency, models::text AS models FROM "{schema}".prices WHERE key = $1',  # noqa: S608
        PRICES_KEY,
    )
    if row is None:
        return Prices()
    return msgspec.convert({"currency": row["currency"], "models": msgspec.json.decode(row["models"])}, Prices)


async def _used(
    connection: Connection, schema: str, held: list[Held], prices: Prices, borders: tuple[datetime, ...]
) -> list[Held]:
    # With the first budget: most installations have none, and the library takes memory.
    from projections.use_hours import (
        MILLI_MICROS_PER_HOUR,
        Amount,
        By,
        HoursQuery,
        changed_statement,
        rates_statement,
    )

    sums: dict[str, Amount] = {}
    spans = len(HoursQuery(by=By.PROJECT, borders=borders, prices=prices, projects=None).cuts)
    at_once = max(SUMS_AT_ONCE // spans, 1)
    for first in range(0, len(held), at_once):
        query = HoursQuery(
            by=By.PROJECT,
            borders=borders,
            prices=prices,
            projects=frozenset(one.project_id for one in held[first : first + at_once]),
        )
        changed = await _rows(connection, schema, changed_statement(query))
        rates = await _rows(connection, schema, rates_statement(query))
        found = await asyncio.to_thread(_amounts, query, changed, rates)
        for ((project_id,), _, _), amount in found.items():
            sums.setdefault(project_id, Amount()).add(amount)
    return [
        Held(
            project_id=one.project_id,
            version=one.version,
            budget=one.budget,
            milli_hours=rounded(sum_.reserved, MILLI_MICROS_PER_HOUR // 1000),
            cost_micros=sum_.cost_micros,
        )
        for one in held
        for sum_ in (sums.get(one.project_id, Amount()),)
    ]


def _amounts(query: "HoursQuery", changed: Sequence[Record], rates: Sequence[Record]) -> "Amounts":
    from projections.use_hours import amounts

    def mappings(rows: Sequence[Record]) -> Iterator[Mapping[Any, Any]]:
        return (dict(zip(row.keys(), row, strict=True)) for row in rows)

    return amounts(query, mappings(changed), mappings(rates))


async def _rows(connection: Connection, schema: str, statement: "Select[Any]") -> list[Record]:
    """The statement's rows, by this connection. It has no bound of its own that a month of projects could reach."""
    from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

    from projections.tables import DERIVED_SCHEMA

    compiled: Any = statement.limit(None).compile(
        dialect=PGDialect_asyncpg(), compile_kwargs={"render_postcompile": True}
    )
    text: str = compiled.string.replace(f"{DERIVED_SCHEMA}.", f'"{schema}".')
    arguments = (compiled.params[name] for name in compiled.positiontup)
    return await connection.fetch(text, *arguments, timeout=STATEMENT_SECONDS)


class Budgets:
    """Measures again and again."""

    def __init__(self, rows: BudgetRows, last_seq: LastSeq, send: Send) -> None:
        self._rows = rows
        self._last_seq = last_seq
        self._send = send

    async def measure(self, clock: Callable[[], datetime]) -> int:
        """Measure once and tell what changes anything; how many commands that were. Raises what asyncpg raises,
        TimeoutError where the tables are behind, LogUnavailableError, GateAwayError, and UNDECODABLE of prices.
        """
        if not await self._rows.any():
            return 0
        # All that was in the log at this moment must be in the tables: a run whose end they lack would count on.
        until = clock()
        newest = await self._last_seq()
        look = LOOK_SECONDS
        async with asyncio.timeout(BEHIND_SECONDS):
            while await self._rows.reached() < newest:
                await asyncio.sleep(look)
                look = min(2 * look, LONGEST_LOOK_SECONDS)
        commands = to_tell(await self._rows.measure(until), until)
        for project_id, command in commands.items():
            match await self._send(command):
                case Accepted() as reply:
                    _TOLD.labels("changed" if reply.changed else "known").inc()
                    log.info("budget_told", project_id=project_id, changed=reply.changed)
                case reply:
                    # Measured again in a moment.
                    _TOLD.labels(type(reply).__name__).inc()
                    log.warning("budget_not_told", project_id=project_id, reply=type(reply).__name__)
        return len(commands)

    async def run(self, stop: asyncio.Event) -> None:
        """Measure until `stop`."""
        pause = MEASURE_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            try:
                await self.measure(lambda: datetime.now(UTC))
                took = PAUSE_TIMES * (time.monotonic() - began)
                pause = min(max(MEASURE_SECONDS, took), LONGEST_PAUSE_SECONDS)
            except (
                asyncpg.PostgresError,
                *CUT_OFF,
                OSError,
                TimeoutError,
                LogUnavailableError,
                GateAwayError,
                *UNDECODABLE,
            ) as error:
                _TOLD.labels("away").inc()
                log.warning("budgets_not_measured", error=str(error) or type(error).__name__)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()


def last_seq_of(requests: Requests) -> LastSeq:
    async def last_seq() -> int:
        return (await stream_info(requests, EVENTS_STREAM, seconds=ASK_SECONDS)).state.last_seq

    return last_seq
