"""What is still answered, and how, while something that the API asks hangs or somebody sends too slowly."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from development.servers import EVERYTHING
from events.subjects import EVENTS_STREAM
from services.api.edge import Edge
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from tests.support.api import Served

TRAININGS = "/api/v1/workloads/trainings"


@contextlib.contextmanager
def connections_to_postgres_hang(served: Served) -> Generator[None]:
    """Postgres stops, with the server's side of every connection that the API's queries hold: no answer, and no refusal
    either, also for a new connection.
    """
    with served.client() as admin:
        assert admin.get("/api/v1/workloads").status_code == 200, "so that there is a connection"
    pids = asyncio.run(_backends(served.settings.postgres_url))
    assert pids
    pids.append(_parent(pids[0]))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


async def _backends(url: str) -> list[int]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'muster-queries' AND datname = current_database()"
    )
    await connection.close()
    return [row["pid"] for row in rows]


def test_a_postgres_that_hangs_holds_up_no_command_and_no_read_from_the_log(served: Served) -> None:
    """Not even one with an Idempotency-Key: what a key stands for is kept beside the log."""
    with served.client("alice") as alice:
        with connections_to_postgres_hang(served):
            made = alice.post(TRAININGS, json=served.training(), headers={"Idempotency-Key": "hanging"})
        with connections_to_postgres_hang(served):
            read = alice.get(f"/api/v1/workloads/{made.json()['workloadId']}")
        with connections_to_postgres_hang(served):
            projects = alice.get("/api/v1/org-unit/projects")
    assert made.status_code == 202, made.text
    assert (read.status_code, read.json()["phase"]) == (200, "Creating")
    assert projects.status_code == 200
    assert [project["use"] for project in projects.json()["projects"]] == [None]


def test_a_page_of_the_log_is_bounded_also_where_its_commits_are_large(served: Served) -> None:
    variables = [{"name": f"V{number}", "value": "x" * 9_000} for number in range(50)]
    with served.client("alice") as alice:
        for _ in range(12):
            body = served.training(spec={"environmentVariables": variables})
            assert alice.post(TRAININGS, json=body).status_code == 202
    pages: list[httpx.Response] = []
    after: int | None = 0
    with served.client() as admin:
        while after is not None:
            pages.append(admin.get("/api/v1/events", params={"limit": 1000, "after": after}))
            after = pages[-1].json()["next"]
    sequences = [event["sequence"] for page in pages for event in page.json()["events"]]
    assert sequences == list(range(1, len(sequences) + 1))
    assert len(sequences) >= 12
    assert all(len(page.content) < 5 * 1024 * 1024 for page in pages)
    assert len(pages) > 1


def test_a_log_that_is_nearly_full_takes_deletions_and_what_administrators_do(served: Served) -> None:
    """Its last tenth is for facts, releases, deletions and administrators."""
    key = {"Idempotency-Key": "before-it-was-full"}
    # Large, so that a tenth of the log has room for the rest of the test.
    variables = [{"name": f"V{number}", "value": "x" * 9_000} for number in range(50)]
    body = served.training(spec={"environmentVariables": variables})
    with served.client("alice") as alice, served.client() as admin:
        made = alice.post(TRAININGS, json=body, headers=key)
        path = f"{TRAININGS}/{made.json()['workloadId']}"
        rule = {
            "subjectId": "eve", "roleName": "viewer", "scopeType": "project", "scopeId": served.project
        }  # fmt: skip
        assert admin.post("/api/v1/authorization/access-rules", json=rule).status_code == 202
        with log_nearly_full(served):
            while (refused := alice.post(TRAININGS, json=served.training())).status_code == 202:
                time.sleep(0.5)
            again = alice.post(TRAININGS, json=body, headers=key)
            suspended, by_admin = alice.post(f"{path}/suspend"), admin.post(f"{path}/suspend")
            resumed, deleted = alice.post(f"{path}/resume"), alice.delete(path)
            revoked = admin.delete("/api/v1/authorization/access-rules", params=rule)
            project = admin.post("/api/v1/org-unit/projects", json={"name": "late"})
        while alice.post(TRAININGS, json=served.training()).status_code == 503:
            time.sleep(0.5)
    for answer in (refused, suspended, resumed, project):
        assert (answer.status_code, answer.json()["details"]) == (503, "log_full"), answer.text
        assert "MUSTER_LOG_MAX_BYTES" in answer.json()["message"]
        assert answer.headers["Retry-After"]
    assert (again.status_code, again.json()["workloadId"]) == (202, made.json()["workloadId"])
    assert [answer.status_code for answer in (by_admin, deleted, revoked)] == [202, 202, 202]


@contextlib.contextmanager
def log_nearly_full(served: Served) -> Generator[None]:
    """The log's limit lies a little above what it holds."""
    limit = asyncio.run(_limit_log(served, lambda used: int(used / 0.93)))
    try:
        yield
    finally:
        asyncio.run(_limit_log(served, lambda _: limit))


