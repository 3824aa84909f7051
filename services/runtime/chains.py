"""Folds of aggregates, read from the stream's leader: what changed since the cached fold, or since a snapshot of it.

Reads only; what a fold means is decided elsewhere.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import Aggregate, BrokenChainError, Chain, apply
from events.codec import decode_commit
from events.subjects import EVENTS_STREAM, aggregate_subject
from services.runtime.jetstream_api import StoredMessage, last_message, next_message, next_messages
from services.runtime.requests import Requests
from services.runtime.snapshots import Snapshots

READ_SECONDS: Final = 5.0
CACHED_CHAINS: Final = 2_000
"""Folds kept in memory, the least recently used going first: some 10 MB."""
READ_MESSAGES: Final = 500
"""Messages read at once; also the length from which a chain is worth a snapshot."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Cached:
    chain: Chain[Any]
    since_snapshot: int
    """Commits after the newest snapshot of it."""


class Chains:
    """Loads folds, and remembers those used last."""

    def __init__(self, requests: Requests, snapshots: Snapshots, *, cached_chains: int, saves: bool) -> None:
        self._requests = requests
        self._snapshots = snapshots
        self._cached_chains = cached_chains
        self._saves = saves
        self._chains: OrderedDict[tuple[str, str], _Cached] = OrderedDict()
        self._earlier: OrderedDict[str, Chain[Any]] = OrderedDict()

    async def load[S](self, aggregate: Aggregate[S], key: str) -> Chain[S]:
        subject = aggregate_subject(aggregate.name, key)
        last = await last_message(self._requests, EVENTS_STREAM, subject, seconds=READ_SECONDS)
        if last is None:
            return Chain(state=aggregate.initial)
        cache_key = (aggregate.name, key)
        cached = self._chains.get(cache_key)
        if cached is not None and cached.chain.version == last.seq:
            self._chains.move_to_end(cache_key)
            return cached.chain
        beginning = _Cached(Chain(state=aggregate.initial), 0)
        if cached is None or cached.chain.version > last.seq:
            cached = beginning
        try:
            cached = await self._newest(aggregate, key, cached, last)
        except BrokenChainError:
            if cached is beginning:
                raise
            log.warning("cached_fold_of_another_chain", aggregate=aggregate.name, key=key)
            cached = await self._newest(aggregate, key, beginning, last)
        if self._saves and cached.since_snapshot > READ_MESSAGES:
            await self._save_snapshot(aggregate, key, cached.chain)
            cached = _Cached(cached.chain, 0)  # where it failed, the next one is due as much later
        self._chains[cache_key] = cached
        self._chains.move_to_end(cache_key)
        while len(self._chains) > self._cached_chains:
            self._chains.popitem(last=False)
        return cached.chain

    async def _newest(self, aggregate: Aggregate[Any], key: str, cached: _Cached, last: StoredMessage) -> _Cached:
        """The fold up to the chain's last message, which mostly is all that is new."""
        commit = decode_commit(last.subject, last.seq, last.data)
        if commit.record.parent_seq == cached.chain.version:
            return _Cached(apply(aggregate, cached.chain, commit), cached.since_snapshot + 1)
        return await self._catch_up(aggregate, key, cached, last.seq)

    async def _catch_up[S](self, aggregate: Aggregate[S], key: str, cached: _Cached, until_seq: int) -> _Cached:
        """The fold up to a sequence, from a fold of its front part, a snapshot, or the beginning."""
        chain: Chain[S] = cached.chain
        since = cached.since_snapshot
        asked_snapshot = chain.version > 0  # what is in memory is newer than any snapshot is likely to be
        subject = aggregate_subject(aggregate.name, key)
        while chain.version < until_seq:
            messages, more = await self._tail(subject, chain.version + 1)
            if not asked_snapshot and more > 0:
                asked_snapshot = True
                snapshot = await self._load_snapshot(aggregate, key, until_seq)
                if snapshot is not None:
                    try:
                        return await self._catch_up(aggregate, key, _Cached(snapshot, 0), until_seq)
                    except BrokenChainError:
                        log.warning("snapshot_of_another_chain", aggregate=aggregate.name, key=key)
            for message in messages:
                chain = apply(aggregate, chain, decode_commit(message.subject, message.seq, message.data))
            since += len(messages)
        return _Cached(chain, since)

    async def _tail(self, subject: str, from_seq: int) -> tuple[list[StoredMessage], int]:
        """Messages of a chain that has some there. A replica may not have them yet; then one from the leader."""
        messages, more = await next_messages(
            self._requests, EVENTS_STREAM, subject, from_seq, READ_MESSAGES, seconds=READ_SECONDS
        )
        if messages:
            return messages, more
        message = await next_message(self._requests, EVENTS_STREAM, subject, from_seq, seconds=READ_SECONDS)
        if message is None:
            raise BrokenChainError(f"{subject}: the leader's last message is gone")
        return [message], 0

    async def _load_snapshot[S](self, aggregate: Aggregate[S], key: str, until_seq: int) -> Chain[S] | None:
        name = _snapshot_name(aggregate, key)
        found = await self._snapshots.load(name, aggregate.fold_version)
        if found is None or found[0] > until_seq:
            return None
        chain = _decode_chain(aggregate, found[1])
        return chain if chain is not None and chain.version == found[0] > 0 else None

    async def _save_snapshot(self, aggregate: Aggregate[Any], key: str, chain: Chain[Any]) -> None:
        payload = msgspec.msgpack.encode(chain)
        await self._snapshots.save(_snapshot_name(aggregate, key), aggregate.fold_version, chain.version, payload)

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        subject = aggregate_subject(aggregate.name, key)
        last = await last_message(self._requests, EVENTS_STREAM, subject, seconds=READ_SECONDS)
        if last is None:
            return None
        if decode_commit(last.subject, last.seq, last.data).record.about.id == workload_id:
            return await self.load(aggregate, key)
        known: Chain[S] | None = self._earlier.get(workload_id)
        if known is not None:
            return known
        chain = await self._fold_of_incarnation(aggregate, subject, workload_id, last.seq)
        if chain is not None:
            self._earlier[workload_id] = chain
            while len(self._earlier) > self._cached_chains:
                self._earlier.popitem(last=False)
        return chain

    async def _fold_of_incarnation[S](
        self, aggregate: Aggregate[S], subject: str, workload_id: str, until_seq: int
    ) -> Chain[S] | None:
        chain = Chain(state=aggregate.initial)
        seen = False
        while chain.version < until_seq:
            messages, _ = await self._tail(subject, chain.version + 1)
            for message in messages:
                commit = decode_commit(message.subject, message.seq, message.data)
                is_it = commit.record.about.id == workload_id
                if seen and not is_it:
                    return chain
                chain = apply(aggregate, chain, commit)
                seen = is_it
        return chain if seen else None


def _snapshot_name(aggregate: Aggregate[Any], key: str) -> str:
    """One token of a subject, whatever the key's length."""
    return f"chain-{hashlib.sha256(f'{aggregate.name}/{key}'.encode()).hexdigest()[:40]}"


def _decode_chain[S](aggregate: Aggregate[S], payload: bytes) -> Chain[S] | None:
    """None where the payload has another shape."""
    try:
        return msgspec.msgpack.decode(payload, type=Chain[aggregate.state])
    except msgspec.MsgspecError:
        return None
