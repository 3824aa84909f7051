"""The states of aggregates, folded from the log as it grows: what every service that keeps states in memory holds.

`folding.follow_into` reads the log into it. What a service makes of a change stands in its own `took`.
"""

import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast

from events.aggregate import ASSET, WORKLOAD, Aggregate, Chain, Draft, advance, check_follows
from events.asset import AssetCreated
from events.commit import Commit
from events.workload.life import WorkloadCreated
from services.runtime.log.folding import follow_into
from services.runtime.log.store import EventReader
from services.runtime.process.turn import Turn

_BEGINS: Final[Mapping[str, type]] = {WORKLOAD.name: WorkloadCreated, ASSET.name: AssetCreated}
"""Kinds of aggregates that may be forgotten once they have ended: the event that begins the next of the same name."""


KEPT_STEPS: Final = 2_048
"""Some 5 MB: folds of one process that read the log together are at most about so many commits apart."""


class Steps:
    """What commits made of chains, for all folds of one process. Who comes to the same commit with the very same state
    gets the very same chain: it is folded once, and kept once. Of one log only.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, Any, Chain[Any]] | None] = [None] * KEPT_STEPS
        """By sequence, the newest ones: (sequence, state before, chain after)."""

    def advance[S](
        self, aggregate: Aggregate[S], chain: Chain[S] | None, commit: Commit, drafted: Draft | None = None
    ) -> Chain[S]:
        """As `events.aggregate.advance`."""
        before = aggregate.initial if chain is None else chain.state
        place = commit.seq % KEPT_STEPS
        kept = self._kept[place]
        if kept is not None and kept[0] == commit.seq and kept[1] is before:
            if chain is not None:
                check_follows(commit, chain.version)
            return kept[2]
        after = advance(aggregate, chain, commit, drafted)
        self._kept[place] = (commit.seq, before, after)
        return after


STEPS: Final[ContextVar[Steps | None]] = ContextVar("steps", default=None)
"""Of the process that runs services (`process.host`); where there are none, each fold works for itself."""


class LogFold:
    """Mutable; belongs to one task.

    Args:
        aggregates: the kinds whose states are kept; commits of others change nothing.
        until: the fold is as of this sequence, and takes in nothing behind it. Where that stands within an atomic
            batch, it is as of the sequence before the batch.
        forgets: whether workloads that ended, and assets, are taken out (`forget`). Then a commit of one that is not
            here is passed by, unless it creates one.
    """

    def __init__(
        self, aggregates: Sequence[Aggregate[Any]], until: int | None = None, *, forgets: bool = False
    ) -> None:
        self.seq = 0
        """Everything up to here has been followed; single aggregates may be ahead by what a service wrote itself."""
        self.from_snapshot = False
        self._until = until
        steps = STEPS.get()
        self._advance = advance if steps is None else steps.advance
        self.chains: dict[str, dict[str, Chain[Any]]] = {aggregate.name: {} for aggregate in aggregates}
        """By aggregate name, then key. The inner dictionaries stay the same ones."""
        self._kinds = {
            aggregate.name: (
                aggregate,
                Chain(state=aggregate.initial),
                _BEGINS.get(aggregate.name) if forgets else None,
            )
            for aggregate in aggregates
        }

    def of[S](self, aggregate: Aggregate[S]) -> dict[str, Chain[S]]:
        """The chains of one kind, by key: a live view."""
        return cast("dict[str, Chain[S]]", self.chains[aggregate.name])

    def chain[S](self, aggregate: Aggregate[S], key: str) -> Chain[S]:
        """One aggregate; the initial state where it is not here."""
        return self.of(aggregate).get(key) or cast("Chain[S]", self._kinds[aggregate.name][1])

    def apply(self, commit: Commit, drafted: Draft | None = None) -> None:
        """Take over one commit; one that was applied before changes nothing. Raises BrokenChainError.

        Args:
            drafted: as of `events.aggregate.advance`, of a commit that this service wrote.
        """
        kind = self._kinds.get(commit.aggregate)
        if kind is None or (self._until is not None and commit.batch_end > self._until):
            return
        aggregate, empty, begins = kind
        chains = self.chains[commit.aggregate]
        before = chains.get(commit.key)
        if before is not None:
            if commit.seq <= before.version:
                return
            after = self._advance(aggregate, before, commit, drafted)
        elif begins is None:
            before, after = empty, self._advance(aggregate, empty, commit, drafted)
        elif commit.events and isinstance(commit.events[0], begins):
            before, after = empty, self._advance(aggregate, None, commit, drafted)
        else:
            return  # of one that has ended and was forgotten
        chains[commit.key] = after
        self.took(commit, before, after)

    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        """A commit has brought an aggregate from one chain to the next; for services to build on."""

    def forget(self, aggregate: Aggregate[Any], key: str) -> None:
        """Take one out that has ended."""
        self.chains[aggregate.name].pop(key, None)

    def restore(self, seq: int, chains: Mapping[str, Mapping[str, Chain[Any]]]) -> None:
        """Begin with the chains of a stored snapshot. To be called first."""
        self.seq = seq
        self.from_snapshot = True
        for name, kept in self.chains.items():
            kept.update(chains[name])

    async def read(self, store: EventReader) -> None:
        """Take in the log up to `until`, once it is there. Raises UnreadableMessageError, LogGapError."""
        if self._until is None:
            raise ValueError("a fold without `until` is never done: follow into it")
        turn = Turn()
        async with contextlib.aclosing(follow_into(store, self, until=self._until, on_standing=None)) as arrivals:
            async for _ in arrivals:
                await turn.pass_on()
