"""From the commits of a log to a script that plays a stretch of it again, and how that stretch went. Pure.

Whoever reads the log hands over every commit from the beginning on, in order, and says where the stretch is. What comes
behind its end is read for one thing alone: how long the runs lasted that went on there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any, Final

from msgspec.structs import replace

from events.aggregate import AGGREGATES
from events.commit import Commit
from events.node import (
    NodeChanged,
    NodeCordoned,
    NodeDrainStarted,
    NodeRegistered,
    NodeRemoved,
    NodeUncordoned,
)
from events.phases import IDLE_GPU_LIMIT, PENDING_LIMIT, RUNTIME_LIMIT
from events.workload.changes import WorkloadChanged
from events.workload.evictions import PodsEvicted
from events.workload.kinds import KINDS
from events.workload.life import (
    WorkloadCreated,
    WorkloadDeletionRequested,
    WorkloadFailed,
    WorkloadLimitReached,
    WorkloadResumed,
    WorkloadSuspended,
)
from events.workload.lost_cluster import ClusterLeft
from events.workload.pod import (
    PodFailed,
    PodInterrupted,
    PodRef,
    PodRunning,
    PodsBound,
    PodStopped,
    PodSucceeded,
)
from events.workload.sizes import WorkloadScaled
from services.runtime.log.folding import take
from services.scheduler.batches import ACTOR as SCHEDULER
from services.scheduler.fold import FOLDED, SchedulingState
from services.scheduler.policy.registry import POLICY
from services.scheduler.simulation.figures import Figures
from services.scheduler.simulation.meter import Meter
from services.scheduler.simulation.script import (
    STOP_SECONDS,
    USUAL_SECONDS,
    Act,
    DoneTo,
    End,
    Run,
    Runs,
    Script,
    Settings,
    act,
    stored,
)

SETTLE_COMMITS: Final = 2_000
"""What has ended is forgotten so often: memory does not grow with the log."""
LEAST_RUNS: Final = 3
"""That ended, before others like them are taken to last as long."""
_OF_NODES: Final = (NodeRegistered, NodeChanged, NodeRemoved, NodeCordoned, NodeUncordoned, NodeDrainStarted)
_WHOLE: Final = frozenset({"cluster", "project", "department"})
"""Kinds of aggregates of which every event comes from outside of the scheduler."""
_LIMITS: Final = {RUNTIME_LIMIT: "runtime", IDLE_GPU_LIMIT: "idle_gpu", PENDING_LIMIT: "pending"}
_KINDS: Final = frozenset(aggregate.name for aggregate in FOLDED)
_ITSELF: Final = "itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A place in the log: behind a commit, or at a time. The first of them, where both are given."""

    seq: int | None = None
    at: datetime | None = None

    def is_before(self, commit: Commit, at: datetime) -> bool:
        """Whether the commit, made at this time of the log, is behind it. Nothing is cut through a batch."""
        if self.seq is not None:
            return commit.batch_end > self.seq
        return self.at is not None and at > self.at


@dataclass(slots=True)
class _Open:
    """One run of a pod that holds a node."""

    ref: PodRef
    bound: datetime
    began: datetime | None = None
    told: datetime | None = None
    """When it was told to end."""
    evicted: bool = False


@dataclass(slots=True)
class _Known:
    """What is known of one workload; all by pod, as `POD_SET-INDEX`."""

    groups: tuple[tuple[str, ...], ...] = ()
    """What its runs are like, the narrowest first."""
    open: dict[str, _Open] = field(default_factory=dict[str, _Open])
    of: dict[str, list[Run]] = field(default_factory=dict[str, list[Run]])
    """Runs that ended by themselves, behind the beginning of the stretch."""
    before: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Seconds that each of the evicted runs had run since the last one that ended by itself."""
    cut: set[str] = field(default_factory=set[str])
    """Pods whose last run was told to end."""
    bound: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """When the stretch began."""
    ran: bool = False
    """Whether any of its pods ever had a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    script: Script
    figures: Figures
    """How the stretch went in the log."""
    assumed: int
    """Workloads of which it is assumed how long they run."""


class EmptyError(Exception):
    """The log has nothing behind the beginning of the stretch."""


