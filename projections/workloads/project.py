"""What a workload's commits make of its rows: the workload itself, the runs of its pods, its due auto-deletion, its
history. Pure.

All that a row shows of the workload as it is comes from its state. A state keeps no past, so three small things are
added up beside it, event by event: how long it was in which phase (`Spent`), what was told of each run that holds a
node (`Told`), and the rows of runs that are over.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from events.aggregate import WORKLOAD, Chain, check_follows
from events.commit import Commit
from events.phases import RUNS, Phase, PodPhase
from events.workload.edit import Edit
from events.workload.life import (
    WorkloadCompleted,
    WorkloadCreated,
    WorkloadDeleted,
    WorkloadEvent,
    WorkloadFailed,
    take,
)
from events.workload.lost_cluster import ClusterLeft, LeftPodEnded
from events.workload.pod import (
    Pod,
    PodEvent,
    PodFailed,
    PodId,
    PodInterrupted,
    PodRunning,
    PodsBound,
    PodStarting,
    PodStopped,
    PodSucceeded,
    PodUnreachable,
    PodWarned,
    is_of_pod,
    pod_id,
)
from events.workload.pods import MapEdit, PodMap, changed
from events.workload.state import Workload
from projections.changes import Changes, Put, Removed
from projections.columns import row_maker
from projections.hours.changes import MICROSECOND, HourChanges, Whose, whose
from projections.past import Leaving
from projections.values import clean, fit, indexed
from projections.workloads.facts import Asked, End, OnNodes, RunFacts, Spent, Told, WorkloadFacts
from projections.workloads.history import history_row
from projections.workloads.rows import DueRow, PodRow, WorkloadRow
from projections.workloads.sentences import Happened

RunKey = tuple[str, int, int, int]
"""(pod set, index, attempt, try)."""

PENDING: Final = PodPhase.PENDING.value
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
INTERRUPTED: Final = "Interrupted"
STOPPED: Final = "Stopped"
ENDED_POD_PHASES: Final = (SUCCEEDED, FAILED, INTERRUPTED, STOPPED)
"""Phases of a run that is over, beside those of `PodPhase`."""

WAITING: Final = frozenset({Phase.CREATING, Phase.PENDING, Phase.RESUMING})
"""Phases that count as pending time: it should run and has no node."""

_LEFT_ENDS: Final = {
    "succeeded": SUCCEEDED,
    "failed": FAILED,
    "interrupted": INTERRUPTED,
    "refused": INTERRUPTED,
    "stopped": STOPPED,
}
"""By how a run ended that was left on a lost cluster."""

_ENDS: Final = frozenset({PodSucceeded, PodFailed, PodInterrupted, PodStopped})
"""Events with which a run is over, and lets go what it holds."""
_NOTHING_TOLD: Final = Told()

_workload = row_maker(WorkloadRow, WorkloadFacts)
_leaving = Leaving(WorkloadRow, WorkloadFacts)
_run = row_maker(PodRow, RunFacts)


class WorkloadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A workload of some name as one of its commits left it, with what further rows of it are made of."""

    state: Workload = WORKLOAD.initial
    version: int = 0
    spent: Spent | None = None
    """None where there never was one; likewise the ones below."""
    asked: Asked | None = None
    row: WorkloadRow | None = None
    told: PodMap[Told] = PodMap[Told]()
    """Of runs that hold a node."""
    warned: PodMap[Told] = PodMap[Told]()
    """Those of them of which something is told that is no good sign."""
    on_nodes: OnNodes = {}
    left: dict[RunKey, Told] = {}
    """Of runs that were left on lost clusters."""


EMPTY: Final = WorkloadEntry()


class RowsLostError(Exception):
    """The tables do not hold the rows of a workload, as the log says they must."""


