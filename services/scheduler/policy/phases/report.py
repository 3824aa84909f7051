"""What the log is to say of workloads that no pod was placed of: that they are queued, and why they wait. Each once."""

from typing import Final

from events.phases import WaitingReason
from services.scheduler.planning import Phase, Planning
from services.scheduler.policy.filters import calendar
from services.scheduler.snapshot import NotSchedulable, Pending, Queue, StatusUpdate, Waiting

_ALIKE: Final = frozenset(
    {
        WaitingReason.INSUFFICIENT_GPU,
        WaitingReason.INSUFFICIENT_CPU,
        WaitingReason.INSUFFICIENT_MEMORY,
        WaitingReason.INSUFFICIENT_PODS,
        WaitingReason.INSUFFICIENT_RESOURCES,
    }
)
"""On a full cluster each pod that starts or ends changes one into another: the first one reported stands for all."""


def run(planning: Planning) -> None:
    bound = {entry.key for entry in planning.placed.entries}
    updates: dict[str, StatusUpdate] = {}
    for i, queue in enumerate(planning.snapshot.queues):
        waiting = planning.blocked.get(i)
        if waiting is None and planning.cut_short:
            continue  # not looked at to the end
        told = waiting is not None or i in planning.held_queues
        for entry in queue.entries if queue.report_again and told else queue.unreported:
            if entry.key in bound or entry.key in updates:
                continue
            if update := _update(entry, queue, planning.held.get(entry.key, waiting)):
                updates[entry.key] = update
    helped = {each.beneficiary for each in planning.evictions}
    for i in planning.held_queues if helped else ():
        for entry in planning.snapshot.queues[i].entries:
            # Those that are told to end are told for whom: that one says so at the same time.
            if entry.workload_id in helped and entry.key not in bound and entry.idle:
                updates[entry.key] = _status(entry, planning.held[entry.key])
    for each in planning.snapshot.not_schedulable:
        if each.key not in bound and each.key not in updates:
            updates[each.key] = _status(each, each.waiting)
    planning.updates = list(updates.values())


def is_another(reported: str, reason: WaitingReason) -> bool:
    """Whether, for a person, a reason is another one than was reported."""
    return reported != reason and not (reported in _ALIKE and reason in _ALIKE)


def is_news(reported: str, told: str, waiting: Waiting) -> bool:
    """Whether a person is told why it waits once more: for another reason, or where the sentence names what is over,
    was cancelled or has another end now. Numbers that are others by now are no news: they change with each pod.
    """
    if is_another(reported, waiting.reason):
        return True
    # What a person named may read as an entry does: the same sentence is no news in any case.
    return told != waiting.message and not calendar.told_of(told) <= waiting.planned


def _update(entry: Pending, queue: Queue, waiting: Waiting | None) -> StatusUpdate | None:
    due = waiting is not None and entry.idle and (not entry.reported or queue.report_again)
    if due and waiting is not None and is_news(entry.reported, entry.told, waiting):
        return _status(entry, waiting)
    return None if entry.queued else _status(entry, None)


def _status(of: Pending | NotSchedulable, waiting: Waiting | None) -> StatusUpdate:
    return StatusUpdate(key=of.key, workload_id=of.workload_id, name=of.name, waiting=waiting)


PHASE: Final = Phase(name="report", run=run)
