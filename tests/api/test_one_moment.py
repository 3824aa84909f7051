"""One answer is one moment: what is said of a workload is as of one commit, whether the tables have it yet, hang, or
not; and what was read once is never read as older afterwards.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from development.servers import EVERYTHING, NatsServer
from events.aggregate import WORKLOAD, draft
from events.commit import service_actor
from events.decision import Context
from events.ids import key_of_id
from events.workload.commands import PlacePods, PodFact, ReportPods, WorkloadCommand
from events.workload.pod import DeviceShare, Placement, PodRef
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.connection import connect
from tests.support.api import Served

TRAININGS = "/api/v1/workloads/trainings"
WORKLOADS = "/api/v1/workloads"
BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
POD = PodRef(pod_set="main", index=0, attempt=1, try_=0)
SPEC: dict[str, Any] = {"compute": {"gpuDevicesRequest": 1}}
GOES_ON = {"totalPendingTimeSeconds", "totalRunningTimeSeconds", "workAtRisk"}
"""Grow from one read to the next."""


def placed(workload_id: str) -> PlacePods:
    placement = Placement(
        pod=POD, node_key="n1", node_name="node-1", pool="default", devices=(DeviceShare(device=0, milli=1000),)
    )
    return PlacePods(workload_id=workload_id, placements=(placement,))


def seen(workload_id: str, kind: Any, minutes: int, **more: Any) -> ReportPods:
    fact = PodFact(pod=POD, kind=kind, at=BEGIN + timedelta(minutes=minutes), **more)
    return ReportPods(workload_id=workload_id, facts=(fact,))


LIFE: list[tuple[str, Callable[[str], WorkloadCommand]]] = [
    ("Initializing", placed),
    ("Running", lambda workload_id: seen(workload_id, "running", 1)),
    ("Completed", lambda workload_id: seen(workload_id, "succeeded", 2)),
]


def happens(nats_server: NatsServer, workload_id: str, command: WorkloadCommand) -> int:
    """As the scheduler and cluster_sync append it; its sequence."""

    async def append() -> int:
        nc = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
        try:
            store, key = JetStreamEventStore(nc), key_of_id(workload_id) or ""
            chain = await store.load(WORKLOAD, key)
            actor, command_id, now = service_actor("scheduler"), f"{type(command).__name__}{chain.version}", BEGIN
            context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
            events = WORKLOAD.decide(command, chain.state, context)
            assert isinstance(events, tuple)
            assert events
            made = draft(WORKLOAD, key, chain, events, command_id=command_id, actor=actor, now=now)
            outcome = await store.append(made)
            assert isinstance(outcome, Committed)
            return outcome.commits[0].seq
        finally:
            await nc.close()

    return asyncio.run(append())


@contextlib.contextmanager
def tables_locked(served: Served, mode: str) -> Generator[None]:
    """EXCLUSIVE: the projector waits and readers do not. ACCESS EXCLUSIVE: nobody is answered."""
    locked, release = threading.Event(), threading.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(served.settings.postgres_url)
        schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        async with connection.transaction():
            await connection.execute(f'LOCK TABLE "{schema}".checkpoint IN {mode} MODE')
            locked.set()
            await asyncio.to_thread(release.wait)
        await connection.close()

    holder = threading.Thread(target=asyncio.run, args=(hold(),))
    holder.start()
    try:
        assert locked.wait(60)
        yield
    finally:
        release.set()
        holder.join()


def told(client: httpx.Client, workload_id: str) -> dict[str, Any]:
    answer = client.get(f"{WORKLOADS}/{workload_id}")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert answer.headers["X-Version"] == answer.headers["X-Log-Sequence"] == str(body["version"])
    return {name: value for name, value in body.items() if name not in GOES_ON}


def from_tables(client: httpx.Client, workload_id: str, seq: int) -> dict[str, Any]:
    answer = client.get(f"{WORKLOADS}?min_seq={seq}&filterBy=id=={workload_id}")
    assert "X-Log-Stale" not in answer.headers
    (row,) = answer.json()["workloads"]
    return {name: value for name, value in row.items() if name not in GOES_ON}


@pytest.mark.parametrize("mode", ["EXCLUSIVE", "ACCESS EXCLUSIVE"], ids=["tables behind", "postgres hangs"])
def test_a_workload_is_told_whole_and_as_of_one_commit(served: Served, nats_server: NatsServer, mode: str) -> None:
    """Also a second life of a name, whose chain begins with another's."""
    body = served.training(spec=SPEC)
    with served.client("alice") as alice:
        first = alice.post(TRAININGS, json=body).json()["workloadId"]
        assert alice.delete(f"{TRAININGS}/{first}").status_code == 202
        workload_id = alice.post(TRAININGS, json=body).json()["workloadId"]
        behind: dict[str, Any] = {}
        for phase, cause in LIFE:
            # A read of a Postgres that hangs takes a second: once is enough.
            locked = mode == "EXCLUSIVE" or phase == "Completed"
            with tables_locked(served, mode) if locked else contextlib.nullcontext():
                seq = happens(nats_server, workload_id, cause(workload_id))
                behind = told(alice, workload_id)
            assert (behind["phase"], behind["actualPhase"], behind["version"]) == (phase, phase, seq)
            row = from_tables(alice, workload_id, seq)
            assert {name: behind[name] for name in row} == row
            assert told(alice, workload_id) == behind
        assert (behind["exitCode"], behind["gpuAllocated"], behind["succeededPods"]) == (0, 0.0, 1)


