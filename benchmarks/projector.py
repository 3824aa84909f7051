"""How fast rows follow the log: the projector catching up, and a rebuild, each beside its bare baseline; and a list as
of the middle of the log, beside the same list of now.

The projector's baseline writes as many rows as there are events by bare `UPDATE … FROM unnest`, as many per statement
as the projector takes per transaction. The rebuild's is a bare pull of the same messages by nats-py.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.report import Figure, Report
from benchmarks.synthetic import COMMITS_PER_LIFE, EVENTS_PER_LIFE, write_lives
from development.commands import carry_out
from development.servers import EVERYTHING, NatsServer, PostgresServer
from development.streams import recreate_streams
from events.aggregate import CLUSTER, PROJECT
from events.cluster import AddCluster
from events.ids import cluster_key, project_key
from events.project import CreateProject
from projections.filters import WorkloadQuery
from projections.migrate import prepare
from projections.queries import Queries
from services.projector.rebuild import rebuild
from services.projector.service import run as run_projector
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.process.host import Health, run_loop

GOAL_PER_SECOND = 15_000
BATCH_ROWS = 2_000
GOAL_PAGE_MS = 2_000
"""Of 200,000 workloads, as of a week ago."""
PAGES = 5


async def _bare_pull(nc: Client, count: int) -> float:
    """Messages per second."""
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    subscription = await nc.jetstream().pull_subscribe("ev.>", stream="EVENTS", config=config)
    started, seen = time.perf_counter(), 0
    while seen < count:
        seen += len(await subscription.fetch(min(500, count - seen), timeout=5))
    await subscription.unsubscribe()
    return count / (time.perf_counter() - started)


async def _bare_updates(url: str, schema: str, events: int) -> float:
    """Rows per second."""
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    ids = [row["id"] for row in await connection.fetch(f'SELECT id FROM "{schema}".workloads LIMIT {BATCH_ROWS}')]
    statement = (
        f'UPDATE "{schema}".workloads AS w SET phase = n.phase, version = n.version '
        "FROM unnest($1::text[], $2::text[], $3::bigint[]) AS n (id, phase, version) WHERE w.id = n.id"
    )
    started = time.perf_counter()
    for number in range(max(events // len(ids), 1)):
        await connection.execute(statement, ids, ["Running"] * len(ids), [number] * len(ids))
    rate = events / (time.perf_counter() - started)
    await connection.close()
    return rate


async def _catch_up(server: NatsServer, url: str, schema: str, last_seq: int) -> float:
    """Seconds that the projector service takes from nothing to the log's end."""
    stop, health = asyncio.Event(), Health("projector")
    started = time.perf_counter()
    task = asyncio.create_task(run_projector(server.settings("projector", postgres_url=url), health, stop))
    connection = await asyncpg.connect(url)
    while await connection.fetchval(f'SELECT seq FROM "{schema}".checkpoint') < last_seq:
        if task.done():
            task.result()
        await asyncio.sleep(0.02)
    seconds = time.perf_counter() - started
    stop.set()
    await task
    await connection.close()
    return seconds


async def _page_ms(queries: Queries) -> float:
    """The fastest of some pages of 50 workloads, the newest first."""
    best = float("inf")
    for _ in range(PAGES):
        started = time.perf_counter()
        page = await queries.workloads(WorkloadQuery(projects=None))
        best = min(best, time.perf_counter() - started)
        assert len(page.rows) == WorkloadQuery(projects=None).limit
    return best * 1000


async def _past(report: Report, url: str, last_seq: int) -> None:
    queries = Queries(url).within(None)
    try:
        middle = (await queries.moment(last_seq // 2)).moment
        report.add(
            Figure(
                name="list page as of the middle of the log; baseline: of now",
                value=await _page_ms(queries.as_of(middle)),
                unit="ms",
                goal=GOAL_PAGE_MS,
                at_most=True,
                baseline=await _page_ms(queries),
            )
        )
    finally:
        await queries.close()


async def _measure(report: Report, server: NatsServer, postgres: PostgresServer, lives: int) -> None:
    await recreate_streams(server.settings(EVERYTHING))
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    store = JetStreamEventStore(nc)
    await carry_out(store, "project", CreateProject(name="default"))
    await carry_out(store, "cluster", AddCluster(name="c", kind="simulated"))
    project = (await store.load(PROJECT, project_key("default"))).state
    cluster = (await store.load(CLUSTER, cluster_key("c"))).state
    await write_lives(nc, project.project_id, cluster.cluster_id, lives)
    events, commits = lives * EVENTS_PER_LIFE, lives * COMMITS_PER_LIFE
    last_seq = await store.last_seq()
    url = postgres.url()
    await prepare(url)
    connection = await asyncpg.connect(url)
    schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
    seconds = await _catch_up(server, url, schema, last_seq)
    report.add(
        Figure(
            name="projector: events folded into rows",
            value=events / seconds,
            unit="events/s",
            goal=GOAL_PER_SECOND,
            baseline=await _bare_updates(url, schema, events),
        )
    )
    bare = await _bare_pull(nc, commits) * EVENTS_PER_LIFE / COMMITS_PER_LIFE
    done = await rebuild(store, url, lambda _reached, _target: None)
    report.add(
        Figure(
            name="rebuild: events into a new schema, swapped",
            value=done.events / done.seconds,
            unit="events/s",
            goal=GOAL_PER_SECOND,
            baseline=bare,
        )
    )
    await _past(report, url, last_seq)
    await connection.close()
    await nc.close()


def run(report: Report, *, short: bool) -> None:
    """Print the figures of projector and rebuild."""
    with TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # Postgres runs as another user where we are root
        server, postgres = NatsServer(Path(folder) / "nats"), PostgresServer(Path(folder) / "postgres")
        server.start()
        postgres.start()
        try:
            run_loop(_measure(report, server, postgres, 3_000 if short else 50_000))
        finally:
            server.stop()
            postgres.stop()
