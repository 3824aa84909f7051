"""Quotas bound what non-preemptible pods hold of GPUs, limits what all pods hold: of a project, and of all projects of
a department; everywhere, and in single node pools.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from services.scheduler.planning import Phase, Planning
from services.scheduler.snapshot import Bound, PodClass


class Left(NamedTuple):
    """What the tightest bound still allows."""

    milli: int
    bound: Bound


def run(planning: Planning) -> None:
    planning.quota_used |= planning.snapshot.held_milli


def bounds(planning: Planning, pod_class: PodClass, pool: str) -> Iterator[Bound]:
    """Those that hold for such a pod in a pool."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    if project is None or not pod_class.request.gpu_devices:
        return
    for bound in project.bounds:
        if bound.pool in ("", pool) and not (bound.firm and pod_class.preemptible):
            yield bound


def left(planning: Planning, pod_class: PodClass, pool: str) -> Left | None:
    """What is still allowed to such a pod in a pool; None where nothing bounds it."""
    found: Left | None = None
    for bound in bounds(planning, pod_class, pool):
        milli = bound.milli - planning.quota_used.get(bound.key, 0)
        if found is None or milli < found.milli:
            found = Left(milli, bound)
    return found


def use(planning: Planning, pod_class: PodClass, pool: str, gpu_milli: int) -> None:
    """A pod was placed that holds so much."""
    for bound in bounds(planning, pod_class, pool):
        planning.quota_used[bound.key] = planning.quota_used.get(bound.key, 0) + gpu_milli


PHASE: Final = Phase(name="quota", run=run)