def restored(chain: Chain[Workload], row: WorkloadRow | None, runs: list[PodRow]) -> WorkloadEntry:
    """The entry of a chain whose rows stand in the tables: they give what the state does not keep. Raises
    RowsLostError.
    """
    state = chain.state
    if not state.exists:
        return WorkloadEntry(state=state, version=chain.version)
    if row is None or row.version != chain.version:
        there = "no row" if row is None else f"a row of version {row.version}"
        raise RowsLostError(f"workload {state.workload_id} at {chain.version} has {there}: the tables were changed")
    by_key: dict[RunKey, PodRow] = {(run.pod_set, run.index, run.attempt, run.try_): run for run in runs}
    told, warned = MapEdit(PodMap[Told]()), MapEdit(PodMap[Told]())
    on_nodes: OnNodes = {}
    for id_, pod in state.pods.live.items():
        run = by_key.get((indexed(id_[0]), id_[1], pod.attempt, pod.try_))
        if run is not None:
            was = Told(bound_at=run.bound_at, started_at=run.started_at, reason=run.reason, message=run.message)
            told.put(id_, was)
            if was.reason:
                warned.put(id_, was)
        _count(on_nodes, pod, +1)
    left: dict[RunKey, Told] = {}
    for id_, pod in (each for pods in state.left.values() for each in pods.items()):
        run = by_key.get((indexed(id_[0]), id_[1], pod.attempt, pod.try_))
        if run is not None:
            was = Told(bound_at=run.bound_at, started_at=run.started_at, reason=run.reason, message=run.message)
            left[*id_, pod.attempt, pod.try_] = was
    return WorkloadEntry(
        state=state,
        version=chain.version,
        spent=Spent(
            phase_updated_at=row.phase_updated_at,
            pending_micros=row.pending_micros,
            running_micros=row.running_micros,
            started_at=row.started_at,
            exit_code=row.exit_code,
        ),
        asked=Asked.of(state),
        row=row,
        told=told.value(),
        warned=warned.value(),
        on_nodes=on_nodes,
        left=left,
    )


