"""Rows about projects: one declaration per column (projections/columns.py). Pure."""

from datetime import datetime
from typing import Annotated

import msgspec

from events.project import Project
from projections.columns import Column, Folded
from projections.values import clean, fit, indexed, to_json

_Column = Column[Folded[Project]]


def _quota(project: Folded[Project]) -> int | None:
    quota = project.state.gpu_quota_milli
    return None if quota is None else fit(quota)


class ProjectRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A project and its settings."""

    id: Annotated[str, _Column(lambda project: project.state.project_id, key=True)]
    version: Annotated[int, _Column(lambda project: project.version, often=True)]
    name: Annotated[str, _Column(lambda project: clean(project.state.name))]
    created_at: Annotated[datetime, _Column(lambda project: project.state.created_at)]
    deleted_at: Annotated[datetime | None, _Column(lambda project: project.state.deleted_at)]
    gpu_quota_milli: Annotated[int | None, _Column(_quota)]
    node_pools: Annotated[tuple[str, ...], _Column(lambda project: tuple(map(clean, project.state.node_pools)))]
    department_id: Annotated[str, _Column(lambda project: indexed(project.state.department_id))]
    department_name: Annotated[str, _Column(lambda project: clean(project.state.department_name))]
    roles: Annotated[str, _Column(lambda project: to_json(project.state.roles), type="json")]
    """JSON object: subject to [role]."""
    budget: Annotated[str, _Column(lambda project: to_json(project.state.budget), type="json")]
    """JSON object, as the state has it; null where there is none."""
    time_limits: Annotated[str, _Column(lambda project: to_json(project.state.time_limits), type="json")]
    """JSON: [{"kind", "runtime_seconds", "idle_gpu_seconds", "pending_seconds"}]."""


class UseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the workloads of one project in one phase hold; rows of zeros may stay."""

    project_id: Annotated[str, Column(key=True)]
    phase: Annotated[str, Column(key=True)]
    workloads: int = 0
    pods: int = 0
    gpu_milli: int = 0
    non_preemptible_gpu_milli: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
