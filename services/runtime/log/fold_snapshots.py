"""Snapshots of what a follower of the log keeps: the chains of many aggregates, as they were after one sequence.

For services that fold the log in memory and forget what has ended: a start costs what is alive and what changed since.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import Aggregate, Chain
from events.codec import UNDECODABLE
from events.subjects import fold_snapshot
from services.runtime.log.snapshots import Snapshots

SAVE_COMMITS: Final = 20_000
"""A start reads at most about so many commits: one second."""
SAVE_SECONDS: Final = 60.0
"""A quiet log is saved once a minute at most, and only where it moved."""
SLICE_CHAINS: Final = 500
"""Encoded in one go, some 5 ms, so that saving delays nothing else in the process."""

_BESIDE: Final = ""
"""In the place of an aggregate's name."""

type Chains = Mapping[str, Mapping[str, Chain[Any]]]
"""By aggregate name, then key."""

log = structlog.get_logger(__name__)


class FoldSnapshots:
    """Saves and loads the chains of one service."""

    def __init__(
        self, snapshots: Snapshots, name: str, *, shape_version: int, aggregates: tuple[Aggregate[Any], ...]
    ) -> None:
        self._snapshots = snapshots
        self._name = fold_snapshot(name)
        self._aggregates = aggregates
        versions = (str(shape_version), *(f"{aggregate.name}.{aggregate.fold_version}" for aggregate in aggregates))
        digest = hashlib.sha256(" ".join(versions).encode()).digest()
        self._version = int.from_bytes(digest[:6])
        self.beside = b""
        """What was kept beside the chains of the snapshot that was loaded."""
        self._saved_seq = 0
        self._saved_at = datetime.min.replace(tzinfo=UTC)

    async def load(self) -> tuple[int, dict[str, dict[str, Chain[Any]]]] | None:
        """(sequence, chains) of the newest snapshot; None where there is none to be trusted."""
        found = await self._snapshots.load(self._name, self._version)
        if found is None:
            return None
        seq, payload = found
        chains: dict[str, dict[str, Chain[Any]]] = {aggregate.name: {} for aggregate in self._aggregates}
        decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {
            aggregate.name: msgspec.msgpack.Decoder(dict[str, Chain[aggregate.state]]) for aggregate in self._aggregates
        }
        try:
            for name, part in msgspec.msgpack.decode(payload, type=list[tuple[str, bytes]]):
                if name == _BESIDE:
                    self.beside = part
                    continue
                chains[name].update(decoders[name].decode(part))
                await asyncio.sleep(0)
        except (*UNDECODABLE, KeyError) as error:
            log.warning("snapshot_not_understood", name=self._name, error=str(error))
            return None
        self._saved_seq = seq
        return seq, chains

    def due(self, seq: int, now: datetime) -> bool:
        moved = seq - self._saved_seq
        return moved >= SAVE_COMMITS or (moved > 0 and (now - self._saved_at).total_seconds() >= SAVE_SECONDS)

    async def save(self, seq: int, chains: Chains, now: datetime, *, beside: bytes = b"") -> None:
        """Keep the chains as they are at this call; they may go on changing while it runs."""
        self._saved_seq, self._saved_at = seq, now
        items = [(name, list(chains[name].items())) for name in chains]
        encoder = msgspec.msgpack.Encoder()
        parts: list[tuple[str, bytes]] = [(_BESIDE, beside)] if beside else []
        for name, of_kind in items:
            for start in range(0, len(of_kind), SLICE_CHAINS):
                try:
                    parts.append((name, encoder.encode(dict(of_kind[start : start + SLICE_CHAINS]))))
                except OverflowError as error:
                    # A number of the log that is none of ours: without a snapshot, the next start reads all of it.
                    log.warning("snapshot_not_made", name=self._name, kind=name, error=str(error))
                    return
                await asyncio.sleep(0)
        await self._snapshots.save(self._name, self._version, seq, encoder.encode(parts))

    async def forget(self) -> None:
        """After a doubt about what was loaded: the next start begins at the log's first commit."""
        await self._snapshots.save(self._name, self._version, 0, msgspec.msgpack.encode([]))
