"""What the living workloads of projects hold. Runs no query."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import RowMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectUse:
    """What the living workloads of one project hold."""

    project_id: str
    phases: dict[str, int] = field(default_factory=dict[str, int])
    """How many are in each phase."""
    pods: int = 0
    gpu_milli: int = 0
    non_preemptible_gpu_milli: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UseAnswer:
    projects: dict[str, ProjectUse]
    """By project id; a project that never had a workload is not there."""
    seq: int


def use_by_project(rows: Sequence[RowMapping]) -> dict[str, ProjectUse]:
    """Of its rows, which are by project and phase."""
    by_project: dict[str, list[RowMapping]] = {}
    for row in rows:
        by_project.setdefault(row["project_id"], []).append(row)
    return {
        project_id: ProjectUse(
            project_id=project_id,
            phases={row["phase"]: row["workloads"] for row in of_project if row["workloads"]},
            pods=sum(row["pods"] for row in of_project),
            gpu_milli=sum(row["gpu_milli"] for row in of_project),
            non_preemptible_gpu_milli=sum(row["non_preemptible_gpu_milli"] for row in of_project),
            cpu_milli=sum(row["cpu_milli"] for row in of_project),
            memory_bytes=sum(row["memory_bytes"] for row in of_project),
        )
        for project_id, of_project in by_project.items()
    }
