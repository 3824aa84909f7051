"""A sandbox answers as Muster answered at the moment that was played to, and nothing can be changed there."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, fields
from inspect import get_annotations
from typing import Any

import httpx
import pytest

from services.api.application import OPERATIONS
from services.api.context import Api, Call, Look, Readers
from services.api.sandbox import LOOKING, listening, serving
from services.projector.arrivals import at_seq
from services.projector.play import Player, Wanted, player
from services.projector.sandboxes import remove
from services.runtime.identity.actors import Actors
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.played import PlayedLog
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.settings import Settings
from tests.api.test_as_of import V1, Past, lacks_what_tables_add, past, without_clock
from tests.support.api import Served

pytestmark = pytest.mark.anyio

__all__ = ["past"]
ANY_ID = "11111111-1111-4111-8111-111111111111"


def quiet(_: int, __: int) -> None:
    pass


@dataclass(frozen=True)
class Open:
    """A sandbox that is served."""

    playing: Player
    client: httpx.AsyncClient

    async def play_to(self, seq: int) -> None:
        await self.playing._all(at_seq(seq), asyncio.Event())
        await self.playing._written()
        # The fold of places follows what was played.
        newest = await self.playing.played.last_seq(aggregates=("project", "cluster"))
        while True:
            answer = await self.client.get(f"{V1}/org-unit/projects", headers={"X-Log-Sequence": str(newest)})
            if "X-Log-Stale" not in answer.headers:
                return


@contextlib.asynccontextmanager
async def opened(served: Served, name: str) -> AsyncGenerator[Open]:
    settings = Settings(
        nats_url=served.settings.nats_url,
        nats_password_dir=served.settings.nats_password_dir,
        postgres_url=served.settings.postgres_url,
        jwks_file=served.settings.jwks_file,
        requests_per_second=1e6,
        requests_burst=1_000_000,
    )
    nc = await connect(settings, "operator")
    try:
        store, people = JetStreamEventStore(nc), Actors(nc, Requests(nc))
        wanted = Wanted(name=name, from_="1", to=None, speed=None)
        async with player(store, settings.postgres_url, wanted, quiet) as playing:
            await playing.prepare(asyncio.Event())
            with listening("127.0.0.1", 0) as at:
                url = f"http://127.0.0.1:{at.getsockname()[1]}"
                async with serving(settings, store, people, playing.played, name=name, schema=playing.schema, at=at):
                    headers = {"Authorization": f"Bearer {served.token('admin')}"}
                    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
                        yield Open(playing, client)
        await remove(settings.postgres_url, name)
    finally:
        await nc.close()


async def test_every_list_and_item_is_as_it_was_told_at_that_moment(served: Served, past: Past) -> None:
    """Given one sandbox that is played from moment to moment."""
    async with opened(served, "moments") as sandbox:
        for seq, path, told in past.told:
            if sandbox.playing.played.position < seq:
                await sandbox.play_to(seq)
            shown: Any = None
            for _ in range(30):
                answer = await sandbox.client.get(V1 + path)
                shown = without_clock(answer.json()) if answer.status_code == 200 else answer.status_code
                if not lacks_what_tables_add(shown):
                    break
            assert shown == told, f"{path} at {seq}"
        assert len(past.told) > 50


async def test_nothing_can_be_changed_and_what_is_not_of_the_log_is_not_there(served: Served) -> None:
    async with opened(served, "read-only") as sandbox:
        looking = {(one.method, one.path) for one in LOOKING}
        for operation in OPERATIONS:
            if (operation.method, operation.path) in looking:
                continue
            path = operation.shown_path
            while "{" in path:
                start, end = path.index("{"), path.index("}")
                path = path[:start] + ANY_ID + path[end + 1 :]
            answer = await sandbox.client.request(operation.method, path)
            if operation.mutates:
                assert (answer.status_code, answer.json()["details"]) == (403, "read_only"), operation.id
                assert "sandbox read-only" in answer.json()["message"]
            else:
                assert (answer.status_code, answer.json()["details"]) == (404, "not_in_sandbox"), operation.id
        assert (await sandbox.client.get("/api/v1/nowhere")).status_code == 404
        documented = (await sandbox.client.get("/openapi.json")).json()["paths"]
        assert {method for path in documented.values() for method in path} == {"get"}


async def test_roles_are_those_of_now(served: Served) -> None:
    async with opened(served, "roles") as sandbox:
        stranger = {"Authorization": f"Bearer {served.token('nobody-yet')}"}
        assert (await sandbox.client.get(f"{V1}/clusters", headers=stranger)).status_code == 403
        assert (await sandbox.client.get(f"{V1}/me")).status_code == 200
        assert (await sandbox.client.get(f"{V1}/me", headers={"Authorization": "Bearer x"})).status_code == 401


def test_what_a_sandbox_is_made_of_can_write_nothing() -> None:
    """By type: its handlers take a `Look`, whose readers have no way to the gate, to NATS or to an append."""
    for operation in LOOKING:
        assert next(iter(get_annotations(operation.handler).values())) is Look, operation.id
    beside = {one.name for one in fields(Api)} - {one.name for one in fields(Readers)}
    assert {"commands", "nats", "requests", "account_use"} <= beside
    assert {one.name for one in fields(Readers)} == {
        "identities", "actors", "roles", "directory", "store", "queries", "rows", "node_names", "limiter", "exports",
        "follows",
    }  # fmt: skip
    for forbidden in ("send", "accepted", "created"):
        assert hasattr(Call, forbidden)
        assert not hasattr(Look, forbidden)
    assert not [name for name in dir(PlayedLog) if name.startswith(("append", "publish"))]


def test_operations_that_read_are_there() -> None:
    ids = {one.id for one in LOOKING}
    assert {"list_workloads", "get_workload", "workload_pods", "list_nodes", "list_events", "get_diff"} <= ids
