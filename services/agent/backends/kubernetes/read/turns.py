"""Which checkpoint folders of a cluster are looked at next, so that pods whose looks hang take little from the others.

No I/O. Time comes in, in monotonic seconds.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

LOOK_SECONDS: Final = 60.0
"""Between looks at one folder: no more is told of it than once a minute."""
ENDING_SECONDS: Final = 5.0
"""Likewise of a pod that was told to end, and saves its work meanwhile."""
IDLE_SHARE: Final = 20.0
"""A folder is left alone for so many times as long as the look took: what is large and slow is looked at seldom."""
ONE_SECONDS: Final = 10.0
"""For one look. The command cannot be ended from here: who was not done is looked at again the later."""
LONGEST_SECONDS: Final = 3600.0
AT_ONCE: Final = 4
"""Each is a connection through the API server to a node, and a process there."""
SLOW_SECONDS: Final = 3.0
"""A project whose look took longer is doubted."""
DOUBTED_SECONDS: Final = 600.0
"""For so long after such a look. Folders of doubted projects have one turn at a time, of all of them together."""
REST_SECONDS: Final = 60.0
"""And for so long after one, none at all: whatever they do, all others wait once a minute at most."""

Folder = tuple[str, str]
"""Workload and pod set: the pods of one share theirs."""


class Asks(NamedTuple):
    """What a folder is asked for that pods have open now."""

    project: str
    """Or the namespace that stands for it."""
    ends: bool = False
    """Whether a pod of it was told to end."""


class _Past(NamedTuple):
    at: float
    pause: float
    """For how long it is left alone from then on."""


class Turns:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._past: dict[Folder, _Past] = {}
        """Also of folders without a pod, as between two runs of one: who is made anew is left alone no less."""
        self._due_since: dict[Folder, float] = {}
        self._slow_at: dict[str, float] = {}
        """When a look of a project was slow last, or was not done in time."""

    def next(self, there: Mapping[Folder, Asks], now: float) -> list[Folder]:
        """First where a pod ends, then one of each project, then another one of each: who is due for longest."""
        self._forget(there, now)
        due = [folder for folder, asks in there.items() if now - self._at(folder) >= self._wait(folder, asks)]
        self._due_since = {folder: self._due_since.get(folder, now) for folder in due}
        due.sort(key=self._due_since.__getitem__)
        trusted = [folder for folder in due if there[folder].project not in self._slow_at]
        before: Counter[Asks] = Counter()
        ranks: dict[Folder, tuple[bool, int]] = {}
        for folder in trusted:
            asks = there[folder]
            ranks[folder] = not asks.ends, before[asks]
            before[asks] += 1
        trusted.sort(key=ranks.__getitem__)
        return [*self._one_doubted(due, there, now), *trusted][:AT_ONCE]

    def looked(self, folder: Folder, project: str, *, took: float, now: float) -> None:
        """It was answered."""
        self._past[folder] = _Past(now, IDLE_SHARE * took)
        if took > SLOW_SECONDS:
            self._slow_at[project] = now

    def failed(self, folder: Folder, now: float) -> None:
        """There was no way to it."""
        self._past[folder] = _Past(now, self._past.get(folder, _Past(now, 0.0)).pause)

    def hung(self, folder: Folder, project: str, now: float) -> None:
        """It was not done in time."""
        before = self._past.get(folder, _Past(now, 0.0)).pause
        self._past[folder] = _Past(now, min(max(before, IDLE_SHARE * ONE_SECONDS) * 2, LONGEST_SECONDS))
        self._slow_at[project] = now

    def _one_doubted(self, due: list[Folder], there: Mapping[Folder, Asks], now: float) -> list[Folder]:
        """Of the doubted projects that one's whose slow look is longest ago."""
        if not self._slow_at or now - max(self._slow_at.values()) < REST_SECONDS:
            return []
        doubted = [folder for folder in due if there[folder].project in self._slow_at]
        doubted.sort(key=lambda folder: self._slow_at[there[folder].project])
        return doubted[:1]

    def _at(self, folder: Folder) -> float:
        past = self._past.get(folder)
        return float("-inf") if past is None else past.at

    def _wait(self, folder: Folder, asks: Asks) -> float:
        # What took long is left alone, whether it ends or not.
        past = self._past.get(folder)
        return max(ENDING_SECONDS if asks.ends else LOOK_SECONDS, 0.0 if past is None else past.pause)

    def _forget(self, there: Mapping[Folder, Asks], now: float) -> None:
        # For twice the pause, so that who is back right after it is left alone for longer still.
        self._past = {
            folder: past
            for folder, past in self._past.items()
            if folder in there or now - past.at < 2 * max(past.pause, LOOK_SECONDS)
        }
        self._slow_at = {project: at for project, at in self._slow_at.items() if now - at < DOUBTED_SECONDS}
