"""A log in memory with one scheduler on it, and a clock that somebody else sets. Nothing of it is stored: what was
committed is in the scheduler's fold, and is told to whoever wants to know.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from events.aggregate import AGGREGATES, Aggregate, Chain, Draft, draft
from events.commit import Actor, BatchPart, Commit
from events.decision import Context
from events.node import NodeFacts
from events.refusal import Refusal
from services.runtime.log.folding import take
from services.scheduler.batches import (
    Heads,
    batch_drafts,
    batches,
    departure_drafts,
    eviction_drafts,
    mark_drafts,
    release_drafts,
    seen_by,
    update_drafts,
)
from services.scheduler.estimate import with_estimates
from services.scheduler.fold import DEFAULT_HEAD_START, SchedulingState
from services.scheduler.plan import plan
from services.scheduler.planning import Policy
from services.scheduler.policy.registry import POLICY
from services.scheduler.snapshot import Plan, Snapshot

BATCH_MESSAGES: Final = 300
"""As the service commits a plan."""
NOBODY: Final = Actor(id="muster.simulation", kind="service")
"""Who does what people and clusters do: nothing is asked of a service's ownership."""

type Told = Callable[[Commit, Any, Any], None]
"""Of a commit: it, and the states of its aggregate before and after it."""


class RefusedError(Exception):
    """A decider refuses what was to be done; the refusal says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.message}")
        self.refusal = refusal


class Ledger:
    """Mutable; one log. The same acts in the same order make the same log, ids and all.

    Args:
        now: the virtual time.
        head_start: that a rank of priority is worth.
        seq: of the last commit that there was before.
    """

    def __init__(
        self,
        now: datetime,
        *,
        policy: Policy = POLICY,
        head_start: timedelta = DEFAULT_HEAD_START,
        actor: Actor = NOBODY,
        seq: int = 0,
    ) -> None:
        self.now: datetime = now
        self.policy = policy
        self.seq = seq
        self.fold = SchedulingState(orders=policy.orders, head_start=head_start)
        self.told: Told | None = None
        self.seen: Mapping[str, NodeFacts] = {}
        """By node key: facts that the last plan was made by."""
        self._actor = actor
        self._ids = 0

    # -- the log -------------------------------------------------------------------------------------------------------

    def do(self, aggregate: str, key: str, command: Any) -> tuple[Any, ...]:
        """Decide and append; the events. Raises RefusedError."""
        kind, chain, command_id = AGGREGATES[aggregate], self.chain(aggregate, key), self._id()
        context = Context(
            now=self.now,
            actor=self._actor,
            command_id=command_id,
            version=chain.version,
            incarnation=self.fold.incarnation,
        )
        events = kind.decide(command, chain.state, context)
        if isinstance(events, Refusal):
            raise RefusedError(events)
        if events:
            self.append(self._draft(kind, key, chain, events, command_id))
        return events

    def write(self, aggregate: str, key: str, events: tuple[Any, ...]) -> None:
        """Append what was decided elsewhere."""
        self.append(self._draft(AGGREGATES[aggregate], key, self.chain(aggregate, key), events, self._id()))

    def append(self, *drafts: Draft) -> None:
        """One commit, or an atomic batch of several."""
        if len(drafts) > 1:
            id_, count = self._id(), len(drafts)
            drafts = tuple(
                each.in_batch(BatchPart(id=id_, index=index, count=count)) for index, each in enumerate(drafts, start=1)
            )
        new = [each.committed(self.seq + number) for number, each in enumerate(drafts, start=1)]
        self.seq += len(new)
        for commit in new:
            self.apply(commit)

    def apply(self, commit: Commit) -> None:
        """Take in a commit, which is the next one."""
        before = self.chain(commit.aggregate, commit.key).state if self.told is not None else None
        unreadable = take(self.fold, [commit])
        assert unreadable is None, unreadable
        if self.told is not None:
            self.told(commit, before, self.chain(commit.aggregate, commit.key).state)

    def chain(self, aggregate: str, key: str) -> Chain[Any]:
        """Of what has ended nothing is left: its chain begins anew."""
        chains = self.fold.chains.get(aggregate, {})
        return chains.get(key) or Chain(state=AGGREGATES[aggregate].initial)

    def _draft(self, kind: Aggregate[Any], key: str, chain: Chain[Any], events: tuple[Any, ...], id_: str) -> Draft:
        return draft(kind, key, chain, events, command_id=id_, actor=self._actor, now=self.now)

    def _id(self) -> str:
        self._ids += 1
        return str(UUID(int=self._ids))

    # -- planning ------------------------------------------------------------------------------------------------------

    def heads(self) -> Heads:
        fold = self.fold
        return Heads(workloads=fold.workloads, nodes=fold.nodes, seen=self.seen, incarnation=fold.incarnation)

    def cycle(self, *, estimates: bool = False, max_messages: int = BATCH_MESSAGES, **limits: Any) -> Plan:
        """Plan once and commit the plan, as the service does. Raises RefusedError: nobody else changes anything here.

        Args:
            estimates: whether it is told when what waits is expected to start, which changes no plan.
            max_messages: of one batch.
            limits: of `plan`.
        """
        snapshot = self.fold.snapshot(self.now)
        planned = plan(snapshot, policy=self.policy, **limits)
        if estimates:
            planned = with_estimates(planned, snapshot, self.fold)
        self.fold.note(snapshot, planned)
        self.looked_at(snapshot, planned)
        self._carry_out(planned, max_messages)
        return planned

    def looked_at(self, snapshot: Snapshot, planned: Plan) -> None:
        """What a plan was made by, which is about to be carried out; for others to build on."""

    def _carry_out(self, planned: Plan, max_messages: int) -> None:
        self.seen = seen_by(planned, self.fold.nodes)
        self._commit(mark_drafts(self.heads(), planned.marks, self._id(), self.now))
        for each in planned.departures:
            self._commit(departure_drafts(self.heads(), each, self._id(), self.now))
        bound, released = batches(planned, max_messages=max_messages)
        for batch in bound:
            drafts, refused = batch_drafts(self.heads(), batch, self._id(), self.now)
            if refused:
                raise RefusedError(next(iter(refused.values())))
            self.append(*drafts)
        for key, ids in released.items():
            self._commit(release_drafts(self.heads(), key, ids, self._id(), self.now))
        for each in planned.evictions:
            self._commit(eviction_drafts(self.heads(), each, self._id(), self.now))
        for update in planned.updates:
            self._commit(update_drafts(self.heads(), update, self._id(), self.now))

    def _commit(self, drafts: list[Draft] | Refusal) -> None:
        if isinstance(drafts, Refusal):
            raise RefusedError(drafts)
        for each in drafts:
            self.append(each)

    def settle(self, *, cycles: int = 20, **options: Any) -> list[Plan]:
        """Cycles until nothing is planned any more; the plans. Raises RestlessError."""
        plans: list[Plan] = []
        for _ in range(cycles):
            planned = self.cycle(**options)
            plans.append(planned)
            if planned.empty and not planned.put_off:
                return plans
        raise RestlessError(cycles)


class RestlessError(Exception):
    """The scheduler does not come to rest: each plan asks for another one."""

    def __init__(self, cycles: int) -> None:
        super().__init__(f"the scheduler does not come to rest: {cycles} plans in a row each had something to do")
