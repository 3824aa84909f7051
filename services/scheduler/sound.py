"""What holds of every plan, whatever its phases do; and what of a plan does not hold is left out of it. Pure.

- No node is filled beyond its capacity.
- Of a gang as many pods are bound as must start together, or none.
- Non-preemptible pods stay within every quota that holds for them.
- Nobody is told to end for a workload that neither gets a place in the same plan nor has one kept.

It counts anew, from the snapshot and the bindings themselves, on what the plan touches: what the phases counted while
they planned is what may be wrong. A plan that breaks one of these is a fault, and no reason for a scheduler to stop:
the rest is carried out, and what was left out is planned again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.snapshot import Binding, Bound, Broken, Eviction, Integers, NodeTable, Plan, Release, Snapshot

CAPACITY: Final = "no node beyond its capacity"
WHOLE: Final = "no gang half bound"
QUOTA: Final = "nothing non-preemptible beyond its quota"
FOR_SOMEBODY: Final = "nobody told to end for nothing"
_FOR_NOBODY: Final = frozenset({"drained", "tainted", "reserved", "window_closed"})
"""Reasons of those that end for nobody who waits: they have to leave their node, or their project's window closed."""


def sound(snapshot: Snapshot, plan: Plan, kept_for: AbstractSet[str]) -> Plan:
    """The same plan without what must not be.

    Args:
        snapshot: by which it was made.
        kept_for: ids of the workloads for which it keeps a place.
    """
    if not (plan.bindings or plan.evictions):
        return plan
    broken = list[Broken]()
    bindings: Sequence[Binding] = plan.bindings
    # All that a workload gets is left out, so nothing that is left out here breaks what comes after.
    for rule in (
        partial(_within_capacity, snapshot, plan.releases),
        partial(_within_quota, snapshot),
        partial(_whole, snapshot),
    ):
        for found, keys in rule(bindings):
            broken.append(found)
            bindings = [each for each in bindings if each.key not in keys]
    served = {each.workload_id for each in bindings} | kept_for
    evictions = [each for each in plan.evictions if _is_for_somebody(each, served)]
    broken += [_for_nobody(each) for each in plan.evictions if not _is_for_somebody(each, served)]
    if not broken:
        return plan
    return replace(plan, bindings=tuple(bindings), evictions=tuple(evictions), broken=tuple(broken))


type _Found = Iterator[tuple[Broken, set[str]]]
"""What is broken, and the keys of the workloads whose bindings are left out for it."""


def _within_capacity(snapshot: Snapshot, releases: Iterable[Release], bindings: Sequence[Binding]) -> _Found:
    released: dict[int, list[Release]] = {}
    for release in releases:
        released.setdefault(release.row, []).append(release)
    on = {each.placement.node_key for each in bindings}
    rows = {key: row for row, key in enumerate(snapshot.nodes.keys) if key in on}
    doubtful = _doubtful(snapshot, rows, released, bindings)
    on_doubtful: dict[str, list[Binding]] = {}
    for each in bindings if doubtful else ():
        if rows.get(each.placement.node_key) in doubtful:
            on_doubtful.setdefault(each.placement.node_key, []).append(each)
    for key, here in on_doubtful.items():
        row = rows.get(key)
        told = "it is not in the snapshot" if row is None else _over(snapshot, row, released.get(row, ()), here)
        if told:
            name = here[0].placement.node_name
            yield Broken(rule=CAPACITY, of=f"node {name}", message=told, left_out=len(here)), {x.key for x in here}


def _doubtful(
    snapshot: Snapshot, rows: Mapping[str, int], released: Iterable[int], bindings: Sequence[Binding]
) -> set[int | None]:
    """Rows that are to be looked at one by one: all but those of which it is certain that these pods fit there, as
    nothing is released there and nothing extended asked for. A plan binds many, and columns add them up at once.
    """
    table = snapshot.nodes
    row_of = [rows.get(each.placement.node_key, -1) for each in bindings]
    if -1 in row_of:
        return {None, *row_of}
    doubtful: set[int | None] = {*released}
    doubtful |= {row for row, each in zip(row_of, bindings, strict=True) if each.reservation.extended}
    at, count = np.array(row_of, dtype=np.int64), len(table.keys)
    held = [each.reservation for each in bindings]
    pods = table.free_pods - np.bincount(at, minlength=count)
    over = pods < 0
    for free, amounts in (
        (table.free_cpu_milli, [each.cpu_milli for each in held]),
        (table.free_memory_bytes, [each.memory_bytes for each in held]),
    ):
        taken = np.zeros(count, dtype=np.int64)
        np.add.at(taken, at, np.array(amounts, dtype=np.int64))
        over |= taken > np.maximum(free, 0)
    shares = [
        (row, share.device, share.milli) for row, each in zip(row_of, held, strict=True) for share in each.devices
    ]
    if shares:
        over |= _over_devices(table, np.array(shares, dtype=np.int64))
    doubtful.update(np.flatnonzero(over).tolist())
    return doubtful


