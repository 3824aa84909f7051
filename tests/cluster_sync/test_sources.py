"""Data sources that pods of a cluster cannot use are marked by what its agent finds, and the mark goes when it finds
nothing any more. The agent and cluster_sync are the real ones, on a real NATS.

Requirement rows: S053.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from development.ports import free_port
from events.aggregate import ASSET
from events.asset import Asset, ChangeAsset, CreateAsset, DataSourceKind, DataSourceMarked, asset_key
from events.asset_specs import volume_spec
from events.cluster_protocol import MAX_ISSUE, Looked, Sources, SourcesRequest
from events.ids import cluster_key, incarnation_id
from events.subjects import agent_recipes_subject, recipes_subject
from services.agent.looks import Looks
from services.agent.recipes import Recipes
from services.cluster_sync import sources
from tests.agent.given import open_local
from tests.cluster_sync.given import CLUSTER_ID, PROJECT_ID, World, eventually, serving

pytestmark = pytest.mark.anyio

OTHER = incarnation_id(cluster_key("other"), "add-other")


async def made(world: World, kind: DataSourceKind, spec: dict[str, Any], name: str = "a", **place: str) -> str:
    """Its key."""
    scope = next((one for one in ("project", "cluster") if f"{one}_id" in place), "tenant")
    key = asset_key(kind, scope, "".join(place.values()), name)
    creation = CreateAsset(kind=kind, name=name, scope=scope, spec=volume_spec(kind, name, spec), **place)  # pyright: ignore[reportArgumentType] - a word
    await world.decide(ASSET, key, creation, f"{kind} {name}")
    return key


async def asset(world: World, key: str) -> Asset:
    return (await world.store.load(ASSET, key)).state


async def issue_is(world: World, key: str, words: str) -> None:
    async def probe() -> bool:
        issues = (await asset(world, key)).issues
        return (issues[CLUSTER_ID].issue if CLUSTER_ID in issues else "") == words

    await eventually(probe)


@contextlib.asynccontextmanager
async def looking(world: World, folder: Path) -> AsyncGenerator[None]:
    """The agent's part, on this machine."""
    local = await open_local(folder)
    looks = Looks(world.nc, CLUSTER_ID, local.backend, round_seconds=0.05)
    recipes = Recipes(world.nc, CLUSTER_ID, on_sources=looks.hear)
    await recipes.start()
    running = asyncio.create_task(looks.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await recipes.close()
        await local.close()


async def test_what_cannot_be_used_is_marked_until_it_can_and_each_change_is_one_event(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST_SOURCES", 2)
    late, port = tmp_path / "late", free_port()
    missing = await made(world, "host-path", {"path": str(late), "mountPath": "/data", "readOnly": None})
    there = await made(world, "host-path", {"path": str(tmp_path), "mountPath": "/data"}, name="b")
    claim = await made(world, "pvc", {"claimName": "sets", "existingPvc": True, "path": "/sets"}, project_id=PROJECT_ID)
    silent = await made(world, "git", {"repository": f"http://127.0.0.1:{port}/code", "path": "/code"})
    elsewhere = await made(world, "host-path", {"path": "/nowhere", "mountPath": "/data"}, cluster_id=OTHER)
    async with serving(world.server), looking(world, tmp_path / "data"):
        await issue_is(world, missing, f"this machine has no {late}")
        await issue_is(world, claim, "the project has no claim sets here")
        await issue_is(world, silent, f"127.0.0.1 takes no connections on port {port}")
        late.mkdir()
        await issue_is(world, missing, "")
        spec = volume_spec("git", "a", {"repository": f"http://127.0.0.1:{port}/code", "path": "/other"})
        before = await asset(world, silent)
        await world.decide(ASSET, silent, ChangeAsset(asset_id=before.asset_id, spec=spec), "change")
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
        async with server:
            await issue_is(world, silent, "")
            await asyncio.sleep(0.3)
        assert not (await asset(world, there)).issues
        assert not (await asset(world, elsewhere)).issues
    marks: list[DataSourceMarked] = []
    async with contextlib.aclosing(world.store.follow(0, aggregates=("asset",), idle_seconds=0.2)) as arrivals:
        while commits := await anext(arrivals):
            marks += [event for one in commits for event in one.events if isinstance(event, DataSourceMarked)]
    assert 4 <= len(marks) <= 5, "found, found no more, and twice of others; the changed one perhaps once more"


async def test_an_agent_speaks_of_what_its_cluster_can_use_alone(world: World) -> None:
    mine = await made(world, "nfs", {"server": "nfs", "path": "/e", "mountPath": "/e"})
    others = await made(world, "nfs", {"server": "nfs", "path": "/e", "mountPath": "/e"}, cluster_id=OTHER)
    compute = asset_key("compute", "tenant", "", "half")
    await world.decide(ASSET, compute, CreateAsset(kind="compute", name="half", scope="tenant", spec={}), "half")
    answers = await world.nc.subscribe(agent_recipes_subject(CLUSTER_ID))

    async def say(*looked: Looked, after: str = "") -> Sources:
        request = SourcesRequest(after=after, looked=looked)
        await world.nc.publish(recipes_subject(CLUSTER_ID), msgspec.json.encode(request))
        return msgspec.json.decode((await answers.next_msg(timeout=60)).data, type=Sources)

    async with serving(world.server):
        told = await say()
        (source,) = told.sources
        assert (source.asset_id, told.last) == ((await asset(world, mine)).asset_id, source.asset_id)
        assert (await say(after=told.last)).last == ""
        about = {key: (await asset(world, key)) for key in (mine, others, compute)}
        wrong = [
            Looked(asset_id=one.asset_id, spec_at=one.spec_at, issue="no") for one in about.values() if one.spec_at
        ]
        stale = Looked(asset_id=source.asset_id, spec_at=datetime(2026, 1, 1, tzinfo=UTC), issue="of before")
        long = Looked(asset_id=source.asset_id, spec_at=source.spec_at, issue="x" * (MAX_ISSUE + 1))
        for looked in ((stale,), (long,), (Looked(asset_id="nobody", spec_at=source.spec_at, issue="no"),)):
            await say(*looked)
        await say(*wrong[1:])
        await say(msgspec.structs.replace(wrong[0], issue="bell\x07\n"))
        await issue_is(world, mine, "bell??")
        assert not (await asset(world, others)).issues
        assert not (await asset(world, compute)).issues
