"""Days of load on a small cluster, as a script for the product's own simulation. What arrives when is drawn beforehand,
so that two ways to schedule have the same to do. What is evicted goes on later from its last checkpoint.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from development.fairness.world import BEGIN, World
from events.commit import Commit
from events.department import CreateDepartment, department_key
from events.ids import workload_key
from events.workload.evictions import PodsEvicted
from services.scheduler.simulation.engine import Progress, Simulation
from services.scheduler.simulation.figures import Figures
from services.scheduler.simulation.script import Act, Job, Run, Runs, Script, Settings, act, stored
from services.scheduler.simulation.trace import TraceWorkload, created_of

CHECKPOINT: Final = timedelta(hours=1)
"""So often each run writes one."""
SIZES: Final = (1, 1, 2, 4, 8)
"""GPUs, as far as they are no more than what the project may have by right."""
HOURS: Final = (2, 6, 12, 24)


class Drawn(NamedTuple):
    """A workload that is to come."""

    project: str
    gpus: int
    hours: int
    is_gang: bool


@dataclass(frozen=True)
class Arrived:
    """A workload, and what became of it."""

    project: str
    gpus: int
    arrived: datetime
    started: datetime | None
    waited: timedelta
    """Until it started, or until the end."""


@dataclass
class Outcome:
    ends: datetime
    arrived: list[Arrived] = field(default_factory=list[Arrived])
    evicted_for: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Ids of workloads: who gave a place, and who got it."""
    rules: Counter[str] = field(default_factory=Counter[str])
    """By which each was."""
    lost_gpu_hours: float = 0.0
    """Since the last checkpoints of what was evicted."""
    busy_gpu_hours: dict[str, float] = field(default_factory=dict[str, float])
    """By project."""

    def unstarted(self, until: datetime) -> list[Arrived]:
        """Of those that arrived until then."""
        return [each for each in self.arrived if each.arrived <= until and each.started is None]

    def in_turn(self) -> set[tuple[str, str]]:
        """Who was evicted for one that was evicted for it."""
        pairs = set(self.evicted_for)
        return {(victim, winner) for victim, winner in pairs if (winner, victim) in pairs}

    def waits(self, gpus: int, until: datetime) -> list[float]:
        """Hours that workloads of this size, which arrived until then, waited."""
        of = [each for each in self.arrived if each.gpus == gpus and each.arrived <= until]
        return sorted(each.waited / timedelta(hours=1) for each in of)


class Load:
    """Four projects in two departments, on nodes of 8 GPUs; each brings `load` times what it may have by right."""

    def __init__(self, *, nodes: int, load: float, seed: int) -> None:
        self._world = World()
        self._world.cluster()
        for number in range(nodes):
            self._world.node(f"n{number}", gpu_count=8, cpu_milli=96_000)
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
            name: self._world.project(name, department_id=ids_of[of], department_name=of, **kind)
            for name, kind, of, _ in made
        }
        self._chances = {name: random.Random(f"{seed} {name}") for name in self._ids}

    def _department(self, name: str) -> str:
        self._world.do("department", department_key(name), CreateDepartment(name=name))
        department_id: str = self._world.chain("department", department_key(name)).state.department_id
        return department_id

    def _of_project(self, project: str) -> Iterator[tuple[timedelta, Drawn]]:
        """How long after the one before each workload arrives, and the workload."""
        share, between, chance = self.shares[project], timedelta(), self._chances[project]
        while True:
            gpus = chance.choice([size for size in SIZES if size <= share])
            hours = chance.choice(HOURS)
            is_gang = gpus > 4 or (gpus > 2 and chance.random() < 0.5)
            yield between, Drawn(project, gpus, hours, is_gang)
            between = timedelta(hours=gpus * hours / (share * self._load) * chance.uniform(0.5, 1.5))

    def _drawn(self, until: datetime) -> Iterator[tuple[datetime, Drawn]]:
        """Of all projects, in the order in which they come."""
        draws = {project: self._of_project(project) for project in self._ids}
        coming: list[tuple[datetime, int, Drawn]] = []
        for count, draw in enumerate(draws.values()):
            between, drawn = next(draw)
            # Not at one moment, in which all that comes is planned together.
            heapq.heappush(coming, (BEGIN + between + timedelta(microseconds=count), count, drawn))
        count = len(coming)
        while coming[0][0] <= until:
            at, _, drawn = heapq.heappop(coming)
            yield at, drawn
            between, following = next(draws[drawn.project])
            heapq.heappush(coming, (at + between, count, following))
            count += 1

    def run(self, days: int, progress: Progress = lambda _done, _total: None) -> Outcome:
        """Play so many days; the outcome. To be called once."""
        outcome, acts, runs = Outcome(BEGIN + timedelta(days=days)), list[Act](), dict[str, Runs]()
        known: dict[str, tuple[datetime, Drawn]] = {}
        for number, (at, drawn) in enumerate(self._drawn(outcome.ends)):
            of = TraceWorkload(
                name=f"w{number}",
                arrival=0.0,
                gpus=drawn.gpus // (2 if drawn.is_gang else 1),
                gang=2 if drawn.is_gang else 1,
            )
            created = created_of(of, at, self._world.cluster_id, self._ids[drawn.project])
            acts.append(act(at, "workload", workload_key(created.project_id, of.name), created))
            runs[created.workload_id] = Runs(Run(3600.0 * drawn.hours))
            known[created.workload_id] = at, drawn
        script = Script(
            begin=BEGIN,
            end=outcome.ends,
            loaded_until=outcome.ends,
            seq=self._world.seq,
            chains=stored(self._world.fold),
            beside=self._world.fold.beside(),
            acts=acts,
            runs=runs,
            settings=Settings(goes_on=True, saves_every_seconds=CHECKPOINT.total_seconds()),
        )
        _tell(outcome, _played(script, outcome, progress), known)
        return outcome


def _played(script: Script, outcome: Outcome, progress: Progress) -> Figures:
    engine = Simulation(Job(script=script), progress)
    told = engine.ledger.told

    def see(commit: Commit, before: Any, after: Any) -> None:
        if told is not None:
            told(commit, before, after)
        for event in commit.events:
            if isinstance(event, PodsEvicted):
                outcome.evicted_for.append((after.workload_id, event.beneficiary))
                outcome.rules[event.reason] += 1

    engine.ledger.told = see
    return engine.run()


def _tell(outcome: Outcome, figures: Figures, known: dict[str, tuple[datetime, Drawn]]) -> None:
    for each in figures.waits:
        at, drawn = known[each.workload_id]
        waited = timedelta(seconds=each.seconds)
        started = at + waited if each.how == "started" else None
        outcome.arrived.append(Arrived(drawn.project, drawn.gpus, at, started, waited))
    outcome.lost_gpu_hours, outcome.busy_gpu_hours = figures.lost_gpu_hours, figures.hours_by_project
