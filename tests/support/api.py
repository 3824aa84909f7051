"""The API as people meet it: its service, the gate, the commands and the projector, on real NATS and Postgres.

`serving` starts them in a thread of their own, on empty streams and an empty database.
"""

import asyncio
import contextlib
import secrets
import ssl
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import uvloop

from development.commands import introduce
from development.limits import UNLIMITED
from development.ports import free_port
from development.recording import NO_TLS
from development.servers import EVERYTHING, NatsServer, PostgresServer
from development.stack import until
from development.streams import recreate_streams
from events.aggregate import NODE, TENANT, draft
from events.codec import encode_commit
from events.commit import Commit, service_actor
from events.decision import Context
from events.ids import TENANT_KEY, node_key
from events.node import NodeFacts, ReportNode
from events.tenant import GrantTenantRole
from muster.embedded.certificates import authority_in, server_certificate
from services.runtime.credentials.keys import new_ring, write_public, write_ring
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.connection import connect
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from tests.support.databases import create_prepared
from tests.support.poison import put

START_SECONDS = 90
STALE_SECONDS = 60


class _Patient(httpx.Client):
    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """The api waits two seconds for its tables, then says that they are behind: here, a machine is only busy."""
        give_up = time.monotonic() + STALE_SECONDS
        while (answer := super().send(request, **options)).headers.get("X-Log-Stale") and time.monotonic() < give_up:
            if request.method != "GET":
                break
            answer.close()
        return answer


@dataclass
class Served:
    """A running API, and tokens for it."""

    url: str
    settings: Settings
    key: Any
    running: "_Running"
    ca_file: Path | None
    """Of the authority that signed its certificate, where it serves https."""
    made: dict[str, str] = field(default_factory=dict[str, str])

    def restart(self, away_seconds: float) -> None:
        """Stop the services, and start them again on the same log and tables after so long."""
        self.running.stop()
        time.sleep(away_seconds)
        self.running = _Running(self.settings, self.running.beside)
        self.running.start()

    def token(self, subject: str, **options: Any) -> str:
        """`options`: of `sign_token`."""
        return sign_token(self.key, subject=subject, issuer="muster", audience="muster", **options)

    def client(self, subject: str | None = "admin", *, patient: bool = True, **options: Any) -> httpx.Client:
        """`patient`: what is answered from tables that are behind is asked for again, until they are not."""
        headers = {} if subject is None else {"Authorization": f"Bearer {self.token(subject)}"}
        options["verify"] = NO_TLS if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)
        options = {"timeout": 20, **options}
        made = _Patient if patient else httpx.Client
        return made(base_url=self.url, headers=headers, trust_env=False, **options)

    def page(self, path: str) -> httpx.Response:
        """One that is made at the first request. Where this machine has much else to do, the first is answered 503."""
        with self.client(None) as client:
            return until(lambda: ((answer := client.get(path)).status_code == HTTPStatus.OK and answer) or None, 60)

    @property
    def project(self) -> str:
        return self.made["project"]

    @property
    def cluster(self) -> str:
        return self.made["cluster"]

    def training(self, **more: Any) -> dict[str, Any]:
        """A request that is as it should be, with a name of its own."""
        spec = {"image": "python:3.13", **more.pop("spec", {})}
        name = f"t-{secrets.token_hex(4)}"
        return {"name": name, "projectId": self.project, "clusterId": self.cluster, "spec": spec, **more}


@contextlib.contextmanager
def serving(
    nats_server: NatsServer,
    postgres_server: PostgresServer,
    folder: Path,
    beside: str = "",
    log: Sequence[Commit] = (),
    /,
    **limits: object,
) -> Generator[Served]:
    """`limits` are settings; those on use are otherwise raised, since tests send much as one user. Over https with
    those of `certified`; with `callout_key_dir`, subscribers are let in, and with `webhook_key_file`, webhooks work.
    `beside`: `feed` writes public events. `log`: all that the log holds before anything starts, an administrator, too;
    then nothing else is made.
    """
    key = load_or_create_key(folder / "key.json")
    write_jwks(key, folder / "jwks.json")
    database = f"api_{secrets.token_hex(4)}"
    asyncio.run(_prepare(nats_server, postgres_server, database, log))
    port = free_port()
    settings = nats_server.settings(
        EVERYTHING,
        nats_password_dir=nats_server.password_dir(),
        postgres_url=postgres_server.url(database),
        http_port=port,
        jwks_file=folder / "jwks.json",
        proxy_url="https://apps.test",
        **UNLIMITED | limits,
    )
    running = _Running(settings, beside)
    running.start()
    https = settings.http_certificate_file is not None
    scheme, ca_file = ("https", folder / "ca.crt") if https else ("http", None)
    served = Served(url=f"{scheme}://127.0.0.1:{port}", settings=settings, key=key, running=running, ca_file=ca_file)
    try:
        if not log:
            _populate(served)
        yield served
    finally:
        served.running.stop()
        asyncio.run(_drop(postgres_server, database))


def credential_keys(folder: Path) -> dict[str, Path]:
    """Settings of a store of credentials."""
    private, public = folder / "credentials", folder / "credentials-public"
    ring = new_ring()
    write_ring(private, ring)
    write_public(public, ring)
    return {"credential_key_file": private, "credential_public_key_file": public}


