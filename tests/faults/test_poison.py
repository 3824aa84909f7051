"""A message that nobody can read stands in the log: two of every service, restarts before it, and the repair."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from nats.aio.client import Client

from development.commands import RunningService, carry_out, introduce
from development.ports import free_port
from development.servers import EVERYTHING, NatsServer
from events.aggregate import PROJECT, WORKLOAD
from events.ids import key_of_id
from events.tenant import GrantTenantRole
from projections.migrate import prepare
from services.api.service import run as api
from services.auto_deletion.service import run as auto_deletion
from services.cluster_sync.service import run as cluster_sync
from services.commands.service import run as commands
from services.ownership.service import run as ownership
from services.projector.rebuild import rebuild
from services.projector.service import run as projector
from services.projector.verify import verify
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.process.host import Run
from services.scheduler.service import run as scheduler
from tests.support.poison import VIEWER, put, record

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.one_in(6)]

SERVICES: dict[str, Run] = {
    "projector": projector,
    "api": api,
    "ownership": ownership,
    "commands": commands,
    "scheduler": scheduler,
    "cluster_sync": cluster_sync,
    "auto_deletion": auto_deletion,
}
SECONDS = 60.0


class Plane:
    """Two of every service, each with its own credential."""

    def __init__(self, server: NatsServer, database: str, folder: Path) -> None:
        self.server, self.database = server, database
        self.key = load_or_create_key(folder / "key")
        self.jwks_file = folder / "jwks.json"
        write_jwks(self.key, self.jwks_file)
        self.running: dict[tuple[str, int], RunningService] = {}
        self.ports = (free_port(), free_port())

    def start(self, name: str, number: int) -> RunningService:
        settings = self.server.settings(
            name, postgres_url=self.database, jwks_file=self.jwks_file, http_port=self.ports[number]
        )
        made = self.running[name, number] = RunningService(SERVICES[name], settings, name)
        return made

    async def stop(self) -> None:
        await asyncio.gather(*(service.stop() for service in self.running.values()))
        self.running.clear()

    async def start_all(self) -> None:
        """And wait until each serves, or says why it does not."""
        for name in SERVICES:
            for number in (0, 1):
                self.start(name, number)
        await self.until(lambda: all(self._started(service) for service in self.running.values()))

    @staticmethod
    def _started(service: RunningService) -> bool:
        """Who needs all of the log does not serve while it cannot be read; the others do."""
        health = service.health
        return health.serving or (health.name in READERS_OF_ALL and health.alarm != "")

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                for service in self.running.values():
                    assert not service.ended, f"{service.health.name} ended"
                await asyncio.sleep(0.02)

    def alarmed(self) -> set[str]:
        """Services of which every replica alarms."""
        return {name for name in SERVICES if all(self.running[name, n].health.alarm for n in (0, 1))}

    def quiet(self) -> bool:
        return not any(service.health.alarm for service in self.running.values())

    @asynccontextmanager
    async def client(self, subject: str, number: int = 0) -> AsyncGenerator[httpx.AsyncClient]:
        token = sign_token(self.key, subject=subject, issuer="muster", audience="muster", ttl_seconds=600)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.ports[number]}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=20,
            trust_env=False,
        ) as made:
            yield made


@pytest.fixture
async def plane(fresh_log: NatsServer, postgres_database: str, tmp_path: Path) -> AsyncIterator[Plane]:
    await prepare(postgres_database)
    made = Plane(fresh_log, postgres_database, tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def client(fresh_log: NatsServer) -> AsyncIterator[Client]:
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()


async def furnish(plane: Plane, client: Client, store: JetStreamEventStore) -> dict[str, str]:
    """An administrator, a viewer, a project, a cluster and a workload; their ids."""
    for subject, role in (("root", "administrator"), ("eve", "viewer")):
        await introduce(client, subject)
        await carry_out(store, f"grant {subject}", GrantTenantRole(subject=subject, role=role))  # pyright: ignore[reportArgumentType]
    await plane.start_all()
    async with plane.client("root") as root:
        project = (await root.post("/api/v1/org-unit/projects", json={"name": "vision"})).json()["id"]
        cluster = (await root.post("/api/v1/clusters", json={"name": "lab", "kind": "kubernetes"})).json()["id"]
        workload = await submit(root, "first", {"project": project, "cluster": cluster})
    return {"project": project, "cluster": cluster, "workload": workload}


async def submit(client: httpx.AsyncClient, name: str, ids: dict[str, str]) -> str:
    body = {"name": name, "projectId": ids["project"], "clusterId": ids["cluster"], "spec": {"image": "busybox"}}
    answer = await client.post("/api/v1/workloads/trainings", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["workloadId"] if "workloadId" in answer.json() else answer.json()["id"]


READERS_OF_ALL = {"projector", "scheduler", "cluster_sync"}
READERS_OF_ROLES = {"api", "ownership", "commands"}
CASES = {
    "no JSON on the tenant": ("ev.tenant.default", b"\xff", READERS_OF_ALL | READERS_OF_ROLES),
    "a forged grant": ("ev.tenant.default", record(VIEWER, parent=0), READERS_OF_ROLES),
    "an answer of the server on a workload": ("ev.workload.{workload}", b'{"type":"x","config":{}}', READERS_OF_ALL),
    "a commit that follows from nothing": (
        "ev.workload.{workload}",
        record(("WorkloadQueued", 1, b"{}"), parent=1),
        READERS_OF_ALL,
    ),
    "a node that never registered": ("ev.node.abc", record(("NodeRemoved", 1, b"{}"), parent=0), set[str]()),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_message_that_cannot_be_read_is_named_survived_and_repaired(
    plane: Plane, client: Client, case: str
) -> None:
    store = JetStreamEventStore(client)
    ids = await furnish(plane, client, store)
    subject, payload, readers = CASES[case]
    keys = {name: key_of_id(id_) or "" for name, id_ in ids.items()}
    seq = await put(client, subject.format(**keys), payload)

    await plane.until(lambda: plane.alarmed() >= readers)
    await still_serves(plane, seq, readers)
    await plane.stop()
    await plane.start_all()
    await plane.until(lambda: plane.alarmed() >= readers)
    await still_serves(plane, seq, readers)
    if readers:
        await repair(plane, seq)
        await plane.until(plane.quiet)

    async with plane.client("root") as root:
        second = await submit(root, "second", ids)
        log_seq = await store.last_seq()
        listed = await root.get("/api/v1/workloads", params={"min_seq": log_seq})
        assert {row["name"] for row in listed.json()["workloads"]} == {"first", "second"}
        assert "X-Log-Stale" not in listed.headers
        await used_again(root, ids["workload"])
        assert (await root.get(f"/api/v1/workloads/{second}")).status_code == 200
    assert (await store.load(WORKLOAD, keys["workload"])).state.exists
    forged = b'{"seq":1,"subject":"ev.tenant.default","cause":"none","reason":"forged"}'
    await put(client, "ev.void.1", record(("MessageVoided", 1, forged), parent=0))
    await plane.stop()
    await plane.start_all()
    assert plane.quiet()
    await what_was_forged_is_doubted(plane)
    await rebuild(JetStreamEventStore(client), plane.database, lambda _seq, _target: None)
    verifying = JetStreamEventStore(client)
    assert await verify(verifying, plane.database, lambda _seq, _target: None) == []
    assert [told.split(" was ")[0] for told in verifying.voids.doubted(str)] == ["message 1 (ev.tenant.default)"]
    assert len(verifying.voids.told(str)) == (1 if readers else 0)


async def what_was_forged_is_doubted(plane: Plane) -> None:
    """The message that made the administrator one, which somebody says is void, counts."""
    async with plane.client("root") as root:
        assert (await root.get("/api/v1/audit")).status_code == 200
        ready = await root.get("/readyz")
        while ready.status_code == 503:
            await asyncio.sleep(0.05)
            ready = await root.get("/readyz")
        assert "message 1 (ev.tenant.default) was declared void by mallory" in ready.text


async def test_a_commit_whose_rows_postgres_refuses_is_named_and_survived(
    plane: Plane, client: Client, postgres_database: str
) -> None:
    """No fold makes such rows today: a rule that a person gave the tables stands for what is not thought of."""
    store = JetStreamEventStore(client)
    ids = await furnish(plane, client, store)
    owner = await asyncpg.connect(postgres_database)
    await owner.execute("ALTER TABLE muster_v1.projects ADD CHECK (name <> 'absurd')")
    async with plane.client("root") as root:
        await submit(root, "before", ids)
        absurd = (await root.post("/api/v1/org-unit/projects", json={"name": "absurd"})).json()["id"]
        await submit(root, "behind", ids)
    seq = (await store.load(PROJECT, key_of_id(absurd) or "")).version
    await plane.until(lambda: "projector" in plane.alarmed())
    await still_serves(plane, seq, {"projector"}, todo="muster projections rebuild")
    await plane.stop()
    await plane.start_all()
    await plane.until(lambda: "projector" in plane.alarmed())
    await still_serves(plane, seq, {"projector"}, todo="muster projections rebuild")
    await owner.close()


async def still_serves(plane: Plane, seq: int, readers: set[str], todo: str = "muster log void {seq}") -> None:
    for service in plane.running.values():
        assert not service.ended
        if service.health.name in readers:
            assert f"message {seq} " in service.health.alarm
            assert todo.format(seq=seq) in service.health.alarm
    async with plane.client("root") as root, plane.client("eve", 1) as eve:
        for client in (root, eve):
            ready = await client.get("/readyz")
            while ready.status_code == 503 and "alarm" not in ready.text:  # the log's canary comes first
                await asyncio.sleep(0.05)
                ready = await client.get("/readyz")
            assert ready.status_code == 200
            assert ("api" in readers) == (f"message {seq} " in ready.text)
            listed = await client.get("/api/v1/workloads")
            assert listed.status_code == 200, listed.text
            if "projector" in readers:
                assert int(listed.headers["X-Log-Sequence"]) < seq
        if "projector" in readers:
            status = (await root.get("/api/v1/projections")).json()
            assert f"message {seq} " in status["halted"]


async def repair(plane: Plane, seq: int) -> None:
    async with plane.client("root") as root, plane.client("eve", 1) as eve:
        body = {"sequence": seq, "reason": "a forgery"}
        assert (await eve.post("/api/v1/events/voids", json=body)).status_code == 403
        refused = await root.post("/api/v1/events/voids", json=body | {"sequence": 1})
        assert (refused.status_code, refused.json()["details"]) == (409, "message_readable")
        missing = await root.post("/api/v1/events/voids", json=body | {"sequence": 10**6})
        assert missing.status_code == 404
        for _ in range(2):
            answer = await root.post("/api/v1/events/voids", json=body)
            assert answer.status_code == 202, answer.text
        audit = (await root.get("/api/v1/audit")).json()["records"]
        assert any(one["command"] == "VoidMessage" and one["target"] == str(seq) for one in audit)


async def used_again(client: httpx.AsyncClient, workload: str) -> None:
    """Its chain takes commits again."""
    answer = await client.post(f"/api/v1/workloads/trainings/{workload}/suspend")
    assert answer.status_code == 202, answer.text
    shown = await client.get(f"/api/v1/workloads/trainings/{workload}")
    assert shown.json()["desiredPhase"] == "Stopped", shown.text
