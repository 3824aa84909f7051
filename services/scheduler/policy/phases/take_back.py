"""What found no room may take the place of others: what elastic workloads have grown by, those of a lower priority in
its project, and those of projects beyond quota.

Those are told to end, and the place is kept until they have. Nobody is told so without a place being kept for which it
is needed: of a gang, for all of it. Which node it is, `victims` decides: where the least is lost.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from events.ids import workload_key
from events.phases import WaitingReason
from events.workload.evictions import EvictionReason
from events.workload.pod import DeviceShare
from services.scheduler.candidates import Candidates
from services.scheduler.planning import Phase, Planning, Shortfall
from services.scheduler.policy.among import options
from services.scheduler.policy.phases import explain, place, quota
from services.scheduler.policy.pools import pools_of
from services.scheduler.policy.reserve import gives_way, let_go, of_project, speak_for
from services.scheduler.policy.victims import Choice, Cost, Needed, Right, Victim, Victims, choose, grown_by
from services.scheduler.room import Room
from services.scheduler.snapshot import Eviction, OrderKey, Pending, PodClass

MOST_WEIGHED: Final = 100_000
"""Pods of others, and nodes of theirs, that one plan looks at for one project, some 0.4 s."""
MOST_WEIGHED_IN_ALL: Final = 3 * MOST_WEIGHED
"""For all projects. What is not looked at for that, the next plan begins with."""
MOST_EVICTED: Final = 2_000
"""Pods that one plan tells to end: what else is to be taken back, the next one does."""
_MAY_HELP: Final = explain.FULL | {WaitingReason.LIMIT_USED}


def run(planning: Planning) -> None:
    snapshot = planning.snapshot
    if not snapshot.running or planning.cut_short:
        return
    lowest, grown = _lowest(planning), _grown(planning)
    victims: dict[str, Victims] = {}
    for i in sorted(planning.short, key=lambda i: _first_put_off(planning, i)):
        # What is let in behind a gang of its project may take places back, too: the gang has them when it needs them.
        own = of_project(planning, i) if _all_give_way(planning, i) else (i,)
        for j in own:
            speak_for(planning, j, sign=-1)
        for shortfall in _where_it_may(planning, i):
            if not _is_hopeless(planning, i, shortfall, lowest, grown):
                _look_at(planning, i, victims)
        for j in own:
            speak_for(planning, j, sign=1)
        if sum(len(each.pods) for each in planning.evictions) >= MOST_EVICTED:
            planning.cut_short = True
            return


def _where_it_may(planning: Planning, i: int) -> Iterator[Shortfall]:
    """Have a queue stand at each cluster to which it may go, until it got something; why it found no room there."""
    stands, shortfall, elsewhere = planning.class_of(i), planning.short[i], planning.choices.elsewhere.get(i, {})
    key = planning.snapshot.queues[i].entries[planning.short_at[i].entry].key
    for option in options(planning, stands, key):
        before = planning.held_pods
        planning.choices.stands[i] = option
        yield elsewhere.get(option.cluster_id, shortfall)
        if i not in planning.short or planning.held_pods > before:
            return
    planning.choices.stands[i] = stands


def _all_give_way(planning: Planning, i: int) -> bool:
    """Whether what is left of a queue may all be let in behind gangs of its project."""
    queue = planning.snapshot.queues[i]
    if i in planning.aside.spoken_for or queue.pod_class.project_id not in planning.aside.spoken_for_by:
        return False
    entries = queue.entries[planning.short_at[i].entry :]
    return all(gives_way(planning, queue.pod_class, entry) for entry in entries)


def _look_at(planning: Planning, i: int, victims: dict[str, Victims]) -> None:
    """At what a queue may take, unless enough was looked at in this plan."""
    pod_class, weighed = planning.class_of(i), planning.weighed
    if weighed[pod_class.project_id] >= MOST_WEIGHED or weighed.total() >= MOST_WEIGHED_IN_ALL:
        planning.put_off.add(i)
        return
    if pod_class.cluster_id not in victims:
        planning.soon()
        victims[pod_class.cluster_id] = Victims(planning, pod_class.cluster_id)
    kept = let_go(planning, i)
    _take_back(planning, i, victims[pod_class.cluster_id])
    if i in planning.short:
        for each in kept:
            planning.take(each.row, each.request, each.devices)


def _first_put_off(planning: Planning, i: int) -> tuple[int, OrderKey]:
    queue = planning.snapshot.queues[i]
    return -queue.put_off, queue.entries[planning.short_at[i].entry].order


def _lowest(planning: Planning) -> dict[tuple[str, str], int]:
    """By project and cluster: the lowest priority of a preemptible workload that holds nodes."""
    lowest: dict[tuple[str, str], int] = {}
    for project_id, workloads in planning.snapshot.running.items():
        for workload in workloads:
            key, rank = (project_id, workload.cluster_id), workload.priority_rank
            lowest[key] = min(lowest.get(key, rank), rank)
    return lowest


def _grown(planning: Planning) -> set[str]:
    """Ids of clusters where anybody has grown by what is left over."""
    running = (each for workloads in planning.snapshot.running.values() for each in workloads if each.elastic)
    return {each.cluster_id for each in running if grown_by(each)}


def _is_hopeless(
    planning: Planning, i: int, shortfall: Shortfall, lowest: dict[tuple[str, str], int], grown: set[str]
) -> bool:
    """Whether it has no right to anything, or no place of others would help; without looking at any pod."""
    pod_class, queue = planning.class_of(i), planning.snapshot.queues[i]
    entry = queue.entries[planning.short_at[i].entry]
    if pod_class.together is not None or (shortfall.bound is not None and shortfall.bound.firm):
        return True
    if shortfall.waiting is not None and shortfall.waiting.reason not in _MAY_HELP:
        return True
    if pod_class.cluster_id in grown:
        return False
    if lowest.get((pod_class.project_id, pod_class.cluster_id), entry.rank) < entry.rank:
        return False
    if planning.aside.passed_by.get(i):
        return False
    right = Right(planning, pod_class, entry)
    return not any(
        len(candidates.gpu_milli) and any(right.claims(pool, int(candidates.gpu_milli.min())))
        for pool, candidates in pools_of(planning, pod_class)
    )


def _take_back(planning: Planning, i: int, victims: Victims) -> None:
    """For the entries of a queue, one after the other, as far as there is anything to be taken."""
    queue, at, pod_class = planning.snapshot.queues[i], planning.short_at[i], planning.class_of(i)
    parts = [pod_class.part(each) for each in pod_class.gang] or [pod_class]
    highest = max(entry.rank for entry in queue.entries[at.entry :])
    searches: list[Search] = []
    failed: list[tuple[int, frozenset[str]]] = []
    for number in range(at.entry, len(queue.entries)):
        entry = queue.entries[number]
        spared = victims.among(entry.gave_way_to)
        passed_by = planning.aside.passed_by.get(i, frozenset()) if number == at.entry else frozenset[str]()
        if any(entry.rank <= rank and spared >= others for rank, others in failed):
            continue  # what was too little for one that may take as much is too little for it
        if not searches or entry.rank > searches[0].entry.rank or searches[0].differs(spared, passed_by):
            if searches and planning.weighed[pod_class.project_id] >= MOST_WEIGHED:
                planning.put_off.add(i)
                return
            searches = [Search(planning, victims, part, entry, passed_by) for part in parts]
        for search in searches:
            search.turn_to(entry)
        count = len(entry.pods) - (at.done if number == at.entry else 0)
        most = count if pod_class.gang else min(count, max(place.MOST_HELD - planning.held_pods, 0))
        got = _get(planning, i, entry, searches, most)
        if most < count:
            planning.cut_short = planning.cut_short or bool(planning.evictions)
            return
        if not got:
            failed.append((entry.rank, spared))
            if entry.rank == highest and not spared:
                return
        elif planning.held_pods >= place.MOST_HELD and number + 1 < len(queue.entries):
            planning.cut_short = True
            return
    if not failed:
        del planning.short[i]


def _get(planning: Planning, i: int, entry: Pending, searches: Sequence["Search"], most: int) -> bool:
    """Keep places for so many pods of an entry, or for a gang; whether there were as many."""
    gang, victims = planning.snapshot.queues[i].pod_class.gang, searches[0].victims
    needed = [each.needed for each in gang] or [most]
    mark, gone = planning.checkpoint(), set(victims.gone)
    got: list[int] = []
    for n, (search, count) in enumerate(zip(searches, needed, strict=True)):
        rest = [(other.pod_class, more) for other, more in zip(searches[n + 1 :], needed[n + 1 :], strict=True)]
        got.append(search.get(count, rest if gang else None))
    if (gang and got != needed) or not searches[0].makes_up(i, mark.share_used):
        planning.rollback(mark)
        victims.end_no_more(gone)
        return False
    if any(got):
        if entry is planning.snapshot.queues[i].entries[planning.short_at[i].entry]:
            planning.aside.spoken_for.pop(i, None)  # it has what it was to have
        planning.keeps(i, entry, explain.held())
    return got == needed


class Search:
    """Places that are kept for pods of one class, while others are told to end. Mutable."""

    def __init__(
        self, planning: Planning, victims: Victims, pod_class: PodClass, entry: Pending, passed_by: frozenset[str]
    ) -> None:
        self._planning, self.victims = planning, victims
        self.spared = victims.among(entry.gave_way_to)
        self._right = Right(planning, pod_class, entry, passed_by, self.spared)
        self.entry = entry
        """For which the places are."""
        self._pools = pools_of(planning, pod_class, later=True)
        self._rest: Sequence[tuple[PodClass, int]] = ()
        """What else of a gang is to have a place: beside the pod for which a place is looked for just now."""
        self._heaps: list[list[tuple[Cost, int]]] | None = None
        """By pool: (cost, index among the candidates), the least first. Costs may have risen since, and do not fall but
        for the nodes that changed.
        """
        self._seen = 0

    def differs(self, spared: frozenset[str], passed_by: frozenset[str]) -> bool:
        """Whether it spares others than these, or others have passed it."""
        return (self.spared, self._right.passed_by) != (spared, passed_by)

    def turn_to(self, entry: Pending) -> None:
        """The next in the queue, of no higher priority: it takes no more than the one before, and spares the same."""
        self.entry, self._right = entry, self._right._replace(entry=entry)

    @property
    def pod_class(self) -> PodClass:
        return self._right.pod_class

    def get(self, most: int, rest: Sequence[tuple[PodClass, int]] | None) -> int:
        """Keep places for so many pods; for how many.

        Args:
            rest: of a gang, its other pods by class: it takes nothing by a right that it has not to all of them.
        """
        for count in range(most):
            self._rest = () if rest is None else (*rest, (self.pod_class, most - count - 1))
            if not place.hold_one(self._planning, self._right.pod_class, self._pools) and not self._evict():
                return count
        return most

    def makes_up(self, i: int, before: Mapping[tuple[str, int], int]) -> bool:
        """Have those end that passed it, until its project has no more than its share again, or than before; whether
        that is possible. The last that came go first. Its department gets back what can be given.

        Args:
            i: index of its queue.
        """
        right, planning = self._right, self._planning
        if not right.passed_by:
            return True
        shares, project_id = planning.shares, right.pod_class.project_id
        last = self.victims.of(right.passed_by)
        for number in planning.aside.spoken_for[i]:
            for holder in (project_id, shares.project(project_id).department_id):
                most = max(shares.of(holder, number), before.get((holder, number), 0))
                while shares.used.get((holder, number), 0) > most:
                    victim = next((one for one in last if right.number(one.pool) == number), None)
                    if victim is None:
                        if holder == project_id:
                            return False
                        break
                    unit = self.victims.unit(victim)
                    last = [one for one in last if one not in unit]
                    if not self.victims.not_before(unit):
                        self._end(unit, "backfilled")
        return True

    def _evict(self) -> bool:
        """Have others end for one pod, and keep its place; whether that is possible."""
        self._refresh()
        for number, (pool, candidates) in enumerate(self._pools):
            found = self._best(number, pool, candidates)
            if found is None:
                continue
            index, choice = found
            for unit, reason in choice.units:
                self._end(unit, reason)
            place.keep(self._planning, self._right.pod_class, pool, candidates, index)
            return True
        return False

    def _refresh(self) -> None:
        later = self._planning.soon()
        if self._heaps is None:
            self._seen = len(later.changed)
            self._heaps = [[] for _ in self._pools]
            changed = self._hopeful(later)
        else:
            changed = set(later.changed[self._seen :])
            self._seen = len(later.changed)
        for heap, (pool, candidates) in zip(self._heaps, self._pools, strict=True):
            for index in _indexes(candidates, changed):
                if (choice := self._choice(pool, candidates, index)) is not None:
                    heapq.heappush(heap, (choice.cost, index))

    def _hopeful(self, later: Room) -> set[int]:
        """Rows of nodes that may have room once all have ended whom it may have a right to."""
        request = self._right.pod_class.request
        shares = [int(candidates.gpu_milli.min()) for _, candidates in self._pools if len(candidates.gpu_milli)]
        share = min(shares, default=0) // request.gpu_devices if request.gpu_devices else 0
        return self.victims.hopeful(self._right, later, request, share)

    def _best(self, number: int, pool: str, candidates: Candidates) -> tuple[int, Choice] | None:
        heap = (self._heaps or [])[number]
        while heap:
            cost, index = heap[0]
            choice = self._choice(pool, candidates, index)
            if choice is None:
                heapq.heappop(heap)
            elif choice.cost > cost:
                heapq.heapreplace(heap, (choice.cost, index))
            else:
                return index, choice
        return None

    def _choice(self, pool: str, candidates: Candidates, index: int) -> Choice | None:
        pod_class, milli = self._right.pod_class, int(candidates.gpu_milli[index])
        own = of_department = 0
        for bound in quota.bounds(self._planning, pod_class, pool):
            lacking = milli - quota.left_under(self._planning, bound, later=True)
            if bound.firm and lacking > 0:
                return None  # only non-preemptible pods count, and none of those goes
            if bound.id == pod_class.project_id:
                own = max(own, lacking)
            else:
                of_department = max(of_department, lacking)
        devices = pod_class.request.gpu_devices
        needed = Needed(pod_class.request, milli // devices if devices else 0, own, of_department)
        row = int(candidates.rows[index])
        self._planning.weighed[pod_class.project_id] += 1 + len(self.victims.on(row))
        beside = self._beside(pool) if milli else 0
        claims = self._right.claims(pool, max(milli + beside - self._given_up(pool), 1) if milli else 0)
        return choose(self.victims, self._right, self._planning.soon(), row, needed, claims=claims)

    def _beside(self, pool: str) -> int:
        """What the other pods of its gang are still to have, as if all of them came to this pool."""
        number = self._right.number(pool)
        shares = self._planning.shares
        return 0 if number is None else sum(shares.milli_of(of.request, number) * n for of, n in self._rest)

    def _given_up(self, pool: str) -> int:
        """What those hold there that passed it: its project has that to give, whatever else it has."""
        passed_by = self._right.passed_by
        return sum(one.gpu_milli for one in self.victims.of(passed_by) if one.pool == pool) if passed_by else 0

    def _end(self, unit: Sequence[Victim], reason: EvictionReason) -> None:
        planning, workload = self._planning, unit[0].workload
        for victim in unit:
            devices = tuple(DeviceShare(device=device, milli=milli) for device, milli in victim.shares.items())
            held = victim.request
            planning.soon().give_back(victim.row, held.cpu_milli, held.memory_bytes, devices, held.extended)
            quota.give_up(planning, workload, victim.pool, victim.gpu_milli)
        self.victims.end(unit)
        planning.evictions.append(
            Eviction(
                key=workload_key(workload.project_id, workload.name),
                workload_id=workload.workload_id,
                name=workload.name,
                pods=tuple(sorted(victim.ref for victim in unit)),
                reason=reason,
                message=self._right.why(unit[0], reason, self.entry.name),
                beneficiary=self.entry.workload_id,
            )
        )


def _indexes(candidates: Candidates, rows: set[int]) -> list[int]:
    """Where these rows stand among the candidates, as far as they do."""
    return [index for index, row in enumerate(candidates.rows.tolist()) if row in rows]


PHASE: Final = Phase(name="take_back", run=run)
