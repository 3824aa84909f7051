"""Plays a script: the scheduler's own plans, on a clock that jumps from one thing that happens to the next.

Pods run for as long as the script says. What people did, they do again at the same times. The same job always has the
same outcome.
"""

import contextlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, assert_never

from events.commit import Commit
from events.department import DEFAULT_DEPARTMENT, department_key
from events.ids import node_key, project_key
from events.node import NodeChanged, NodeRegistered, NodeRemoved
from events.phases import PodPhase
from events.workload.commands import (
    ChangeWorkload,
    DeleteWorkload,
    EndAtLimit,
    PodFact,
    PodFactKind,
    ReportPods,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
)
from events.workload.pod import Pod, PodId, PodRef
from events.workload.pods import changed, changed_left
from events.workload.state import Workload
from services.scheduler.fold import DEFAULT_HEAD_START
from services.scheduler.policy.registry import POLICY
from services.scheduler.simulation.change import department_changed, head_start_of, policy_of, project_changed
from services.scheduler.simulation.figures import Figures
from services.scheduler.simulation.ledger import Ledger, RefusedError, RestlessError
from services.scheduler.simulation.meter import Meter
from services.scheduler.simulation.script import Act, Job, Run, Runs, events_of, restored

MOST_PLANS: Final = 1_000
"""In a row: ten thousand pods that come at once take five."""
TELL_EVERY: Final = 50
"""Moments between two words on how far it is."""
_UNKNOWN: Final = Runs()

type Progress = Callable[[float, float], None]
"""Told (seconds simulated, seconds to simulate): of a script without an end, those until the last act."""


@dataclass(slots=True)
class _Going:
    """One run of a pod that holds a node."""

    run: Run
    began: datetime | None
    """When its process began to run; None: it does not yet."""
    number: int
    """Of the run among those of its pod."""


@dataclass(frozen=True, slots=True)
class _Fact:
    """What becomes of one run."""

    key: str
    ref: PodRef
    kind: PodFactKind


