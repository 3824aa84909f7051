"""The load of inferences by what reporters said lately: sums over reporters, means over a few seconds. No I/O.

A reporter that is silent for LOST_SECONDS counts no longer. Where all are, nothing is known, and nothing is guessed.
Times are monotonic seconds, of arrival: no clock of a reporter is believed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from events.load import InferenceLoad, LoadReport
from services.autoscaler.decide import Load

MEAN_SECONDS: Final = 5.0
"""Over which a load is averaged: shorter is chance, longer is late."""
LOST_SECONDS: Final = 10.0
"""A reporter speaks every second."""
MOST_REPORTERS: Final = 64
"""Of one inference: those that are beyond count as one that is silent."""
MOST_SAMPLES: Final = 64
"""Of one reporter, however often it speaks."""


@dataclass(slots=True)
class _Samples:
    """What one reporter said of one inference, oldest first: (when, over how many seconds, what)."""

    said: deque[tuple[float, float, InferenceLoad]] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))


@dataclass(slots=True)
class _Inference:
    reporters: dict[str, _Samples] = field(default_factory=dict[str, _Samples])
    heard_at: float = 0.0
    quiet_since: float = 0.0
    """Since when it is known that nobody asks."""


class Windows:
    """Mutable.

    Args:
        known: whether there is such an inference: of others nothing is kept, whoever speaks of them.
        speed: how many times shorter than in earnest a load is averaged.
    """

    def __init__(self, known: Callable[[str], bool], *, speed: float = 1.0) -> None:
        self._known = known
        self._mean_seconds = MEAN_SECONDS / speed
        self._inferences: dict[str, _Inference] = {}

    def take(self, reporter: str, report: LoadReport, now: float) -> bool:
        """Whether somebody waits for a first replica."""
        held = False
        for load in report.loads:
            if self._known(load.workload_id):
                self._take(reporter, load, report.seconds, now)
                held = held or load.held > 0
        return held

    def load(self, workload_id: str, now: float) -> Load | None:
        """None where nobody has said anything of it lately."""
        found = self._inferences.get(workload_id)
        if found is None or now - found.heard_at > LOST_SECONDS:
            return None
        rate = concurrency = 0.0
        answered = milliseconds = held = 0
        for samples in found.reporters.values():
            if now - samples.said[-1][0] > LOST_SECONDS:
                continue
            # The newest always counts: a reporter may be late.
            lately = [one for one in samples.said if now - one[0] < self._mean_seconds] or [samples.said[-1]]
            rate += sum(load.arrived for _, _, load in lately) / sum(seconds for _, seconds, _ in lately)
            concurrency += sum(load.in_flight for _, _, load in lately) / len(lately)
            answered += sum(load.answered for _, _, load in lately)
            milliseconds += sum(load.milliseconds for _, _, load in lately)
            held += lately[-1][2].held
        return Load(
            requests_per_second=rate,
            milliseconds=milliseconds / answered if answered else None,
            concurrency=concurrency,
            held=held,
            idle_seconds=max(now - found.quiet_since, 0.0),
        )

    def forget_others(self) -> None:
        """Drop what is no inference any more."""
        self._inferences = {id_: found for id_, found in self._inferences.items() if self._known(id_)}

    def _take(self, reporter: str, load: InferenceLoad, seconds: float, now: float) -> None:
        found = self._inferences.setdefault(load.workload_id, _Inference())
        if not 0 <= now - found.heard_at <= LOST_SECONDS:
            # What happened in between, nobody saw.
            found.quiet_since = now
        if load.arrived or load.in_flight or load.held:
            found.quiet_since = now
        found.heard_at = now
        if reporter not in found.reporters and len(found.reporters) >= MOST_REPORTERS:
            found.reporters = {
                name: samples for name, samples in found.reporters.items() if now - samples.said[-1][0] <= LOST_SECONDS
            }
            if len(found.reporters) >= MOST_REPORTERS:
                return
        found.reporters.setdefault(reporter, _Samples()).said.append((now, seconds, load))
