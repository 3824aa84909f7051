"""Snapshots: a load costs what changed since, and any doubt costs only the snapshot (architecture.md section 3)."""

import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from development.streams import delete_streams, recreate_streams
from events.aggregate import PROJECT, TENANT, Chain
from events.project import Project
from events.subjects import fold_snapshot
from services.commands.counts import SNAPSHOT
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.snapshots import PART_BYTES, SLOT_PARTS, Snapshots
from services.runtime.nats.connection import connect
from tests.support.drafts import grant, subjects_of
from tests.support.poison import UNDECODABLE_JSON
from tests.support.stores import seqs

pytestmark = pytest.mark.anyio

LONG = 1_300
"""More than two reads of a chain."""


@pytest.fixture
async def client(fresh_log: NatsServer) -> AsyncIterator[Client]:
    made = await connect(fresh_log.settings("commands"), "commands")
    yield made
    await made.close()


async def _long_chain(client: Client) -> None:
    store = JetStreamEventStore(client)
    parent = 0
    for number in range(LONG):
        outcome = await store.append(grant("long", parent, subject=f"s{number % 50}"))
        parent = seqs(outcome)[0]


async def test_a_long_chain_is_read_from_its_snapshot_and_folds_the_same(client: Client) -> None:
    await _long_chain(client)
    whole = await JetStreamEventStore(client).load(TENANT, "long")
    assert whole.version == LONG
    await JetStreamEventStore(client).append(grant("long", LONG, subject="after"))
    await JetStreamEventStore(client).append(grant("long", LONG + 1, subject="later"))
    before = client.stats["in_msgs"]
    again = await JetStreamEventStore(client).load(TENANT, "long")
    assert client.stats["in_msgs"] - before < LONG
    assert again.version == LONG + 2
    assert subjects_of(again) == {*subjects_of(whole), "after", "later"}
    assert again.recent[:-2] == whole.recent[2:]


async def test_a_fold_that_is_kept_warm_is_snapshotted_in_time(client: Client) -> None:
    store = JetStreamEventStore(client)
    for parent in range(600):
        await store.append(grant("warm", parent, subject=f"s{parent % 50}"))
        await store.load(TENANT, "warm")
    found = (await client.jetstream().stream_info("SNAPSHOTS")).state.messages
    assert found == 2  # a manifest and one part


@pytest.mark.parametrize("size", [0, 10, PART_BYTES * 3], ids=["empty", "small", "several parts"])
async def test_what_is_saved_is_loaded_and_the_newest_wins(client: Client, size: int) -> None:
    snapshots = Snapshots(client)
    noise = bytes(hash((n, "noise")) & 0xFF for n in range(size))
    assert await snapshots.load("chain.tenant.x", 1) is None
    assert await snapshots.save("chain.tenant.x", 1, 10, b"old")
    assert await snapshots.save("chain.tenant.x", 1, 20, noise)
    assert await snapshots.load("chain.tenant.x", 1) == (20, noise)
    assert await snapshots.load("chain.tenant.y", 1) is None


async def test_a_snapshot_of_another_version_of_the_fold_is_thrown_away(client: Client) -> None:
    await Snapshots(client).save("chain.tenant.x", 1, 10, b"x")
    assert await Snapshots(client).load("chain.tenant.x", 2) is None


async def test_a_snapshot_of_another_log_is_thrown_away(fresh_log: NatsServer, client: Client) -> None:
    await Snapshots(client).save("chain.tenant.x", 1, 10, b"x")
    everything = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    js = everything.jetstream()
    config = (await js.stream_info("EVENTS")).config
    await js.delete_stream("EVENTS")
    await js.add_stream(config)
    assert await Snapshots(client).load("chain.tenant.x", 1) is None
    await everything.close()


@pytest.mark.parametrize("subject", ["snap.chain.tenant.x.0", "snap.chain.tenant.x.1"], ids=["manifest", "part"])
async def test_a_damaged_snapshot_is_thrown_away(client: Client, subject: str) -> None:
    await Snapshots(client).save("chain.tenant.x", 1, 10, b"x")
    for damaged in UNDECODABLE_JSON.values():
        await client.request(subject, damaged, timeout=60)
        assert await Snapshots(client).load("chain.tenant.x", 1) is None
    assert await Snapshots(client).save("chain.tenant.x", 1, 11, b"y")
    assert await Snapshots(client).load("chain.tenant.x", 1) == (11, b"y")


