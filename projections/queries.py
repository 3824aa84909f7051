"""Questions to the read models. Each is answered from one snapshot of one projection schema, with its sequence.

Which schema is current stands in one row (`muster.current_projection`), read at the start of every transaction: so
a rebuild that swaps schemas makes no query fail. The old schema stays until the next rebuild.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from datetime import datetime, timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

import asyncpg
from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    func,
    select,
    text,
    union,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from projections import filters
from projections.access import scope_values
from projections.asset_query import AssetQuery, assets_statement
from projections.filters import WorkloadQuery
from projections.found import (
    Counted,
    FoundMoment,
    Moment,
    NodePods,
    Page,
    Rows,
    RowStream,
    Status,
    UseHours,
    UseNow,
)
from projections.history_query import ALL_RECORDS, HistoryQuery, history_statement, people_statement
from projections.past_views import past_schema
from projections.postgres import CUT_OFF
from projections.project_use import UseAnswer, use_by_project
from projections.schemas import LISTED, listed
from projections.tables import (
    DERIVED_SCHEMA,
    PAST,
    REBUILD_LOCK,
    checkpoint,
    clusters,
    current_projection,
    departments,
    history,
    moments,
    nodes,
    pods,
    project_use,
    projects,
    reservations,
    workloads,
)
from projections.unanswered import (
    STATEMENT_TIMEOUT_SECONDS,
    ProjectionsUnavailableError,
    QueriesBusyError,
    TooManyRowsError,
    named,
)
from projections.usage import MAX_USAGE_SAMPLES, UsageSeries, usage_series, usage_statement
from projections.use_hours import (
    MOST_ROWS,
    By,
    HoursQuery,
    amounts,
    changed_statement,
    of_departments,
    rates_statement,
)
from projections.use_now import SUMMED, UseQuery, use_statement

CONNECT_TIMEOUT_SECONDS: Final = 5
POOL_SIZE: Final = 8
"""Connections that an api keeps."""
EACH: Final = 4
"""Of them, for one asker: whoever asks for a hundred lists at once waits for the own ones, and nobody else does."""
POOL_TIMEOUT_SECONDS: Final = 2
"""How long a question waits for one of its asker's, and then for one of all: with its statement after it, it still ends
within a request's time.
"""
SCHEMA_TRIES: Final = 3
"""A schema can only vanish under a query where two rebuilds ended during it."""
FIRST_WAIT_SECONDS: Final = 0.005
"""A row is usually there within some milliseconds of its commit."""
LONGEST_WAIT_SECONDS: Final = 0.1
STREAM_ROWS: Final = 1000
"""Rows fetched at once by an export."""
FIRST_COMMITS: Final = 2_000
"""That are looked through for what happened; mostly a page is among them."""

_REBUILD_RUNS: Final = text(
    "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = :key "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
_SCHEMAS: Final = text(LISTED)


_NAMED_BY: Final = {By.PROJECT: projects, By.CLUSTER: clusters, By.NODE_POOL: clusters}
"""Which table has the names of what sums are by."""


class Queries:
    """A pool of read-only connections and the questions. Call `close` at the end.

    What they see is of no project; `within` makes the same for a reader, on the same pool. Every method may raise
    ProjectionsUnavailableError and QueryTimeoutError.
    """

    def __init__(
        self,
        postgres_url: str,
        *,
        statement_timeout_seconds: float = STATEMENT_TIMEOUT_SECONDS,
        connections: int = POOL_SIZE,
        schema: str | None = None,
        now: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """`postgres_url` is `postgresql://user:password@host:port/database`.

        Args:
            connections: kept; as many more may be opened for a burst.
            schema: the one that is asked; None: the current one.
            now: up to when present times are counted; None: what Postgres says.
        """
        self._schema = schema
        self._now = now
        self._projects: frozenset[str] | None = frozenset()
        self._asker: Hashable | None = None
        self._shares: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        """Of those who ask now."""
        self._moment: Moment | None = None
        timeout_ms = int(statement_timeout_seconds * 1000)
        self._engine = create_async_engine(
            postgres_url.replace("postgresql://", "postgresql+asyncpg://", 1).replace(
                "postgres://", "postgresql+asyncpg://", 1
            ),
            isolation_level="REPEATABLE READ",
            pool_size=connections,
            max_overflow=connections,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            pool_pre_ping=True,
            connect_args={
                "timeout": CONNECT_TIMEOUT_SECONDS,
                # A server that hangs keeps no promise of its own: one second after its limit we stop waiting.
                "command_timeout": STATEMENT_TIMEOUT_SECONDS + 1,
                "server_settings": {
                    "application_name": "muster-queries",
                    "statement_timeout": str(timeout_ms),
                    "default_transaction_read_only": "on",
                    "idle_in_transaction_session_timeout": "15000",
                },
            },
        )

    async def close(self) -> None:
        await self._engine.dispose()

    def within(self, projects_read: frozenset[str] | None, *, asker: Hashable | None = None) -> "Queries":
        """The same questions, asked by somebody who may read these projects; None: all of them.

        Args:
            asker: whose share of the connections they take; None: nobody's.
        """
        bound = copy(self)
        bound._projects, bound._asker = projects_read, asker  # noqa: SLF001 - of the same class
        return bound

    def as_of(self, moment: Moment | None) -> "Queries":
        """The same questions, as of a moment; None: now."""
        bound = copy(self)
        bound._moment = moment  # noqa: SLF001 - of the same class
        return bound

    async def moment(self, as_of: datetime | int) -> FoundMoment:
        """The last moment at or before a time or a sequence."""
        m = moments.c
        newest_first = select(moments).order_by(m.seq.desc()).limit(1)
        by_time = select(moments).order_by(m.at.desc(), m.seq.desc()).limit(1)
        wanted = newest_first.where(m.seq <= as_of) if isinstance(as_of, int) else by_time.where(m.at <= as_of)
        async with self._snapshot() as (connection, reached):
            found = (await connection.execute(wanted)).mappings().one_or_none()
            newest = (await connection.execute(newest_first)).mappings().one_or_none()
        seq = 0 if found is None else found["seq"]
        if isinstance(as_of, int):
            at = None if found is None else found["at"]
            return FoundMoment(moment=Moment(seq=seq, at=at), settled=reached >= as_of)
        # Times of later commits count as at least the newest one's.
        return FoundMoment(moment=Moment(seq=seq, at=as_of), settled=newest is not None and newest["at"] > as_of)

    # -- workloads -------------------------------------------------------------------------------------------------

    async def workloads(self, query: WorkloadQuery) -> Page:
        """One page. Raises InvalidQueryError."""
        asked = self._workloads(query)
        async with self._snapshot() as (connection, seq):
            if self._moment is not None:
                # No index gives rows of the past in order. Ids are put in order far quicker than whole rows.
                listed = asked.with_only_columns(workloads.c.id).offset(query.offset).limit(query.limit + 1)
                ids = (await connection.execute(listed)).scalars().all()
                statement = asked.where(workloads.c.id.in_(ids))
            else:
                statement = asked.offset(query.offset).limit(query.limit + 1)
            rows = (await connection.execute(statement)).mappings().all()
        more = len(rows) > query.limit
        return Page(rows=rows[: query.limit], next=query.offset + query.limit if more else None, seq=seq)

    async def workload(self, workload_id: str) -> Rows:
        """One row, or none."""
        statement = self._params(_select_workloads().where(workloads.c.id == workload_id))
        async with self._snapshot() as (connection, seq):
            return Rows(rows=(await connection.execute(statement)).mappings().all(), seq=seq)

    async def count(self, query: WorkloadQuery) -> Counted:
        """How many there are on all pages. Raises InvalidQueryError."""
        where = filters.conditions(query) & filters.going_on_only(query)
        statement = self._params(select(func.count()).select_from(filters.source()).where(where), query)
        async with self._snapshot() as (connection, seq):
            return Counted(count=(await connection.execute(statement)).scalar_one(), seq=seq)

    @asynccontextmanager
    async def stream(self, query: WorkloadQuery) -> AsyncGenerator[RowStream]:
        """All rows, whatever offset and limit say, through a cursor on the server. Raises InvalidQueryError."""
        statement = self._workloads(query)
        async with self._snapshot() as (connection, seq):
            result = await connection.stream(statement, execution_options={"yield_per": STREAM_ROWS})
            yield RowStream(rows=result.mappings(), seq=seq)

    async def changed_workloads(self, after: int, until: int, *, project_id: str | None, limit: int) -> list[str]:
        """Ids of workloads with a commit after a sequence and up to another; any of them, where there are too many."""
        was, now = PAST[workloads.name].c, workloads.c
        found = union(
            *(
                select(c.id).where(c.version > after, c.version <= until, *_of_project(c.project_id, project_id))
                for c in (was, now)
            )
        ).limit(limit)
        async with self._snapshot() as (connection, _):
            return list((await connection.execute(found)).scalars())

    async def workloads_with(self, ids: Sequence[str]) -> Rows:
        """Those of these ids, deleted ones too, by the name of the project and their own."""
        statement = _select_workloads().where(workloads.c.id.in_(ids))
        statement = self._params(statement.order_by(projects.c.name, workloads.c.name, workloads.c.id))
        async with self._snapshot() as (connection, seq):
            return Rows(rows=(await connection.execute(statement)).mappings().all(), seq=seq)

    async def happened(self, after: int, until: int, *, project_id: str | None, limit: int) -> Rows:
        """What happened to workloads after a sequence and up to another, the oldest first, with their names."""
        h = history.c
        statement = (
            select(history, workloads.c.name.label("workload_name"))
            .join(workloads, workloads.c.id == h.workload_id)
            .where(h.seq > after, *_of_project(workloads.c.project_id, project_id))
            .order_by(h.seq, h.index)
            .limit(limit)
        )
        async with self._snapshot() as (connection, seq):
            # No index gives them in order: a little is looked at first, and ten times as much while that is too little.
            commits = FIRST_COMMITS
            while True:
                end = min(after + commits, until)
                rows = (await connection.execute(statement.where(h.seq <= end))).mappings().all()
                if len(rows) == limit or end == until:
                    return Rows(rows=rows, seq=seq)
                commits *= 10

    async def history(
        self, workload_id: str, asked: HistoryQuery = ALL_RECORDS, *, offset: int = 0, limit: int = 50
    ) -> Page:
        """What happened to one workload, in the order that is asked for."""
        statement = history_statement(workload_id, asked, offset=offset, limit=limit + 1)
        async with self._snapshot() as (connection, seq):
            rows = (await connection.execute(statement)).mappings().all()
        return Page(rows=rows[:limit], next=offset + limit if len(rows) > limit else None, seq=seq)

    async def people_in_history(self, workload_id: str) -> list[str]:
        """Ids of those whom its sentences name: some hundred at most."""
        async with self._snapshot() as (connection, _):
            return [found[0] for found in (await connection.execute(people_statement(workload_id))).scalars()]

    async def pods(self, workload_id: str) -> Rows:
        """Every run of every pod of one workload, in order of pod set, index, attempt and try."""
        p = pods.c
        statement = select(pods).where(p.workload_id == workload_id).order_by(p.pod_set, p.index, p.attempt, p.try_)
        async with self._snapshot() as (connection, seq):
            return Rows(rows=(await connection.execute(statement)).mappings().all(), seq=seq)

    # -- the rest --------------------------------------------------------------------------------------------------

    async def nodes(self, *, cluster_id: str | None = None) -> Rows:
        """Present nodes with the name of their cluster."""
        statement = (
            select(nodes, clusters.c.name.label("cluster_name"))
            .select_from(nodes.outerjoin(clusters, clusters.c.id == nodes.c.cluster_id))
            .where(nodes.c.present)
            .order_by(clusters.c.name, nodes.c.name, nodes.c.cluster_id)
        )
        if cluster_id is not None:
            statement = statement.where(nodes.c.cluster_id == cluster_id)
        async with self._snapshot() as (connection, seq):
            return Rows(rows=(await connection.execute(statement)).mappings().all(), seq=seq)

    async def pods_on(self, cluster_id: str, name: str, *, limit: int) -> NodePods | None:
        """What is reserved on a present node, as far as it may be read, by workload and pod; None: no such node."""
        n, r, w, p = nodes.c, reservations.c, workloads.c, pods.c
        run = func.concat(p.workload_id, "/", p.pod_set, "-", p.index, "/", p.attempt, ".", p.try_)
        statement = (
            select(
                w.id.label("workload_id"),
                w.name,
                w.project_id,
                projects.c.name.label("project_name"),
                w.preemptibility,
                w.phase.label("workload_phase"),
                p.pod_set,
                p.index,
                p.phase,
            )
            .select_from(
                reservations.join(workloads, w.id == r.workload_id)
                .join(pods, and_(p.workload_id == w.id, run == r.id))
                .outerjoin(projects, projects.c.id == w.project_id)
            )
            .order_by(w.name, w.id, p.pod_set, p.index)
            .limit(limit)
        )
        there = select(nodes).where(n.present, n.cluster_id == cluster_id, n.name == name)
        async with self._snapshot() as (connection, seq):
            node = (await connection.execute(there)).mappings().first()
            if node is None:
                return None
            found = (await connection.execute(statement.where(r.node_key == node["key"]))).mappings().all()
            return NodePods(node=node, rows=found, seq=seq)

    async def nodes_by_pool(self) -> dict[tuple[str, str], int]:
        """How many present nodes each pool has, by (cluster id, pool); those without are not there."""
        n = nodes.c
        statement = select(n.cluster_id, n.pool, func.count()).where(n.present).group_by(n.cluster_id, n.pool)
        async with self._snapshot() as (connection, _):
            return {(cluster, pool): count for cluster, pool, count in (await connection.execute(statement)).all()}

    async def cluster_ids(self, *, removed: bool) -> list[str]:
        statement = select(clusters.c.id).where(clusters.c.removed.is_(removed))
        async with self._snapshot() as (connection, _):
            return list((await connection.execute(statement)).scalars())

    async def project_ids(self) -> list[str]:
        """Of those that are not deleted."""
        async with self._snapshot() as (connection, _):
            return list(
                (await connection.execute(select(projects.c.id).where(projects.c.deleted_at.is_(None)))).scalars()
            )

    async def department_ids(self) -> list[str]:
        """Of those that are not deleted; the default one only where it was ever changed."""
        statement = select(departments.c.id).where(departments.c.deleted_at.is_(None))
        async with self._snapshot() as (connection, _):
            return list((await connection.execute(statement)).scalars())

    async def assets(self, query: AssetQuery) -> Page:
        """One page of living assets of living places, by name. Raises InvalidQueryError."""
        statement = assets_statement(query).offset(query.offset).limit(query.limit + 1)
        async with self._snapshot() as (connection, seq):
            rows = (await connection.execute(statement)).mappings().all()
        more = len(rows) > query.limit
        return Page(rows=rows[: query.limit], next=query.offset + query.limit if more else None, seq=seq)

    async def count_assets(self, query: AssetQuery) -> int:
        """How many such assets there are."""
        statement = select(func.count()).select_from(assets_statement(query).order_by(None).subquery())
        async with self._snapshot() as (connection, _):
            return (await connection.execute(statement)).scalar_one()

    async def workload_names(self, ids: Sequence[str]) -> dict[str, str]:
        """By id; those that the tables do not have, or not for this reader, are not there."""
        statement = select(workloads.c.id, workloads.c.name).where(workloads.c.id.in_(ids))
        async with self._snapshot() as (connection, _):
            return {row.id: row.name for row in (await connection.execute(statement)).all()}

    async def project_use(self, project_ids: frozenset[str] | None = None) -> UseAnswer:
        """What projects hold; of all projects where no ids are given."""
        statement = select(project_use)
        if project_ids is not None:
            statement = statement.where(project_use.c.project_id.in_(sorted(project_ids)))
        async with self._snapshot() as (connection, seq):
            rows = (await connection.execute(statement)).mappings().all()
        return UseAnswer(projects=use_by_project(rows), seq=seq)

    async def use_now(self, query: UseQuery) -> UseNow:
        """Who uses what now: one page of sums, and the sum of everything."""
        async with self._snapshot() as (connection, seq):
            found = (await connection.execute(use_statement(query))).mappings().all()
        rows = [row for row in found if row["place"] is not None]
        following = query.offset + query.limit if len(rows) > query.limit else None
        total = {name: found[0][f"total_{name}"] for name in SUMMED}
        return UseNow(rows=rows[: query.limit], total=total, next=following, seq=seq)

    async def use_hours(self, query: HoursQuery) -> UseHours:
        """Who used what in spans of time. Raises TooManyRowsError."""
        async with self._snapshot() as (connection, seq):
            changed = (await connection.execute(changed_statement(query))).mappings().all()
            rates = (await connection.execute(rates_statement(query))).mappings().all()
            if max(len(changed), len(rates)) > MOST_ROWS:
                raise TooManyRowsError(f"it has more than {MOST_ROWS:,} sums")
            of = _NAMED_BY.get(query.by)
            names = {} if of is None else dict((await connection.execute(select(of.c.id, of.c.name))).all())
            places: list[tuple[str, str, str]] = []
            if query.by is By.DEPARTMENT:
                p = projects.c
                listed = await connection.execute(select(p.id, p.department_id, p.department_name))
                places = [(row.id, row.department_id, row.department_name) for row in listed]
        # Seconds for a large installation with many periods: in a thread, so that others are answered meanwhile.
        found = await asyncio.to_thread(amounts, query, changed, rates)
        if query.by is By.DEPARTMENT:
            names = {department_id: name for _, department_id, name in places}
            found = of_departments(found, {project_id: department_id for project_id, department_id, _ in places})
        return UseHours(amounts=found, names=names, seq=seq)

    async def usage(
        self, workload_id: str, start: datetime, end: datetime, *, samples: int = MAX_USAGE_SAMPLES
    ) -> list[UsageSeries]:
        """What the workload's pods used, averaged over at most `samples` intervals."""
        if end <= start:
            return []
        width = max((end - start) / min(max(samples, 1), MAX_USAGE_SAMPLES), timedelta(milliseconds=1))
        async with self._snapshot(workload=workload_id) as (connection, _):
            rows = (await connection.execute(usage_statement(workload_id, start, end, width))).mappings().all()
        return usage_series(rows)

    async def status(self) -> Status:
        async with self._snapshot() as (connection, seq):
            row = (await connection.execute(select(current_projection))).mappings().one()
            # A rebuild that was killed left its note behind, but not its lock.
            running = (await connection.execute(_REBUILD_RUNS, {"key": REBUILD_LOCK})).scalar_one()
            building = row["rebuilding_schema"] if running else None
            rows = (await connection.execute(_SCHEMAS)).mappings().all()
        return Status(
            schema=row["schema_name"],
            shape=row["shape"],
            seq=seq,
            halted=row["halted"],
            rebuilding_schema=building,
            rebuild_seq=row["rebuild_seq"] if running else None,
            rebuild_target_seq=row["rebuild_target_seq"] if running else None,
            schemas=listed(rows, current=row["schema_name"], building=building),
        )

    async def reached(self) -> int:
        """The sequence that the tables speak of."""
        async with self._snapshot() as (_, reached):
            return reached

    async def wait_for(self, seq: int, timeout_seconds: float) -> bool:
        """Whether the tables speak of `seq` within the timeout (`min_seq`)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        wait = FIRST_WAIT_SECONDS
        while True:
            async with self._snapshot() as (_, reached):
                pass
            left = deadline - loop.time()
            if reached >= seq or left <= 0:
                return reached >= seq
            await asyncio.sleep(min(wait, left))
            wait = min(wait * 2, LONGEST_WAIT_SECONDS)

    def _workloads(self, query: WorkloadQuery) -> Select[Any]:
        where = filters.conditions(query) & filters.going_on_only(query)
        return self._params(_select_workloads().where(where).order_by(*filters.order(query)), query)

    def _params(self, statement: Select[Any], query: WorkloadQuery | None = None) -> Select[Any]:
        """The statement with what it is to be worked out with: the time, and the names of those who submitted."""
        subjects = {} if query is None else dict(query.subjects)
        return statement.params(
            {filters.SUBJECTS: subjects, filters.NOW: self._now() if self._moment is None else self._moment.at}
        )

    @asynccontextmanager
    async def _snapshot(self, *, workload: str = "") -> AsyncGenerator[tuple[AsyncConnection, int]]:
        """A read-only snapshot of the current schema, and its sequence."""
        as_of = None if self._moment is None else self._moment.seq
        scope = scope_values(self._projects, workload=workload, as_of=as_of)
        try:
            async with self._share(), self._engine.connect() as connection:
                yield await _on_schema(connection, self._schema, scope, past=as_of is not None)
        except PoolTimeoutError as error:
            raise QueriesBusyError("more lists are asked for at once than can be read; try again") from error
        except (DBAPIError, OSError, TimeoutError, asyncpg.PostgresError, *CUT_OFF) as error:
            raise named(error) from error

    @asynccontextmanager
    async def _share(self) -> AsyncGenerator[None]:
        """One of the connections that the asker may have at once. Raises QueriesBusyError."""
        if self._asker is None:
            yield
            return
        share = self._shares.get(self._asker)
        if share is None:
            share = self._shares[self._asker] = asyncio.Semaphore(EACH)
        try:
            async with asyncio.timeout(POOL_TIMEOUT_SECONDS):
                await share.acquire()
        except TimeoutError:
            raise QueriesBusyError(f"{EACH} lists of yours are being read already; wait for one of them") from None
        try:
            yield
        finally:
            share.release()


async def _on_schema(
    connection: AsyncConnection, pinned: str | None, scope: dict[str, str], *, past: bool
) -> tuple[AsyncConnection, int]:
    for attempt in range(SCHEMA_TRIES):
        # For this transaction only: the next one on this connection begins with nothing again.
        await connection.execute(select(*(func.set_config(name, value, True) for name, value in scope.items())))
        current = select(current_projection.c.schema_name)
        schema = pinned or (await connection.execute(current)).scalar_one_or_none()
        if schema is None:
            raise ProjectionsUnavailableError("there is no projection schema yet; run the setup service")
        connection = await connection.execution_options(
            schema_translate_map={DERIVED_SCHEMA: past_schema(schema) if past else schema}
        )
        try:
            return connection, (await connection.execute(select(checkpoint.c.seq))).scalar_one()
        except DBAPIError as error:
            if "does not exist" not in str(error.orig) or attempt == SCHEMA_TRIES - 1:
                raise
            await connection.rollback()
    raise AssertionError("unreachable: the last try raises or returns")


def _select_workloads() -> Select[Any]:
    return select(workloads, *(expression.label(name) for name, expression in filters.UNSTORED.items())).select_from(
        filters.source()
    )


def _of_project(column: ColumnElement[str], project_id: str | None) -> list[ColumnElement[bool]]:
    return [] if project_id is None else [column == project_id]
