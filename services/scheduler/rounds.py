"""A plan is decided again on what comes of it, until that changes nothing. Pure.

What a round binds, the next one sees as bound, and may have it give way by right: then it is not bound in the first
place. So nobody is told to end who was never started, and whoever waits for the place is bound there at once. For whom
a round had others told to end, and who gets no place in the end, nobody is told to end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from events.node import reservation_id
from events.workload.pod import PodRef
from services.scheduler.at_rest import is_at_rest
from services.scheduler.carried_out import carried_out
from services.scheduler.planning import Planning, Policy
from services.scheduler.policy.phases.report import is_another
from services.scheduler.snapshot import Binding, Eviction, Plan, PodClass, Snapshot, Waiting

MOST_ROUNDS: Final = 12
"""Of one plan after its first: most have none or one. What is not at rest then, the next plan goes on with."""
MOST_ENTRIES: Final = 4_000
"""That wait, looked at in all those rounds. A round takes a second where so many wait for places of others, and who
plans answers nobody meanwhile.
"""


type Enough = Callable[[], bool]
"""Whether an answer has taken so long that nothing more is tried for it."""


def never() -> bool:
    return False


def more_rounds(snapshot: Snapshot) -> int:
    """How many a plan may have after its first."""
    waiting = sum(len(queue.entries) for queue in snapshot.queues) + len(snapshot.growing)
    return min(MOST_ROUNDS, MOST_ENTRIES // max(waiting, 1))


class Rounds:
    """Mutable; of one plan."""

    def __init__(
        self, snapshot: Snapshot, policy: Policy, *, max_pods: int, max_updates: int, enough: Enough = never
    ) -> None:
        self._snapshot, self._policy = snapshot, policy
        self._max_pods, self._max_updates = max_pods, max_updates
        self._enough = enough
        self._bindings: list[Binding] = []
        self._evictions: list[Eviction] = []
        self._promised = Counter[str]()
        """By id of a workload: what it is to get first in the next round, as others are not bound there after all."""
        self.last: Planning | None = None
        """What the last round came to."""
        self._at_rest = False
        """Whether that is certain after the first round."""
        self._left = False
        """Whether something was decided that is left to the next plan."""
        self.given_up = False
        """Whether it was enough before it was at rest: later rounds might have decided otherwise."""
        self.kept_for: set[str] = set()
        """Ids of workloads for which a place is kept in the end."""

    def plan(self) -> Plan:
        first = found = self._round(self._snapshot)
        if found.more or found.put_off or self._at_rest or self._has_fault(found):
            return found
        self._take(found)
        for _ in range(more_rounds(self._snapshot)):
            if self._enough():
                self.given_up = True
                break
            seen = carried_out(self._snapshot, self._policy, self._bindings, self._evictions, self._promised)
            if seen is None:
                break
            found, before = self._round(seen), found
            if self._has_fault(found):
                found = before
                break
            if not self._take(found):
                return self._of_all(first, found)
            if found.more or found.put_off or self._left or len(self._bindings) >= self._max_pods:
                break
        return replace(self._of_all(first, found), more=True)

    def _of_all(self, first: Plan, last: Plan) -> Plan:
        told = {of: _told(of, first.blocked.get(of), waiting) for of, waiting in last.blocked.items()}
        same = {id(waiting): told[of] for of, waiting in last.blocked.items()}
        updates = (replace(each, waiting=same.get(id(each.waiting), each.waiting)) for each in last.updates)
        return replace(
            last,
            bindings=tuple(_in_one_piece(self._bindings)),
            evictions=tuple(self._evictions),
            releases=first.releases,
            marks=first.marks,
            departures=first.departures,
            blocked=told,
            updates=tuple(updates),
        )

    def _round(self, seen: Snapshot) -> Plan:
        planning = self.last = Planning(seen, self._policy, self._max_pods, after=self.last)
        for phase in self._policy.phases:
            phase.run(planning)
        self.kept_for = planning.kept_for
        found = planning.plan(max_updates=self._max_updates)
        self._at_rest = seen is self._snapshot and is_at_rest(planning, found)
        return found

    def _has_fault(self, found: Plan) -> bool:
        """Whether it has anybody told to end for whom it keeps no place."""
        served = self.kept_for | {each.workload_id for each in (*self._bindings, *found.bindings)}
        return any(each.beneficiary and each.beneficiary not in served for each in found.evictions)

    def _take(self, found: Plan) -> bool:
        """Add to what is decided what a round decided; whether anything is another than before."""
        promised, self._promised = self._promised, Counter[str]()
        bound = {each.reservation.id: each for each in self._bindings}
        gone: set[str] = set()
        for eviction in found.evictions:
            ids = {_id(eviction.workload_id, ref): ref for ref in eviction.pods}
            back = bound.keys() & ids.keys()
            gone |= back
            for id_ in back if eviction.beneficiary else ():
                self._promised[eviction.beneficiary] += sum(share.milli for share in bound[id_].reservation.devices)
            if told := tuple(ref for id_, ref in ids.items() if id_ not in back):
                self._evictions.append(replace(eviction, pods=told))
        # What was told to end as a whole begins anew in the next plan: the log hears of bindings first.
        began = {each.key for each in self._evictions if each.reason != "shrunk"}
        self._bindings += [each for each in found.bindings if each.key not in began]
        self._left |= any(each.key in began for each in found.bindings)
        if gone:
            self._bindings = _without(self._bindings, gone)
        # Also one that is bound after all, with all of it, where others have made room since.
        for_nobody = [each for each in self._evictions if each.beneficiary and each.beneficiary not in self.kept_for]
        if for_nobody:
            self._evictions = _for_others(self._evictions, for_nobody)
        return bool(found.bindings or found.evictions or for_nobody or promised)


def _told(of: PodClass, before: Waiting | None, now: Waiting) -> Waiting:
    """How far a gang came in its turn tells more than how far it would come now, where the reason is no other."""
    return before if of.gang and before is not None and not is_another(before.reason, now.reason) else now


def _id(workload_id: str, ref: PodRef) -> str:
    return reservation_id(workload_id, ref.pod_set, ref.index, ref.attempt, ref.try_)


def _without(bindings: Iterable[Binding], gone: set[str]) -> list[Binding]:
    """What is left without these (ids of reservations). Pods of one set are alike, and bound in their order: so the
    first of them are.
    """
    refs: dict[tuple[str, str], list[PodRef]] = {}
    shrunk: set[tuple[str, str]] = set()
    left: list[Binding] = []
    for each in bindings:
        of = each.key, each.placement.pod.pod_set
        refs.setdefault(of, []).append(each.placement.pod)
        if each.reservation.id in gone:
            shrunk.add(of)
        else:
            left.append(each)
    first = {of: iter(sorted(refs[of], key=_index)) for of in shrunk}
    return [
        _as(each, next(first[of])) if (of := (each.key, each.placement.pod.pod_set)) in first else each for each in left
    ]


def _for_others(evictions: Iterable[Eviction], for_nobody: Sequence[Eviction]) -> list[Eviction]:
    """Without those for nobody; but what goes whole for somebody goes with what it would have shrunk by, too."""
    left: list[Eviction] = []
    whole: dict[str, int] = {}
    for each in (one for one in evictions if one not in for_nobody):
        if each.reason != "shrunk":
            whole.setdefault(each.key, len(left))
        left.append(each)
    for each in for_nobody:
        if each.reason == "shrunk" and (at := whole.get(each.key)) is not None:
            left[at] = replace(left[at], pods=tuple(sorted((*left[at].pods, *each.pods))))
    return left


def _in_one_piece(bindings: Iterable[Binding]) -> Iterable[Binding]:
    """The same, where what is stored together stands together: also what a later round has added to it."""
    bindings = tuple(bindings)
    whole: dict[str, list[Binding]] = {each.key: [] for each in bindings if each.whole}
    for each in bindings:
        if each.key in whole:
            whole[each.key].append(each._replace(whole=True))
    for each in bindings:
        if each.key not in whole:
            yield each
        else:
            yield from whole[each.key]
            whole[each.key] = []


def _index(ref: PodRef) -> int:
    return ref.index


def _as(binding: Binding, ref: PodRef) -> Binding:
    """The same place for another pod of the set."""
    id_ = _id(binding.workload_id, ref)
    return binding._replace(
        placement=msgspec.structs.replace(binding.placement, pod=ref),
        reservation=msgspec.structs.replace(binding.reservation, id=id_),
    )