async def test_a_snapshot_that_is_whole_and_nothing_packed_is_thrown_away(client: Client) -> None:
    await Snapshots(client).save("chain.tenant.x", 1, 10, b"x")
    stored = await client.jetstream().get_last_msg("SNAPSHOTS", "snap.chain.tenant.x.0")
    manifest: dict[str, Any] = {
        **json.loads(stored.data or b""),
        "digest": hashlib.sha256(b"nothing packed").hexdigest(),
    }
    await client.request(f"snap.chain.tenant.x.{1 + manifest['slot'] * SLOT_PARTS}", b"nothing packed", timeout=60)
    await client.request("snap.chain.tenant.x.0", msgspec.json.encode(manifest), timeout=60)
    assert await Snapshots(client).load("chain.tenant.x", 1) is None


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("commands", SNAPSHOT),
        ("scheduler", fold_snapshot("scheduler")),
        ("cluster_sync", fold_snapshot("cluster_sync")),
    ],
)
async def test_each_service_may_save_the_snapshot_of_its_own_fold(
    fresh_log: NatsServer, service: str, name: str
) -> None:
    nc = await connect(fresh_log.settings(service), service)
    try:
        assert await Snapshots(nc).save(name, 1, 10, b"x")
        assert await Snapshots(nc).load(name, 1) == (10, b"x")
    finally:
        await nc.close()


@pytest.mark.parametrize("claims", [0, 1, 9_999], ids=["no sequence", "another's commit", "beyond the end"])
async def test_a_snapshot_that_is_not_of_this_chain_costs_only_time(client: Client, claims: int) -> None:
    store = JetStreamEventStore(client)
    await store.append(grant("other", 0, subject="stranger"))
    stranger = msgspec.structs.replace(await store.load(TENANT, "other"), version=claims)
    await _long_chain(client)
    await JetStreamEventStore(client).load(TENANT, "long")
    manifest = await client.jetstream().get_last_msg("SNAPSHOTS", "snap.chain.tenant.*.0")
    assert manifest.subject is not None
    name = manifest.subject.removeprefix("snap.").removesuffix(".0")
    await Snapshots(client).save(name, TENANT.fold_version, claims, msgspec.msgpack.encode(stranger))
    chain = await JetStreamEventStore(client).load(TENANT, "long")
    assert chain.version == LONG + 1
    assert "stranger" not in subjects_of(chain)


async def test_without_the_stream_nothing_is_saved_and_nothing_breaks(fresh_log: NatsServer, client: Client) -> None:
    everything = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    await delete_streams(everything, "SNAPSHOTS")
    assert not await Snapshots(client).save("chain.tenant.x", 1, 10, b"x")
    assert await Snapshots(client).load("chain.tenant.x", 1) is None
    await recreate_streams(fresh_log.settings(EVERYTHING))
    await everything.close()


async def test_whoever_may_write_snapshots_cannot_keep_others_from_saving_theirs(
    fresh_log: NatsServer, client: Client
) -> None:
    everything = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    streams = everything.jetstream()
    config = (await streams.stream_info("SNAPSHOTS")).config
    await streams.update_stream(config.evolve(max_bytes=1024 * 1024))
    flooder = await connect(fresh_log.settings("scheduler"), "scheduler")
    for number, size in enumerate((*[100_000] * 20, *[1_000] * 120)):
        await flooder.request(f"snap.chain.workload.junk{number}.0", b"x" * size, timeout=60)
    assert (await streams.stream_info("SNAPSHOTS")).state.bytes > 1_000_000, "there is no more room"

    snapshots = Snapshots(client)
    name, payload = fold_snapshot("commands"), secrets.token_bytes(50_000)
    for seq in (10, 20):  # the second one stands beside the first until it is whole
        assert await snapshots.save(name, 1, seq, payload)
        assert await snapshots.load(name, 1) == (seq, payload)
    answer = json.loads((await client.request("snap.canary.commands", b"x" * 4_096, timeout=60)).data)
    assert "error" not in answer, "nor is the log taken for one that cannot be written"

    await streams.update_stream(config)
    await flooder.close()
    await everything.close()


async def test_a_number_that_no_snapshot_holds_costs_only_the_snapshot(client: Client) -> None:
    """Given a project whose quota is beyond 64 bits, as somebody wrote it."""
    kept = FoldSnapshots(Snapshots(client), "commands", shape_version=1, aggregates=(PROJECT,))
    chain = Chain(state=Project(project_id="p", gpu_quota_milli=2**70), version=1)
    await kept.save(1, {PROJECT.name: {"p": chain}}, datetime.now(UTC))
    assert await kept.load() is None


async def test_what_is_kept_beside_the_chains_comes_back(client: Client) -> None:
    snapshots = Snapshots(client)
    kept = FoldSnapshots(snapshots, "commands", shape_version=1, aggregates=(PROJECT,))
    await kept.save(1, {PROJECT.name: {}}, datetime.now(UTC), beside=b"more")
    again = FoldSnapshots(snapshots, "commands", shape_version=1, aggregates=(PROJECT,))
    assert await again.load() == (1, {PROJECT.name: {}})
    assert again.beside == b"more"
