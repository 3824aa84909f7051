"""Public events of a project itself. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from events.project import Project, evolve
from events.public.shape import MOST_NAME_CHARACTERS, Happening, PublicEvent, Told, cut, fit_or_none


class OfProject(PublicEvent, frozen=True, kw_only=True, rename="camel"):
    """About the project."""

    project_id: str
    """UUID."""
    name: str
    """Name of the project."""


class ProjectSettings(OfProject, frozen=True, kw_only=True, rename="camel"):
    """Its settings, as they are now."""

    gpu_quota_milli: int | None
    """Limit on non-preemptible workloads, in thousandths of a GPU. Null: no limit."""
    node_pools: list[str]
    """The order in which node pools are tried where a workload names none. Empty: all pools, by name."""
    pod_security: str | None
    """The loosest Pod Security Standard of its pods on Kubernetes. Null: the setting of the cluster."""


class ProjectCreated(ProjectSettings, frozen=True, kw_only=True, rename="camel"):
    """An administrator created the project."""

    at: datetime | None
    """When it was created."""


class ProjectChanged(ProjectSettings, frozen=True, kw_only=True, rename="camel"):
    """Its quota or another setting was changed."""


class ProjectDeleted(OfProject, frozen=True, kw_only=True, rename="camel"):
    """The project was deleted. Its workloads are deleted after it."""

    at: datetime | None
    """When it was deleted."""


EVENTS: Final[tuple[type[PublicEvent], ...]] = (ProjectCreated, ProjectChanged, ProjectDeleted)

MOST_POOLS: Final = 100
"""In one event."""


def tell(happening: Happening[Project]) -> Iterator[Told]:
    """The public events of a commit of a project."""
    state = happening.before
    for index, event in enumerate(happening.commit.events):
        was, state = state, evolve(state, event)
        told = _told(happening, was, state)
        if told is not None:
            yield Told(index, told, state.project_id)


def _told(happening: Happening[Project], was: Project, now: Project) -> PublicEvent | None:
    of: dict[str, Any] = {
        "actor": happening.actor,
        "project_id": now.project_id,
        "name": cut(now.name, MOST_NAME_CHARACTERS),
    }
    if was.exists and not now.exists:
        return ProjectDeleted(at=now.deleted_at, **of)
    settings: dict[str, Any] = {
        "gpu_quota_milli": fit_or_none(now.gpu_quota_milli),
        "node_pools": [cut(pool, MOST_NAME_CHARACTERS) for pool in now.node_pools[:MOST_POOLS]],
        "pod_security": now.pod_security,
    }
    if now.project_id != was.project_id:
        return ProjectCreated(at=now.created_at, **settings, **of)
    asked = (was.gpu_quota_milli, was.node_pools, was.pod_security)
    if now.exists and (now.gpu_quota_milli, now.node_pools, now.pod_security) != asked:
        return ProjectChanged(**settings, **of)
    return None
