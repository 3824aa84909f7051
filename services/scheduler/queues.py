"""All queues of what waits, and what elastic workloads may grow by. Part of the fold; no decisions."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from services.scheduler.classes import Ready
from services.scheduler.columns import uncount
from services.scheduler.policy.phases.report import is_another
from services.scheduler.queue import WaitingQueue
from services.scheduler.snapshot import Growth, Pending, Plan, PodClass, Queue, Snapshot, Waiting

REPORT_AGAIN_AFTER: Final = timedelta(seconds=10)
"""Limits how often the log is given another reason for the same wait."""


class Queues:
    """Mutable."""

    def __init__(self, wake: Callable[[datetime], None]) -> None:
        """Args: wake, is told when to look at them again although nothing happens."""
        self._wake = wake
        self._of: dict[PodClass, WaitingQueue] = {}
        self._entries: dict[str, list[tuple[WaitingQueue, Pending]]] = {}
        """By workload key: what it put into the queues, to be taken out again."""
        self.growing: dict[str, Growth] = {}
        """By workload key: what elastic workloads may grow by."""
        self.extended_asked: Counter[str] = Counter()
        """By extended resource: queues whose pods want it."""

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._of)

    def __contains__(self, key: str) -> bool:
        """Whether a workload was put in, be it with nothing."""
        return key in self._entries

    def has_others(self, project_id: str) -> bool:
        """Whether anything of other projects waits."""
        return any(pod_class.project_id != project_id for pod_class in self._of)

    def get(self, pod_class: PodClass) -> WaitingQueue | None:
        return self._of.get(pod_class)

    def put(self, key: str, ready: Ready) -> None:
        """What of a workload may be bound now; it must not be in."""
        entries: list[tuple[WaitingQueue, Pending]] = []
        self._entries[key] = entries
        if ready.growth is not None:
            self.growing[key] = ready.growth
            self.extended_asked.update(ready.growth.pod_class.extended)
        for pod_class, entry in ready.waiting:
            queue = self._of.get(pod_class)
            if queue is None:
                queue = self._of[pod_class] = WaitingQueue(pod_class)
                self.extended_asked.update(pod_class.extended)
            queue.add(entry)
            entries.append((queue, entry))

    def take_out(self, key: str) -> None:
        if (growth := self.growing.pop(key, None)) is not None:
            uncount(self.extended_asked, growth.pod_class.extended)
        entries = self._entries.pop(key, None)
        if entries is None:
            return
        for queue, entry in entries:
            queue.remove(entry)
            if not queue:
                self._of.pop(queue.pod_class, None)
                uncount(self.extended_asked, queue.pod_class.extended)

    def frozen(self, freed: int, now: datetime) -> list[Queue]:
        """All of them, the first first."""
        in_order = sorted(self._of.values(), key=lambda queue: queue.first)
        return [self._frozen(queue, freed, now) for queue in in_order]

    def frozen_with(self, added: Ready, queues: Iterable[Queue]) -> list[Queue]:
        """These with what is added, as if it had been put in; it is not."""
        found = {queue.pod_class: queue for queue in queues}
        for pod_class, entry in added.waiting:
            own = self._of.get(pod_class)
            queue = found.get(pod_class) or WaitingQueue(pod_class).frozen(0, report_again=False)
            found[pod_class] = replace(
                queue,
                entries=tuple(sorted((*queue.entries, entry), key=lambda each: each.order)),
                blocked=queue.blocked if own is not None and not own.may_help(entry) else None,
                pods=queue.pods + len(entry.pods),
            )
        return sorted(found.values(), key=lambda queue: queue.entries[0].order)

    def _frozen(self, queue: WaitingQueue, freed: int, now: datetime) -> Queue:
        told_at, blocked = queue.reported_at, queue.blocked(freed)
        may_report = told_at is None or now - told_at >= REPORT_AGAIN_AFTER
        again = told_at is None or (may_report and (blocked is None or _may_be_news(queue, blocked)))
        return queue.frozen(freed, report_again=again, may_report=may_report)

    def note(self, snapshot: Snapshot, plan: Plan, freed: int) -> None:
        """Remember what the plan found out of them."""
        for seen in snapshot.queues:
            queue = self._of.get(seen.kept_as or seen.pod_class)
            blocked, held = plan.blocked.get(seen.pod_class), plan.held.get(seen.pod_class)
            waiting = blocked or held
            if queue is not None and seen.pod_class in plan.put_off:
                queue.put_off += 1
            elif queue is not None and (waiting is not None or not plan.more):
                queue.put_off = 0  # it was looked at
            if queue is None or waiting is None:
                continue
            if blocked is not None:
                queue.block(blocked, freed)
            if seen.unreported and queue.reported:
                # They are told something else than those before them were.
                queue.planned |= waiting.planned
                queue.mixed = queue.mixed or is_another(queue.reported, waiting.reason)
            if plan.more:
                continue  # not all of the queue was reported yet
            again = seen.report_again or (seen.may_report and _may_be_news(queue, waiting))
            if not queue.reported or again:
                queue.reported, queue.planned, queue.reported_at = waiting.reason, waiting.planned, snapshot.now
                queue.mixed = False
            elif queue.reported_at is not None and _may_be_news(queue, waiting):
                self._wake(queue.reported_at + REPORT_AGAIN_AFTER)

    def report_again(self, keys: Iterable[str]) -> None:
        """What was to be told of these workloads is not in the log, though it was noted as told."""
        for key in keys:
            for queue, _ in self._entries.get(key, ()):
                queue.reported_at = None

    def clock_was_set_back(self) -> None:
        """When they were reported is no time to count from any more."""
        for queue in self._of.values():
            queue.reported_at = None


def extended_in(ready: Ready) -> Counter[str]:
    """Extended resources that are asked for."""
    grows = [] if ready.growth is None else [ready.growth.pod_class]
    return Counter(name for each in (*(pod_class for pod_class, _ in ready.waiting), *grows) for name in each.extended)


def _may_be_news(queue: WaitingQueue, waiting: Waiting) -> bool:
    """To some of the queue; which, the report finds out by what the log tells of each."""
    return queue.mixed or is_another(queue.reported, waiting.reason) or not queue.planned <= waiting.planned
