"""Each pod goes to the best node of the first pool that has room, in the order of the queues. A gang's pods do so one
after the other, and where too many find no room, none of them is placed.

A workload that does not fit lets others pass. Once no room was found for one pod, its whole class is done for this
plan, because from here on room only shrinks.

Behind a gang, or a pod of several GPUs, that has waited for long, room is kept as it comes free (`reserve`).

A pod that has no room now, and will have once others have ended that were told to, is not placed: its place is kept, so
that nobody passes who would take it.

To find out that a gang does not fit takes as long as to place it, and to compare a long node affinity takes its time,
too: a plan spends so much on that for each project, and puts the rest off to the next one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from events.workload.pod import PodRef
from services.scheduler.candidates import Candidates
from services.scheduler.planning import Phase, Planning, ShortAt, Shortfall
from services.scheduler.policy.among import options
from services.scheduler.policy.beside import beside, most_beside, rooms
from services.scheduler.policy.phases import explain, quota
from services.scheduler.policy.pools import is_closed, pools_of
from services.scheduler.policy.reserve import left_to_others, reserve, waits_behind
from services.scheduler.policy.together import Stay, most_together
from services.scheduler.policy.turns import Turn, Turns
from services.scheduler.snapshot import GangPart, Pending, PodClass, Queue, Waiting

TRIED_IN_VAIN: Final = 2_000
"""Pods of gangs that a plan places and takes back, some 0.2 s. From then on a gang is tried only where a rough count
says that it may fit: a few hundred wide ones that wait would hold up everybody for a minute.
"""
MOST_PROBED: Final = 1_000
"""Pods of one project that are tried in vain in one plan, about: some 0.15 s, which everybody waits for."""
MOST_HELD: Final = 2_000
"""Pods for which one plan keeps places: what comes after them takes what there is."""
COUNTED_AS: Final = 5
"""Pods that a gang counts as beside those, for what it costs to look at it at all."""


def run(planning: Planning) -> None:
    """Place until nothing fits any more, or the plan is full."""
    queues = planning.snapshot.queues
    turns = Turns(planning)
    classes = {i: queue.pod_class for i, queue in enumerate(queues) if queue.entries and queue.blocked is None}
    pools = {
        i: pools_of(planning, pod_class)
        for i, pod_class in classes.items()
        if not pod_class.gang and not pod_class.probing and not pod_class.among
    }
    longest: dict[str, int] = {}
    for i, pod_class in classes.items():
        longest[pod_class.project_id] = max(longest.get(pod_class.project_id, 0), queues[i].put_off)
    probing = {i: cost for i, pod_class in classes.items() if (cost := pod_class.probing)}
    later: dict[int, list[tuple[str, Candidates]]] = {}
    for turn in turns:
        i = turn.queue
        queue = queues[i]
        entry = queue.entries[turn.entry]
        if is_closed(planning, queue.pod_class):
            waiting = explain.why(planning, queue.pod_class, Shortfall())
            waiting = explain.or_never(planning, queue.pod_class, entry, waiting)
            planning.short[i] = Shortfall(waiting=waiting)
            planning.short_at[i] = ShortAt(turn.entry, turn.start)
            continue
        if all(waits_behind(planning, each, entry) for each in options(planning, queue.pod_class, entry.key)):
            planning.short[i] = Shortfall(waiting=explain.behind(planning, queue.pod_class))
            planning.short_at[i] = ShortAt(turn.entry, turn.start, len(planning.room.changed))
            continue
        if i in probing and _puts_off(planning, queue, longest):
            planning.put_off.add(i)
            continue
        if queue.pod_class.gang:
            short, cost = _turn_of_gang(planning, turn, queue)
        elif queue.pod_class.among:
            short, cost = _turn_among(planning, turn, queue), probing.get(i, 0)
        else:
            if i not in pools:
                pools[i] = pools_of(planning, queue.pod_class)
            left = left_to_others(planning, queue.pod_class, entry)
            short, cost = _turn(planning, turn, queue, pools[i], later, left=left), probing.get(i, 0)
            if short is not None and _has_room(pools[i], left):
                planning.short[i] = Shortfall(waiting=explain.behind(planning, queue.pod_class))
                planning.short_at[i] = short.at._replace(changes=len(planning.room.changed))
                continue
        if short is not None:
            planning.probed[queue.pod_class.project_id] += cost
        if planning.cut_short:
            return
        if short is None:
            turns.go_on(turn)
            continue
        planning.short[i] = short.fall
        planning.short_at[i] = short.at._replace(changes=len(planning.room.changed))
        entry = queue.entries[short.at.entry]
        stands = planning.class_of(i)
        if told := reserve(planning, i, stands, entry):
            waiting = explain.why(planning, stands, short.fall)
            planning.held[entry.key] = replace(waiting, message=f"{waiting.message}; {told}")
            planning.held_queues.setdefault(i, entry.key)


class _Short(NamedTuple):
    """That something of a turn found no room."""

    fall: Shortfall
    at: ShortAt


def _turn(
    planning: Planning,
    turn: Turn,
    queue: Queue,
    pools: list[tuple[str, Candidates]],
    later: dict[int, list[tuple[str, Candidates]]],
    *,
    left: frozenset[str],
) -> _Short | None:
    """Place all that has this turn, or keep places for it; what found no room.

    Args:
        later: by index of a queue, the pools with the room that there will be, once they were looked at.
        left: pools that it leaves to others.
    """
    pools = [each for each in pools if each[0] not in left]
    i, entries = turn.queue, queue.entries
    spans = [(turn.entry, turn.start, turn.stop)]
    if turn.through > turn.entry + 1:
        spans += [(number, 0, len(entries[number].pods)) for number in range(turn.entry + 1, turn.through)]
    while spans:
        of, pods = list[Pending](), list[PodRef]()
        for number, start, stop in spans:
            of += [entries[number]] * (stop - start)
            pods += entries[number].pods[start:stop]
        at_first = len(planning.placed.pods)
        shortfall = _place(planning, queue.pod_class, of, pods, pools)
        if shortfall is None:
            return None
        done = len(planning.placed.pods) - at_first
        while done >= spans[0][2] - spans[0][1]:
            _, start, stop = spans.pop(0)
            done -= stop - start
        number, start, stop = spans.pop(0)
        done += start
        if planning.later is not None and queue.pod_class.together is None:
            if i not in later:
                later[i] = pools_of(planning, queue.pod_class, later=True)
            open_later = [each for each in later[i] if each[0] not in left]
            done += hold(planning, i, entries[number], stop - done, of=queue.pod_class, pools=open_later)
        if done < stop:
            return _Short(shortfall, ShortAt(number, done))
    return None


def _has_room(pools: list[tuple[str, Candidates]], left: frozenset[str]) -> bool:
    """Whether there is room in any of these pools that it leaves to others."""
    return any(pool in left and candidates.fitting_in_all(1, enough=1) for pool, candidates in pools)


def _turn_among(planning: Planning, turn: Turn, queue: Queue) -> _Short | None:
    """The same of one workload for which nobody named a cluster: all its pods go to one, where most of them can."""
    i, entry, at = turn.queue, queue.entries[turn.entry], ShortAt(turn.entry, turn.start)
    pods = entry.pods[turn.start : turn.stop]
    falls: dict[str, Shortfall] = {}
    for option in _most_first(planning, queue.pod_class, entry):
        pools, before = pools_of(planning, option), len(planning.placed.pods)
        fall = falls[option.cluster_id] = _place(planning, option, [entry] * len(pods), pods, pools) or Shortfall()
        done = len(planning.placed.pods) - before
        if done:
            planning.choices.chosen[entry.key] = option.cluster_id
        if done == len(pods) or planning.cut_short:
            return None
        if done:
            done += _hold_on(planning, i, option, entry, len(pods) - done)
            planning.choices.stands[i] = option
            return None if done == len(pods) else _Short(fall, at._replace(done=turn.start + done))
    for option in options(planning, queue.pod_class, entry.key):
        if done := _hold_on(planning, i, option, entry, len(pods)):
            planning.choices.chosen[entry.key], planning.choices.stands[i] = option.cluster_id, option
            fall = falls.get(option.cluster_id, Shortfall())
            return None if done == len(pods) else _Short(fall, at._replace(done=turn.start + done))
    return _Short(_stands_short(planning, i, falls), at)


def _stands_short(planning: Planning, i: int, falls: dict[str, Shortfall]) -> Shortfall:
    """Of several clusters (by id) where it found no room: the one that counts, at which it stands from now on."""
    own = planning.snapshot.queues[i].pod_class
    id_ = own.cluster_id if own.cluster_id in falls else next(iter(falls))
    planning.choices.stands[i], planning.choices.elsewhere[i] = own.on(id_), falls
    return falls[id_]


def _most_first(planning: Planning, pod_class: PodClass, entry: Pending) -> list[PodClass]:
    """Where it may go, but for where another of its project has waited for longer: those with room for all of it first,
    then those with room for a part.
    """
    found = list(options(planning, pod_class, entry.key))
    found = [each for each in found if not waits_behind(planning, each, entry)]
    if len(found) < 2 or len(entry.pods) < 2:  # noqa: PLR2004 (one of one)
        return found
    wanted = len(entry.pods)

    def lacking(option: PodClass) -> int:
        pools = pools_of(planning, option)
        return max(wanted - _fitting(planning, option, pools, wanted, enough=wanted), 0)

    return sorted(found, key=lacking)


def _hold_on(planning: Planning, i: int, option: PodClass, entry: Pending, most: int) -> int:
    if planning.later is None or option.together is not None:
        return 0
    return hold(planning, i, entry, most, of=option, pools=pools_of(planning, option, later=True))


def again(planning: Planning, i: int) -> None:
    """What found no room in its turn is looked at once more, where the room has changed since: others had their turn,
    or gave up a place. It waits for the reason that it has in the end; and what finds a place after all, or one that is
    kept for it among those that others give up, gets it.

    Args:
        i: index of its queue.
    """
    queue, at = planning.snapshot.queues[i], planning.short_at[i]
    pod_class = queue.pod_class
    if at.changes == len(planning.room.changed) or pod_class.among or is_closed(planning, pod_class):
        return
    if not pod_class.gang:
        if planning.short[i].waiting is None and not _holds_rest(planning, i):
            planning.short[i] = _shortfall(planning, pod_class, pools_of(planning, pod_class))
        return
    while True:
        entry = queue.entries[at.entry]
        short = _place_gang(planning, pod_class, entry)
        if planning.cut_short:
            return
        if short is not None and not (planning.evictions and hold_gang(planning, i, pod_class, entry)):
            break
        at = at._replace(entry=at.entry + 1)
        if at.entry == len(queue.entries):
            del planning.short[i], planning.short_at[i]
            return
    if at != planning.short_at[i] or _is_another(planning.short[i].waiting, short.waiting):
        planning.short[i], planning.short_at[i] = short, at


def _holds_rest(planning: Planning, i: int) -> bool:
    """Keep places for those of a queue that found none, where others are told to end in this plan; whether all do."""
    queue, at = planning.snapshot.queues[i], planning.short_at[i]
    if not planning.evictions or queue.pod_class.together is not None:
        return False
    pools, done = pools_of(planning, queue.pod_class, later=True), at.done
    for number in range(at.entry, len(queue.entries)):
        entry = queue.entries[number]
        count = hold(planning, i, entry, len(entry.pods) - done, of=queue.pod_class, pools=pools)
        if count < len(entry.pods) - done:
            planning.short_at[i] = at._replace(entry=number, done=done + count)
            return False
        done = 0
    del planning.short[i], planning.short_at[i]
    return True


def _is_another(before: Waiting | None, now: Waiting | None) -> bool:
    """Whether it waits for another reason: how far it came in its turn tells more than how far it would come now."""
    reasons = {each.reason for each in (before, now) if each is not None}
    return len(reasons) > 1 and not reasons <= explain.FULL


def _turn_of_gang(planning: Planning, turn: Turn, queue: Queue) -> tuple[_Short | None, int]:
    """Place a gang, or keep places for it; that it found no room, and what that cost."""
    i, before, entry = turn.queue, planning.tried_in_vain, queue.entries[turn.entry]
    falls: dict[str, Shortfall] = {}
    for option in options(planning, queue.pod_class, entry.key):
        shortfall = _place_gang(planning, option, entry)
        if shortfall is None:
            if option.among and not planning.cut_short:
                planning.choices.chosen[entry.key] = option.cluster_id
            return None, 0
        falls[option.cluster_id] = shortfall
        if option.among and option.together is not None:
            planning.values.pop(option.together, None)  # where its pods were tried: none of them is there
    for option in options(planning, queue.pod_class, entry.key):
        if hold_gang(planning, i, option, entry):
            if option.among:
                planning.choices.chosen[entry.key] = option.cluster_id
            return None, 0
    fall = _stands_short(planning, i, falls)
    return _Short(fall, ShortAt(turn.entry, turn.start)), COUNTED_AS + planning.tried_in_vain - before


def _puts_off(planning: Planning, queue: Queue, longest: Mapping[str, int]) -> bool:
    """Whether its project has used up what one plan spends on it, or others of it have been put off more often.
    `longest`: by project, how often at most.
    """
    project_id = queue.pod_class.project_id
    return planning.probed[project_id] >= MOST_PROBED or queue.put_off < longest[project_id]


def _place_gang(planning: Planning, pod_class: PodClass, entry: Pending) -> Shortfall | None:
    """Place a gang whole, or nothing of it; why not."""
    start, mark = len(planning.placed.pods), planning.checkpoint()
    if start and start + len(entry.pods) > planning.max_pods:
        planning.cut_short = True
        return None
    at, planning.in_gang = 0, True
    for each, part in planning.parts(pod_class):
        before = len(planning.placed.pods)
        pools = pools_of(planning, part)
        # What is known to wait is tried in each plan where room is kept for it: mostly a count says that it still does.
        # What is under a bound is told the same of it each time: the count weighs it against the nodes.
        bound = any(quota.bounds(planning, part, pool) for pool, _ in pools)
        counted = entry.reported or bound or planning.tried_in_vain >= TRIED_IN_VAIN
        waiting = _too_few(planning, part, each, pools, entry) if counted else None
        if waiting is None:
            shortfall = _place(planning, part, [entry] * each.pods, entry.pods[at : at + each.pods], pools)
            placed = len(planning.placed.pods)
            if shortfall is not None and placed - before < each.needed:
                waiting = explain.why_gang(planning, part, shortfall, placed=placed - start, of=entry)
        if waiting is not None:
            planning.tried_in_vain += len(planning.placed.pods) - start
            planning.rollback(mark)
            planning.placed.forget(start)
            planning.in_gang = False
            return Shortfall(waiting=explain.or_never(planning, pod_class, entry, waiting))
        at += each.pods
    planning.in_gang = False
    planning.placed.whole.add(entry.key)
    return None


def _too_few(
    planning: Planning, part: PodClass, of: GangPart, pools: list[tuple[str, Candidates]], entry: Pending
) -> Waiting | None:
    """Why this part of a gang cannot find a place, by a rough count that is never too small; None where it may, or
    where none of its pods does, which the first one shows.
    """
    if part.together is not None and part.together.required:
        count = sum(most_together(planning, part.together, candidates, of.pods) for _, candidates in pools)
    else:
        count = _fitting(planning, part, pools, of.pods, enough=of.needed)
    left = [quota.left(planning, part, pool) for pool, _ in pools]
    if None not in left and (shortfall := _shortfall(planning, part, pools)).quota_need_milli:
        # In all pools together at most so many: one bound may hold in several of them.
        by_quota = sum(max(each.milli, 0) // shortfall.quota_need_milli for each in left if each is not None)
        if by_quota < min(count, of.needed):
            return explain.too_few(by_quota, entry, explain.why(planning, part, shortfall))
    return explain.too_few(count, entry, part) if 0 < count < of.needed else None


def _fitting(
    planning: Planning, pod_class: PodClass, pools: list[tuple[str, Candidates]], most: int, *, enough: int
) -> int:
    """About how many such pods find room now, no fewer than do, and of each open node no more than `most`."""
    count = sum(candidates.fitting_in_all(most, enough=enough) for _, candidates in pools)
    return count if count >= enough else count + most_beside(planning, pod_class, enough=enough - count)


def _place(
    planning: Planning,
    pod_class: PodClass,
    of: Sequence[Pending],
    pods: Sequence[PodRef],
    pools: list[tuple[str, Candidates]],
) -> Shortfall | None:
    """Place pods of one class; why the first that found no room did not.

    Args:
        of: the entry of each pod; of those that stay together, all have the same.
    """
    stay = None if pod_class.together is None else Stay(planning, pod_class.together, of[0], pools)
    at = 0
    while at < len(pods):
        most = len(pods) - at
        if not planning.in_gang:
            most = min(most, planning.max_pods - len(planning.placed.pods))
            if most <= 0:
                planning.cut_short = True
                return None
        for pool, candidates in pools:
            left = quota.left(planning, pod_class, pool)
            left_milli = None if left is None else left.milli
            if stay is None:
                filled = planning.fill(candidates, pod_class.request, most, left_milli)
            else:
                filled = planning.put(candidates, pod_class.request, stay.best(candidates, left_milli))
            if filled is None:
                continue
            index, given = filled
            quota.use(planning, pod_class, pool, int(candidates.gpu_milli[index]) * len(given))
            count, row = len(given), int(candidates.rows[index])
            until = at + count
            planning.placed.add(pod_class, of[at:until], pods[at:until], (pool, row), given)
            at = until
            break
        else:
            if stay is not None or (found := beside(planning, pod_class)) is None:
                return _shortfall(planning, pod_class, pools)
            planning.take(found.row, pod_class.request, found.devices)
            quota.use(planning, pod_class, found.pool, found.gpu_milli)
            placed = pod_class, of[at : at + 1], pods[at : at + 1], (found.pool, found.row)
            planning.placed.add(*placed, [found.devices])
            at += 1
    return None


def hold(
    planning: Planning, i: int, entry: Pending, most: int, *, of: PodClass, pools: list[tuple[str, Candidates]]
) -> int:
    """Keep places for so many pods where others end; for how many, one after the other.

    Args:
        i: index of the queue.
        of: its class, where it stands.
        pools: by the room that there will be.
    """
    for count in range(most):
        if planning.held_pods >= MOST_HELD or not hold_one(planning, of, pools):
            return count
        planning.keeps(i, entry, explain.held())
    return most


def hold_one(planning: Planning, pod_class: PodClass, pools: list[tuple[str, Candidates]]) -> bool:
    for pool, candidates in pools:
        left = quota.left(planning, pod_class, pool, later=True)
        index = candidates.best(most_gpu_milli=None if left is None else left.milli)
        if index is not None:
            keep(planning, pod_class, pool, candidates, index)
            return True
    return False


def keep(planning: Planning, pod_class: PodClass, pool: str, candidates: Candidates, index: int) -> None:
    """Keep the place on this node (by its index among the candidates)."""
    planning.hold(int(candidates.rows[index]), pod_class.request, candidates.devices(index))
    milli = int(candidates.gpu_milli[index])
    quota.use(planning, pod_class, pool, milli)


def hold_gang(planning: Planning, i: int, pod_class: PodClass, entry: Pending) -> bool:
    """Keep places for a gang, or for none of it."""
    parts = planning.parts(pod_class)
    if planning.later is None or any(part.together is not None for _, part in parts):
        return False
    needed = sum(each.needed for each, _ in parts)
    if planning.held_pods and planning.held_pods + needed > MOST_HELD:
        return False
    mark = planning.checkpoint()
    for each, part in parts:
        pools = pools_of(planning, part, later=True)
        if not all(hold_one(planning, part, pools) for _ in range(each.needed)):
            planning.tried_in_vain += planning.held_pods - mark.held_pods
            planning.rollback(mark)
            return False
    planning.keeps(i, entry, explain.held())
    return True


def _shortfall(planning: Planning, pod_class: PodClass, pools: list[tuple[str, Candidates]]) -> Shortfall:
    """The bound that stands in the way where a node with room takes the least; none where no node has room."""
    found, least = Shortfall(), dict[str, int]()
    for place in rooms(planning, pod_class) if pod_class.request.gpu_devices else ():
        least[place.pool] = min(place.gpu_milli, least.get(place.pool, place.gpu_milli))
    for pool, candidates in pools:
        left = quota.left(planning, pod_class, pool)
        need = None if left is None else candidates.least_gpu_milli() or least.get(pool)
        if left is None or need is None or (found.bound is not None and need >= found.quota_need_milli):
            continue
        used = planning.quota_used.get(left.bound.key, 0)
        found = Shortfall(quota_need_milli=need, quota_used_milli=used, bound=left.bound)
    return found


PHASE: Final = Phase(name="place", run=run)