class PastReader:
    """Mutable; one stretch of one log.

    Args:
        begin: the stretch is as of this moment at first; None: the log's beginning.
        end: it ends here; None: where the log does.
        newest: the time of the log's last commit, about.
    """

    def __init__(self, begin: Moment | None, end: Moment | None, *, newest: datetime) -> None:
        self._first, self._last, self._newest = begin or Moment(seq=0), end, newest
        self.fold = SchedulingState()
        self._at: datetime | None = None
        """Of the log: the latest time of all commits up to here."""
        self._begun: Script | None = None
        self._there: set[str] = set()
        """Ids of the workloads that there are when the stretch begins, or that come in it."""
        self._meter: Meter | None = None
        self._figures: Figures | None = None
        self._end: datetime | None = None
        self._taken = 0
        self._acts: list[Act] = []
        self._known: dict[str, _Known] = {}
        """By workload id."""
        self._like: dict[tuple[str, ...], list[float]] = {}
        """How long runs lasted that ended by themselves, by what they are like."""
        self._stops: list[float] = []
        """How long it took from being told to end until a pod had ended."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def take(self, commit: Commit) -> None:
        """The next commit of the log. Raises UnreadableMessageError."""
        moment = commit.record.occurred_at
        before, at = self._at, moment if self._at is None else max(moment, self._at)
        if self._begun is None and self._first.is_before(commit, at):
            self._begin(self._first.at or before or at)
        last = None if self._begun is None or self._end is not None else self._last
        if last is not None and last.is_before(commit, at):
            self._ends(last.at or before or at)
        self._at = at
        self._taken += 1
        if commit.aggregate == "workload":
            self._look_at_runs(commit, at)
        if commit.aggregate in _KINDS and self._end is None:
            self._apply(commit, at)
        if self._taken % SETTLE_COMMITS == 0:
            self.fold.settle(at)

    def _apply(self, commit: Commit, at: datetime) -> None:
        chain = self.fold.chains[commit.aggregate].get(commit.key)
        initial = AGGREGATES[commit.aggregate].initial
        before = initial if chain is None else chain.state
        version = 0 if chain is None else chain.version
        if commit.record.parent_seq != version:
            # Whoever read the log passed by what was declared void, or does not tell what a commit follows.
            commit = replace(commit, record=replace(commit.record, parent_seq=version))
        if self._meter is not None:
            self._meter.until(at)
            self._acts += self._acts_of(commit, at, before)
        unreadable = take(self.fold, [commit])
        if unreadable is not None:
            raise unreadable
        if self._meter is not None:
            chain = self.fold.chains[commit.aggregate].get(commit.key)
            self._meter.took(commit, before, initial if chain is None else chain.state)

    def _begin(self, at: datetime) -> None:
        self.fold.settle(at)
        self._begun = Script(
            begin=at, end=at, loaded_until=at, seq=self.fold.seq, chains=stored(self.fold), beside=self.fold.beside()
        )
        self._there = {chain.state.workload_id for chain in self.fold.workloads.values()}
        self._known = {id_: known for id_, known in self._known.items() if id_ in self._there}
        for known in self._known.values():
            known.of.clear()
            known.bound = {pod: run.bound for pod, run in known.open.items()}
        last = self._newest if self._last is None or self._last.at is None else self._last.at
        self._meter = Meter(self.fold, POLICY, at, max(last, at), settings=Settings())

    def _ends(self, at: datetime) -> None:
        assert self._meter is not None
        self._meter.until(at)
        self._figures, self._end = self._meter.figures(), at

    # -- what comes from outside ---------------------------------------------------------------------------------------

    def _acts_of(self, commit: Commit, at: datetime, state: Any) -> Iterator[Act]:
        if commit.aggregate in _WHOLE:
            yield act(at, commit.aggregate, commit.key, *commit.events)
        elif commit.aggregate == "node" and commit.record.actor != SCHEDULER:
            # What the scheduler does to nodes for maintenance, it does again.
            if events := [event for event in commit.events if isinstance(event, _OF_NODES)]:
                yield act(at, "node", commit.key, *events)
        elif commit.aggregate == "workload":
            for event in commit.events:
                if isinstance(event, WorkloadCreated):
                    self._there.add(event.workload_id)
                    yield act(at, "workload", commit.key, event)
                elif (does := _does(event)) is not None:
                    yield Act(at, "workload", commit.key, (), does[0], state.workload_id, does[1])

    # -- how long runs last --------------------------------------------------------------------------------------------

    def _look_at_runs(self, commit: Commit, at: datetime) -> None:
        known = self._known.setdefault(commit.record.about.id or "", _Known())
        for event in commit.events:
            match event:
                case WorkloadCreated():
                    known.groups = tuple(_groups(event))
                case PodsBound():
                    known.ran = True
                    known.open |= {_pod(each.pod): _Open(each.pod, at) for each in event.placements}
                case PodRunning() if (run := known.open.get(_pod(event.pod))) is not None and run.ref == event.pod:
                    run.began = run.began or at
                case PodsEvicted():
                    for ref in event.pods:
                        if (run := known.open.get(_pod(ref))) is not None:
                            run.told, run.evicted = at, True
                case ClusterLeft():
                    # Nobody sees how they end.
                    known.cut |= known.open.keys()
                    known.open.clear()
                case WorkloadSuspended() | WorkloadDeletionRequested() | WorkloadLimitReached():
                    for run in known.open.values():
                        run.told = run.told or at
                case PodSucceeded() | PodFailed() | PodInterrupted() | PodStopped():
                    self._run_ended(known, event, at)
                case _:
                    pass

    def _run_ended(self, known: _Known, event: Any, at: datetime) -> None:
        pod = _pod(event.pod)
        run = known.open.get(pod)
        if run is None or run.ref != event.pod:
            return
        del known.open[pod]
        lasts = (at - (run.began or run.bound)).total_seconds()
        if isinstance(event, PodStopped):
            known.cut.add(pod)
            if run.told is not None:
                self._stops.append((at - run.told).total_seconds())
            if run.evicted and run.began is not None and run.told is not None:
                known.before.setdefault(pod, []).append((run.told - run.began).total_seconds())
            return
        known.cut.discard(pod)
        before, code = known.before.pop(pod, []), getattr(event, "exit_code", None) or 0
        went_on = lasts < max(before, default=0.0)
        known.of.setdefault(pod, []).append(Run(lasts, _started(run), _end(event), code, sum(before), went_on))
        if isinstance(event, PodSucceeded):
            for group in known.groups:
                self._like.setdefault(group, []).append(lasts)

    # -- the result ----------------------------------------------------------------------------------------------------

    def finish(self, *, goes_on: bool = False) -> Past:
        """To be called once all of the log is read. Raises EmptyError.

        Args:
            goes_on: whether evicted pods are to go on where they were.
        """
        if self._begun is None or self._at is None:
            raise EmptyError
        if self._end is None:
            wanted = None if self._last is None else self._last.at
            self._ends(self._at if wanted is None else max(self._at, wanted))
        assert self._end is not None
        assert self._figures is not None
        runs = {id_: self._runs_of(self._known[id_]) for id_ in sorted(self._there & self._known.keys())}
        script = replace(
            self._begun,
            end=self._end,
            loaded_until=self._end,
            acts=self._acts,
            runs=runs,
            settings=Settings(goes_on=goes_on, stop_seconds=median(self._stops) if self._stops else STOP_SECONDS),
        )
        return Past(script=script, figures=self._figures, assumed=sum(each.assumed for each in runs.values()))

    def _runs_of(self, known: _Known) -> Runs:
        of = {pod: [*runs] for pod, runs in known.of.items()}
        for pod, run in known.open.items():
            of.setdefault(pod, []).append(Run(None, _started(run)))
        for pod in sorted(known.cut - known.open.keys()):
            of.setdefault(pod, []).append(Run(None))
        usual = Run(self._usual(known))
        return Runs(usual, {pod: tuple(runs) for pod, runs in of.items()}, known.bound, assumed=not known.ran)

    def _usual(self, known: _Known) -> float:
        """How long a run of it lasts of which nothing is known."""
        for group in known.groups:
            lasted = self._like.get(group, ())
            if len(lasted) >= (1 if group[0] == _ITSELF else LEAST_RUNS):
                return median(lasted)
        return USUAL_SECONDS


def _started(run: _Open) -> float | None:
    return None if run.began is None else (run.began - run.bound).total_seconds()


def _groups(event: WorkloadCreated) -> Iterator[tuple[str, ...]]:
    beside = event.distributed or event.inference
    sets = KINDS[event.kind].pod_sets(event.spec, beside)
    gpus = sum(each.at_once * each.template.request.gpu_devices for each in sets)
    yield _ITSELF, event.workload_id
    yield event.project_id, event.kind, str(gpus)
    yield event.kind, str(gpus)
    yield (event.kind,)


def _does(event: Any) -> tuple[DoneTo, str] | None:
    """What somebody does to a workload; None where the scheduler or its pods do, or where no place depends on it."""
    match event:
        case WorkloadSuspended():
            return "suspend", ""
        case WorkloadResumed():
            return "resume", ""
        case WorkloadDeletionRequested() if event.reason != "auto_deletion":
            return "delete", ""
        case WorkloadChanged() if event.priority_class is not None:
            return "priority", event.priority_class
        case WorkloadScaled():
            return "scale", str(event.replicas)
        case WorkloadLimitReached() | WorkloadFailed() if event.reason in _LIMITS:
            return "limit", _LIMITS[event.reason]
        case _:
            return None


def _end(event: PodSucceeded | PodFailed | PodInterrupted) -> End:
    match event:
        case PodSucceeded():
            return "succeeded"
        case PodFailed():
            return "failed"
        case PodInterrupted():
            return "interrupted"


def _pod(ref: PodRef) -> str:
    return f"{ref.pod_set}-{ref.index}"