def test_history_and_pods_show_what_a_read_before_has_shown(served: Served, nats_server: NatsServer) -> None:
    """They wait for the tables; where those do not come in time, the answer says so."""
    with served.client("alice") as alice, served.client("alice", patient=False) as hasty:
        workload_id = alice.post(TRAININGS, json=served.training(spec=SPEC)).json()["workloadId"]
        happens(nats_server, workload_id, placed(workload_id))
        with tables_locked(served, "EXCLUSIVE"):
            happens(nats_server, workload_id, seen(workload_id, "running", 1))
            assert told(alice, workload_id)["phase"] == "Running"
            late = hasty.get(f"{WORKLOADS}/{workload_id}/history")
            assert late.headers["X-Log-Stale"] == "true"
            answers: list[httpx.Response] = []

            def ask() -> None:
                answers.extend(alice.get(f"{WORKLOADS}/{workload_id}/{what}") for what in ("history", "pods"))

            asking = threading.Thread(target=ask)
            asking.start()
            time.sleep(0.2)
        asking.join()
        history, pods = answers
        assert [record["type"] for record in history.json()["records"]][-1] == "PodRunning"
        assert [(pod["phase"], pod["run"]) for pod in pods.json()["pods"]] == [("Running", 1)], "as the history counts"
        assert history.json()["records"][-1]["message"].startswith("run 1 of pod main-0")
        assert not any("X-Log-Stale" in answer.headers for answer in answers)


def test_a_read_of_one_thing_is_as_new_as_the_caller_asks(served: Served) -> None:
    """The header is for every request, also for one that changes something."""
    with served.client("alice") as alice:
        made = alice.post(TRAININGS, json=served.training())
        one, seq = f"{made.json()['workloadId']}", int(made.headers["X-Log-Sequence"])
        projects, clusters = "/api/v1/org-unit/projects", "/api/v1/clusters"
        for path in (f"{TRAININGS}/{one}", f"{WORKLOADS}/{one}", f"{projects}/{served.project}", clusters):
            asked: list[dict[str, Any]] = [{"params": {"min_seq": seq}}, {"headers": {"X-Log-Sequence": str(seq)}}]
            for options in asked:
                answer = alice.get(path, **options)
                assert answer.status_code == 200, answer.text
                assert "X-Log-Stale" not in answer.headers
        wrong = alice.get(f"{TRAININGS}/{one}", headers={"X-Log-Sequence": "soon"})
        assert [issue["field"] for issue in wrong.json()["complianceIssues"]] == ["X-Log-Sequence"]
        assert alice.delete(f"{TRAININGS}/{one}", headers={"X-Log-Sequence": str(seq)}).status_code == 202
