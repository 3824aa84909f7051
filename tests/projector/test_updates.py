"""How rows of many workloads change in Postgres: what an update must not touch."""

from datetime import UTC, datetime

import asyncpg
import pytest

from events.aggregate import WORKLOAD, Chain
from events.codec import decode_commit, encode_commit
from events.phases import WaitingReason
from events.workload.spec import TrainingSpec
from projections.fold import Entry, EntryKey, fold
from services.projector.engine import open_pool
from services.projector.schema import current_schema
from services.projector.writer import Checkpoint, Writer
from services.scheduler.batches import Heads, update_drafts
from services.scheduler.snapshot import StatusUpdate, Waiting
from tests.support.lives import World

COUNT = 200
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


@pytest.mark.anyio
async def test_many_new_workloads_that_are_told_why_they_wait_keep_their_pages_and_their_places_in_indexes(
    prepared_database: str,
) -> None:
    """An update that stays in its page writes no index anew, where it changes no column of one."""
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    keys = [world.training(f"w{n:04}", project_id, cluster_id, TrainingSpec(image="i")) for n in range(COUNT)]
    versions = {commit.key: commit.seq for commit in world.commits}
    chains = {key: Chain(state=world.state(WORKLOAD.name, key), version=versions[key]) for key in keys}
    seq = world.commits[-1].seq
    told = [
        decode_commit(draft.subject, seq + number, encode_commit(draft.record))
        for number, key in enumerate(keys, start=1)
        for draft in _why(chains, key)
    ]
    pool = await open_pool(prepared_database)
    looking = await asyncpg.connect(prepared_database)
    try:
        schema = await current_schema(pool)
        pages = f'SELECT id, (ctid::text::point)[0]::int AS page FROM "{schema}".workloads'
        writer, entries, at = Writer(pool, schema), dict[EntryKey, Entry](), 0
        seen: list[dict[str, int]] = []
        for commits in (world.commits, told):
            after, changes = fold(entries, commits)
            entries |= after
            await writer.write(changes, at, Checkpoint(seq=commits[-1].seq, last_commit_id="c"))
            at = commits[-1].seq
            seen.append({row["id"]: row["page"] for row in await looking.fetch(pages)})
        reasons = await looking.fetchval(f"SELECT count(*) FROM \"{schema}\".workloads WHERE phase_reason <> ''")
    finally:
        await looking.close()
        await pool.close()
    assert len(seen[0]) == reasons == COUNT
    assert [id_ for id_, page in seen[0].items() if seen[1][id_] != page] == []


def _why(chains: dict[str, Chain], key: str) -> list:
    state = chains[key].state
    update = StatusUpdate(
        name=state.name,
        key=key,
        workload_id=state.workload_id,
        waiting=Waiting(reason=WaitingReason.INSUFFICIENT_GPU, message="no node of pool 'empty' has the GPUs"),
    )
    drafts = update_drafts(Heads(workloads=chains, nodes={}), update, "tell", NOW)
    assert isinstance(drafts, list)
    return drafts
