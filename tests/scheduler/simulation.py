"""Days of load on a small cluster, played by the product's simulation. Who is evicted goes on later where it was."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from events.commit import Commit
from events.ids import workload_key
from events.workload.state import PodsEvicted
from services.scheduler.simulation.engine import Simulation
from services.scheduler.simulation.figures import Figures
from services.scheduler.simulation.script import Act, Job, Run, Runs, Script, Settings, act, stored
from services.scheduler.simulation.trace import TraceWorkload, created_of
from tests.scheduler.test_quotas import department
from tests.scheduler.world import World

GRACE_SECONDS = 30.0
"""In which pods end that are told to."""


@dataclass(frozen=True)
class Outcome:
    figures: Figures
    evicted_for: list[tuple[str, str]]
    """Ids of workloads: who gave a place, and who got it."""

    def unstarted(self, of_the_first: timedelta) -> list[str]:
        """Ids of those that arrived in so much time from the beginning on."""
        left = self.figures.seconds - of_the_first.total_seconds()
        return [wait.workload_id for wait in self.figures.waits if wait.how != "started" and wait.seconds >= left]


class _Noting(Simulation):
    """Notes for whom somebody was evicted."""

    def __init__(self, job: Job) -> None:
        self.evicted_for: list[tuple[str, str]] = []
        super().__init__(job)

    def _told(self, commit: Commit, before: Any, after: Any) -> None:
        for event in commit.events:
            if isinstance(event, PodsEvicted):
                self.evicted_for.append((after.workload_id, event.beneficiary))
        super()._told(commit, before, after)


class Load:
    """Four projects in two departments, on nodes of 8 GPUs; each brings `load` times what it may have by right."""

    def __init__(self, *, nodes: int, load: float, seed: int) -> None:
        self._chance = random.Random(seed)
        self._world = World()
        self._world.cluster()
        for number in range(nodes):
            self._world.node(f"n{number}", gpu_count=8, cpu_milli=96_000)
        self._load, total = load, 8 * nodes
        one, two = department(self._world, "one"), department(self._world, "two")
        rest = (total - total / 4) / 2
        made = (
            ("a", {"quota": 250 * total}, one, total / 4 + rest / 3),
            ("b", {"over_quota_weight": 2.0}, one, rest * 2 / 3),
            ("c", {}, two, rest / 2),
            ("d", {}, two, rest / 2),
        )
        self._rates = {self._world.project(name, **kind, **where): share * load for name, kind, where, share in made}
        """GPUs that each project keeps busy, by id."""

    def play(self, days: int) -> Outcome:
        begin = self._world.now
        end = begin + timedelta(days=days)
        acts: list[Act] = []
        runs: dict[str, Runs] = {}
        for project_id, rate in self._rates.items():
            at, number = begin, 0
            while at <= end:
                job, gpu_hours = self._job(f"{project_id[:8]}-{number}", rate / self._load)
                created = created_of(job, at, self._world.cluster_id, project_id)
                acts.append(act(at, "workload", workload_key(project_id, job.name), created))
                runs[created.workload_id] = Runs(Run(job.runtime))
                at += timedelta(hours=gpu_hours / rate * self._chance.uniform(0.5, 1.5))
                number += 1
        fold = self._world.fold
        script = Script(
            begin=begin,
            end=end,
            loaded_until=end,
            seq=fold.seq,
            chains=stored(fold),
            beside=fold.beside(),
            acts=sorted(acts, key=_time),
            runs=runs,
            settings=Settings(goes_on=True, stop_seconds=GRACE_SECONDS),
        )
        simulation = _Noting(Job(script=script))
        return Outcome(simulation.run(), simulation.evicted_for)

    def _job(self, name: str, share: float) -> tuple[TraceWorkload, float]:
        """One workload, and its GPU hours: no wider than the share of its project."""
        gpus = self._chance.choice([size for size in (1, 1, 2, 4, 8) if size <= share])
        hours = self._chance.choice((2, 6, 12, 24))
        gang = 2 if (gpus > 2 and self._chance.random() < 0.5) or gpus > 4 else 1
        return TraceWorkload(name=name, arrival=0.0, runtime=hours * 3600.0, gpus=gpus // gang, gang=gang), gpus * hours


def _time(of: Act) -> datetime:
    return of.at