async def _limit_log(served: Served, limit: Callable[[int], int]) -> int:
    connection = await connect(served.settings, EVERYTHING)
    info = json.loads((await connection.request(call("STREAM.INFO", EVENTS_STREAM), b"")).data)
    config = {**info["config"], "max_bytes": limit(info["state"]["bytes"])}
    await connection.request(call("STREAM.UPDATE", EVENTS_STREAM), json.dumps(config).encode())
    await connection.close()
    return info["config"]["max_bytes"]


@pytest.mark.parametrize("path", ["/clusters", "/org-unit/projects", "/authorization/access-rules"])
def test_a_list_that_no_later_commit_is_about_is_not_stale(served: Served, path: str) -> None:
    """`min_seq` may be any sequence of the log, such as that of a workload's creation."""
    with served.client() as admin:
        made = admin.post(TRAININGS, json=served.training()).headers["x-log-sequence"]
        fresh = admin.get(f"/api/v1{path}", params={"min_seq": made})
    assert fresh.status_code == 200
    assert "x-log-stale" not in fresh.headers
    assert int(fresh.headers["x-log-sequence"]) >= int(made)


def test_a_body_that_does_not_come_is_the_clients_fault_and_told_in_time(served: Served) -> None:
    address = urlsplit(served.url)
    assert address.port is not None
    head = (
        f"POST {TRAININGS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.token('alice')}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", address.port), timeout=60) as connection:
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":408' in answer
    assert b"nothing was done" in answer


@pytest.mark.parametrize(
    "version", ["0" * 5000, "0" * 25 + "12345678901234567890", str(2**63), "-1", "1.5", '"1", "2"', "³"]
)
def test_a_version_that_no_commit_can_have_is_refused(served: Served, version: str) -> None:
    with served.client("alice") as alice:
        made = alice.post(TRAININGS, json=served.training()).json()["workloadId"]
        headers = {"If-Match": version.encode("latin-1", "ignore")}
        answer = alice.post(f"{TRAININGS}/{made}/suspend", headers=headers)  # pyright: ignore[reportArgumentType]
    assert answer.status_code == 400, answer.text
    assert [issue["field"] for issue in answer.json()["complianceIssues"]] == ["If-Match"]


@pytest.mark.parametrize(
    "query",
    [
        "end=0001-01-01T00:00:00Z",
        "start=0001-01-01T00:00:00Z",
        "end=9999-12-31T23:59:59Z",
        "start=0001-01-01T00:00:00Z&end=9999-12-31T23:59:59Z&numberOfSamples=1000",
    ],
)
def test_usage_can_be_asked_for_at_any_time_that_a_calendar_has(served: Served, query: str) -> None:
    with served.client("alice") as alice:
        made = alice.post(TRAININGS, json=served.training()).json()["workloadId"]
        answer = alice.get(f"/api/v1/workloads/{made}/metrics?{query}")
    assert (answer.status_code, answer.json()) == (200, {"measurements": []})


@pytest.mark.anyio
@pytest.mark.parametrize(("method", "said"), [("POST", "outcome_unknown"), ("GET", "unavailable")])
async def test_who_still_waits_when_a_server_ends_is_told_so_and_what_to_do(method: str, said: str) -> None:
    """uvicorn cancels what is not answered when its time to stop is over."""
    sent: list[Message] = []

    async def answer(message: Message) -> None:
        sent.append(message)

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(60)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": TRAININGS, "query_string": b"", "headers": headers}
    request = asyncio.ensure_future(Edge(hangs)(scope, receive, answer))
    await asyncio.sleep(0)
    request.cancel("Task cancelled, timeout graceful shutdown exceeded")
    await request
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in [(name.lower(), value) for name, value in sent[0]["headers"]]
    assert json.loads(sent[1]["body"])["details"] == said


def test_no_measurement_is_older_than_its_workload(served: Served) -> None:
    """An interval that begins before the workload would tell of a time when there was none, or another of its name."""
    with served.client("alice") as alice:
        made = alice.post(TRAININGS, json=served.training()).json()["workloadId"]
        created = datetime.fromisoformat(alice.get(f"/api/v1/workloads/{made}").json()["createdAt"])
        asyncio.run(_measured(served.settings.postgres_url, made, served.cluster, created + timedelta(seconds=1)))
        query = {"end": (created + timedelta(minutes=5)).isoformat(), "numberOfSamples": 1}
        answer = alice.get(f"/api/v1/workloads/{made}/metrics", params=query)
    series = answer.json()["measurements"]
    assert series, answer.text
    times = [datetime.fromisoformat(value["timestamp"]) for one in series for value in one["values"]]
    assert min(times) >= created


async def _measured(postgres_url: str, workload_id: str, cluster_id: str, at: datetime) -> None:
    """As if an agent had measured it."""
    connection = await asyncpg.connect(postgres_url)
    try:
        columns = "cluster_id, workload_id, pod_set, index, attempt, try_, at, cpu_milli, memory_bytes"
        values = "$1, $2, 'main', 0, 1, 0, $3, 100, 1000"
        insert = f"INSERT INTO muster.usage_samples ({columns}) VALUES ({values})"
        await connection.execute(insert, cluster_id, workload_id, at)
    finally:
        await connection.close()
