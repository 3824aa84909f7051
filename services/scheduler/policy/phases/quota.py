"""Quotas bound what non-preemptible pods hold of GPUs, limits what all pods hold: of a project, and of all projects of
a department; everywhere, and in single node pools.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from events.workload.state import Workload
from services.scheduler.planning import Phase, Planning
from services.scheduler.snapshot import Bound, BoundKey, PodClass


class Left(NamedTuple):
    """What the tightest bound still allows."""

    milli: int
    bound: Bound


def run(planning: Planning) -> None:
    planning.quota_used |= planning.snapshot.held_milli
    planning.counted.clear()
    snapshot = planning.snapshot
    for ends, counted in ((snapshot.leaving, planning.quota_leaving), (snapshot.late, planning.quota_late)):
        counted.update(dict.fromkeys(planning.quota_used, 0))
        for each in ends:
            milli = sum(share.milli for share in each.reservation.devices)
            if each.project_id and not each.returns:
                _count(counted, planning, each.project_id, each.pool, milli, preemptible=each.preemptible)
    _ = planning.shares  # as long as nothing was placed, and what is over was given back


def bounds(planning: Planning, pod_class: PodClass, pool: str) -> tuple[Bound, ...]:
    """Those that hold for such a pod in a pool."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    if project is None or not project.bounds or not pod_class.request.gpu_devices:
        return ()
    of = pod_class.project_id, pool, pod_class.preemptible
    found = planning.bounds.get(of)
    if found is None:
        there = [bound for bound in project.bounds if bound.pool in ("", pool)]
        # What is non-preemptible stays within the quota anyway, and starts whatever else its project holds.
        has_quota = any(bound.firm and bound.id == pod_class.project_id for bound in there)
        found = planning.bounds[of] = tuple(
            bound
            for bound in there
            if (not bound.firm if pod_class.preemptible else bound.window is None or not has_quota)
        )
    return found


def left_under(planning: Planning, bound: Bound, *, later: bool) -> int:
    """What a bound still allows; `later`: once all have ended that were told to."""
    milli = bound.milli - planning.quota_used.get(bound.key, 0)
    return milli + planning.quota_leaving.get(bound.key, 0) if later else milli


def left(planning: Planning, pod_class: PodClass, pool: str, *, later: bool = False) -> Left | None:
    """What is still allowed to such a pod in a pool; None where nothing bounds it. `later`: as of left_under."""
    found: Left | None = None
    for bound in bounds(planning, pod_class, pool):
        milli = left_under(planning, bound, later=later)
        if found is None or milli < found.milli:
            found = Left(milli, bound)
    return found


def use(planning: Planning, pod_class: PodClass, pool: str, gpu_milli: int) -> None:
    """A pod was placed that holds so much."""
    _use(planning, pod_class.project_id, (pod_class.cluster_id, pool), gpu_milli, preemptible=pod_class.preemptible)


def give_up(planning: Planning, workload: Workload, pool: str, gpu_milli: int) -> None:
    """A pod of this workload was told to end that holds so much."""
    where = workload.cluster_id, pool
    _use(planning, workload.project_id, where, -gpu_milli, preemptible=workload.preemptible)


def _use(planning: Planning, project_id: str, where: tuple[str, str], gpu_milli: int, *, preemptible: bool) -> None:
    if gpu_milli:
        _count(planning.quota_used, planning, project_id, where[1], gpu_milli, preemptible=preemptible)
        if (number := planning.snapshot.nodes.pool_numbers.get(where)) is not None:
            planning.shares.use(project_id, number, gpu_milli)


def _count(
    used: dict[BoundKey, int], planning: Planning, project_id: str, pool: str, gpu_milli: int, *, preemptible: bool
) -> None:
    of = project_id, pool, preemptible
    keys = planning.counted.get(of)
    if keys is None:
        keys = planning.counted[of] = tuple(_counted(planning, *of))
    for key in keys:
        used[key] += gpu_milli


def _counted(planning: Planning, project_id: str, pool: str, preemptible: bool) -> Iterator[BoundKey]:  # noqa: FBT001
    """Under which of the keys that count for anything it is counted what a pod holds."""
    project = planning.snapshot.projects.get(project_id)
    for holder in (project_id, project.department_id if project else ""):
        for place in ("", pool):
            for firm in (False,) if preemptible else (False, True):
                if (key := (holder, place, firm)) in planning.quota_used:
                    yield key


def within(planning: Planning, project_id: str, pool: str, milli: int) -> bool:
    """Whether a project, or its department, has a quota in this pool, and both stay within theirs with so much more."""
    return 0 < milli <= left_within(planning, project_id, pool)


def within_own(planning: Planning, project_id: str, pool: str, milli: int) -> bool:
    """The same of a project alone, whatever its department's quota is."""
    project = planning.snapshot.projects.get(project_id)
    bounds = () if project is None else project.bounds
    quotas = [each for each in bounds if each.firm and each.id == project_id and each.pool in ("", pool)]
    return 0 < milli <= min((each.milli - used(planning, each) for each in quotas), default=0)


def left_within(planning: Planning, project_id: str, pool: str) -> int:
    """What a project may hold more of in this pool without going beyond its quota, or its department's; 0 where neither
    has one.
    """
    used = planning.quota_used
    return max(min((most - used.get(key, 0) for key, most in quotas(planning, project_id, pool)), default=0), 0)


def quotas(planning: Planning, project_id: str, pool: str) -> tuple[tuple[BoundKey, int], ...]:
    """The quotas of a project and its department that hold in this pool: under which key it is counted what all pods
    hold, and how much that may be, with what those hold that were told to end.
    """
    project = planning.snapshot.projects.get(project_id)
    leaving = planning.quota_leaving
    return tuple(
        (bound.all_key, bound.milli + leaving.get(bound.all_key, 0))
        for bound in (() if project is None else project.bounds)
        if bound.firm and bound.pool in ("", pool)
    )


def used(planning: Planning, quota: Bound) -> int:
    """What all pods under this quota hold, preemptible or not, but for those that were told to end."""
    return _staying(planning, quota.all_key)


def staying(planning: Planning, quota: Bound) -> int:
    """What all pods under this quota hold that go on: nobody is beyond a quota by those that do not."""
    return used(planning, quota) - planning.quota_late.get(quota.all_key, 0)


def beyond(planning: Planning, project_id: str, holder: str) -> int:
    """What a project, or its department (`holder`: its id), holds beyond its quota everywhere, or all."""
    key, most = own_quota(planning, project_id, holder)
    return max(planning.quota_used.get(key, 0) - most, 0)


def own_quota(planning: Planning, project_id: str, holder: str) -> tuple[BoundKey, int]:
    """As of `quotas`, of the quota that it has everywhere; where it has none, that is 0."""
    project = planning.snapshot.projects.get(project_id)
    bounds = () if project is None else project.bounds
    own = next((bound.milli for bound in bounds if bound.firm and bound.id == holder and not bound.pool), 0)
    key = holder, "", False
    return key, own + planning.quota_leaving.get(key, 0)


def _staying(planning: Planning, key: BoundKey) -> int:
    return planning.quota_used.get(key, 0) - planning.quota_leaving.get(key, 0)


PHASE: Final = Phase(name="quota", run=run)
