"""The event store alone, beside bare nats-py on the same server in the same run: one by one, 32 in flight, batches.

The two take turns in short slices, so that a disk that slows down slows both.
"""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from benchmarks.bare import appends, bare_client, batches, server_with_bare_account
from benchmarks.report import Figure, Report
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import WORKLOAD, Chain, Draft, draft
from events.commit import Actor
from events.decision import Context
from events.ids import workload_key
from events.refusal import Refusal
from events.workload.commands import CreateWorkload
from events.workload.spec import TrainingSpec
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed, EventStore
from services.runtime.nats.connection import connect

SLICES = 4
ACTOR = Actor(id="alice")
GOAL_RATIO = 0.80


def creation() -> Draft:
    """The first commit of a training with a name of its own."""
    command_id = uuid4().hex
    name = f"train-{command_id}"
    command = CreateWorkload(
        kind="Training",
        name=name,
        requested_name=name,
        project_id="p",
        cluster_id="c",
        spec=TrainingSpec(image="python:3.13", command="python train.py"),
    )
    now = datetime.now(UTC)
    chain = Chain(state=WORKLOAD.initial)
    decided = WORKLOAD.decide(command, chain.state, Context(now=now, actor=ACTOR, command_id=command_id))
    assert not isinstance(decided, Refusal)
    return draft(WORKLOAD, workload_key("p", name), chain, decided, command_id=command_id, actor=ACTOR, now=now)


async def store_appends(store: EventStore, *, in_flight: int, seconds: float) -> float:
    """Commits per second; making the drafts is not counted, as the bare loop makes none."""
    drafts = [creation() for _ in range(int(8000 * seconds))]
    until = time.perf_counter() + seconds
    count = 0

    async def loop() -> None:
        nonlocal count
        while time.perf_counter() < until and drafts:
            assert isinstance(await store.append(drafts.pop()), Committed)
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(in_flight)))
    return count / (time.perf_counter() - started)


async def store_batches(store: EventStore, *, size: int, seconds: float) -> float:
    """Commits per second in atomic batches."""
    made = [[creation() for _ in range(size)] for _ in range(int(60000 * seconds / size))]
    until = time.perf_counter() + seconds
    started, count = time.perf_counter(), 0
    while time.perf_counter() < until and made:
        assert isinstance(await store.append_batch(made.pop()), Committed)
        count += size
    return count / (time.perf_counter() - started)


async def _measure(report: Report, server: NatsServer, seconds: float) -> None:
    await recreate_streams(server.settings(EVERYTHING))
    client = await connect(server.settings(EVERYTHING), EVERYTHING)
    store = JetStreamEventStore(client)
    async with bare_client(server) as bare:
        for name, ours, theirs in (
            (
                "event store: appends one by one",
                lambda: store_appends(store, in_flight=1, seconds=seconds),
                lambda: appends(bare, in_flight=1, seconds=seconds),
            ),
            (
                "event store: appends, 32 in flight",
                lambda: store_appends(store, in_flight=32, seconds=seconds),
                lambda: appends(bare, in_flight=32, seconds=seconds),
            ),
            (
                "event store: commits in atomic batches of 100",
                lambda: store_batches(store, size=100, seconds=seconds),
                lambda: batches(bare, size=100, seconds=seconds),
            ),
        ):
            pairs = [(await theirs(), await ours()) for _ in range(SLICES)]
            baseline, value = (sum(column) / SLICES for column in zip(*pairs, strict=True))
            report.add(Figure(name=name, value=value, unit="/s", baseline=baseline, goal_ratio=GOAL_RATIO))
    await client.close()


def run(report: Report, *, short: bool) -> None:
    """Print the figures of the store."""
    with TemporaryDirectory(prefix="muster-bench-") as folder:
        server = server_with_bare_account(Path(folder))
        server.start()
        try:
            asyncio.run(_measure(report, server, 0.5 if short else 2.0))
        finally:
            server.stop()
