"""The queue of one class of pods: whatever came and went, it is what is there, in order."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from events.workload.pod import PodRef
from events.workload.spec import PodRequest
from services.scheduler.queue import WaitingQueue
from services.scheduler.snapshot import Pending, PodClass

CLASS = PodClass(project_id="p", cluster_id="c", pools=(), request=PodRequest(), preemptible=False)


def entry(number: int, *, queued: bool = True) -> Pending:
    return Pending(
        order=((float(number % 7),), f"key-{number:03}", 0),
        rank=number % 3,
        key=f"key-{number:03}",
        workload_id=str(number),
        name=str(number),
        pods=(PodRef(pod_set="main", index=0, attempt=1, try_=0),),
        queued=queued,
        idle=False,
        reported="",
    )


@given(steps=st.lists(st.one_of(st.integers(0, 60), st.lists(st.integers(0, 60), unique=True)), max_size=30))
def test_it_holds_what_came_and_is_not_gone_in_order(steps: Sequence[int | list[int]]) -> None:
    """Given a queue, when workloads come and go, one or many between two looks, then each look shows those that are
    there, in their order.
    """
    queue, there = WaitingQueue(CLASS), dict[int, Pending]()
    for step in steps:
        for number in [step] if isinstance(step, int) else step:
            if number in there:
                queue.remove(there.pop(number))
            else:
                there[number] = entry(number)
                queue.add(there[number])
        assert bool(queue) == bool(there)
        if isinstance(step, int):
            continue  # nobody looks in between
        frozen = queue.frozen(0, report_again=False)
        assert frozen.entries == tuple(sorted(there.values(), key=lambda each: each.order))
        assert frozen.pods == len(there)
        for queue_seen in (frozen, replace(frozen, highest=None)):
            for since in (0, 1):
                for rank in range(-1, 3):
                    above = any(each.rank > rank for each in frozen.entries[since:])
                    assert queue_seen.has_above(rank, since=since) == above
        ranks_are_of_others = replace(frozen, entries=(entry(2), *frozen.entries))
        assert ranks_are_of_others.has_above(1, since=0)
        if there:
            assert queue.first == frozen.entries[0].order


def test_one_that_comes_again_between_two_looks_stands_there_once_as_it_is_now() -> None:
    queue, first, other = WaitingQueue(CLASS), entry(3, queued=False), entry(4)
    queue.add(first)
    queue.add(other)
    assert queue.frozen(0, report_again=False).unreported == (first,)
    again = entry(3)
    queue.remove(first)
    queue.add(again)
    frozen = queue.frozen(0, report_again=False)
    assert [each is again for each in frozen.entries] == [True, False]
    assert not frozen.unreported
