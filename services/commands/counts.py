"""The counts of every project, kept by following the log; and what this process has let through since.

With several replicas each follows the same log: together they let through at most what the others have under way.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final

import msgspec
import structlog

from events.aggregate import ASSET, POLICY, WORKLOAD
from events.codec import UNDECODABLE
from events.commit import Commit
from events.refusal import Refusal
from events.subjects import fold_snapshot
from services.commands.limits import (
    FOLD_VERSION,
    Creation,
    CreationCounts,
    CreationLimits,
    Tally,
    all_within,
    over_limit,
)
from services.runtime.log.folding import follow_into
from services.runtime.log.snapshots import Snapshots
from services.runtime.log.store import EventStore, OnStanding, UnreadableMessageError

SNAPSHOT: Final = fold_snapshot("commands")
BEHIND_SECONDS: Final = 1.0
"""How long a question waits for the counts to come to the end of the log: mostly some milliseconds. After this they
stand before what cannot be read, and what is counted so far has to do."""
PAUSE_SECONDS: Final = 0.005
SAVE_COMMITS: Final = 20_000
"""A start reads at most about so many commits: one second."""
COUNTED: Final = (WORKLOAD.name, ASSET.name, POLICY.name)
"""Kinds of aggregates whose commits count."""

log = structlog.get_logger(__name__)


class Counts:
    """`run` must be awaited, so that a failure is heard."""

    def __init__(
        self,
        store: EventStore,
        limits: CreationLimits,
        snapshots: Snapshots | None = None,
        on_standing: OnStanding = lambda _: None,
    ) -> None:
        self.seq = 0
        self.from_snapshot = False
        self._on_standing = on_standing
        self._store = store
        self._limits = limits
        self._snapshots = snapshots
        self._counts = CreationCounts()
        self._caught_up = asyncio.Event()
        self._under_way: dict[str, Creation] = {}
        """By command id: let through, and no answer of the log yet."""
        self._stored: dict[int, Creation] = {}
        """By sequence: in the log, and not in the counts yet."""

    async def run(self) -> None:
        """Follow, for ever. Raises LogGapError and what else ends a follower."""
        await self._load()
        newest = await self._store.last_seq(aggregates=COUNTED)
        saved = self._counts.seq
        self.seq = saved
        following = follow_into(self._store, self, on_standing=self._stand, aggregates=COUNTED)
        async with aclosing(following) as batches:
            if self._counts.seq >= newest:
                self._caught_up.set()
            async for _ in batches:
                if self._counts.seq >= newest:
                    self._caught_up.set()
                if self._counts.seq - saved >= SAVE_COMMITS:
                    saved = self._counts.seq
                    await self._save()

    def apply(self, commit: Commit) -> None:
        """Take in one commit."""
        self._counts.apply(commit)
        self._stored.pop(commit.seq, None)

    def _stand(self, unreadable: UnreadableMessageError | None) -> None:
        """Limits keep people from each other; while the log waits for its repair, what is counted so far will do."""
        self._on_standing(unreadable)
        self._caught_up.set()

    async def admit(self, command_id: str, asked: Creation, now: datetime) -> Refusal | None:
        """Why this may not be created; where it may, it counts from here on, and `end` must follow. Waits until the
        counts have caught up with the log once.
        """
        await self._caught_up.wait()
        refusal = over_limit(self._counts, self._limits, asked, now, under_way=self._waiting())
        if refusal is None:
            self._under_way[command_id] = asked
        return refusal

    async def admit_all(self, asked: Sequence[tuple[str, Creation]], now: datetime) -> dict[str, Refusal]:
        """As `admit`, of several in their order: why which may not be created, by command id."""
        await self._caught_up.wait()
        waiting = self._waiting()
        if all_within(self._counts, self._limits, [creation for _, creation in asked], now, under_way=waiting):
            self._under_way.update(asked)
            return {}
        tally = Tally(waiting)
        refusals: dict[str, Refusal] = {}
        for command_id, creation in asked:
            refusal = over_limit(self._counts, self._limits, creation, now, under_way=tally.under_way)
            if refusal is not None:
                refusals[command_id] = refusal
                continue
            tally.add(creation)
            self._under_way[command_id] = creation
        return refusals

    async def living(self, project_id: str) -> int:
        """How many workloads of the project live or are being made here, with all that is in the log by now."""
        await self._up_to_now()
        under_way = sum(creation.project_id == project_id for creation in self._waiting())
        return self._counts.living.get(project_id, 0) + under_way

    async def living_on(self, cluster_id: str) -> list[str]:
        """Keys of the workloads that live on the cluster, with all that is in the log by now, in no order."""
        await self._up_to_now()
        return [key for key, known in self._counts.clusters.items() if known == cluster_id]

    async def _up_to_now(self) -> None:
        await self._caught_up.wait()
        newest, deadline = await self._store.last_seq(aggregates=(WORKLOAD.name,)), time.monotonic() + BEHIND_SECONDS
        while self._counts.seq < newest and time.monotonic() < deadline:
            await asyncio.sleep(PAUSE_SECONDS)

    def end(self, command_id: str, seq: int | None) -> None:
        """The creation, where it was let through, stands in the log at `seq`; None: it does not, or nobody knows."""
        creation = self._under_way.pop(command_id, None)
        if creation is not None and seq is not None and seq > self._counts.seq:
            self._stored[seq] = creation

    def _waiting(self) -> tuple[Creation, ...]:
        return (*self._under_way.values(), *self._stored.values())

    async def _load(self) -> None:
        found = None if self._snapshots is None else await self._snapshots.load(SNAPSHOT, FOLD_VERSION)
        if found is None:
            return
        try:
            self._counts = msgspec.msgpack.decode(found[1], type=CreationCounts)
        except UNDECODABLE as error:
            log.warning("snapshot_not_understood", name=SNAPSHOT, error=str(error))

    async def _save(self) -> None:
        if self._snapshots is not None:
            payload = msgspec.msgpack.encode(self._counts)
            await self._snapshots.save(SNAPSHOT, FOLD_VERSION, self._counts.seq, payload)
