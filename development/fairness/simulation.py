"""Days of load on a small cluster, with a clock that jumps from one thing that happens to the next: the scheduler's own
fold and plan, and pods that run for as long as they are told. What arrives when is drawn beforehand, so that two ways
to schedule have the same to do. What is evicted goes on later from its last checkpoint.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from development.fairness.world import World
from events.department import CreateDepartment, department_key
from events.ids import workload_key
from events.workload.commands import CreateWorkload, PodFact, ReportPods
from events.workload.fields.distribution import Distribution
from events.workload.pod import PodId, PodRef
from events.workload.spec import ComputeSpec, Distributed, TrainingSpec

GRACE: Final = timedelta(seconds=30)
"""In which pods end that are told to."""
CHECKPOINT: Final = timedelta(hours=1)
"""So often each writes one."""
SIZES: Final = (1, 1, 2, 4, 8)
"""GPUs, as far as they are no more than what the project may have by right."""
HOURS: Final = (2, 6, 12, 24)


@dataclass
class Job:
    """One workload."""

    key: str
    project: str
    arrived: datetime
    lasts: timedelta
    """What is left of it."""
    gpus: int
    running_since: datetime | None = None
    started: datetime | None = None
    turn: int = 0
    """Rises when it is evicted: an end that was foreseen before is none."""


@dataclass
class Outcome:
    jobs: list[Job] = field(default_factory=list[Job])
    evicted_for: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Ids of workloads: who gave a place, and who got it."""
    rules: Counter[str] = field(default_factory=Counter[str])
    """By which each was."""
    lost_gpu_hours: float = 0.0
    """Since the last checkpoints of what was evicted."""
    busy_gpu_hours: dict[str, float] = field(default_factory=dict[str, float])
    """By project."""
    began: datetime | None = None
    ends: datetime | None = None

    def unstarted(self, until: datetime) -> list[Job]:
        """Of those that arrived until then."""
        return [job for job in self.jobs if job.arrived <= until and job.started is None]

    def in_turn(self) -> set[tuple[str, str]]:
        """Who was evicted for one that was evicted for it."""
        pairs = set(self.evicted_for)
        return {(victim, winner) for victim, winner in pairs if (winner, victim) in pairs}

    def waits(self, gpus: int, until: datetime) -> list[float]:
        """Hours that jobs of this size, which arrived until then, waited until they started, or until the end."""
        ends = self.ends or until
        of = [job for job in self.jobs if job.gpus == gpus and job.arrived <= until]
        return sorted(((job.started or ends) - job.arrived).total_seconds() / 3600 for job in of)