def _over_devices(table: NodeTable, shares: Integers) -> NDArray[np.bool_]:
    """Args: shares, (row, device, milli) of each."""
    at, device, milli = shares.T
    devices = table.free_device_milli
    strange = (device < 0) | (device >= devices.shape[1]) | (milli < 0)
    left = devices.copy()
    np.subtract.at(left, (at[~strange], device[~strange]), milli[~strange])
    before = (devices == WHOLE_GPU_MILLI).sum(axis=1) - table.free_devices
    over = (left == WHOLE_GPU_MILLI).sum(axis=1) < before
    over[at[strange]] = True
    over[at[~strange][left[at[~strange], device[~strange]] < 0]] = True
    return over


def _over(snapshot: Snapshot, row: int, released: Iterable[Release], bound: Sequence[Binding]) -> str:
    """What of a node these pods take more of than there is, with what is released; empty where nothing."""
    table, back = snapshot.nodes, [each.reservation for each in released]
    taken = [each.reservation for each in bound]
    if (pods := int(table.free_pods[row]) + len(back) - len(taken)) < 0:
        return f"{-pods} pods more than there is room for"
    for noun, free, amounts, returned in (
        ("thousandths of a CPU core", table.free_cpu_milli, [t.cpu_milli for t in taken], [b.cpu_milli for b in back]),
        ("bytes of memory", table.free_memory_bytes, [t.memory_bytes for t in taken], [b.memory_bytes for b in back]),
    ):
        left = int(free[row]) + sum(returned) - sum(amounts)
        if any(amounts) and left < 0:
            return f"{-left} {noun} more than are free"
    if told := _over_extended(snapshot, row, released, bound):
        return told
    devices: list[int] = table.free_device_milli[row].tolist()
    before = sum(milli == WHOLE_GPU_MILLI for milli in devices) - int(table.free_devices[row])
    for share in (share for held in back for share in held.devices if share.device < len(devices)):
        devices[share.device] += share.milli if devices[share.device] >= 0 else 0
    for share in (share for held in taken for share in held.devices):
        if share.device >= len(devices) or devices[share.device] < share.milli:
            return f"{share.milli} thousandths of GPU {share.device}, which has not as much free"
        devices[share.device] -= share.milli
    untouched = sum(milli == WHOLE_GPU_MILLI for milli in devices)
    if any(held.devices for held in taken) and untouched < before:
        return f"{before - untouched} of the GPUs that others than this cluster's workloads hold"
    return ""


def _over_extended(snapshot: Snapshot, row: int, released: Iterable[Release], bound: Iterable[Binding]) -> str:
    asked = Counter[str]()
    for each in bound:
        for amount in each.reservation.extended:
            asked[amount.resource] += amount.amount
    for resource, amount in asked.items():
        column = snapshot.nodes.free_extended.get(resource)
        back = sum(e.amount for r in released for e in r.reservation.extended if e.resource == resource)
        free = 0 if column is None else int(column[row]) + back
        if amount > free:
            return f"{amount} of {resource}, of which {free} are free"
    return ""


def _within_quota(snapshot: Snapshot, bindings: Iterable[Binding]) -> _Found:
    """What non-preemptible pods of each project get, under the quotas of it and of its department."""
    of, given = dict[Bound, list[Binding]](), Counter[Bound]()
    for each in bindings:
        project = snapshot.projects.get(each.firm_of)
        milli = sum(share.milli for share in each.reservation.devices) if project is not None else 0
        for bound in project.bounds if project is not None and milli else ():
            if bound.firm and bound.pool in ("", each.placement.pool):
                of.setdefault(bound, []).append(each)
                given[bound] += milli
    for bound, held in of.items():
        used = snapshot.held_milli.get(bound.key, 0) + given[bound]
        if used > bound.milli:
            told = f"they would hold {used} thousandths of a GPU of {bound.milli}"
            yield Broken(rule=QUOTA, of=bound.holder, message=told, left_out=len(held)), {each.key for each in held}


def _whole(snapshot: Snapshot, bindings: Sequence[Binding]) -> _Found:
    pods: dict[str, set[object]] = {}
    gangs = [queue for queue in snapshot.queues if queue.pod_class.gang]
    for each in bindings if gangs else ():
        pods.setdefault(each.key, set()).add(each.placement.pod)
    for queue in gangs if pods else ():
        for entry in queue.entries:
            bound, at = pods.get(entry.key), 0  # also where only what it grows by was bound
            if bound is None:
                continue
            for part in queue.pod_class.gang:
                count = sum(ref in bound for ref in entry.pods[at : at + part.pods])
                if count < part.needed:
                    told = f"{count} of {part.needed} pods that start together"
                    yield (
                        Broken(rule=WHOLE, of=f"workload {entry.name}", message=told, left_out=len(bound)),
                        {entry.key},
                    )
                    break
                at += part.pods


def _is_for_somebody(eviction: Eviction, served: set[str]) -> bool:
    return eviction.reason in _FOR_NOBODY if not eviction.beneficiary else eviction.beneficiary in served


def _for_nobody(eviction: Eviction) -> Broken:
    told = f"{eviction.reason} for workload {eviction.beneficiary or '(none)'}, which gets no place by it"
    return Broken(rule=FOR_SOMEBODY, of=f"workload {eviction.name}", message=told, left_out=len(eviction.pods))
