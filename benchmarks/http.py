"""The whole path on one machine, load generator and all services on the same cores (issue section 6, 9).

Baseline of the submits: a bare nats-py loop that appends guarded messages of the same size to a server with the same
settings, 64 in flight.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.bare import bare_appends
from benchmarks.report import Figure, Report, quantile
from development.stack import Api, Stack, moment, running, training, until

CLIENTS = 64
MARK = "@NAME@"
EMPTY_POOL = "empty"
"""A node pool without nodes: what is submitted to it is decided, queued, explained and shown, and holds no node."""


def run(report: Report, *, short: bool) -> None:
    """Print the figures of the HTTP path."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, running(Path(folder), "--gpus", "2") as stack:
        api = stack.api()
        pool = {"clusterId": api.cluster("local"), "name": EMPTY_POOL, "labelKey": "pool", "labelValue": EMPTY_POOL}
        api.http.post("/node-pools", json=pool).raise_for_status()
        _idle(report, stack, seconds=5 if short else 20)
        _start_latency(report, api, count=20 if short else 100)
        _visible_latency(report, api, count=30 if short else 200)
        _paced(report, stack, api, seconds=5 if short else 30)
        _flood(report, stack, api, seconds=5 if short else 20)


def _idle(report: Report, stack: Stack, *, seconds: float) -> None:
    time.sleep(3)
    tree = stack.tree()
    before = sum(_cpu_seconds(process) for process in tree)
    time.sleep(seconds)
    used = sum(_cpu_seconds(process) for process in stack.tree()) - before
    resident = sum(process.memory_full_info().pss for process in stack.tree())
    report.add(Figure(name="idle: CPU of one core", value=100 * used / seconds, unit="%", goal=5, at_most=True))
    report.add(Figure(name="idle: resident (PSS)", value=resident / 2**20, unit="MiB", goal=500, at_most=True))


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _start_latency(report: Report, api: Api, *, count: int) -> None:
    """From the submit to the moment at which the process itself reads the clock."""
    waits: list[float] = []
    project, cluster = api.project(), api.cluster("local")
    for number in range(count):
        spec: dict[str, Any] = {"command": "date", "args": "+%s.%N"}
        sent = time.time()
        answer = api.http.post("/workloads/trainings", json=training(f"start-{number}", project, cluster, **spec))
        made = answer.json()
        api.wait(made["workloadId"], "Completed")
        printed = until(lambda made=made: api.logs(made["workloadId"]).split() or None, 5)
        waits.append(float(printed[-1]) - sent)
    report.add(Figure(name="idle: submit -> process started p50", value=1000 * quantile(waits, 0.5), unit="ms"))
    report.add(
        Figure(
            name="idle: submit -> process started p99",
            value=1000 * quantile(waits, 0.99),
            unit="ms",
            goal=300,
            at_most=True,
        )
    )


def _visible_latency(report: Report, api: Api, *, count: int) -> None:
    """From the event's time (its commit) to the first list that shows the row."""
    waits: list[float] = []
    project, cluster = api.project(), api.cluster("local")
    for number in range(count):
        body = training(f"seen-{number}", project, cluster, command="true", nodePools=[EMPTY_POOL])
        made = api.http.post("/workloads/trainings", json=body).json()
        while not api.get("/workloads", filterBy=f"name==seen-{number}")["workloads"]:
            time.sleep(0.002)
        waits.append(time.time() - moment(made["createdAt"]).timestamp())
    report.add(
        Figure(name="event -> row visible p99", value=1000 * quantile(waits, 0.99), unit="ms", goal=150, at_most=True)
    )


def _paced(report: Report, stack: Stack, api: Api, *, seconds: float) -> None:
    figures = _load(stack, api, {"clients": 32, "rate": 50, "seconds": seconds, "prefix": "paced"})
    p50, p99 = (1000 * quantile(figures["latencies"], q) for q in (0.5, 0.99))
    report.add(Figure(name="POST at 50/s: p50", value=p50, unit="ms", goal=10, at_most=True))
    report.add(Figure(name="POST at 50/s: p99", value=p99, unit="ms", goal=40, at_most=True))


def _flood(report: Report, stack: Stack, api: Api, *, seconds: float) -> None:
    bare = bare_appends(in_flight=CLIENTS, seconds=min(seconds, 8))
    figures = _load(stack, api, {"clients": CLIENTS, "seconds": seconds, "prefix": "flood"})
    accepted = figures["statuses"].get("202", 0)
    assert figures["statuses"] == {"202": accepted}, figures["statuses"]
    report.add(
        Figure(
            name="commands through HTTP, 64 clients, all services running",
            value=accepted / figures["seconds"],
            unit="/s",
            goal=800,
            baseline=bare,
            goal_ratio=0.20,
        )
    )
    latencies = figures["latencies"]
    report.add(Figure(name="  their p99", value=1000 * quantile(latencies, 0.99), unit="ms"))


def _load(stack: Stack, api: Api, plan: dict[str, Any]) -> dict[str, Any]:
    body = training(MARK, api.project(), api.cluster("local"), command="true", nodePools=[EMPTY_POOL])
    full = plan | {"port": stack.port, "token": api.http.headers["Authorization"][7:], "body": json.dumps(body)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loadgen", json.dumps(full)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)