class Simulation:
    """Four projects in two departments, on nodes of 8 GPUs; each brings `load` times what it may have by right."""

    def __init__(self, *, nodes: int, load: float, seed: int) -> None:
        self.world = World()
        self.world.cluster()
        for number in range(nodes):
            self.world.node(f"n{number}", gpu_count=8, cpu_milli=96_000)
        self.gpus = total = 8 * nodes
        self._load = load
        ids_of = {name: self._department(name) for name in ("one", "two")}
        rest = (total - total / 4) / 2
        made: tuple[tuple[str, dict[str, Any], str, float], ...] = (
            ("a", {"quota": 250 * total}, "one", total / 4 + rest / 3),
            ("b", {"over_quota_weight": 2.0}, "one", rest * 2 / 3),
            ("c", {}, "two", rest / 2),
            ("d", {}, "two", rest / 2),
        )
        self.shares = {name: share for name, _, _, share in made}
        """GPUs that each project may have by right."""
        self._ids = {
            name: self.world.project(name, department_id=ids_of[of], department_name=of, **kind)
            for name, kind, of, _ in made
        }
        self._arrivals = {name: self._drawn(name, random.Random(f"{seed} {name}")) for name in self._ids}
        self._events: list[tuple[datetime, int, str, Any]] = []
        self._count = itertools.count()
        self.outcome = Outcome()
        self._by_id: dict[str, Job] = {}

    def _department(self, name: str) -> str:
        self.world.do("department", department_key(name), CreateDepartment(name=name))
        department_id: str = self.world.chain("department", department_key(name)).state.department_id
        return department_id

    def _drawn(self, project: str, chance: random.Random) -> Iterator[tuple[timedelta, Job, bool]]:
        """How long after the one before each job arrives, the job, and whether it is a gang."""
        share, between = self.shares[project], timedelta()
        while True:
            gpus = chance.choice([size for size in SIZES if size <= share])
            hours = chance.choice(HOURS)
            is_gang = gpus > 4 or (gpus > 2 and chance.random() < 0.5)
            yield between, Job("", project, self.world.now, timedelta(hours=hours), gpus), is_gang
            between = timedelta(hours=gpus * hours / (share * self._load) * chance.uniform(0.5, 1.5))

    def run(self, days: int) -> Outcome:
        for _ in self.steps(days):
            pass
        return self.outcome

    def steps(self, days: int) -> Iterator[datetime]:
        """The same, with the time of each thing that happens once it has."""
        self.outcome.began = self.world.now
        self.outcome.ends = self.world.now + timedelta(days=days)
        for project in self._arrivals:
            self._next(project)
        while self._events and self._events[0][0] <= self.outcome.ends:
            at, _, word, what = heapq.heappop(self._events)
            self._count_busy(at)
            self.world.now = at
            if word == "arrives":
                self._arrives(*what)
            elif word == "ends":
                self._ends(*what)
            elif word == "stopped":
                self._facts(what, "stopped", {"Stopping"})
            self._plan()
            yield at

    def _push(self, at: datetime, word: str, what: Any) -> None:
        heapq.heappush(self._events, (at, next(self._count), word, what))

    def _next(self, project: str) -> None:
        between, job, is_gang = next(self._arrivals[project])
        now: datetime = self.world.now
        self._push(now + between, "arrives", (job, is_gang))

    def _count_busy(self, until: datetime) -> None:
        hours, busy = (until - self.world.now).total_seconds() / 3600, self.outcome.busy_gpu_hours
        for job in self.outcome.jobs if hours else ():
            if job.running_since is not None:
                busy[job.project] = busy.get(job.project, 0.0) + hours * job.gpus

    def _arrives(self, job: Job, is_gang: bool) -> None:
        world, name, project_id = self.world, f"w{len(self.outcome.jobs)}", self._ids[job.project]
        job.key, job.arrived = workload_key(project_id, name), world.now
        command = CreateWorkload(
            kind="Distributed" if is_gang else "Training",
            name=name,
            requested_name=name,
            project_id=project_id,
            cluster_id=world.cluster_id,
            spec=TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=job.gpus // (2 if is_gang else 1))),
            distributed=Distributed(
                distribution=Distribution(distributed_framework="PyTorch", num_workers=2), master=None
            )
            if is_gang
            else None,
        )
        world.do("workload", job.key, command)
        self.outcome.jobs.append(job)
        self._by_id[world.workload(job.key).workload_id] = job
        self._next(job.project)

    def _ends(self, job: Job, turn: int) -> None:
        if job.turn == turn:
            self._facts(job, "succeeded", {"Bound", "Starting", "Running"})
            job.running_since = None

    def _plan(self) -> None:
        """Until nothing more is planned."""
        for _ in range(20):
            planned = self.world.cycle()
            for each in planned.evictions:
                job = self._by_id[each.workload_id]
                self.outcome.evicted_for.append((each.workload_id, each.beneficiary))
                self.outcome.rules[each.reason] += 1
                if job.running_since is not None:
                    ran = self.world.now - job.running_since
                    job.lasts -= ran - ran % CHECKPOINT
                    self.outcome.lost_gpu_hours += job.gpus * (ran % CHECKPOINT).total_seconds() / 3600
                job.running_since, job.turn = None, job.turn + 1
                self._push(self.world.now + GRACE, "stopped", job)
            for id_ in dict.fromkeys(each.workload_id for each in planned.bindings):
                job = self._by_id[id_]
                self._facts(job, "running", {"Bound"})
                job.started, job.running_since = job.started or self.world.now, self.world.now
                self._push(self.world.now + job.lasts, "ends", (job, job.turn))
            if planned.look_again is not None:
                self._push(planned.look_again + timedelta(seconds=10), "due", None)
            if planned.empty and not planned.put_off:
                break
        else:
            raise AssertionError("the scheduler does not come to rest")

    def _facts(self, job: Job, kind: Any, phases: set[str]) -> None:
        state = self.world.workload(job.key)
        pods: list[tuple[PodId, Any]] = [(id_, pod) for id_, pod in state.pods.live.items() if pod.phase in phases]
        facts = tuple(
            PodFact(
                pod=PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_), kind=kind, at=self.world.now
            )
            for (name, index), pod in pods
        )
        if facts:
            self.world.do("workload", job.key, ReportPods(workload_id=state.workload_id, facts=facts))
