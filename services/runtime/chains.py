"""Folds of aggregates, read from the stream's leader: what changed since the cached fold, or since a snapshot of it.

Reads only; what a fold means is decided elsewhere. What cannot be read, and was not declared void, is named.
"""

import asyncio
import hashlib
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import AGGREGATES, Aggregate, BrokenChainError, Chain, apply
from events.codec import UNDECODABLE
from events.commit import BatchPart, Commit
from events.subjects import EVENTS_STREAM, aggregate_subject, chain_snapshot, split_aggregate_subject
from events.void import Unreadable
from projections.fold import Fold as RowsFold
from services.runtime.floors import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Floors
from services.runtime.jetstream_api import StoredMessage, message_at, next_message, next_messages
from services.runtime.requests import Requests
from services.runtime.snapshots import Snapshots
from services.runtime.store import UnreadableMessageError
from services.runtime.voids import CAUSE_CHARACTERS, Voids

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
                raise _named(error, subject) from error
            log.warning("cached_fold_of_another_chain", aggregate=aggregate.name, key=key)
            try:
                cached = await self._newest(aggregate, key, beginning, last)
            except BrokenChainError as again:
                raise _named(again, subject) from again
        if aggregate.name in self._saves and cached.since_snapshot > READ_MESSAGES:
            await self._save_snapshot(aggregate, key, cached.chain)
            cached = _Cached(cached.chain, 0)  # where it failed, the next one is due as much later
        self._chains[cache_key] = cached
        self._chains.move_to_end(cache_key)
        while len(self._chains) > self._cached_chains:
            self._chains.popitem(last=False)
        return cached.chain

    async def _newest(self, aggregate: Aggregate[Any], key: str, cached: _Cached, last: StoredMessage) -> _Cached:
        """The fold up to the chain's last message, which mostly is all that is new."""
        commit = self._commit(last)
        if commit.record.parent_seq == cached.chain.version and await self._is_next(cached, last):
            await self._check_batch(commit)
            return _Cached(apply(aggregate, cached.chain, commit), cached.since_snapshot + 1)
        return await self._catch_up(aggregate, key, cached, last.seq)

    async def _is_next(self, cached: _Cached, last: StoredMessage) -> bool:
        """Whether nothing stands between. A known version says so; who claims to be a chain's first is not believed."""
        if cached.chain.version > 0:
            return True
        first = await next_message(self._requests, EVENTS_STREAM, last.subject, 1, seconds=READ_SECONDS)
        return first is not None and first.seq == last.seq

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
                commit = self._commit(message)
                await self._check_batch(commit)
                chain = apply(aggregate, chain, commit)
            since += len(messages)
        return _Cached(chain, since)

    async def _tail(self, subject: str, from_seq: int) -> tuple[list[StoredMessage], int]:
        """Messages of a chain that has some there. A replica may not have them yet; then one from the leader; and a
        leader may have stood still: then again.
        """
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            messages, more = await next_messages(
                self._requests, EVENTS_STREAM, subject, from_seq, READ_MESSAGES, seconds=READ_SECONDS
            )
            if messages:
                return messages, more
            message = await next_message(self._requests, EVENTS_STREAM, subject, from_seq, seconds=READ_SECONDS)
            if message is not None:
                return [message], 0
            if asyncio.get_running_loop().time() > deadline:
                raise BrokenChainError(f"{subject}: the leader's last message is gone")
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

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
        if self._commit(last).record.about.id == workload_id:
            return await self.load(aggregate, key, min_seq=0, seconds=READ_SECONDS)
        known: Chain[S] | None = self._earlier.get(workload_id)
        if known is not None:
            return known
        try:
            chain = await self._fold_of_incarnation(aggregate, subject, workload_id, last.seq)
        except BrokenChainError as error:
            raise _named(error, subject) from error
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
            messages, _ = await self._tail(subject, after_seq + 1)
            after_seq = messages[-1].seq
            wanted = [message for message in messages if message.seq <= until_seq]
            yield [self._commit(message) for message in wanted]

    async def _fold_of_incarnation[S](
        self, aggregate: Aggregate[S], subject: str, workload_id: str, until_seq: int
    ) -> Chain[S] | None:
        chain = Chain(state=aggregate.initial)
        seen = False
        while chain.version < until_seq:
            messages, _ = await self._tail(subject, chain.version + 1)
            for message in messages:
                commit = self._commit(message)
                is_it = commit.record.about.id == workload_id
                if seen and not is_it:
                    return chain
                chain = apply(aggregate, chain, commit)
                seen = is_it
        return chain if seen else None

    # Whether a message can be read at all.

    async def examine(self, seq: int) -> Unreadable | None:
        """Why the message of this sequence cannot be read: it is no commit, or none that follows from what stands
        before it, or none that rows can follow; None where it can be read, or is void. Raises KeyError where there is
        none, UnreadableMessageError where one before it on the same subject cannot be read either, LogUnavailableError.
        """
        await self._voids.read()
        message = await message_at(self._requests, EVENTS_STREAM, seq, seconds=READ_SECONDS)
        if message is None:
            raise KeyError(seq)
        try:
            name, _ = split_aggregate_subject(message.subject)
            aggregate = AGGREGATES[name]
        except (ValueError, KeyError):
            return Unreadable(subject=message.subject, cause="no aggregate has this subject")
        before, rows = await self._before(aggregate, message.subject, seq)
        try:
            commit = self._commit(message)
            apply(aggregate, before, commit)
            rows.add([commit])
            await self._check_batch(commit, every_part=True)
        except UnreadableMessageError as error:
            cause = error.cause
        except BrokenChainError as error:
            cause = str(error)[:CAUSE_CHARACTERS]
        else:
            return None
        about = aggregate.about(before.state)
        return Unreadable(subject=message.subject, cause=cause, parent_seq=before.version, about=about)

    async def _before(self, aggregate: Aggregate[Any], subject: str, seq: int) -> tuple[Chain[Any], RowsFold]:
        """The fold of what stands on a subject before a sequence, as a state and as rows."""
        chain = Chain(state=aggregate.initial)
        rows = RowsFold({})
        while True:
            messages, _ = await self._tail(subject, chain.version + 1)
            for message in messages:
                if message.seq >= seq:
                    return chain, rows
                try:
                    commit = self._commit(message)
                    chain = apply(aggregate, chain, commit)
                    rows.add([commit])
                except BrokenChainError as error:
                    raise _named(error, subject) from error

    async def _check_batch(self, commit: Commit, *, every_part: bool = False) -> None:
        """Raises UnreadableMessageError where the commit says it is part of an atomic batch that is not there. The
        server stores a batch whole or not at all, so its end tells; only who is to judge looks at every part.
        """
        part = commit.record.batch
        if part is None:
            return
        whole = True
        first = 1 if every_part else part.count
        for index in range(first, part.count + 1):
            seq = commit.seq - part.index + index
            if seq != commit.seq:
                other = await message_at(self._requests, EVENTS_STREAM, seq, seconds=READ_SECONDS) if seq > 0 else None
                whole = whole and other is not None and self._may_be_part(other, part, index)
        if not whole:
            subject = aggregate_subject(commit.aggregate, commit.key)
            raise UnreadableMessageError(commit.seq, subject, "its atomic batch is not whole")

    def _may_be_part(self, message: StoredMessage, part: BatchPart, index: int) -> bool:
        """Whether a message is that part of a batch; one that cannot be read, or is void, may have been it."""
        try:
            commit = self._commit(message)
        except UnreadableMessageError:
            return True
        other = commit.record.batch
        return not commit.events or (other is not None and other.id == part.id and other.index == index)

    def _commit(self, message: StoredMessage) -> Commit:
        return self._voids.commit(message.subject, message.seq, message.data)


def _named(error: BrokenChainError, subject: str) -> Exception:
    """The commit that breaks the chain, as what cannot be read; the error itself where it names none."""
    return UnreadableMessageError(error.seq, subject, str(error)) if error.seq else error


def _snapshot_name(aggregate: Aggregate[Any], key: str) -> str:
    """Fit for a subject, whatever the key's length."""
    return chain_snapshot(aggregate.name, hashlib.sha256(f"{aggregate.name}/{key}".encode()).hexdigest()[:40])


def _decode_chain[S](aggregate: Aggregate[S], payload: bytes) -> Chain[S] | None:
    """None where the payload has another shape."""
    try:
        return msgspec.msgpack.decode(payload, type=Chain[aggregate.state])
    except UNDECODABLE:
        return None
