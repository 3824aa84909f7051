"""The pools where pods of a class may go, with their nodes. Pure."""

from services.scheduler.candidates import Candidates
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.snapshot import PodClass


def pools_of(planning: Planning, pod_class: PodClass, *, later: bool = False) -> list[tuple[str, Candidates]]:
    """The pools to try, in order, each with its nodes; none where the cluster takes no pods, or the project is gone.
    `later`: by the room that there will be.
    """
    found = planning.pools.get((pod_class, later))
    if found is None:
        found = planning.pools[pod_class, later] = _pools_of(planning, pod_class, later=later)
    return found


def is_closed(planning: Planning, pod_class: PodClass) -> bool:
    """Whether workloads of its project may not start now."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    return project is not None and project.exists and project.closed is not None


def _pools_of(planning: Planning, pod_class: PodClass, *, later: bool) -> list[tuple[str, Candidates]]:
    project = planning.snapshot.projects.get(pod_class.project_id)
    if project is not None and (not project.exists or project.closed is not None):
        return []
    cluster = planning.snapshot.clusters.get(pod_class.cluster_id)
    if cluster is None or not cluster.exists or not cluster.connected:
        return []
    numbers = planning.snapshot.nodes.pool_numbers
    return [
        (pool, planning.candidates(pod_class, numbers[pod_class.cluster_id, pool], later=later))
        for pool in pools_to_try(planning.snapshot, pod_class)
        if (pod_class.cluster_id, pool) in numbers
    ]
