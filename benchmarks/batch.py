"""Bulk creation: batches of a thousand over HTTP with all services running, beside bare atomic batches.

The baseline is a bare nats-py loop that commits atomic batches of as many messages of the same size, alone on the
machine, before anything of Muster runs. Whether lists keep up is measured for every workload of the run.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bare import bare_client, batches, server_with_bare_account
from benchmarks.http import EMPTY_POOL
from benchmarks.report import Figure, Report, quantile
from development.servers import NatsServer
from development.stack import Api, moment, running, training

ITEMS = 1_000
GOAL_RATIO = 0.50
PAGE = 500
"""Rows that one look at the list takes."""


def run(report: Report, *, short: bool) -> None:
    """Print the figures of bulk creation."""
    bare = _bare(seconds=1.0 if short else 4.0)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, running(Path(folder), "--gpus", "2") as stack:
        api = stack.api()
        pool = {"clusterId": api.cluster("local"), "name": EMPTY_POOL, "labelKey": "pool", "labelValue": EMPTY_POOL}
        api.http.post("/node-pools", json=pool).raise_for_status()
        _create(api, "warm")  # every process has imported what it needs
        time.sleep(2)
        took = [_create(api, f"bulk{number}") for number in range(2 if short else 8)]
        report.add(
            Figure(
                name="workloads created in batches of 1,000, all services running",
                value=ITEMS * len(took) / sum(took),
                unit="/s",
                baseline=bare,
                goal_ratio=GOAL_RATIO,
            )
        )
        report.add(Figure(name="  a batch of 1,000: p50", value=1000 * quantile(took, 0.5), unit="ms"))
        waits = _visible(api, "seen")
        value = quantile(waits, 0.99)
        report.add(Figure(name="  its events in lists p99", value=value, unit="s", goal=2, at_most=True))


def _bare(*, seconds: float) -> float:
    async def measure(server: NatsServer) -> float:
        async with bare_client(server) as client:
            return await batches(client, size=ITEMS, seconds=seconds)

    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        server = server_with_bare_account(Path(folder))
        server.start()
        try:
            return asyncio.run(measure(server))
        finally:
            server.stop()


def _body(api: Api, prefix: str) -> bytes:
    project, cluster = api.project(), api.cluster("local")
    items: list[dict[str, Any]] = [
        {
            "kind": "Training",
            **training(f"{prefix}-{number}", project, cluster, command="true", nodePools=[EMPTY_POOL]),
        }
        for number in range(ITEMS)
    ]
    return json.dumps({"items": items}).encode()


def _create(api: Api, prefix: str) -> float:
    """Seconds from the request to its answer."""
    body = _body(api, prefix)
    started = time.perf_counter()
    answer = api.http.post("/workloads:batch", content=body, headers={"Content-Type": "application/json"}, timeout=60)
    took = time.perf_counter() - started
    assert answer.status_code == 202, answer.text
    assert answer.json()["created"] == ITEMS, answer.text[:2000]
    return took


def _visible(api: Api, prefix: str) -> list[float]:
    """Seconds from each workload's creation to the first look at the list that shows it."""
    _create(api, prefix)
    waits: dict[str, float] = {}
    deadline = time.monotonic() + 60
    while len(waits) < ITEMS and time.monotonic() < deadline:
        for offset in range(0, ITEMS, PAGE):
            page = api.get("/workloads", filterBy=f"name=^{prefix}-", sortBy="name", offset=offset, limit=PAGE)
            now = time.time()
            for row in page["workloads"]:
                waits.setdefault(row["id"], now - moment(row["createdAt"]).timestamp())
        time.sleep(0.05)
    assert len(waits) == ITEMS, f"{len(waits)} of {ITEMS} are listed"
    return [*waits.values()]
