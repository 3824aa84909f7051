"""Whose place a workload may take, and what that costs on a node. Pure.

Two rules, both about preemptible workloads only. *Preempt*: those of a lower priority in the same project. *Reclaim*:
those of projects beyond their quota, for a project that stays within its own; and those of projects beyond their fair
share of a node pool, for one that stays within its own. So nobody takes back what was taken: who reclaims is within its
quota or share then, and who preempts has the higher priority.

What an elastic workload has grown by is everybody's who waits: it was left over, and is given up before anybody else's
place. It goes on with the others (*shrunk*).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

import numpy as np

from events.phases import PodPhase
from events.workload.at_risk import seconds_at_risk
from events.workload.evictions import EvictionReason, evictable
from events.workload.gangs import meets_at, placed_of
from events.workload.pod import Pod, PodRef
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from events.workload.state import Workload
from services.scheduler.columns import clipped
from services.scheduler.planning import Planning
from services.scheduler.policy.phases import quota
from services.scheduler.policy.words import gpus
from services.scheduler.room import Room
from services.scheduler.snapshot import Bound, Integers, Pending, PodClass, ProjectView, Snapshot, Undisturbed
from services.scheduler.waits import NEVER, gives_way

AGAIN_MILLI_SECONDS: Final = 600 * WHOLE_GPU_MILLI
"""What it costs to end a pod and to start it again, beside its work: ten minutes of a GPU. So of two choices that lose
nearly the same, the one with fewer pods is taken.
"""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Victim:
    """A pod that may have to go, and what it holds."""

    workload: Workload
    ref: PodRef
    row: int
    pool: str
    request: PodRequest
    shares: dict[int, int]
    """Thousandths by device."""
    workload_since: float
    """When its workload began to wait for the place."""
    at_risk_seconds: int
    """How long it has run since its workload saved its work last, or since it began."""
    grown: bool = False
    """Whether it may be one by which an elastic workload has grown: as long as enough others are left."""

    @property
    def gpu_milli(self) -> int:
        return sum(self.shares.values())

    @property
    def loss(self) -> int:
        """What is lost by ending it: thousandths of a GPU times seconds."""
        return self.at_risk_seconds * self.gpu_milli


class Victims:
    """The preemptible pods of a cluster by node, while a plan is made. Mutable: `gone` are told to end already."""

    def __init__(self, planning: Planning, cluster_id: str) -> None:
        self.gone: set[Victim] = set()
        self._gone: Counter[tuple[str, str]] = Counter()
        """How many of these by workload id and pod set: to count them for each of a wide one takes long."""
        self._on: dict[int, list[Victim]] = {}
        self._of: dict[str, list[Victim]] = {}
        self._spare: dict[tuple[str, str], int] = {}
        """By workload id and pod set: how many pods it has grown by."""
        self._later: dict[Victim, Undisturbed] = {}
        """Those that have not run for long enough, and when they will have."""
        self._freed: dict[tuple[str, int, frozenset[str]], _Freed] = {}
        """By project id and priority of whoever takes it, and who has passed it."""
        rows = {key: row for row, key in enumerate(planning.snapshot.nodes.keys)}
        for workloads in planning.snapshot.running.values():
            for workload in workloads:
                if workload.cluster_id == cluster_id:
                    self._add(planning, workload, rows)
        for on in self._on.values():
            on.sort(key=_loss)

    def _add(self, planning: Planning, workload: Workload, rows: dict[str, int]) -> None:
        if any(pod_set.minimum for pod_set in workload.pod_sets) and any(
            pod.phase is PodPhase.UNKNOWN for pod in workload.pods.live.values()
        ):
            return  # it cannot go whole: what nobody sees is told nothing
        requests = {pod_set.name: pod_set.template.request for pod_set in workload.pod_sets}
        spare = grown_by(workload)
        if not workload.preemptible and not spare:
            return
        self._spare |= {(workload.workload_id, name): count for name, count in spare.items()}
        for (name, index), pod in workload.pods.live.items():
            if not evictable(pod) or pod.node_key not in rows or name not in requests:
                continue
            victim = Victim(
                workload=workload,
                ref=PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_),
                row=rows[pod.node_key],
                pool=pod.pool,
                request=requests[name],
                shares={share.device: share.milli for share in pod.devices},
                workload_since=planning.snapshot.stints.get(workload.workload_id, NEVER).since,
                at_risk_seconds=seconds_at_risk(workload, pod, planning.snapshot.now),
                grown=name in spare and not meets_at(workload, (name, index)),
            )
            undisturbed = _undisturbed(planning, workload, pod)
            if undisturbed.until > planning.snapshot.now:
                self._later[victim] = undisturbed
            self._on.setdefault(victim.row, []).append(victim)
            self._of.setdefault(workload.workload_id, []).append(victim)

    def end(self, unit: Iterable[Victim]) -> None:
        """They are told to end."""
        for one in unit:
            if one not in self.gone:
                self.gone.add(one)
                self._gone[one.workload.workload_id, one.ref.pod_set] += 1

    def end_no_more(self, but: AbstractSet[Victim]) -> None:
        """Only these are told to end, after all."""
        for one in self.gone - but:
            self.gone.remove(one)
            self._gone[one.workload.workload_id, one.ref.pod_set] -= 1

    def hopeful(self, right: "Right", room: Room, request: PodRequest, share_milli: int) -> set[int]:
        """Rows where such a pod may have room once all have ended that `right` may be over. Sooner said than `choose`
        does, and never of too few: most nodes of a full cluster help nobody.
        """
        key = right.pod_class.project_id, right.rank, right.passed_by
        if (freed := self._freed.get(key)) is None:
            freed = self._freed[key] = self._freed_by(right, room.devices.shape[1])
        rows = freed.rows
        devices = room.devices[rows]
        fitting = ((devices >= 0) & (devices + freed.devices >= share_milli)).sum(axis=1) - room.withheld[rows]
        helps = (room.pods[rows] + freed.pods >= 1) & (fitting >= request.gpu_devices)
        if request.cpu_milli:
            helps &= room.cpu[rows] + freed.cpu >= request.cpu_milli
        if request.memory_bytes:
            helps &= room.memory[rows] + freed.memory >= request.memory_bytes
        return set(rows[helps].tolist())

    def _freed_by(self, right: "Right", width: int) -> "_Freed":
        own = right.pod_class.project_id
        found = {
            row: over
            for row, on in self._on.items()
            if (
                over := [
                    victim
                    for victim in on
                    if victim.grown
                    or victim.workload.project_id != own
                    or victim.workload.priority_rank < right.rank
                    or victim.workload.workload_id in right.passed_by
                ]
            )
        }
        devices = np.zeros((len(found), width), dtype=np.int64)
        for at, over in enumerate(found.values()):
            for device, milli in (share for victim in over for share in victim.shares.items() if share[0] < width):
                devices[at, device] += milli
        return _Freed(
            rows=np.array(list(found), dtype=np.int64),
            cpu=_sums(sum(each.request.cpu_milli for each in over) for over in found.values()),
            memory=_sums(sum(each.request.memory_bytes for each in over) for over in found.values()),
            pods=_sums(len(over) for over in found.values()),
            devices=devices,
        )

    def on(self, row: int) -> list[Victim]:
        """Those on a node, the ones that lose the least first."""
        return [victim for victim in self._on.get(row, ()) if victim not in self.gone]

    def of(self, ids: AbstractSet[str]) -> list[Victim]:
        """Those of these workloads, the last that came first."""
        found = [one for id_ in ids for one in self._of.get(id_, ()) if one not in self.gone]
        return sorted(found, key=lambda one: (-one.workload_since, one.workload.workload_id, one.ref))

    def among(self, ids: Iterable[str]) -> frozenset[str]:
        """Those of these workloads that hold a place."""
        return frozenset(id_ for id_ in ids if id_ in self._of)

    def not_before(self, unit: Iterable[Victim]) -> Undisturbed | None:
        """When all of them will have run for long enough; None where they have. One that was run again after a failure
        does not count beside others: what fails over and over would keep all that goes with it for ever.
        """
        if not self._later:
            return None
        unit = [*unit]
        first = [one for one in unit if not one.ref.try_] or unit
        return max((self._later[one] for one in first if one in self._later), default=None)

    def shrinks(self, victim: Victim, going: Collection[Victim]) -> bool:
        """Whether its workload goes on without it.

        Args:
            going: others that are to go in the same step.
        """
        if not victim.grown:
            return False
        of, pod_set = victim.workload, victim.ref.pod_set
        gone = sum(one.workload is of and one.ref.pod_set == pod_set and one not in self.gone for one in going)
        key = of.workload_id, pod_set
        return self._spare[key] > self._gone[key] + gone

    def unit(self, victim: Victim) -> list[Victim]:
        """All that go with it where its workload does not go on: a gang goes whole; so does what ends for good."""
        of = self._of[victim.workload.workload_id]
        together = any(pod_set.minimum for pod_set in victim.workload.pod_sets)
        if together or victim.workload.spec.terminate_after_preemption:
            return [one for one in of if one not in self.gone]
        return [victim]


def grown_by(workload: Workload) -> dict[str, int]:
    """By pod set: how many more pods it has than must start together. Once one has succeeded, the others are to end."""
    if not workload.elastic or workload.succeeded:
        return {}
    counts = {
        pod_set.name: placed_of(workload, pod_set) - pod_set.minimum for pod_set in workload.pod_sets if pod_set.elastic
    }
    return {name: count for name, count in counts.items() if count > 0}


def kept_until(planning: Planning, workload: Workload) -> Undisturbed | None:
    """Until when nobody takes the places of all that a workload has; None where somebody may now, or never."""
    if not workload.preemptible:
        return None
    victims = Victims(planning, workload.cluster_id)
    return victims.not_before(victims.of(frozenset({workload.workload_id})))


def _undisturbed(planning: Planning, workload: Workload, pod: Pod) -> Undisturbed:
    """A pod that does not run yet loses nothing, unless its workload is kept from running over and over. What began at
    a time that is still to come did so by a clock that was ahead, by a day perhaps: that is no time to be spared for.
    """
    now, found = planning.snapshot.now, Undisturbed(_LONG_AGO, "minimum_runtime")
    placed_again = planning.snapshot.placed_again.get(workload.workload_id)
    if placed_again is not None and placed_again <= now:
        # Others of the workload may have got a place since: that does not keep this one for longer.
        until = min(placed_again, pod.running_since or placed_again) + planning.policy.kept_after_eviction
        found = Undisturbed(until, "gave_up_a_place")
    project = planning.snapshot.projects.get(workload.project_id)
    if pod.running_since is not None and pod.running_since <= now and project is not None:
        found = max(found, Undisturbed(pod.running_since + project.minimum_runtime, "minimum_runtime"))
    return found


class _Freed(NamedTuple):
    """What would come free at most, per node."""

    rows: Integers
    cpu: Integers
    memory: Integers
    pods: Integers
    devices: Integers
    """Two-dimensional, in thousandths."""


def _sums(of: Iterable[int]) -> Integers:
    return np.array([clipped(each) for each in of], dtype=np.int64)


def _loss(victim: Victim) -> tuple[bool, int, int, int, str, int, PodRef]:
    """What a workload has grown by loses the least: of that the newest."""
    of, ref = victim.workload, victim.ref
    if victim.grown:
        return False, of.priority_rank, 0, 0, of.workload_id, -ref.index, ref
    return True, of.priority_rank, victim.loss, victim.at_risk_seconds, of.workload_id, ref.index, ref


class Claims(NamedTuple):
    """By what a pod may take the place of those of other projects: whether its project has, with it, no more than…"""

    by_quota: bool
    """its quota, and its department, too: then from other departments that are beyond theirs."""
    by_own_quota: bool
    """a quota of its own: then from projects of its department that are beyond theirs."""
    by_share: bool
    """its fair share of the pool, and its department, too: then from other departments that are beyond theirs."""
    by_share_among_siblings: bool
    """its fair share: then from projects of its department that are beyond theirs."""


class Right(NamedTuple):
    """What a class of waiting pods may take."""

    planning: Planning
    pod_class: PodClass
    entry: Pending
    passed_by: frozenset[str] = frozenset()
    """Ids of workloads of its project that were let in behind it, and give up their places for it."""
    spared: frozenset[str] = frozenset()
    """Ids of workloads from which it takes nothing, as they got its place before."""

    @property
    def rank(self) -> int:
        """The priority of the workload."""
        return self.entry.rank

    def claims(self, pool: str, milli: int) -> Claims:
        """What its project may have of others there, for so much more."""
        project_id, shares = self.pod_class.project_id, self.planning.shares
        number = self.number(pool)
        if number is None or not shares.anybody_beyond(number):
            by_share = among_siblings = False
        else:
            among_siblings = shares.allows(project_id, number, milli)
            by_share = among_siblings and shares.allows(shares.project(project_id).department_id, number, milli)
        return Claims(
            by_quota=quota.within(self.planning, project_id, pool, milli),
            by_own_quota=quota.within_own(self.planning, project_id, pool, milli),
            by_share=by_share,
            by_share_among_siblings=among_siblings,
        )

    def over(self, victim: Victim, freed: Counter[str], claims: Claims) -> EvictionReason | None:
        """By which rule it may take the place of this pod, where its workload does not go on; None: it may not.

        Args:
            freed: by id of a project, what of its GPUs is given up in the same step.
            claims: of the pod that needs the place.
        """
        if victim.workload.workload_id in self.spared or not victim.workload.preemptible:
            return None
        if self.pod_class.project_id == victim.workload.project_id:
            if preempts(self.planning.snapshot, self.entry, victim.workload):
                return "preempted"
            return "backfilled" if victim.workload.workload_id in self.passed_by else None
        return "reclaimed" if any(claims) and self._reclaims(victim, freed, claims) else None

    def _reclaims(self, victim: Victim, freed: Counter[str], claims: Claims) -> bool:
        other, pool, shares = victim.workload.project_id, victim.pool, self.planning.shares
        of = self.planning.snapshot.projects.get(other)
        if of is None or not self._is_over(of, other, pool, freed[other]):
            return False
        number = self.number(pool)
        beyond = number is not None and shares.is_beyond(other, number, freed[other])
        if self._is_sibling(of):
            return claims.by_own_quota or (claims.by_share_among_siblings and beyond)
        department = of.department_id
        gone = sum(milli for id_, milli in freed.items() if shares.project(id_).department_id == department)
        if department and not self._is_over(of, department, pool, gone):
            return False
        if claims.by_quota or not (claims.by_share and beyond) or number is None:
            return claims.by_quota
        return not department or shares.is_beyond(department, number, gone)

    def _is_over(self, of: ProjectView, holder: str, pool: str, gone: int) -> bool:
        """Whether a project, or its department, is beyond a quota of its own without so much, or has none."""
        quotas = _quotas(of, holder, pool)
        return not quotas or any(quota.staying(self.planning, each) - gone > each.milli for each in quotas)

    def _is_sibling(self, of: ProjectView) -> bool:
        mine = self.planning.snapshot.projects.get(self.pod_class.project_id)
        return mine is not None and bool(of.department_id) and mine.department_id == of.department_id

    def number(self, pool: str) -> int | None:
        return self.planning.snapshot.nodes.pool_numbers.get((self.pod_class.cluster_id, pool))

    def gives_up(self, gone: Sequence[Victim], milli: int) -> bool:
        """Whether its department holds so much less once these have ended."""
        shares = self.planning.shares
        department = shares.project(self.pod_class.project_id).department_id
        of = (one for one in gone if shares.project(one.workload.project_id).department_id == department)
        return sum(one.gpu_milli for one in of) >= milli

    def spares(self, victim: Victim) -> bool:
        """Whether others are to be asked before it: its project has no more than its share."""
        number = self.number(victim.pool)
        return number is not None and not self.planning.shares.is_beyond(victim.workload.project_id, number)

    def why(self, victim: Victim, reason: EvictionReason, by: str) -> str:
        """For the victim's people. `by`: name of the workload that gets its place; of another project they may not see
        it.
        """
        projects, shares = self.planning.snapshot.projects, self.planning.shares
        mine, of = projects.get(self.pod_class.project_id), projects.get(victim.workload.project_id)
        if reason == "shrunk":
            same = self.pod_class.project_id == victim.workload.project_id
            who = by if same or mine is None else f"a workload of project {mine.name}"
            least = next(each.minimum for each in victim.workload.pod_sets if each.name == victim.ref.pod_set)
            return f"{who} waits for the place, and what it has beyond its {least} is given up first; it goes on"
        if reason == "backfilled":
            return f"{by}, of the same project, has waited for longer and was passed by it, and has room now"
        if reason == "preempted" or mine is None or of is None:
            return f"{by}, of a higher priority in the same project, needs its place"
        number = self.number(victim.pool)
        milli = 0 if number is None else shares.milli_of(self.pod_class.request, number)
        claims = self.claims(victim.pool, milli)
        needs = f"a workload of project {mine.name}, which is within its"
        if claims.by_quota or claims.by_own_quota or number is None:
            quotas = _quotas(of, victim.workload.project_id, victim.pool)
            beyond = f"is beyond its quota of {gpus(quotas[0].milli)}" if quotas else "has no quota of its own"
            return f"{needs} quota, needs its place, and project {of.name} {beyond}"
        share = gpus(shares.of(victim.workload.project_id, number))
        return f"{needs} fair share, needs its place, and project {of.name} is beyond its own of {share}"


def preempts(snapshot: Snapshot, entry: Pending, victim: Workload) -> bool:
    """Whether what waits may take the place of this one of its project: it has the higher priority, and goes first, or
    would have gone first had it come by the time when the other one got its place. What age has decided is not undone.
    """
    if victim.priority_rank >= entry.rank:
        return False
    stint = snapshot.stints.get(victim.workload_id)
    if stint is None:
        return True
    ahead = (entry.rank - victim.priority_rank) * snapshot.head_start_seconds
    return min(entry.since, stint.at) - ahead < stint.since


def passed_by(snapshot: Snapshot, project_id: str, entry: Pending) -> frozenset[str]:
    """Ids of the workloads of a project that come after one that waits, and got a place while it waited; none of a
    higher priority.
    """
    head_start, found = snapshot.head_start_seconds, set[str]()
    for workload in snapshot.running.get(project_id, ()):
        stint, ahead = snapshot.stints.get(workload.workload_id), entry.rank - workload.priority_rank
        if stint is None or ahead < 0 or not gives_way(workload) or workload.workload_id in entry.gave_way_to:
            continue
        if stint.at >= entry.waits_from and stint.since > entry.since - (ahead * head_start if ahead else 0.0):
            found.add(workload.workload_id)
    return frozenset(found)


def _quotas(project: ProjectView, holder: str, pool: str) -> list[Bound]:
    return [bound for bound in project.bounds if bound.firm and bound.id == holder and bound.pool in ("", pool)]


class Cost(NamedTuple):
    """What it costs to make room on a node: the least is the best."""

    evicts: bool
    """Whether any workload does not go on."""
    spared: bool
    """Whether one of a project goes that has no more than its fair share."""
    rank: int
    """The highest priority among those that go."""
    loss: int
    """The work that is lost, with what it costs to end each pod and to start it again: thousandths of a GPU times
    seconds.
    """
    pods: int
    """How many go, with those that live together with them."""
    seconds: int
    """How long they have run without saving their work, in all: for those that have no GPU."""


class Choice(NamedTuple):
    cost: Cost
    units: list[tuple[list[Victim], EvictionReason]]
    """Those that go together, and by which rule."""


class Needed(NamedTuple):
    """What one pod needs on one node."""

    request: PodRequest
    share_milli: int
    own_milli: int
    """What its project must give up of GPUs to stay within its limit."""
    department_milli: int
    """What its department must."""


def choose(victims: Victims, right: Right, room: Room, row: int, needed: Needed, *, claims: Claims) -> Choice | None:
    """Who is to go from a node for one pod: no more than must, those first that lose the least; None where it does not
    help.
    """
    units: list[tuple[list[Victim], EvictionReason]] = []
    freed: Counter[str] = Counter()
    chosen: set[Victim] = set()
    own, reclaims = right.pod_class.project_id, any(claims)
    on = [each for each in victims.on(row) if reclaims or each.grown or each.workload.project_id == own]
    spared = {each for each in on if not each.grown and each.workload.project_id != own and right.spares(each)}
    for victim in sorted(on, key=spared.__contains__) if spared else on:
        if victim in chosen:
            continue
        found = _unit(victims, right, victim, _Going(chosen, freed, claims))
        if found is None:
            continue
        unit, reason = found
        if reason != "shrunk":
            # What it was to give up alone goes with the rest.
            units = [each for each in units if chosen.isdisjoint(unit) or each[0][0] not in unit]
        units.append((unit, reason))
        for one in unit:
            freed[one.workload.project_id] += one.gpu_milli if one not in chosen else 0
        chosen.update(unit)
        if fits(room, row, needed, right, units):
            break
    else:
        return None
    for each in units[-2::-1]:
        # A small one that came first may not be needed beside a large one.
        others = [unit for unit in units if unit is not each]
        if fits(room, row, needed, right, others):
            units = others
    ended = [victim for unit, reason in units for victim in unit if reason != "shrunk"]
    gone = [victim for unit, _ in units for victim in unit]
    cost = Cost(
        evicts=bool(ended),
        spared=not spared.isdisjoint(ended),
        rank=max(one.workload.priority_rank for one in gone),
        loss=sum(one.loss for one in gone) + len(gone) * AGAIN_MILLI_SECONDS,
        pods=len(gone),
        seconds=sum(one.at_risk_seconds for one in gone),
    )
    return Choice(cost, units)


class _Going(NamedTuple):
    """Who is to go from a node in the same step."""

    chosen: set[Victim]
    freed: Counter[str]
    """By project id: GPUs."""
    claims: Claims


def _unit(victims: Victims, right: Right, victim: Victim, going: _Going) -> tuple[list[Victim], EvictionReason] | None:
    """Those that go with it, and by which rule; None where it may not be taken, or not yet."""
    if victims.shrinks(victim, going.chosen):
        return [victim], "shrunk"
    reason = right.over(victim, going.freed, going.claims)
    if reason is None:
        return None
    unit = victims.unit(victim)
    if (until := victims.not_before(unit)) is not None:
        right.planning.spare(victim.workload.workload_id, until, by=right.entry)
        return None
    return unit, reason


def fits(
    room: Room, row: int, needed: Needed, right: Right, units: Sequence[tuple[list[Victim], EvictionReason]]
) -> bool:
    """Whether the pod has room on the node once these have ended. As the filters say it, for one node and in plain
    numbers: a thousand nodes are looked at for each pod.
    """
    gone = [victim for unit, _ in units for victim in unit]
    own = sum(one.gpu_milli for one in gone if one.workload.project_id == right.pod_class.project_id)
    if needed.department_milli and not right.gives_up(gone, needed.department_milli):
        return False
    here = [one for one in gone if one.row == row]
    request = needed.request
    if own < needed.own_milli or int(room.pods[row]) + len(here) < 1:
        return False
    if request.cpu_milli and int(room.cpu[row]) + sum(one.request.cpu_milli for one in here) < request.cpu_milli:
        return False
    memory = int(room.memory[row]) + sum(one.request.memory_bytes for one in here)
    if request.memory_bytes and memory < request.memory_bytes:
        return False
    for each in request.extended:
        column = room.extended.get(each.resource)
        back = sum(held.amount for one in here for held in one.request.extended if held.resource == each.resource)
        if column is None or int(column[row]) + back < each.amount:
            return False
    return not request.gpu_devices or _has_devices(room, row, needed, here)


def _has_devices(room: Room, row: int, needed: Needed, gone: Sequence[Victim]) -> bool:
    devices: list[int] = room.devices[row].tolist()
    for one in gone:
        for device, milli in one.shares.items():
            if device < len(devices) and devices[device] >= 0:
                devices[device] += milli
    withheld = int(room.withheld[row])
    if sum(milli == WHOLE_GPU_MILLI for milli in devices) < withheld:
        return False
    return sum(milli >= needed.share_milli for milli in devices) - withheld >= needed.request.gpu_devices
