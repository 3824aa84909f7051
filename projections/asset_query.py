"""Which assets are asked for, as one statement. Runs no query."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, or_, select

from events.department import DEFAULT_DEPARTMENT_ID
from projections import filters
from projections.tables import assets, clusters, departments, projects


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetQuery:
    """Which assets are asked for; None: any."""

    kind: str
    search: str | None = None
    """Part of the name."""
    name: str | None = None
    """The whole name."""
    scope: str | None = None
    project_id: str | None = None
    """Those that a workload of this project can use; likewise the three below."""
    department_id: str | None = None
    cluster_id: str | None = None
    workload_type: str | None = None
    departments: frozenset[str] | None = None
    """Those of other departments are not shown at all; None: of none."""
    managed: frozenset[str] = frozenset()
    """Those that are managed in one of these projects are shown, whoever can use them."""
    manager_id: str | None = None
    """Those that are managed in this project, whoever can use them."""
    created_by: str | None = None
    """Actor id of who created them."""
    offset: int = 0
    limit: int


def assets_statement(query: AssetQuery) -> Select[Any]:
    """Living ones of living places, by name. Raises InvalidQueryError."""
    a = assets.c
    lives = select(projects.c.id).where(projects.c.id == a.project_id, projects.c.deleted_at.is_(None)).exists()
    stands = select(clusters.c.id).where(clusters.c.id == a.cluster_id, clusters.c.removed.is_(False)).exists()
    there = select(departments.c.id).where(departments.c.id == a.department_id, departments.c.deleted_at.is_(None))
    statement = select(assets).where(
        a.kind == query.kind,
        a.deleted_at.is_(None),
        or_(a.project_id == "", lives, a.manager_id.in_(sorted(query.managed))),
        or_(a.cluster_id == "", stands),
        # The default one has a row only where it was ever changed.
        or_(a.department_id.in_(("", DEFAULT_DEPARTMENT_ID)), there.exists()),
    )
    if query.departments is not None:
        seen = a.department_id.in_(("", *sorted(query.departments)))
        statement = statement.where(or_(seen, a.manager_id.in_(sorted(query.managed))) if query.managed else seen)
    if query.department_id is not None:
        statement = statement.where(a.department_id.in_(("", query.department_id)))
    if query.search is not None:
        statement = statement.where(filters.containing(a.name, query.search))
    if query.name is not None:
        statement = statement.where(a.name == query.name)
    if query.scope is not None:
        statement = statement.where(a.scope == query.scope)
    if query.project_id is not None:
        statement = statement.where(a.project_id.in_(("", query.project_id)))
    if query.cluster_id is not None:
        statement = statement.where(a.cluster_id.in_(("", query.cluster_id)))
    if query.manager_id is not None:
        statement = statement.where(a.manager_id == query.manager_id)
    if query.created_by is not None:
        statement = statement.where(a.created_by == query.created_by)
    if query.workload_type is not None:
        fits = a.workload_types.contains([query.workload_type])
        statement = statement.where(or_(func.cardinality(a.workload_types) == 0, fits))
    return statement.order_by(a.name, a.id)