class Simulation:
    """Mutable; one job."""

    def __init__(self, job: Job, progress: Progress = lambda _done, _total: None) -> None:
        script = job.script
        self._script, self._change, self._progress = script, job.change, progress
        policy = policy_of(POLICY, job.change.policy)
        head_start = head_start_of(DEFAULT_HEAD_START, job.change.policy)
        self.ledger = Ledger(script.begin, policy=policy, head_start=head_start, seq=script.seq)
        self.ledger.fold.restore(script.seq, restored(script), beside=script.beside)
        self._due: list[tuple[datetime, int, Act | _Fact]] = []
        self._count = 0
        self.plans = 0
        """That were made."""
        self._going: dict[tuple[str, PodId], _Going] = {}
        """By workload id."""
        self._done: dict[tuple[str, PodId], tuple[int, float]] = {}
        """Likewise: how many of a pod's runs are over, and how long evicted ones had run since."""
        for each in script.acts:
            self._push(each.at, each)
        self._begin_otherwise()
        self.meter = Meter(self.ledger.fold, policy, script.begin, script.loaded_until, settings=script.settings)
        self.ledger.told = self._told
        for key, chain in self.ledger.fold.workloads.items():
            self._take_up(key, chain.state)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> Figures:
        """To its end. Raises RestlessError."""
        script, moments = self._script, 0
        self._plan()
        while (at := self._next()) is not None:
            if script.end is not None and at > script.end:
                break
            self.meter.until(at)
            self.ledger.now = at
            if self._happen(at):
                self._plan()
            moments += 1
            if moments % TELL_EVERY == 0:
                self._tell(at)
        if script.end is not None:
            self.meter.until(script.end)
        return self.meter.figures()

    def _next(self) -> datetime | None:
        """When something happens; None where nothing does any more."""
        due = self.ledger.fold.next_due()
        # What is due and was looked at in vain is looked at again when something happens.
        times = [due] if due is not None and due > self.ledger.now else []
        if self._due:
            times.append(self._due[0][0])
        elif self._script.end is None and not self._waits_for_time():
            return None
        return min(times, default=None)

    def _waits_for_time(self) -> bool:
        """Whether anything may start with nothing but time: that is, a run that failed waits before its next one, or a
        minimum runtime must pass. Otherwise only reasons would be told again, for ever.
        """
        return any(chain.state.pods.waiting.size for chain in self.ledger.fold.workloads.values())

    def _tell(self, at: datetime) -> None:
        end = self._script.end or max(self._script.loaded_until, at)
        begin = self._script.begin
        self._progress((at - begin).total_seconds(), (end - begin).total_seconds())

    def _happen(self, at: datetime) -> bool:
        """All that does now; whether the scheduler has anything to do by it: that pods run changes no place."""
        plans = not self._due or self._due[0][0] > at
        facts: dict[str, list[PodFact]] = {}
        while self._due and self._due[0][0] <= at:
            _, _, what = heapq.heappop(self._due)
            if isinstance(what, _Fact):
                fact = self._fact(what)
                if fact is not None:
                    plans = plans or fact.kind != "running"
                    facts.setdefault(what.key, []).append(fact)
            else:
                plans = True
                self._report(facts)
                self._act(what)
        self._report(facts)
        return plans or self._looks_again(at)

    def _looks_again(self, at: datetime) -> bool:
        due = self.ledger.fold.next_due()
        return due is not None and due <= at

    def _plan(self) -> None:
        """Until nothing is left to plan."""
        for _ in range(MOST_PLANS):
            planned = self.ledger.cycle()
            self.plans += 1
            if planned.empty and not planned.put_off:
                return
            if not planned.evictions and self.ledger.fold.is_idle(self.ledger.now):
                return
        raise RestlessError(MOST_PLANS)

    def _push(self, at: datetime, what: Act | _Fact) -> None:
        self._count += 1
        heapq.heappush(self._due, (at, self._count, what))

    # -- what people and clusters do -----------------------------------------------------------------------------------

    def _act(self, act: Act) -> None:
        if act.does is None:
            if act.aggregate == "node" and self._change.nodes and self._is_replaced(act):
                return
            self.ledger.write(act.aggregate, act.key, events_of(act))
            self._change_bounds(act.aggregate, act.key)
            return
        state: Workload = self.ledger.chain("workload", act.key).state
        if state.workload_id == act.workload_id:
            # What makes no sense here, such as suspending what has completed meanwhile, is refused.
            with contextlib.suppress(RefusedError):
                self.ledger.do("workload", act.key, _command(act, state))

    def _is_replaced(self, act: Act) -> bool:
        events = events_of(act)
        cluster_id = next((e.cluster_id for e in events if isinstance(e, NodeRegistered)), "")
        return (cluster_id or self.ledger.chain("node", act.key).state.cluster_id) in self._change.nodes

    # -- what is otherwise ---------------------------------------------------------------------------------------------

    def _begin_otherwise(self) -> None:
        for chain in [*self.ledger.fold.projects.values()]:
            self._change_bounds("project", project_key(chain.state.name))
        for name in self._change.departments:
            self._change_bounds("department", department_key(name))
        for cluster_id in self._change.nodes:
            self._replace_nodes(cluster_id)

    def _change_bounds(self, aggregate: str, key: str) -> None:
        """Whatever the log says of a project or department: what is changed stays so."""
        state = self.ledger.chain(aggregate, key).state
        event: Any = None
        match aggregate:
            case "project" if state.exists and (bounds := self._change.projects.get(state.name)) is not None:
                event = project_changed(state, bounds)
            case "department":
                names = (name for name in self._change.departments if department_key(name) == key)
                if (name := next(names, None)) is not None and (state.exists or name == DEFAULT_DEPARTMENT):
                    event = department_changed(state, self._change.departments[name], self.ledger.now)
            case _:
                pass
        if event is not None:
            self.ledger.write(aggregate, key, (event,))

    def _replace_nodes(self, cluster_id: str) -> None:
        wanted = {node_key(cluster_id, each.name): each for each in self._change.nodes[cluster_id]}
        there = {
            key: chain.state
            for key, chain in self.ledger.fold.nodes.items()
            if chain.state.cluster_id == cluster_id and chain.state.present
        }
        gone = there.keys() - wanted.keys()
        for key in sorted(gone):
            self.ledger.write("node", key, (NodeRemoved(),))
        for key, node in wanted.items():
            if key not in there:
                self.ledger.write(
                    "node", key, (NodeRegistered(cluster_id=cluster_id, name=node.name, facts=node.facts),)
                )
            elif there[key].facts != node.facts:
                self.ledger.write("node", key, (NodeChanged(facts=node.facts),))
        for key, chain in [*self.ledger.fold.workloads.items()]:
            state: Workload = chain.state
            lost = [(id_, pod) for id_, pod in state.pods.live.items() if pod.node_key in gone]
            facts = tuple(
                PodFact(pod=_ref(*each), kind="interrupted", at=self.ledger.now, reason="node_lost") for each in lost
            )
            if facts:
                self.ledger.do("workload", key, ReportPods(workload_id=state.workload_id, facts=facts))

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _take_up(self, key: str, state: Workload) -> None:
        """Pods that hold a node when it begins."""
        for id_, pod in sorted(state.pods.live.items()):
            if pod.phase is PodPhase.STOPPING:
                self._stops(key, id_, pod)
                continue
            bound = self._runs(state).bound.get(_name(id_), self._script.begin)
            self._begins(key, state, id_, pod, bound=bound)
        for chain in self.ledger.fold.clusters.values():
            if chain.state.connected or chain.state.removed:
                self._end_left(key, state, chain.state.cluster_id)

    def _told(self, commit: Commit, before: Any, after: Any) -> None:
        self.meter.took(commit, before, after)
        if commit.aggregate == "cluster" and (after.connected or after.removed) and before.cluster_id:
            for key, chain in [*self.ledger.fold.workloads.items()]:
                self._end_left(key, chain.state, after.cluster_id)
        if commit.aggregate != "workload":
            return
        for _, id_, _, new in changed_left(before.left, after.left):
            if new is not None:
                self._cut(after, id_)
        for id_, (old, new) in sorted(changed(before.pods, after.pods).items()):
            if new is None:
                continue
            if new.phase is PodPhase.BOUND and (old is None or old.phase is PodPhase.PENDING):
                self._begins(commit.key, after, id_, new, bound=self.ledger.now)
            elif new.phase is PodPhase.STOPPING and (old is None or old.phase is not PodPhase.STOPPING):
                self._cut(after, id_)
                self._stops(commit.key, id_, new)

    def _runs(self, state: Workload) -> Runs:
        return self._script.runs.get(state.workload_id, _UNKNOWN)

    def _begins(self, key: str, state: Workload, id_: PodId, pod: Pod, *, bound: datetime) -> None:
        """What becomes of a run that has a node since `bound`, if nothing comes between."""
        of = (state.workload_id, id_)
        number, ran = self._done.get(of, (0, 0.0))
        run, ref = self._runs(state).run(_name(id_), number), _ref(id_, pod)
        going = _Going(run, None, number)
        starts = bound if run.starts_after is None else bound + timedelta(seconds=run.starts_after)
        if pod.phase is PodPhase.RUNNING:
            going.began = starts
        elif run.starts_after is not None:
            self._push(max(starts, self.ledger.now), _Fact(key, ref, "running"))
        self._going[of] = going
        if run.lasts is not None:
            goes_on = self._script.settings.goes_on or run.went_on
            lasts = max(run.lasts + run.before - ran, 0.0) if goes_on else run.lasts
            self._push(max(starts + timedelta(seconds=lasts), self.ledger.now), _Fact(key, ref, run.ends))

    def _cut(self, state: Workload, id_: PodId) -> None:
        """A run was told to end before it was over."""
        of = (state.workload_id, id_)
        going = self._going.pop(of, None)
        if going is not None and going.began is not None:
            number, ran = self._done.get(of, (0, 0.0))
            since = (self.ledger.now - going.began).total_seconds()
            saved = since - self._script.settings.lost(since) if self._script.settings.goes_on else since
            self._done[of] = number, ran + saved

    def _stops(self, key: str, id_: PodId, pod: Pod) -> None:
        seconds = min(self._script.settings.stop_seconds, self._grace(key))
        self._push(self.ledger.now + timedelta(seconds=seconds), _Fact(key, _ref(id_, pod), "stopped"))

    def _end_left(self, key: str, state: Workload, cluster_id: str) -> None:
        """A lost cluster is back: what was left there is told to end."""
        left = state.left.get(cluster_id)
        for id_, pod in sorted(left.items()) if left is not None else ():
            self._stops(key, id_, pod)

    def _grace(self, key: str) -> float:
        return float(self.ledger.chain("workload", key).state.spec.termination_grace_period_seconds)

    def _fact(self, what: _Fact) -> PodFact | None:
        """None where the run is over, or is told to end, meanwhile."""
        state: Workload = self.ledger.chain("workload", what.key).state
        id_ = what.ref.pod_set, what.ref.index
        left = (pods.get(id_) for pods in state.left.values())
        if what.kind == "stopped" and any(each is not None and each.is_run(what.ref) for each in left):
            return PodFact(pod=what.ref, kind="stopped", at=self.ledger.now)
        pod = state.pods.live.get(id_)
        if pod is None or not pod.is_run(what.ref) or (pod.phase is PodPhase.STOPPING) != (what.kind == "stopped"):
            return None
        of, now = (state.workload_id, id_), self.ledger.now
        going = self._going.get(of)
        if what.kind == "running" and going is not None:
            going.began = now
        elif what.kind != "stopped" and going is not None:
            self._done[of] = going.number + 1, 0.0
            del self._going[of]
        code = None if going is None or what.kind not in {"succeeded", "failed"} else going.run.exit_code
        return PodFact(pod=what.ref, kind=what.kind, at=now, exit_code=code)

    def _report(self, facts: dict[str, list[PodFact]]) -> None:
        for key, of_workload in facts.items():
            workload_id = self.ledger.chain("workload", key).state.workload_id
            self.ledger.do("workload", key, ReportPods(workload_id=workload_id, facts=tuple(of_workload)))
        facts.clear()


def _command(act: Act, state: Workload) -> Any:
    id_ = act.workload_id
    match act.does:
        case "suspend":
            return SuspendWorkload(workload_id=id_)
        case "resume":
            return ResumeWorkload(workload_id=id_)
        case "delete":
            return DeleteWorkload(workload_id=id_)
        case "priority":
            priority: Any = act.value
            return ChangeWorkload(workload_id=id_, priority_class=priority)
        case "scale":
            was = 0 if state.inference is None else state.inference.replicas
            return ScaleInference(
                workload_id=id_, replicas=int(act.value), was=was, reason="load", message="as it was in the log"
            )
        case "limit":
            limit: Any = act.value
            return EndAtLimit(workload_id=id_, limit=limit, seconds=0, attempt=state.attempt)
        case None:
            raise AssertionError("these are events")
        case _:
            assert_never(act.does)


def _name(id_: PodId) -> str:
    return f"{id_[0]}-{id_[1]}"


def _ref(id_: PodId, pod: Pod) -> PodRef:
    return PodRef(pod_set=id_[0], index=id_[1], attempt=pod.attempt, try_=pod.try_)
