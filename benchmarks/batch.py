"""Bulk creation: batches of a thousand over HTTP with all services running, beside bare atomic batches.

The baseline is a bare nats-py loop that commits atomic batches of as many messages of the same size, alone on the
machine, before anything of Muster runs. Whether lists keep up is measured for every workload of the run, while it runs.
What every process works for a thousand creations, until all of it is done, is told beside that: on few cores, the rate
can be kept up only as long as their sum leaves time.
"""

import asyncio
import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bare import bare_client, batches, server_with_bare_account
from benchmarks.http import EMPTY_POOL
from benchmarks.report import Figure, Report, quantile
from development.servers import NatsServer
from development.stack import PARTS, Api, Stack, moment, running, training

ITEMS = 1_000
GOAL_RATIO = 0.50
GOAL_VISIBLE_SECONDS = 2
PAGE = 500
"""Rows that one look at the list takes."""
LOOK_SECONDS = 0.1
"""Between two looks: each costs what it measures some of its time."""
REST_SECONDS = 5.0
QUIET_SECONDS = 2.0
QUIET_CPU_SECONDS = 0.12
"""All processes together, while nothing is left to be done."""
LONGEST_SECONDS = 120


def run(report: Report, *, short: bool) -> None:
    """Print the figures of bulk creation."""
    bare = _bare(seconds=1.0 if short else 4.0)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, running(Path(folder), "--gpus", "2") as stack:
        api = stack.api()
        pool = {"clusterId": api.cluster("local"), "name": EMPTY_POOL, "labelKey": "pool", "labelValue": EMPTY_POOL}
        api.http.post("/node-pools", json=pool).raise_for_status()
        _create(api, "warm")  # every process has imported what it needs
        _wait_until_quiet(stack)
        _rate(report, stack, api, bare, count=2 if short else 8)
        _visible(report, stack, count=2 if short else 8)


def _rate(report: Report, stack: Stack, api: Api, bare: float, *, count: int) -> None:
    at_rest = _at_rest(stack)
    before, began = _cpu_seconds(stack), time.monotonic()
    took = [_create(api, f"bulk{number}") for number in range(count)]
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
    _wait_until_quiet(stack)
    after, lasted = _cpu_seconds(stack), time.monotonic() - began
    spent = {part: max(after[part] - before[part] - at_rest[part] * lasted, 0.0) / count for part in after}
    for part, seconds in sorted(spent.items()):
        report.add(Figure(name=f"  CPU for 1,000, until all is done: {part}", value=seconds, unit="s"))
    whole = sum(spent.values())
    report.add(Figure(name="  CPU for 1,000, until all is done", value=whole, unit="s"))
    cores = os.cpu_count() or 1
    report.add(Figure(name=f"  what {cores} cores keep up for ever", value=ITEMS * cores / whole, unit="/s"))


def _at_rest(stack: Stack) -> dict[str, float]:
    """What the parts work anyway: seconds of CPU in each second."""
    before = _cpu_seconds(stack)
    time.sleep(REST_SECONDS)
    return {part: (seconds - before[part]) / REST_SECONDS for part, seconds in _cpu_seconds(stack).items()}


def _cpu_seconds(stack: Stack) -> dict[str, float]:
    """By part of the program; the agents and the supervisor are the rest."""
    roots = {part: found for part in PARTS if (found := stack.part(part)) is not None}
    part_of = {process.pid: part for part, root in roots.items() for process in [root, *root.children(recursive=True)]}
    spent: dict[str, float] = {part: 0.0 for part in (*PARTS, "rest")}  # noqa: C420 (its keys are any texts)
    for process in stack.tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            times, part = process.cpu_times(), part_of.get(process.pid, "rest")
            spent[part] += times.user + times.system
    return spent


def _wait_until_quiet(stack: Stack) -> None:
    """Until all that was asked for is done: written to tables and streams, and explained."""
    deadline = time.monotonic() + LONGEST_SECONDS
    before = sum(_cpu_seconds(stack).values())
    while time.monotonic() < deadline:
        time.sleep(QUIET_SECONDS)
        now = sum(_cpu_seconds(stack).values())
        if now - before < QUIET_CPU_SECONDS:
            return
        before = now


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
            **training(f"{prefix}-{number:04}", project, cluster, command="true", nodePools=[EMPTY_POOL]),
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


def _visible(report: Report, stack: Stack, *, count: int) -> None:
    """Seconds from each workload's creation to the first look at the list that shows it, while others are created."""
    creator = stack.api()
    creating = threading.Thread(target=lambda: [_create(creator, f"seen{number}") for number in range(count)])
    creating.start()
    api, waits = stack.api(), list[float]()
    deadline = time.monotonic() + LONGEST_SECONDS
    while len(waits) < count * ITEMS and time.monotonic() < deadline:
        page = api.get("/workloads", filterBy="name=^seen", sortBy="name", offset=len(waits), limit=PAGE)
        now = time.time()
        waits += [now - moment(row["createdAt"]).timestamp() for row in page["workloads"]]
        if len(page["workloads"]) < PAGE:
            time.sleep(LOOK_SECONDS)
    creating.join()
    missing = count * ITEMS - len(waits)
    assert not missing, f"{missing} of {count * ITEMS} are not listed"
    value = quantile(waits, 0.99)
    report.add(Figure(name="  in lists after p99", value=value, unit="s", goal=GOAL_VISIBLE_SECONDS, at_most=True))
