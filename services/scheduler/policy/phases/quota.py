"""A project's GPU quota bounds what its non-preemptible pods hold."""

from typing import Final

from services.scheduler.planning import Phase, Planning
from services.scheduler.snapshot import PodClass


def run(planning: Planning) -> None:
    planning.quota_used |= {id_: project.used_milli for id_, project in planning.snapshot.projects.items()}


def left_milli(planning: Planning, pod_class: PodClass) -> int | None:
    """What the quota still allows such a pod; None where it does not bound it."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    bounded = not pod_class.preemptible and pod_class.request.gpu_devices
    if not bounded or project is None or project.quota_milli is None:
        return None
    return project.quota_milli - planning.quota_used.get(pod_class.project_id, 0)


def use(planning: Planning, pod_class: PodClass, gpu_milli: int) -> None:
    """A pod was placed that holds so much."""
    if not pod_class.preemptible:
        planning.quota_used[pod_class.project_id] = planning.quota_used.get(pod_class.project_id, 0) + gpu_milli


PHASE: Final = Phase(name="quota", run=run)
