"""Days of load on a small cluster, with a clock that jumps from one thing that happens to the next: the scheduler's own
fold and plan, and pods that run for as long as they are told. What is evicted goes on later from where it was.
"""

import heapq
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from events.workload.commands import PodFact, ReportPods
from events.workload.pod import PodId, PodRef
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World

GRACE = timedelta(seconds=30)
"""In which pods end that are told to."""


@dataclass
class Job:
    """One workload."""

    key: str
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
    ends: datetime | None = None

    def unstarted(self, until: datetime) -> list[str]:
        """Of those that arrived until then."""
        return [job.key for job in self.jobs if job.arrived <= until and job.started is None]


class Simulation:
    """Four projects in two departments, on nodes of 8 GPUs; each brings `load` times what it may have by right."""

    def __init__(self, *, nodes: int, load: float, seed: int) -> None:
        self._chance = random.Random(seed)
        self.world = World()
        self.world.cluster()
        for number in range(nodes):
            self.world.node(f"n{number}", gpu_count=8, cpu_milli=96_000)
        self._load, total = load, 8 * nodes
        one, two = department(self.world, "one"), department(self.world, "two")
        rest = (total - total / 4) / 2
        made = (
            ("a", {"quota": 250 * total}, one, total / 4 + rest / 3),
            ("b", {"over_quota_weight": 2.0}, one, rest * 2 / 3),
        )
        made = (*made, ("c", {}, two, rest / 2), ("d", {}, two, rest / 2))
        self._rates = {self.world.project(name, **kind, **where): share * load for name, kind, where, share in made}
        """GPUs that each project keeps busy, by id."""
        self._events: list[tuple[datetime, int, str, Any]] = []
        self._outcome = Outcome()
        self._by_id: dict[str, Job] = {}

    def run(self, days: int) -> Outcome:
        begin = self.world.now
        for project_id in self._rates:
            self._push(begin, "arrives", project_id)
        self._outcome.ends = begin + timedelta(days=days)
        while self._events and self._events[0][0] <= self._outcome.ends:
            self.world.now, _, word, what = heapq.heappop(self._events)
            if word == "arrives":
                self._arrives(what)
            elif word == "ends":
                self._ends(*what)
            else:
                self._facts(what, "stopped", {"Stopping"})
            self._plan()
        return self._outcome

    def _push(self, at: datetime, word: str, what: Any) -> None:
        heapq.heappush(self._events, (at, self._chance.randrange(2**62), word, what))

    def _arrives(self, project_id: str) -> None:
        share = self._rates[project_id] / self._load
        gpus = self._chance.choice([size for size in (1, 1, 2, 4, 8) if size <= share])
        hours = self._chance.choice((2, 6, 12, 24))
        name = f"w{len(self._outcome.jobs)}"
        if (gpus > 2 and self._chance.random() < 0.5) or gpus > 4:
            key = gang(self.world, name, workers=2, gpus=gpus // 2, project_id=project_id)
        else:
            key = self.world.submit(name, project_id=project_id, gpu_devices_request=gpus)
        job = Job(key, self.world.now, timedelta(hours=hours), gpus)
        self._outcome.jobs.append(job)
        self._by_id[self.world.workload(key).workload_id] = job
        between = gpus * hours / self._rates[project_id]
        self._push(self.world.now + timedelta(hours=between * self._chance.uniform(0.5, 1.5)), "arrives", project_id)

    def _ends(self, job: Job, turn: int) -> None:
        if job.turn == turn:
            self._facts(job, "succeeded", {"Bound", "Starting", "Running"})

    def _plan(self) -> None:
        """Until nothing more is planned."""
        for _ in range(20):
            planned = self.world.cycle()
            for each in planned.evictions:
                job = self._by_id[each.workload_id]
                self._outcome.evicted_for.append((each.workload_id, each.beneficiary))
                if job.running_since is not None:
                    job.lasts -= self.world.now - job.running_since
                job.running_since, job.turn = None, job.turn + 1
                self._push(self.world.now + GRACE, "stopped", job)
            for id_ in {each.workload_id for each in planned.bindings}:
                job = self._by_id[id_]
                self._facts(job, "running", {"Bound"})
                job.started, job.running_since = job.started or self.world.now, self.world.now
                self._push(self.world.now + job.lasts, "ends", (job, job.turn))
            if planned.empty and not planned.put_off:
                return
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
