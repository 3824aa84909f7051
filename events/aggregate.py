"""Aggregates as values: what the shell needs to load one, decide on it and append to it, whichever it is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

import msgspec

from events import asset, cluster, department, hours, installation, node, policy, prices, project, tenant, void
from events.codec import encode_event
from events.commit import About, Actor, BatchPart, Commit, CommitRecord
from events.decision import Context, Decision
from events.ids import derived_command_id
from events.subjects import aggregate_subject
from events.workload import decide as workload_decide
from events.workload import life as workload_life
from events.workload import state as workload_state

REMEMBERED_COMMANDS: Final = 64
"""How many of its last commands an aggregate remembers, to answer a repeated one as the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate[S]:
    """One kind of aggregate."""

    name: str
    """Second token of its subjects."""
    state: type[S]
    initial: S
    evolve: Callable[[S, Any], S]
    """Never raises: an event that does not fit changes nothing, and the very same state is answered."""
    fold: Callable[[S, Sequence[Any]], S] | None = None
    """The state after all events of a commit, where that is cheaper than one event after the other."""
    decide: Callable[[Any, S, Context], Decision[Any]]
    about: Callable[[S], About]
    fold_version: int
    """Raise it when `evolve` or the state's shape changes: snapshots of other versions are thrown away."""

    def after(self, state: S, events: Sequence[Any]) -> S:
        """The state after several events. `state` stays as it is."""
        return self.fold(state, events) if self.fold is not None else reduce(self.evolve, events, state)


class RememberedCommand(msgspec.Struct, frozen=True, array_like=True):
    command_id: str
    body_hash: str
    seq: int
    at: datetime | None = None
    """When it was decided: part of the answer."""


class Chain[S](msgspec.Struct, frozen=True):
    """An aggregate's fold: its state, its version, and the commands it saw last."""

    state: S
    version: int = 0
    """Sequence of its last commit; the guard of the next append."""
    recent: tuple[RememberedCommand, ...] = ()

    def remembered(self, command_id: str) -> RememberedCommand | None:
        return next((command for command in reversed(self.recent) if command.command_id == command_id), None)


class BrokenChainError(Exception):
    """A commit does not follow the one before it, or cannot be applied: the log is not what it was, part of it was not
    seen, or somebody wrote what no decider decides.

    Attributes:
        seq: of that commit; 0 where it is not known.
    """

    def __init__(self, message: str, *, seq: int = 0) -> None:
        super().__init__(message)
        self.seq = seq


WORKLOAD: Final = Aggregate(
    name="workload",
    state=workload_state.Workload,
    initial=workload_state.Workload(),
    evolve=workload_life.evolve,
    fold=workload_life.fold,
    decide=workload_decide.decide,
    about=lambda state: About(
        id=state.workload_id or None,
        owner=state.owner or None,
        project_id=state.project_id or None,
        cluster_id=state.cluster_id or None,
    ),
    fold_version=21,
)
NODE: Final = Aggregate(
    name="node",
    state=node.Node,
    initial=node.Node(),
    evolve=node.evolve,
    decide=node.decide,
    about=lambda state: About(cluster_id=state.cluster_id or None),
    fold_version=9,
)
CLUSTER: Final = Aggregate(
    name="cluster",
    state=cluster.Cluster,
    initial=cluster.Cluster(),
    evolve=cluster.evolve,
    decide=cluster.decide,
    about=lambda state: About(id=state.cluster_id or None, cluster_id=state.cluster_id or None),
    fold_version=12,
)
PROJECT: Final = Aggregate(
    name="project",
    state=project.Project,
    initial=project.Project(),
    evolve=project.evolve,
    decide=project.decide,
    about=lambda state: About(id=state.project_id or None, project_id=state.project_id or None),
    fold_version=13,
)
DEPARTMENT: Final = Aggregate(
    name="department",
    state=department.Department,
    initial=department.Department(),
    evolve=department.evolve,
    decide=department.decide,
    about=lambda state: About(id=state.department_id or None),
    fold_version=3,
)
TENANT: Final = Aggregate(
    name="tenant",
    state=tenant.Tenant,
    initial=tenant.Tenant(),
    evolve=tenant.evolve,
    decide=tenant.decide,
    about=lambda _: About(),
    fold_version=2,
)

VOID: Final = Aggregate(
    name="void",
    state=void.Void,
    initial=void.Void(),
    evolve=void.evolve,
    decide=void.decide,
    about=lambda _: About(),
    fold_version=1,
)

LOG: Final = Aggregate(
    name="log",
    state=installation.Log,
    initial=installation.Log(),
    evolve=installation.evolve,
    decide=installation.decide,
    about=lambda _: About(),
    fold_version=1,
)

PRICES: Final = Aggregate(
    name="prices",
    state=prices.Prices,
    initial=prices.Prices(),
    evolve=prices.evolve,
    decide=prices.decide,
    about=lambda _: About(),
    fold_version=1,
)

HOURS: Final = Aggregate(
    name="hours",
    state=hours.Hours,
    initial=hours.Hours(),
    evolve=hours.evolve,
    decide=hours.decide,
    about=lambda state: About(project_id=state.project_id or None),
    fold_version=1,
)

