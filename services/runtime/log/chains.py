"""Folds of aggregates, read from the stream's leader: what changed since the cached fold, or since a snapshot of it.

Reads only; what a fold means is decided elsewhere. What cannot be read, and was not declared void, is named.
"""

import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import Aggregate, BrokenChainError, Chain, apply
from events.codec import UNDECODABLE
from events.commit import Commit
from events.subjects import EVENTS_STREAM, aggregate_subject, chain_snapshot
from events.void import Unreadable
from services.runtime.log.examination import READ_MESSAGES, READ_SECONDS, check_batch, named, tail, why_unreadable
from services.runtime.log.floors import Floors
from services.runtime.log.snapshots import Snapshots
from services.runtime.log.store import UnreadableMessageError
from services.runtime.log.voids import Voids
from services.runtime.nats.jetstream_api import StoredMessage, message_at, next_message
from services.runtime.nats.requests import Requests
from services.runtime.process.turn import Turn

CACHED_CHAINS: Final = 2_000
"""Folds kept in memory, the least recently used going first: some 10 MB."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Cached:
    chain: Chain[Any]
    since_snapshot: int
    """Commits after the newest snapshot of it."""


class Chains:
    """Loads folds, and remembers those used last."""

    def __init__(
        self,
        requests: Requests,
        voids: Voids,
        snapshots: Snapshots,
        floors: Floors,
        *,
        cached_chains: int,
        saves: frozenset[str],
    ) -> None:
        self._requests = requests
        self._voids = voids
        self._floors = floors
        self._snapshots = snapshots
        self._cached_chains = cached_chains
        self._saves = saves
        self._chains: OrderedDict[tuple[str, str], _Cached] = OrderedDict()
        self._earlier: OrderedDict[str, Chain[Any]] = OrderedDict()

    async def load[S](self, aggregate: Aggregate[S], key: str, *, min_seq: int, seconds: float) -> Chain[S]:
        """Raises UnreadableMessageError, LogUnavailableError."""
        await self._voids.read_once()
        try:
            return await self._load(aggregate, key, min_seq=min_seq, seconds=seconds)
        except UnreadableMessageError:
            await self._voids.read()  # perhaps it was declared void meanwhile
            return await self._load(aggregate, key, min_seq=min_seq, seconds=seconds)

    async def _load[S](self, aggregate: Aggregate[S], key: str, *, min_seq: int, seconds: float) -> Chain[S]:
        subject = aggregate_subject(aggregate.name, key)
        last = await self._floors.newest(subject, min_seq=min_seq, seconds=seconds)
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
        except BrokenChainError as error:
            if cached is beginning:
                raise named(error, subject) from error
            log.warning("cached_fold_of_another_chain", aggregate=aggregate.name, key=key)
            try:
                cached = await self._newest(aggregate, key, beginning, last)
            except BrokenChainError as again:
                raise named(again, subject) from again
        if aggregate.name in self._saves and cached.since_snapshot > READ_MESSAGES:
            await self._save_snapshot(aggregate, key, cached.chain)
            cached = _Cached(cached.chain, 0)  # where it failed, the next one is due as much later
        self._chains[cache_key] = cached
        self._chains.move_to_end(cache_key)
        while len(self._chains) > self._cached_chains:
            self._chains.popitem(last=False)
        return cached.chain

    async def load_until[S](self, aggregate: Aggregate[S], key: str, until: int, *, seconds: float) -> Chain[S]:
        """Raises UnreadableMessageError, LogUnavailableError."""
        await self._voids.read_once()
        try:
            return await self._load_until(aggregate, key, until, seconds)
        except UnreadableMessageError:
            await self._voids.read()
            return await self._load_until(aggregate, key, until, seconds)

    async def _load_until[S](self, aggregate: Aggregate[S], key: str, until: int, seconds: float) -> Chain[S]:
        beginning = _Cached(Chain(state=aggregate.initial), 0)
        try:
            return (await self._catch_up(aggregate, key, beginning, until, seconds_to_end=seconds)).chain
        except BrokenChainError as error:
            raise named(error, aggregate_subject(aggregate.name, key)) from error

    async def _newest(self, aggregate: Aggregate[Any], key: str, cached: _Cached, last: StoredMessage) -> _Cached:
        """The fold up to the chain's last message, which mostly is all that is new."""
        commit = await self._voids.read_commit(last)
        if commit.record.parent_seq == cached.chain.version and await self._is_next(cached, last):
            await check_batch(self._requests, commit)
            return _Cached(apply(aggregate, cached.chain, commit), cached.since_snapshot + 1)
        return await self._catch_up(aggregate, key, cached, last.seq)

    async def _is_next(self, cached: _Cached, last: StoredMessage) -> bool:
        """Whether nothing stands between. A known version says so; who claims to be a chain's first is not believed."""
        if cached.chain.version > 0:
            return True
        first = await next_message(self._requests, EVENTS_STREAM, last.subject, 1, seconds=READ_SECONDS)
        return first is not None and first.seq == last.seq

    async def _catch_up[S](
        self, aggregate: Aggregate[S], key: str, cached: _Cached, until_seq: int, *, seconds_to_end: float | None = None
    ) -> _Cached:
        """The fold up to a sequence, from a fold of its front part, a snapshot, or the beginning.

        Args:
            seconds_to_end: how long to look whether the chain ends before that sequence; None: it is known to have a
                commit there.
        """
        chain: Chain[S] = cached.chain
        since = cached.since_snapshot
        asked_snapshot = chain.version > 0  # what is in memory is newer than any snapshot is likely to be
        subject = aggregate_subject(aggregate.name, key)
        turn = Turn()
        while chain.version < until_seq:
            ended = None
            if seconds_to_end is not None:
                ended = partial(self._ended, subject, chain.version, until_seq, seconds_to_end)
            messages, more = await tail(self._requests, subject, chain.version + 1, ended=ended)
            if not messages:
                break
            if not asked_snapshot and more > 0:
                asked_snapshot = True
                snapshot = await self._load_snapshot(aggregate, key, until_seq)
                if snapshot is not None:
                    try:
                        return await self._catch_up(
                            aggregate, key, _Cached(snapshot, 0), until_seq, seconds_to_end=seconds_to_end
                        )
                    except BrokenChainError:
                        log.warning("snapshot_of_another_chain", aggregate=aggregate.name, key=key)
            for message in messages:
                if message.seq > until_seq:
                    return _Cached(chain, since)
                commit = await self._voids.read_commit(message)
                await check_batch(self._requests, commit)
                chain = apply(aggregate, chain, commit)
                since += 1
                await turn.pass_on()
        return _Cached(chain, since)

    async def _ended(self, subject: str, version: int, until_seq: int, seconds: float) -> bool:
        """Whether the chain has nothing behind this version, by who has the log up to `until_seq`."""
        await self._floors.last_seq(min_seq=until_seq, seconds=seconds)
        last = await self._floors.newest(subject, seconds=seconds)
        return last is None or last.seq <= version

    async def _load_snapshot[S](self, aggregate: Aggregate[S], key: str, until_seq: int) -> Chain[S] | None:
        name = _snapshot_name(aggregate, key)
        found = await self._snapshots.load(name, aggregate.fold_version)
        if found is None or found[0] > until_seq:
            return None
        chain = _decode_chain(aggregate, found[1])
        return chain if chain is not None and chain.version == found[0] > 0 else None

    async def _save_snapshot(self, aggregate: Aggregate[Any], key: str, chain: Chain[Any]) -> None:
        try:
            payload = msgspec.msgpack.encode(chain)
        except OverflowError as error:  # a number of the log that is none of ours
            log.warning("snapshot_not_made", aggregate=aggregate.name, key=key, error=str(error))
            return
        await self._snapshots.save(_snapshot_name(aggregate, key), aggregate.fold_version, chain.version, payload)

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        """As `load`, of an earlier incarnation."""
        await self._voids.read_once()
        try:
            return await self._load_at(aggregate, key, workload_id)
        except UnreadableMessageError:
            await self._voids.read()
            return await self._load_at(aggregate, key, workload_id)

    async def _load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        subject = aggregate_subject(aggregate.name, key)
        last = await self._floors.newest(subject, seconds=READ_SECONDS)
        if last is None:
            return None
        if (await self._voids.read_commit(last)).record.about.id == workload_id:
            return await self.load(aggregate, key, min_seq=0, seconds=READ_SECONDS)
        known: Chain[S] | None = self._earlier.get(workload_id)
        if known is not None:
            return known
        try:
            chain = await self._fold_of_incarnation(aggregate, subject, workload_id, last.seq)
        except BrokenChainError as error:
            raise named(error, subject) from error
        if chain is not None:
            self._earlier[workload_id] = chain
            while len(self._earlier) > self._cached_chains:
                self._earlier.popitem(last=False)
        return chain

    async def commits(
        self, aggregate: Aggregate[Any], key: str, *, after_seq: int, until_seq: int
    ) -> AsyncGenerator[list[Commit], None]:
        subject = aggregate_subject(aggregate.name, key)
        while after_seq < until_seq:
            messages, _ = await tail(self._requests, subject, after_seq + 1)
            after_seq = messages[-1].seq
            wanted = [message for message in messages if message.seq <= until_seq]
            yield [await self._voids.read_commit(message) for message in wanted]

    async def _fold_of_incarnation[S](
        self, aggregate: Aggregate[S], subject: str, workload_id: str, until_seq: int
    ) -> Chain[S] | None:
        chain = Chain(state=aggregate.initial)
        seen, turn = False, Turn()
        while chain.version < until_seq:
            messages, _ = await tail(self._requests, subject, chain.version + 1)
            for message in messages:
                commit = await self._voids.read_commit(message)
                is_it = commit.record.about.id == workload_id
                if seen and not is_it:
                    return chain
                chain = apply(aggregate, chain, commit)
                seen = is_it
                await turn.pass_on()
        return chain if seen else None

    async def examine(self, seq: int) -> Unreadable | None:
        """As `why_unreadable`; also None where it was declared void. Raises KeyError where there is none."""
        await self._voids.read()
        message = await message_at(self._requests, EVENTS_STREAM, seq, seconds=READ_SECONDS)
        if message is None:
            raise KeyError(seq)
        if await self._voids.honours(seq):
            return None
        return await why_unreadable(self._requests, message, self._voids.read_commit)


def _snapshot_name(aggregate: Aggregate[Any], key: str) -> str:
    """Fit for a subject, whatever the key's length."""
    return chain_snapshot(aggregate.name, hashlib.sha256(f"{aggregate.name}/{key}".encode()).hexdigest()[:40])


def _decode_chain[S](aggregate: Aggregate[S], payload: bytes) -> Chain[S] | None:
    """None where the payload has another shape."""
    try:
        return msgspec.msgpack.decode(payload, type=Chain[aggregate.state])
    except UNDECODABLE:
        return None
