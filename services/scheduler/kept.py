"""Whose places a workload may not take, or not yet, and until when: as a person is told it. Pure."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain

from events.why import MOST_KEPT, Kept, KeptBy
from events.workload.state import Workload
from services.scheduler.snapshot import Snapshot, Undisturbed

type _Of = tuple[Workload, datetime | None, KeptBy]


def kept(
    snapshot: Snapshot,
    spared: Mapping[str, Undisturbed],
    got_its_place: Iterable[str],
    may_name: Callable[[Workload], bool],
) -> tuple[Kept, ...]:
    """The first to be over first. Those that may not be named, or are too many, are one for each rule.

    Args:
        spared: by id of a workload, as the plan found it.
        got_its_place: ids of those for which it gave up its own place.
        may_name: whether whoever asks may see a workload.
    """
    by_id = {each.workload_id: each for each in chain.from_iterable(snapshot.running.values())}
    found: list[_Of] = [(by_id[id_], at.until, at.rule) for id_, at in spared.items() if id_ in by_id]
    never: list[_Of] = [
        (by_id[id_], None, "got_its_place") for id_ in got_its_place if id_ in by_id and id_ not in spared
    ]
    ordered = [*sorted(found, key=lambda one: (str(one[1]), one[0].workload_id)), *never]
    named = [one for one in ordered if may_name(one[0])][:MOST_KEPT]
    others = [one for one in ordered if one not in named]
    told = [Kept(workload_id=of.workload_id, name=of.name, until=until, rule=rule) for of, until, rule in named]
    return (*told, *(_of_others(rule, [until for _, until, by in others if by == rule]) for rule in _rules(others)))


def _rules(of: Iterable[_Of]) -> tuple[KeptBy, ...]:
    return tuple(dict.fromkeys(rule for _, _, rule in of))


def _of_others(rule: KeptBy, untils: list[datetime | None]) -> Kept:
    return Kept(workloads=len(untils), until=min((at for at in untils if at is not None), default=None), rule=rule)