class WorkloadWork:
    """One name's workload while the commits of a batch are folded into it, on one copy.

    Args:
        tells: whether the history is wanted, and rows of the past.
    """

    def __init__(self, key: str, before: WorkloadEntry, *, tells: bool = True) -> None:
        self._key = key
        self._tells = tells
        self._version = before.version
        self._edit = Edit(before.state)
        self._go_on_from(before)

    def _go_on_from(self, before: WorkloadEntry) -> None:
        self._before = before
        """What the rows in the tables, or put so far, are made of."""
        self._spent, self._asked = before.spent, before.asked
        self._of: Whose | None = None
        """Whom it counts for, once that was looked at."""
        self._told = MapEdit(before.told)
        self._warned = MapEdit(before.warned)
        self._on_nodes, self._counts = before.on_nodes, False
        self._left, self._leaves = before.left, False
        self._placed: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        """Names of the nodes and node pools of `_on_nodes`, as long as they stay the same."""
        self._over: dict[RunKey, PodRow] = {}
        """Rows of runs that ended, or were left on a lost cluster."""

    def add(self, commit: Commit, into: Changes) -> None:
        """Raises BrokenChainError where the commit does not follow the one before."""
        check_follows(commit, self._version)
        was, spent, asked = self._edit.state, self._spent, self._asked
        left = None
        if self._tells and spent is not None and asked is not None:
            left = self._leave(was, spent, asked, commit.seq)
        for index, event in enumerate(commit.events):
            if isinstance(event, WorkloadCreated):
                happened = self._create(event, commit, into)
            else:
                happened = self._take(event, commit.record.occurred_at, into.shifts)
            # What did not fit changed nothing, and is no part of the story.
            if happened is not None and self._tells:
                into.history.append(history_row(happened, event, commit, index))
        # A message that waits for the commit's end is written now, as a reader of this moment would see it.
        self._edit.settle()
        if left is not None and was.workload_id == self._edit.state.workload_id:
            now = self._edit.state
            seldom = self._asked is not asked or (was.owner, was.cluster_id) != (now.owner, now.cluster_id)
            if spent is not None and asked is not None and seldom:
                _leaving.say_seldom(left, self._facts(was, spent, asked))
            into.leave("workloads", left)
        self._version = commit.seq

    def finish(self, into: Changes) -> WorkloadEntry:
        """Put the rows as they are now. Must be the last call."""
        return self._put(self._edit.value(), into)

    # -- one event ---------------------------------------------------------------------------------------------------

    def _create(self, event: WorkloadCreated, commit: Commit, into: Changes) -> Happened | None:
        """Another life of the name begins: the rows of the one that is over stay as it left them."""
        live, over = self._edit.pods.live.items(), self._edit.value()
        self._edit = Edit(over)
        if not take(self._edit, event):
            return None
        at = commit.record.occurred_at
        if over.living:
            self._close(over, live, at, into.shifts)
        self._put(over, into)
        self._go_on_from(EMPTY)
        self._spent = Spent(phase_updated_at=at)
        self._asked = Asked.of(self._edit.state)
        into.shifts.wait(self._whose(self._edit.state), at)
        return Happened(was=over, state=self._edit.state, asked=self._asked, live=0)

    def _take(self, event: WorkloadEvent, at: datetime, shifts: HourChanges) -> Happened | None:
        edit = self._edit
        was, pod, told, fresh, live = edit.state, None, _NOTHING_TOLD, (), ()
        if is_of_pod(event):
            id_ = pod_id(event.pod)
            pod, told = edit.pods.live.get(id_), self._told.get(id_) or _NOTHING_TOLD
        elif isinstance(event, PodsBound):
            ids = (pod_id(placement.pod) for placement in event.placements)
            fresh = tuple(id_ for id_ in ids if edit.pods.live.get(id_) is None)
        elif isinstance(event, WorkloadDeleted | ClusterLeft):
            live = edit.pods.live.items()
        elif isinstance(event, LeftPodEnded):
            pod = was.left.get(event.cluster_id, PodMap[Pod]()).get(pod_id(event.pod))
        if not take(edit, event):
            return None
        state, asked = edit.state, self._asked
        assert self._spent is not None, "nothing happens to a workload before it is created"
        assert asked is not None, "a workload asks for something"
        if state.deleted_at is not None:
            self._close(was, live, at, shifts)
        elif state.phase is not was.phase:
            self._wait(was, state, at, shifts)
        if state.phase is not was.phase:
            self._spent = replace(_stayed(self._spent, was.phase, at), phase_updated_at=at)
        changed = state.spec is not asked.spec or state.beside is not asked.beside
        if changed or (state.owner, state.cluster_id) != (was.owner, was.cluster_id):
            self._asked, self._of = Asked.of(state) if changed else asked, None
            self._move(whose(was, asked.priority_class), state, at, shifts)
        if isinstance(event, LeftPodEnded):
            if pod is not None:
                self._left_ended(state, event, pod)
        elif isinstance(event, ClusterLeft):
            self._leave_behind(was, event, live, at, shifts)
        elif is_of_pod(event):
            if pod is not None:
                self._take_of_pod(state, event, pod, told)
                if type(event) in _ENDS:
                    shifts.reserve(self._whose(state), pod, _ended_at(told, at), sign=-1)
        else:
            self._take_of_workload(event, self._spent, fresh, at)
            for id_ in fresh:
                fresh_pod = edit.pods.live.get(id_)
                if fresh_pod is not None:
                    shifts.reserve(self._whose(state), fresh_pod, at, runs=1)
        return Happened(
            was=was, state=state, asked=asked, live=edit.pods.live.size, pod=pod, started_at=told.started_at
        )

    # -- hourly use --------------------------------------------------------------------------------------------------

    def _whose(self, state: Workload) -> Whose:
        if self._of is None:
            self._of = whose(state, "" if self._asked is None else self._asked.priority_class)
        return self._of

    def _wait(self, was: Workload, state: Workload, at: datetime, shifts: HourChanges) -> None:
        """The phase changes: it begins to wait, or waits no longer. As `_stayed` has it, stay by stay. All of it counts
        for whom it counted before: `_move` carries over what the same event gives to another.
        """
        assert self._spent is not None, "it is in a phase"
        since, waited, waits = self._spent.phase_updated_at, was.phase in WAITING, state.phase in WAITING
        if waited and waits and at >= since:
            return
        if waited:
            shifts.wait(self._whose(was), max(at, since), sign=-1)
        if waits:
            shifts.wait(self._whose(was), at)

    def _move(self, before: Whose, state: Workload, at: datetime, shifts: HourChanges) -> None:
        """Its priority, owner or cluster changes: what it holds or waits for counts for the new one from now on."""
        after = self._whose(state)
        if before == after:
            return
        if state.phase in WAITING:
            shifts.wait(before, at, sign=-1)
            shifts.wait(after, at)
        for _, pod in self._edit.pods.live.items():  # noqa: PERF102 (it has no values)
            shifts.reserve(before, pod, at, sign=-1)
            shifts.reserve(after, pod, at)

    def _close(self, was: Workload, live: Sequence[tuple[PodId, Pod]], at: datetime, shifts: HourChanges) -> None:
        """It is over: whatever it waits for, or still holds, counts no longer."""
        assert self._spent is not None, "it was there"
        if was.phase in WAITING:
            shifts.wait(self._whose(was), max(at, self._spent.phase_updated_at), sign=-1)
        for id_, pod in live:
            told = self._told.get(id_) or _NOTHING_TOLD
            shifts.reserve(self._whose(was), pod, _ended_at(told, at), sign=-1)

    def _leave_behind(
        self, was: Workload, event: ClusterLeft, live: Sequence[tuple[PodId, Pod]], at: datetime, shifts: HourChanges
    ) -> None:
        """Its runs are to end, and nobody sees when. What they hold counts for nobody from now on."""
        of = whose(was, "" if self._asked is None else self._asked.priority_class)
        for id_, pod in live:
            told = self._told.get(id_) or _NOTHING_TOLD
            shifts.reserve(of, pod, _ended_at(told, at), sign=-1)
            told = replace(told, reason=event.reason, message=clean(event.message))
            self._left_told()[*id_, pod.attempt, pod.try_] = told
            stopping = replace(pod, phase=PodPhase.STOPPING)
            self._over[*id_, pod.attempt, pod.try_] = _run(
                RunFacts(workload_id=was.workload_id, pod_set=id_[0], index=id_[1], pod=stopping, told=told)
            )
        self._told = MapEdit(PodMap[Told]())
        self._warned = MapEdit(PodMap[Told]())
        self._on_nodes, self._counts, self._placed = {}, True, None

    def _left_ended(self, state: Workload, event: LeftPodEnded, pod: Pod) -> None:
        id_ = pod_id(event.pod)
        key = (*id_, pod.attempt, pod.try_)
        told = self._left_told().pop(key, _NOTHING_TOLD)
        end = End(phase=_LEFT_ENDS[event.how], at=event.at, exit_code=_code(event.exit_code))
        self._over[key] = _run(
            RunFacts(workload_id=state.workload_id, pod_set=id_[0], index=id_[1], pod=pod, told=told, end=end)
        )

    def _left_told(self) -> dict[RunKey, Told]:
        """To be changed."""
        if not self._leaves:
            self._left, self._leaves = self._left.copy(), True
        return self._left

    # -- what an event changes -----------------------------------------------------------------------------------------

    def _take_of_workload(self, event: WorkloadEvent, spent: Spent, fresh: tuple[PodId, ...], at: datetime) -> None:
        match event:
            case PodsBound():
                for id_ in fresh:
                    pod = self._edit.pods.live.get(id_)
                    if pod is not None:
                        self._told.put(id_, Told(bound_at=at))
                        self._count(pod, +1)
                        if self._over:
                            self._over.pop((*id_, pod.attempt, pod.try_), None)
            case WorkloadCompleted():
                self._spent = replace(spent, exit_code=0)
            case WorkloadFailed():
                self._spent = replace(spent, exit_code=_code(event.exit_code))
            case WorkloadDeleted():
                # Its last stay in a phase ends with it.
                self._spent = _stayed(spent, self._edit.state.phase, at)
                self._told = MapEdit(PodMap[Told]())
                self._warned = MapEdit(PodMap[Told]())
                self._on_nodes, self._counts, self._placed = {}, True, None
            case _:
                pass

    def _take_of_pod(self, state: Workload, event: PodEvent, pod: Pod, told: Told) -> None:
        id_ = pod_id(event.pod)
        match event:
            case PodStarting():
                # What was warned of holds on while it starts: a warning comes before the word that it does.
                if not told.reason or pod.phase is PodPhase.UNKNOWN:
                    told = replace(told, reason="", message=clean(event.message))
            case PodRunning():
                spent = self._spent
                if spent is not None and spent.started_at is None:
                    self._spent = replace(spent, started_at=event.at)
                # One that was out of sight began before.
                told = replace(_calm(told), started_at=told.started_at or event.at)
            case PodUnreachable() | PodWarned():
                told = replace(told, reason=clean(event.reason), message=clean(event.message))
            case PodSucceeded() | PodFailed() | PodInterrupted() | PodStopped():
                self._over[*id_, pod.attempt, pod.try_] = _over(state.workload_id, event, pod, told)
                if self._told.get(id_) is not None:
                    self._told.take(id_)
                if self._warned.get(id_) is not None:
                    self._warned.take(id_)
                self._count(pod, -1)
                return
        self._told.put(id_, told)
        if told.reason:
            self._warned.put(id_, told)
        elif self._warned.get(id_) is not None:
            self._warned.take(id_)

    def _count(self, pod: Pod, sign: int) -> None:
        if not self._counts:
            self._on_nodes, self._counts = self._on_nodes.copy(), True
        if _count(self._on_nodes, pod, sign):
            self._placed = None

    # -- rows --------------------------------------------------------------------------------------------------------

    def _put(self, state: Workload, into: Changes) -> WorkloadEntry:
        """Put the rows of a state that differ from those before; the entry that they are made of."""
        before, spent, asked = self._before, self._spent, self._asked
        if spent is None or asked is None:
            return WorkloadEntry(state=state, version=self._version)
        row = _workload(self._facts(state, spent, asked))
        warned = self._warned.value()
        into.add([Put("workloads", row)])
        into.moved.append((before.row, row))
        self._put_runs(state, into)
        was, due = due_row(before.row), due_row(row)
        if was != due:
            into.differences("due", {0: was} if was else {}, {0: due} if due else {})
        return WorkloadEntry(
            state=state,
            version=self._version,
            spent=spent,
            asked=asked,
            row=row,
            told=self._told.value(),
            warned=warned,
            on_nodes=self._on_nodes,
            left=self._left,
        )

    def _facts(self, state: Workload, spent: Spent, asked: Asked) -> WorkloadFacts:
        nodes, pools = self._where()
        return WorkloadFacts(
            key=self._key,
            version=self._version,
            state=state,
            pods=self._edit.pods,
            spent=spent,
            asked=asked,
            warning=_warning(self._warned.value()) if state.phase is Phase.INITIALIZING else "",
            current_nodes=nodes,
            current_node_pools=pools,
        )

    def _leave(self, was: Workload, spent: Spent, asked: Asked, until_seq: int) -> Any:
        """What is left of the row as the commit before made it."""
        row = self._before.row
        if row is not None and row.version == self._version:
            return _leaving.of_row(row, until_seq)
        return _leaving.of_state(self._facts(was, spent, asked), until_seq)

    def _where(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Nodes and node pools, by name; those of a wide workload are not put in order for each fact."""
        row = self._before.row
        if row is not None and self._on_nodes is self._before.on_nodes:
            return row.current_nodes, row.current_node_pools
        if self._placed is None:
            nodes = {clean(node) for node, _ in self._on_nodes}
            self._placed = tuple(sorted(nodes)), tuple(sorted({clean(pool) for _, pool in self._on_nodes}))
        return self._placed

    def _put_runs(self, state: Workload, into: Changes) -> None:
        id_, over = state.workload_id, self._over
        put: list[PodRow] = []
        for (name, index), (old, new) in changed(self._before.state.pods, state.pods).items():
            same = old is not None and new is not None and (old.attempt, old.try_) == (new.attempt, new.try_)
            if old is not None and not same and (name, index, old.attempt, old.try_) not in over:
                into.add([Removed("pods", _run(RunFacts(workload_id=id_, pod_set=name, index=index, pod=old)))])
            if new is not None:
                told = self._told.get((name, index)) or _NOTHING_TOLD
                put.append(_run(RunFacts(workload_id=id_, pod_set=name, index=index, pod=new, told=told)))
        into.add(Put("pods", row) for row in over.values())
        into.add(Put("pods", row) for row in put)


def _warning(warned: PodMap[Told]) -> str:
    """What is told of the first of the pods that were warned of, and of how many others something is."""
    first = warned.first()
    if first is None:
        return ""
    (pod_set, index), told = first
    others = f" (and of {warned.size - 1} more)" if warned.size > 1 else ""
    return f"pod {clean(pod_set)}-{index}: {told.message or told.reason.replace('_', ' ')}{others}"


def due_row(row: WorkloadRow | None) -> DueRow | None:
    """What the auto-deletion waits for; None where it waits for nothing."""
    if row is None or row.delete_at is None or row.deleted_at is not None:
        return None
    return DueRow(workload_id=row.id, generation=row.generation, due_at=row.delete_at)


def _stayed(spent: Spent, phase: Phase, until: datetime) -> Spent:
    """With the stay in a phase that ends now added up."""
    stayed = max((until - spent.phase_updated_at) // MICROSECOND, 0)
    if phase in WAITING:
        return replace(spent, pending_micros=fit(spent.pending_micros + stayed))
    if phase in RUNS:
        return replace(spent, running_micros=fit(spent.running_micros + stayed))
    return spent


def _ended_at(told: Told, at: datetime) -> datetime:
    """Not before the run was given its node: the clocks of two services differ."""
    return at if told.bound_at is None else max(at, told.bound_at)


def _over(
    workload_id: str, event: PodSucceeded | PodFailed | PodInterrupted | PodStopped, pod: Pod, told: Told
) -> PodRow:
    """The row of a run that ends with this event."""
    match event:
        case PodSucceeded():
            end = End(phase=SUCCEEDED, at=event.at, exit_code=0)
        case PodFailed():
            end = End(phase=FAILED, at=event.at, exit_code=_code(event.exit_code))
        case PodInterrupted():
            end = End(phase=INTERRUPTED, at=event.at)
        case PodStopped():
            end = End(phase=STOPPED, at=event.at, exit_code=_code(event.exit_code))
    if isinstance(event, PodFailed | PodInterrupted):
        told = replace(told, reason=clean(event.reason), message=clean(event.message))
    else:
        told = _calm(told)
    name, index = pod_id(event.pod)
    return _run(RunFacts(workload_id=workload_id, pod_set=name, index=index, pod=pod, told=told, end=end))


def _calm(told: Told) -> Told:
    """Without what was said of its start, or warned of: that is over with this."""
    return replace(told, reason="", message="") if told.reason or told.message else told


def _count(on_nodes: OnNodes, pod: Pod, sign: int) -> bool:
    """Whether there are others nodes now."""
    node = (pod.node_name, pod.pool)
    before = on_nodes.get(node, 0)
    count = before + sign
    if count:
        on_nodes[node] = count
    else:
        on_nodes.pop(node, None)
    return not (before and count)


def _code(code: int | None) -> int | None:
    return None if code is None else fit(code)