def webhook_key(folder: Path) -> Path:
    """A file for the setting `webhook_key_file`."""
    file = folder / "webhook-key"
    file.write_text("0" * 64)
    return file


def certified(folder: Path) -> dict[str, Path]:
    """Settings of a certificate for loopback, of an authority in the folder."""
    certificate, key = server_certificate(authority_in(folder), ["localhost"])
    (folder / "server.crt").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)
    return {"http_certificate_file": folder / "server.crt", "http_key_file": folder / "server.key"}


class _Running:
    """Services in an event loop of a thread of their own, as process A of `muster up` runs them."""

    def __init__(self, settings: Settings, beside: str) -> None:
        self._settings = settings
        self.beside = beside
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._failed: list[BaseException] = []
        self._stop: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the services are not ready"
        if self._failed:
            raise self._failed[0]

    def stop(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive(), "the services did not stop"
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            self._failed.append(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from services.api.service import run as api
        from services.commands.service import run as commands
        from services.feed.service import run as feed
        from services.ownership.service import run as ownership
        from services.projector.service import run as projector
        from services.subscriptions.service import run as subscriptions
        from services.webhooks.service import run as webhooks

        self._stop = asyncio.Event()
        services = {"api": api, "ownership": ownership, "commands": commands, "projector": projector}
        if self._settings.callout_key_dir is not None:
            services["subscriptions"] = subscriptions
        if self.beside == "feed":
            services["feed"] = feed
        if self._settings.webhook_key_file is not None:
            services["webhooks"] = webhooks
        healths = {name: Health(name) for name in services}
        tasks = [asyncio.create_task(run(self._settings, healths[name], self._stop)) for name, run in services.items()]
        while not all(health.serving for health in healths.values()) and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        self._ready.set()
        try:
            await asyncio.gather(*tasks)
        finally:
            self._stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _prepare(nats_server: NatsServer, postgres: PostgresServer, database: str, log: Sequence[Commit]) -> None:
    await create_prepared(postgres, database)
    await recreate_streams(nats_server.settings(EVERYTHING))
    nc = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    try:
        await introduce(nc, "admin")
        for commit in log:
            seq = await put(nc, f"ev.{commit.aggregate}.{commit.key}", encode_commit(commit.record))
            assert seq == commit.seq
        if not log:
            await _make_administrator(JetStreamEventStore(nc))
    finally:
        await nc.close()


async def _make_administrator(store: JetStreamEventStore) -> None:
    actor, now = service_actor("setup"), datetime.now(UTC)
    chain = await store.load(TENANT, TENANT_KEY)
    command = GrantTenantRole(subject="admin", role="administrator", actor="admin")
    events = TENANT.decide(command, chain.state, Context(now=now, actor=actor, command_id="setup"))
    assert isinstance(events, tuple)
    outcome = await store.append(draft(TENANT, TENANT_KEY, chain, events, command_id="setup", actor=actor, now=now))
    assert isinstance(outcome, Committed)


async def _drop(postgres: PostgresServer, database: str) -> None:
    connection = await asyncpg.connect(postgres.url())
    await connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')
    await connection.close()


def report_node(served: Served, cluster_id: str, name: str, *, gpus: int = 0) -> None:
    """As cluster_sync does of a node that an agent reports."""
    asyncio.run(_report_node(served.settings, cluster_id, name, gpus))


async def _report_node(settings: Settings, cluster_id: str, name: str, gpus: int) -> None:
    nc = await connect(settings, EVERYTHING)
    try:
        store, actor, now = JetStreamEventStore(nc), service_actor("cluster_sync"), datetime.now(UTC)
        key = node_key(cluster_id, name)
        chain = await store.load(NODE, key)
        facts = NodeFacts(cpu_milli=4_000, memory_bytes=2**33, gpu_count=gpus)
        command_id = secrets.token_hex(8)
        context = Context(now=now, actor=actor, command_id=command_id)
        events = NODE.decide(ReportNode(cluster_id=cluster_id, name=name, facts=facts), chain.state, context)
        assert isinstance(events, tuple)
        made = draft(NODE, key, chain, events, command_id=command_id, actor=actor, now=now)
        assert isinstance(await store.append(made), Committed)
    finally:
        await nc.close()


def _populate(served: Served) -> None:
    with served.client() as admin:
        for name, path, body in (
            ("project", "/api/v1/org-unit/projects", {"name": "default"}),
            ("other", "/api/v1/org-unit/projects", {"name": "other"}),
            ("cluster", "/api/v1/clusters", {"name": "local", "kind": "local"}),
        ):
            answer = admin.post(path, json=body)
            assert answer.status_code == 202, answer.text
            served.made[name] = answer.json()["id"]
        for subject, role, project in (
            ("alice", "researcher", "project"),
            ("bob", "researcher", "project"),
            ("vic", "viewer", "project"),
            ("stranger", "researcher", "other"),
        ):
            rule = {"subjectId": subject, "roleName": role, "scopeType": "project", "scopeId": served.made[project]}
            answer = admin.post("/api/v1/authorization/access-rules", json=rule)
            assert answer.status_code == 202, answer.text
