"""Measures how a log goes: the one that was, as it is read, or one that is simulated. It looks at commits and at the
scheduler's fold, and changes neither.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from events.commit import Commit
from events.ids import key_of_id
from events.node import Node
from events.phases import FINISHED
from events.workload.evictions import PodsEvicted
from events.workload.life import WorkloadCreated
from events.workload.pod import PodsBound, pod_id
from events.workload.state import Workload
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import MAX_PODS_PER_PLAN
from services.scheduler.planning import Planning, Policy
from services.scheduler.simulation.figures import MILLI_PER_HOUR, Figures, How, Sample, Wait, mean, size_of
from services.scheduler.simulation.script import Settings

SAMPLES: Final = 400
"""In the loaded time: as many as a picture shows."""
_BEFORE_A_PLAN: Final = frozenset({"release", "quota"})
"""Phases after which the shares of a plan are known."""


@dataclass(slots=True)
class _Waiting:
    """One workload."""

    project: str
    size: str
    since: datetime
    started: datetime | None = None
    ended: datetime | None = None


class Meter:
    """Mutable; one stretch.

    Args:
        loaded_until: until then, use and shares are measured.
        settings: what is assumed of pods that are evicted.
    """

    def __init__(
        self,
        fold: SchedulingState,
        policy: Policy,
        begin: datetime,
        loaded_until: datetime,
        *,
        settings: Settings,
    ) -> None:
        self._fold, self._policy, self._settings = fold, policy, settings
        self._begin, self._loaded_until, self._now = begin, max(loaded_until, begin), begin
        self._step = max((self._loaded_until - begin) / SAMPLES, timedelta(seconds=1))
        self.next_sample = begin
        self._samples: list[Sample] = []
        self._waiting: dict[str, _Waiting] = {}
        self._open = 0
        """Of these, the ones that neither started nor ended."""
        self._held = self._gpus = self._held_cpu = self._cpu = 0
        """GPUs and CPU, in thousandths."""
        self._sums = [0.0, 0.0, 0.0, 0.0]
        """The same, times seconds, over the loaded time."""
        self._all_held = 0.0
        """As the first of these, over all of the time."""
        self._of_project: dict[str, int] = {}
        """GPUs that each project (by id) holds."""
        self._hours_of: dict[str, float] = {}
        self._evictions = self._evicted_pods = 0
        self._lost_milli_seconds = 0.0
        self._look_around()

    def _look_around(self) -> None:
        """What there is when it begins."""
        for chain in self._fold.nodes.values():
            self._node(Node(), chain.state)
        for chain in self._fold.workloads.values():
            state: Workload = chain.state
            self._holds(state.project_id, state.pods.gpu_milli)
            bound = any(progress.next_index for progress in state.progress.values())
            if not bound and not _is_over(state) and state.created_at is not None:
                self._comes(state, state.created_at)

    # -- what happens --------------------------------------------------------------------------------------------------

    def until(self, now: datetime) -> None:
        """Time goes by until then; nothing happens meanwhile."""
        while self.next_sample <= now:
            self._pass(self.next_sample)
            self._sample()
            self.next_sample += self._step
        self._pass(now)

    def _pass(self, now: datetime) -> None:
        if now <= self._now:
            return
        loaded = (min(now, self._loaded_until) - self._now).total_seconds()
        if loaded > 0:
            amounts = (self._held, self._gpus, self._held_cpu, self._cpu)
            self._sums = [before + loaded * amount for before, amount in zip(self._sums, amounts, strict=True)]
        seconds = (now - self._now).total_seconds()
        self._all_held += seconds * self._held
        for project_id, milli in self._of_project.items():
            self._hours_of[project_id] = self._hours_of.get(project_id, 0.0) + seconds * milli
        self._now = now

    def took(self, commit: Commit, before: Any, after: Any) -> None:
        """A commit changed one aggregate, at the time of the last `until`."""
        if commit.aggregate == "node":
            self._node(before, after)
        if commit.aggregate != "workload":
            return
        if before.workload_id != after.workload_id:
            self._holds(before.project_id, -before.pods.gpu_milli)
            self._ends(before.workload_id)
            before = _nothing(after)
        self._holds(after.project_id, after.pods.gpu_milli - before.pods.gpu_milli)
        for event in commit.events:
            match event:
                case WorkloadCreated():
                    self._comes(after, self._now)
                case PodsBound():
                    self._starts(after.workload_id)
                case PodsEvicted():
                    self._evicted(before, event)
                case _:
                    pass
        if _is_over(after):
            self._ends(after.workload_id)

    def _node(self, before: Node, after: Node) -> None:
        self._gpus += 1000 * (_gpus(after) - _gpus(before))
        self._cpu += _cpu(after) - _cpu(before)
        self._held += sum(after.used_device_milli) - sum(before.used_device_milli)
        self._held_cpu += after.used_cpu_milli - before.used_cpu_milli

    def _holds(self, project_id: str, milli: int) -> None:
        if milli:
            self._of_project[project_id] = self._of_project.get(project_id, 0) + milli

    def _comes(self, state: Workload, since: datetime) -> None:
        sets = state.pod_sets
        milli = sum(each.at_once * each.template.request.gpu_devices * each.template.request.gpu_milli for each in sets)
        devices = sum(each.at_once * each.template.request.gpu_devices for each in sets)
        self._waiting[state.workload_id] = _Waiting(state.project_id, size_of(milli, devices), since)
        self._open += 1

    def _starts(self, workload_id: str) -> None:
        found = self._waiting.get(workload_id)
        if found is not None and found.started is None and found.ended is None:
            found.started = self._now
            self._open -= 1

    def _ends(self, workload_id: str) -> None:
        found = self._waiting.get(workload_id)
        if found is not None and found.started is None and found.ended is None:
            found.ended = self._now
            self._open -= 1

    def _evicted(self, before: Workload, event: PodsEvicted) -> None:
        self._evictions += 1
        self._evicted_pods += len(event.pods)
        for ref in event.pods:
            pod = before.pods.live.get(pod_id(ref))
            if pod is not None and pod.running_since is not None:
                ran = max((self._now - pod.running_since).total_seconds(), 0.0)
                self._lost_milli_seconds += self._settings.lost(ran) * sum(share.milli for share in pod.devices)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        at = (self.next_sample - self._begin).total_seconds()
        loaded = self.next_sample <= self._loaded_until
        error = self._share_error() if loaded and self._gpus else None
        self._samples.append(Sample(at, self._held / self._gpus if self._gpus else 0.0, self._open, error))

    def _share_error(self) -> float:
        """Half of all differences between what projects hold and what they may have by right, as a part of the GPUs."""
        snapshot = self._fold.snapshot(self.next_sample)
        planning = Planning(replace(snapshot, mix=()), self._policy, MAX_PODS_PER_PLAN)
        for phase in self._policy.phases:
            if phase.name in _BEFORE_A_PLAN:
                phase.run(planning)
        shares, wrong, total = planning.shares, 0, 0
        for number in snapshot.nodes.pool_numbers.values():
            total += shares.total(number)
            wrong += sum(
                abs(shares.used.get((id_, number), 0) - shares.of(id_, number)) for id_ in shares.projects_in(number)
            )
        return wrong / 2 / total if total else 0.0

    def figures(self) -> Figures:
        """As of the last `until`."""
        held, gpus, held_cpu, cpu = self._sums
        return Figures(
            seconds=(self._now - self._begin).total_seconds(),
            loaded_seconds=(min(self._now, self._loaded_until) - self._begin).total_seconds(),
            waits=tuple(self._wait(id_, each) for id_, each in self._waiting.items()),
            gpu_use=held / gpus if gpus else None,
            cpu_use=held_cpu / cpu if cpu else None,
            share_error=mean(each.share_error for each in self._samples if each.share_error is not None),
            gpu_hours=self._all_held / MILLI_PER_HOUR,
            hours_by_project={
                self._project(id_): seconds / MILLI_PER_HOUR for id_, seconds in self._hours_of.items() if seconds
            },
            evictions=self._evictions,
            evicted_pods=self._evicted_pods,
            lost_gpu_hours=self._lost_milli_seconds / MILLI_PER_HOUR,
            samples=tuple(self._samples),
        )

    def _wait(self, workload_id: str, of: _Waiting) -> Wait:
        how: How = "started" if of.started is not None else "waits" if of.ended is None else "gave up"
        until = of.started or of.ended or self._now
        return Wait(
            workload_id=workload_id,
            project=self._project(of.project),
            size=of.size,
            seconds=max((until - of.since).total_seconds(), 0.0),
            how=how,
            at=None if of.started is None else (of.started - self._begin).total_seconds(),
        )

    def _project(self, project_id: str) -> str:
        chain = self._fold.projects.get(key_of_id(project_id) or "")
        return project_id if chain is None else chain.state.name


def _nothing(after: Workload) -> Workload:
    """In place of what was before a workload was created."""
    return Workload(project_id=after.project_id)


def _is_over(state: Workload) -> bool:
    return not state.living or state.phase in FINISHED


def _gpus(of: Node) -> int:
    return of.facts.gpu_count if of.present else 0


def _cpu(of: Node) -> int:
    return of.facts.cpu_milli if of.present else 0