ASSET: Final = Aggregate(
    name="asset",
    state=asset.Asset,
    initial=asset.Asset(),
    evolve=asset.evolve,
    decide=asset.decide,
    about=lambda state: About(
        id=state.asset_id or None, project_id=state.project_id or None, cluster_id=state.cluster_id or None
    ),
    fold_version=3,
)

POLICY: Final = Aggregate(
    name="policy",
    state=policy.Policy,
    initial=policy.Policy(),
    evolve=policy.evolve,
    decide=policy.decide,
    about=lambda state: About(id=state.policy_id or None, project_id=state.project_id or None),
    fold_version=3,
)

AGGREGATES: Final[dict[str, Aggregate[Any]]] = {
    a.name: a for a in (WORKLOAD, NODE, CLUSTER, PROJECT, DEPARTMENT, TENANT, VOID, LOG, PRICES, HOURS, ASSET, POLICY)
}
"""The registry: one line per kind."""


def apply[S](aggregate: Aggregate[S], chain: Chain[S], commit: Commit) -> Chain[S]:
    """The chain after one more commit. Raises BrokenChainError where the commit's parent is not the chain's end, or the
    state cannot take its events.
    """
    state = _evolved(aggregate, chain, commit)
    record = commit.record
    remembered = RememberedCommand(record.command_id, record.body_hash, commit.seq, record.occurred_at)
    recent = (*chain.recent[-(REMEMBERED_COMMANDS - 1) :], remembered)
    return Chain(state=state, version=commit.seq, recent=recent)


def advance[S](
    aggregate: Aggregate[S], chain: Chain[S] | None, commit: Commit, drafted: "Draft | None" = None
) -> Chain[S]:
    """As `apply`, for followers that never answer a repeated command: remembers none, so a chain stays small.

    Args:
        chain: None where the follower forgot what lies before, and knows that this commit begins anew.
        drafted: what the commit was before it was stored, where its writer has it: its state is not made again.
    """
    before = aggregate.initial if chain is None else chain.state
    if drafted is not None and drafted.before is before and drafted.events is commit.events:
        if chain is not None:
            check_follows(commit, chain.version)
        return Chain(state=drafted.after, version=commit.seq)
    return Chain(state=_evolved(aggregate, chain, commit), version=commit.seq)


def check_follows(commit: Commit, version: int) -> None:
    """Raises BrokenChainError where the commit is not the next one of a chain that is at this version."""
    if commit.record.parent_seq != version:
        raise BrokenChainError(
            f"{commit.aggregate} {commit.key}: commit {commit.seq} follows {commit.record.parent_seq}, "
            f"but the last one seen is {version}",
            seq=commit.seq,
        )


def _evolved[S](aggregate: Aggregate[S], chain: Chain[S] | None, commit: Commit) -> S:
    if chain is not None:
        check_follows(commit, chain.version)
    state = aggregate.initial if chain is None else chain.state
    try:
        return aggregate.after(state, commit.events)
    except Exception as error:
        # Whatever it is, it comes again with every repetition: the commit cannot be applied, by anybody.
        raise BrokenChainError(
            f"{aggregate.name} {commit.key}: commit {commit.seq} cannot be applied: {type(error).__name__}: {error}",
            seq=commit.seq,
        ) from error


def fold[S](aggregate: Aggregate[S], commits: Iterable[Commit]) -> Chain[S]:
    chain = Chain(state=aggregate.initial)
    for commit in commits:
        chain = apply(aggregate, chain, commit)
    return chain


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that is about to be appended: everything but its sequence."""

    aggregate: str
    key: str
    record: CommitRecord
    events: tuple[Any, ...]
    before: Any = None
    """The state that it was decided on."""
    after: Any = None
    """The state that its events make of that one. As long as nobody else has both, nobody folds the events again."""

    @property
    def subject(self) -> str:
        return aggregate_subject(self.aggregate, self.key)

    def committed(self, seq: int) -> Commit:
        return Commit(aggregate=self.aggregate, key=self.key, seq=seq, record=self.record, events=self.events)

    def in_batch(self, part: BatchPart) -> "Draft":
        return msgspec.structs.replace(self, record=msgspec.structs.replace(self.record, batch=part))


def draft[S](
    aggregate: Aggregate[S],
    key: str,
    chain: Chain[S],
    events: tuple[Any, ...],
    *,
    command_id: str,
    actor: Actor,
    now: datetime,
    body_hash: str = "",
    correlation_id: str = "",
    causation_id: str = "",
) -> Draft:
    """The commit of `events` on top of `chain`, guarded by its version."""
    state = aggregate.after(chain.state, events)
    subject = aggregate_subject(aggregate.name, key)
    return Draft(
        aggregate=aggregate.name,
        key=key,
        events=events,
        before=chain.state,
        after=state,
        record=CommitRecord(
            commit_id=derived_command_id(command_id, subject),
            command_id=command_id,
            actor=actor,
            occurred_at=now,
            parent_seq=chain.version,
            events=tuple(encode_event(event) for event in events),
            body_hash=body_hash,
            correlation_id=correlation_id,
            causation_id=causation_id,
            about=aggregate.about(state),
        ),
    )
