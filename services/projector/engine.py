"""Folds commits into one projection schema: with a cache of entries, and the next batch folded while one is written.

Used by the projector and by a rebuild. It neither follows the log nor decides which schema is the current one.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram

from events.aggregate import AGGREGATES, WORKLOAD, Chain
from events.commit import Commit
from projections.changes import Changes
from projections.fold import Entry, EntryKey, Fold, needed
from projections.postgres import Pool, create_pool
from projections.workloads.project import RowsLostError, restored
from services.projector.writer import REFUSALS, Checkpoint, CheckpointMovedError, RefusedByTablesError, Writer
from services.runtime.log.store import EventReader, LogGapError

CACHED_ENTRIES: Final = 20_000
"""Some 2 KB each: what is going on, and what ended a moment ago."""
BATCH_COMMITS: Final = 2_000
"""Of one transaction: as long as it stays in one, a larger one is no faster, and lists would lag."""
SLICE_COMMITS: Final = 250
"""Folded without letting others run: some 10 ms, as scheduling and heartbeats share the process."""
CHAINS_AT_ONCE: Final = 32
"""Read from the log side by side, where a projector begins without its cache."""
STATEMENT_TIMEOUT_SECONDS: Final = 60
CONNECT_TIMEOUT_SECONDS: Final = 5
POOL_CONNECTIONS: Final = 3
"""One writes, one reads what is missing, one for the rest."""

_EVENTS = Counter("muster_projector_events", "Events written to the read models")
_WRITE_SECONDS = Histogram("muster_projector_write_seconds", "One transaction of the projector")
_SEQ = Gauge("muster_projector_sequence", "Sequence of the log that the read models have reached")


async def open_pool(postgres_url: str) -> Pool:
    """Connections that do not wait for the disk: what a crash of Postgres loses is folded again from the log, because
    the checkpoint is lost with it.
    """
    return await create_pool(
        postgres_url,
        min_size=1,
        max_size=POOL_CONNECTIONS,
        timeout_seconds=CONNECT_TIMEOUT_SECONDS,
        command_timeout_seconds=STATEMENT_TIMEOUT_SECONDS,
        server_settings={
            "application_name": "muster-projector",
            "synchronous_commit": "off",
            "statement_timeout": str(STATEMENT_TIMEOUT_SECONDS * 1000),
            "idle_in_transaction_session_timeout": "15000",
            # Sets are joined by primary key; a plan from stale statistics of a filling table would scan it.
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
        },
    )


class Engine:
    """One schema, from a checkpoint on. After any error it is of no more use: make another one."""

    def __init__(
        self,
        store: EventReader,
        writer: Writer,
        checkpoint: Checkpoint,
        *,
        cached_entries: int = CACHED_ENTRIES,
        batch_commits: int = BATCH_COMMITS,
    ) -> None:
        self._store = store
        self._writer = writer
        self._cache: OrderedDict[EntryKey, Entry] = OrderedDict()
        self._cached_entries = cached_entries
        self._batch_commits = batch_commits
        self._writing: asyncio.Task[None] | None = None
        self.seq = checkpoint.seq
        """Up to which commits were taken in; what was written may be one batch behind until `flush`."""

    async def apply(self, commits: Sequence[Commit]) -> None:
        """Take in whole batches of commits that follow `seq`.

        Raises LogGapError, BrokenChainError, RefusedByTablesError, CheckpointMovedError, and what asyncpg raises; an
        error of the batch before may appear here.
        """
        start = 0
        while start < len(commits):
            end = min(start + self._batch_commits, len(commits))
            while not commits[end - 1].ends_batch:
                end += 1
                if end > len(commits):
                    raise LogGapError(f"the atomic batch at {commits[-1].seq} lacks its end")
            await self._apply(commits[start:end])
            start = end

    @property
    def writing(self) -> asyncio.Task[None] | None:
        """The write that is under way; its errors are raised by the next `apply` or `flush`."""
        return None if self._writing is None or self._writing.done() else self._writing

    async def flush(self) -> None:
        """Wait until everything taken in is written."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing

    async def discard(self) -> None:
        """Give up what is not written."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            self._writing = None

    async def _apply(self, commits: Sequence[Commit]) -> None:
        for offset, commit in enumerate(commits, start=1):
            if commit.seq != self.seq + offset:
                raise LogGapError(
                    f"the log goes on with {commit.seq}, but the read models are at {self.seq + offset - 1}"
                )
        missing = {key: seq for key, seq in needed(commits).items() if key not in self._cache}
        if missing:
            # Rows of a batch that is still being written are in the cache, so these are none of them.
            self._cache.update(await load(self._store, self._writer, missing, at=self.seq))
        fold = Fold(self._cache)
        for start in range(0, len(commits), SLICE_COMMITS):
            fold.add(commits[start : start + SLICE_COMMITS])
            await asyncio.sleep(0)
        changes = fold.finish()
        await self.flush()
        self._writing = asyncio.create_task(self._write(changes, self.seq, commits))
        self.seq = commits[-1].seq
        self._remember(fold.after)

    async def _write(self, changes: Changes, old_seq: int, commits: Sequence[Commit]) -> None:
        began = time.perf_counter()
        try:
            await self._writer.write(changes, old_seq, _place(commits))
        except REFUSALS as error:
            await self._write_up_to_refused(old_seq, commits)
            raise AssertionError(f"Postgres refused {old_seq + 1}..{commits[-1].seq} only as a whole") from error
        _WRITE_SECONDS.observe(time.perf_counter() - began)
        _EVENTS.inc(sum(len(commit.events) for commit in commits))
        _SEQ.set(commits[-1].seq)

    def _remember(self, entries: dict[EntryKey, Entry]) -> None:
        for key, entry in entries.items():
            self._cache[key] = entry
            self._cache.move_to_end(key)
        while len(self._cache) > self._cached_entries:
            oldest = next(iter(self._cache))
            if oldest in entries:
                # Being written just now: who read it from the table would read it as it was.
                break
            del self._cache[oldest]

    async def _write_up_to_refused(self, old_seq: int, commits: Sequence[Commit]) -> None:
        """One atomic batch after the other, until Postgres refuses one. Raises RefusedByTablesError, which names it."""
        whole: list[Commit] = []
        for commit in commits:
            whole.append(commit)
            if not commit.ends_batch:
                continue
            try:
                await self._writer.write(await self._changes(whole), old_seq, _place(whole))
            except REFUSALS as error:
                raise await self._refused(whole, error) from error
            old_seq = commit.seq
            whole = []

    async def _refused(self, whole: Sequence[Commit], error: Exception) -> RefusedByTablesError:
        """Of a batch that Postgres refuses, the first part that it refuses alone, else the last."""
        for part in whole[:-1]:
            try:
                await self._writer.rehearse(await self._changes([part]))
            except REFUSALS as its_own:
                return RefusedByTablesError(part, its_own)
        return RefusedByTablesError(whole[-1], error)

    async def _changes(self, commits: Sequence[Commit]) -> Changes:
        fold = Fold(await load(self._store, self._writer, needed(commits), at=commits[0].seq - 1))
        fold.add(commits)
        return fold.finish()


def _place(commits: Sequence[Commit]) -> Checkpoint:
    return Checkpoint(seq=commits[-1].seq, last_commit_id=commits[-1].record.commit_id)


async def load(store: EventReader, writer: Writer, wanted: Mapping[EntryKey, int], *, at: int) -> dict[EntryKey, Entry]:
    """The entries of these keys at these sequences of their chains: states from a snapshot or the log, and what a state
    of a workload does not keep from its rows, which stand there.

    Args:
        at: the checkpoint that the rows must not be beyond. Where another projector has moved it on meanwhile, so may
            the rows be: that raises CheckpointMovedError.

    Raises RowsLostError, what the store raises and what asyncpg raises.
    """
    turns = asyncio.Semaphore(CHAINS_AT_ONCE)

    async def chain(aggregate: str, key: str, seq: int) -> Chain[Any]:
        async with turns:
            return await store.load(AGGREGATES[aggregate], key, seq)

    keys = [key for key, seq in wanted.items() if seq > 0]
    chains = await asyncio.gather(*(chain(*key, wanted[key]) for key in keys))
    found: dict[EntryKey, Entry] = dict(zip(keys, chains, strict=True))
    workloads = {key: chain for key, chain in found.items() if key[0] == WORKLOAD.name}
    if workloads:
        rows, runs = await writer.workloads([chain.state.workload_id for chain in workloads.values()])
        for key, chain_ in workloads.items():
            id_ = chain_.state.workload_id
            try:
                found[key] = restored(chain_, rows.get(id_), runs.get(id_, []))
            except RowsLostError as lost:
                if (await writer.checkpoint()).seq > at:
                    raise CheckpointMovedError(f"the checkpoint of {writer.schema} is no longer at {at}") from lost
                raise
    return found
