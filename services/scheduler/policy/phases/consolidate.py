"""Single pods are moved to make room for a gang, or a pod of several GPUs, that waits though enough is free in all.

They are told to end, and each of them has another place in the same plan, which is kept for it (`keep_homes`). Nobody
is moved without a place being kept for which it is needed, of a gang for all of it. Moved are single pods of
preemptible workloads of no higher priority, of which nothing else waits: the fewest, those that lose the least
work, and none that has not run for its minimum, or got its place only a while ago.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import numpy as np

from events.ids import workload_key
from events.workload.pod import DeviceShare
from services.scheduler.candidates import Candidates
from services.scheduler.planning import Phase, Planning
from services.scheduler.policy.among import options
from services.scheduler.policy.phases import explain, place
from services.scheduler.policy.pools import pools_of
from services.scheduler.policy.reserve import let_go
from services.scheduler.policy.victims import Needed, Right, Victim, Victims, fits
from services.scheduler.snapshot import Eviction, Pending, PodClass, grace_of

MOST_TRIED: Final = 20
"""Workloads for which one plan tries it."""
MOST_NODES: Final = 50
"""Nodes that are looked at for one pod: the emptiest."""
MOST_MOVED: Final = 64
"""Pods that are moved for one workload."""


def run(planning: Planning) -> None:
    snapshot = planning.snapshot
    if not (snapshot.consolidates and snapshot.running) or planning.cut_short or planning.evictions:
        return  # what was told to end may be enough: the next plan sees
    victims: dict[str, Victims] = {}
    queues = snapshot.queues
    wide = [i for i in planning.short if _is_wide(planning, i)]
    waits = {entry.key for queue in queues for entry in queue.entries} if wide else set[str]()
    wide.sort(key=lambda i: queues[i].entries[planning.short_at[i].entry].order)
    for i in wide[:MOST_TRIED]:
        stands, key = planning.class_of(i), queues[i].entries[planning.short_at[i].entry].key
        for option in options(planning, stands, key):
            planning.choices.stands[i] = option
            if _moves(planning, i, victims, waits):
                break
        else:
            planning.choices.stands[i] = stands


def may_move(planning: Planning, i: int) -> bool:
    """Whether moving others could make room for a queue: enough is free in all."""
    if not planning.snapshot.consolidates or not _is_wide(planning, i):
        return False
    stands, key = planning.class_of(i), planning.snapshot.queues[i].entries[planning.short_at[i].entry].key
    return any(_is_enough_free(planning, option) for option in options(planning, stands, key))


def _moves(planning: Planning, i: int, victims: dict[str, Victims], waits: AbstractSet[str]) -> bool:
    """Have others moved for a queue on the cluster where it stands now; whether that makes room."""
    pod_class, kept = planning.class_of(i), let_go(planning, i)
    cluster_id, enough = pod_class.cluster_id, _is_enough_free(planning, pod_class)
    if enough and cluster_id not in victims:
        planning.soon()
        victims[cluster_id] = Victims(planning, cluster_id)
    if enough and _Move(planning, victims[cluster_id], i, waits).all():
        return True
    for each in kept:
        planning.take(each.row, each.request, each.devices)
    return False


def _is_wide(planning: Planning, i: int) -> bool:
    """Whether it is a gang or of several GPUs, and waits for room alone."""
    pod_class, at, shortfall = planning.class_of(i), planning.short_at[i], planning.short[i]
    if pod_class.together is not None or i in planning.put_off or at.done:
        return False
    if not pod_class.gang and pod_class.request.gpu_devices < 2:  # noqa: PLR2004 (one is as narrow as there is)
        return False
    return explain.why(planning, pod_class, shortfall).reason in explain.FULL


def _is_enough_free(planning: Planning, pod_class: PodClass) -> bool:
    parts = [(pod_class.part(each), each.needed) for each in pod_class.gang] or [(pod_class, 1)]
    return all(_is_free(planning, part, count) for part, count in parts)


def _is_free(planning: Planning, part: PodClass, count: int) -> bool:
    """Whether so many pods would fit if what is free were all on one node."""
    room, request, free, needed = planning.room, part.request, [0, 0, 0], 0
    for _, candidates in pools_of(planning, part):
        rows = candidates.rows
        free[0] += int(room.devices[rows].clip(min=0).sum())
        free[1] += int(room.cpu[rows].clip(min=0).sum())
        free[2] += int(room.memory[rows].clip(min=0).sum())
        least = int(candidates.gpu_milli.min()) if len(candidates.gpu_milli) else 0
        needed = least if not needed else min(needed, least)
    return (
        free[0] >= count * needed and free[1] >= count * request.cpu_milli and free[2] >= count * request.memory_bytes
    )


class _At(NamedTuple):
    """A node where room could be made."""

    candidates: Candidates
    at: int


class _Move:
    """Mutable; for one workload in one plan."""

    def __init__(self, planning: Planning, victims: Victims, i: int, waits: AbstractSet[str]) -> None:
        self._planning, self._victims, self._i = planning, victims, i
        self._waits = waits
        """Keys of workloads with pods that wait for a place."""
        queue = planning.snapshot.queues[i]
        self._pod_class = planning.class_of(i)
        self._entry: Pending = queue.entries[planning.short_at[i].entry]
        self._moved: list[Victim] = []
        self._homes: set[int] = set()
        """Rows where they have another place: nobody is moved from there."""

    def all(self) -> bool:
        """Keep places for all of it that must start together; whether it was possible."""
        planning, of = self._planning, self._pod_class
        mark, gone = planning.checkpoint(), set(self._victims.gone)
        parts = [(of.part(each), each.needed) for each in of.gang] or [(of, 1)]
        for part, count in parts:
            pools = pools_of(planning, part, later=True)
            for _ in range(count):
                if not place.hold_one(planning, part, pools) and not self._make_room(part, pools):
                    planning.rollback(mark)
                    self._victims.end_no_more(gone)
                    return False
        planning.keeps(self._i, self._entry, explain.held())
        if planning.short_at[self._i].entry + 1 == len(planning.snapshot.queues[self._i].entries):
            del planning.short[self._i]
        return True

    def _make_room(self, part: PodClass, pools: Sequence[tuple[str, Candidates]]) -> bool:
        """Have the fewest moved from one node for one pod, and keep its place there."""
        found: list[tuple[int, int, int, _At, list[Victim]]] = []
        for _, candidates in pools:
            gpus = self._planning.soon().devices[candidates.rows].clip(min=0).sum(axis=1)
            for index in gpus.argsort(kind="stable")[::-1][:MOST_NODES].tolist():
                if int(candidates.rows[index]) in self._homes:
                    continue
                moved = self._enough(part, candidates, index)
                if moved and len(self._moved) + len(moved) <= MOST_MOVED:
                    loss = sum(one.loss for one in moved)
                    found.append((len(moved), loss, len(found), _At(candidates, index), moved))
        return any(self._moves(part, at, moved) for *_, at, moved in sorted(found, key=lambda each: each[:3]))

    def _enough(self, part: PodClass, candidates: Candidates, index: int) -> list[Victim]:
        """The fewest on a node that are to go for one pod; none where it would not help."""
        planning, row, milli = self._planning, int(candidates.rows[index]), int(candidates.gpu_milli[index])
        devices = part.request.gpu_devices
        needed = Needed(part.request, milli // devices if devices else 0, 0, 0)
        right = Right(planning, part, self._entry)
        moved: list[Victim] = []

        def helps(of: list[Victim]) -> bool:
            return fits(planning.soon(), row, needed, right, [([one], "moved") for one in of])

        for victim in self._victims.on(row):
            if self._movable(victim):
                moved.append(victim)
                if helps(moved):
                    break
        else:
            return []
        for one in moved[-2::-1]:
            if helps(others := [each for each in moved if each is not one]):
                moved = others
        return moved

    def _movable(self, victim: Victim) -> bool:
        workload = victim.workload
        if not workload.preemptible or workload.spec.terminate_after_preemption:
            return False
        if workload.priority_rank > self._entry.rank or workload.workload_id in self._entry.gave_way_to:
            return False
        sets = workload.pod_sets
        alone = not any(pod_set.minimum or pod_set.pod_affinity for pod_set in sets) and workload.inference is None
        if not alone or workload.pods.waiting or any(pod.phase == "Stopping" for pod in workload.pods.live.values()):
            return False
        key = workload_key(workload.project_id, workload.name)
        if key in self._waits:
            return False
        if (until := self._victims.not_before([victim])) is not None:
            self._planning.spare(workload.workload_id, until, by=self._entry)
            return False
        return True

    def _moves(self, part: PodClass, at: _At, moved: list[Victim]) -> bool:
        """Find each of them another place, and keep theirs for the pod; whether that is possible."""
        planning = self._planning
        mark, gone, homes = planning.checkpoint(), set(self._victims.gone), set(self._homes)
        row = int(at.candidates.rows[at.at])
        if not all(self._has_home(victim, row) for victim in moved):
            planning.rollback(mark)
            self._homes = homes
            return False
        for victim in moved:
            devices = tuple(DeviceShare(device=device, milli=milli) for device, milli in victim.shares.items())
            held = victim.request
            planning.soon().give_back(row, held.cpu_milli, held.memory_bytes, devices, held.extended)
        self._victims.end(moved)
        if not place.hold_one(planning, part, pools_of(planning, part, later=True)):
            planning.rollback(mark)
            self._victims.end_no_more(gone)
            self._homes = homes
            return False
        self._tell(moved)
        self._moved += moved
        return True

    def _has_home(self, victim: Victim, row: int) -> bool:
        """Take another place for it, by the room that there is now."""
        planning, workload = self._planning, victim.workload
        pod_set = next(each for each in workload.pod_sets if each.name == victim.ref.pod_set)
        pod_class = PodClass(
            project_id=workload.project_id,
            cluster_id=workload.cluster_id,
            pools=pod_set.node_pools,
            request=victim.request,
            preemptible=True,
            grace_seconds=grace_of(workload),
        )
        left = np.array([row, *(each.row for each in self._moved)], dtype=np.int64)
        for _, candidates in pools_of(planning, pod_class):
            index = candidates.best(within=~np.isin(candidates.rows, left))
            if index is not None:
                home = int(candidates.rows[index])
                planning.take(home, victim.request, candidates.devices(index))
                self._homes.add(home)
                return True
        return False

    def _tell(self, moved: list[Victim]) -> None:
        projects, mine = self._planning.snapshot.projects, self._pod_class.project_id
        for victim in moved:
            workload = victim.workload
            same = workload.project_id == mine or mine not in projects
            who = self._entry.name if same else f"a workload of project {projects[mine].name}"
            self._planning.evictions.append(
                Eviction(
                    key=workload_key(workload.project_id, workload.name),
                    workload_id=workload.workload_id,
                    name=workload.name,
                    pods=(victim.ref,),
                    reason="moved",
                    message=f"moved to make room for {who}, which needs it in one piece; another place is kept for it",
                    beneficiary=self._entry.workload_id,
                )
            )


PHASE: Final = Phase(name="consolidate", run=run)
