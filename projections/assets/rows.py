"""The row of an asset: one declaration per column (projections/columns.py). Pure."""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from events.asset import Asset
from projections.columns import Column, Folded
from projections.values import clean, indexed, to_json

_Column = Column[Folded[Asset]]


def _types(asset: Folded[Asset]) -> tuple[str, ...]:
    """Kinds of workloads that it is for; none stands for all."""
    given: Any = asset.state.spec.get("workloadTypes")
    if asset.state.workload_type:
        return (clean(asset.state.workload_type),)
    return tuple(clean(word) for word in given if isinstance(word, str)) if isinstance(given, list) else ()  # pyright: ignore[reportUnknownVariableType] - JSON


class AssetRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of an asset's name."""

    id: Annotated[str, _Column(lambda asset: asset.state.asset_id, key=True)]
    version: Annotated[int, _Column(lambda asset: asset.version, often=True)]
    kind: Annotated[str, _Column(lambda asset: asset.state.kind)]
    name: Annotated[str, _Column(lambda asset: indexed(asset.state.name))]
    scope: Annotated[str, _Column(lambda asset: asset.state.scope)]
    project_id: Annotated[str, _Column(lambda asset: clean(asset.state.project_id), often=True)]
    """Empty where its scope is no project."""
    manager_id: Annotated[str, _Column(lambda asset: clean(asset.state.manager), often=True)]
    """Id of the project whose administrators change it; empty: those of the tenant alone. Not that of its scope where
    it is a data volume.
    """
    cluster_id: Annotated[str, _Column(lambda asset: clean(asset.state.only_on))]
    """Of the only cluster that can use it; empty: any."""
    department_id: Annotated[str, _Column(lambda asset: clean(asset.state.department_id))]
    """Empty where its scope is no department."""
    workload_types: Annotated[tuple[str, ...], _Column(_types)]
    created_by: Annotated[str, _Column(lambda asset: clean(asset.state.created_by))]
    created_at: Annotated[datetime, _Column(lambda asset: asset.state.created_at)]
    changed_at: Annotated[datetime | None, _Column(lambda asset: asset.state.changed_at)]
    deleted_at: Annotated[datetime | None, _Column(lambda asset: asset.state.deleted_at)]
    issues: Annotated[str, _Column(lambda asset: to_json(asset.state.issues), type="json")]
    """JSON object: by cluster id, why a data source cannot be used there (`issue`) and since when (`at`)."""
    spec: Annotated[str, _Column(lambda asset: to_json(asset.state.spec), type="json")]
    """JSON object: the fields that were given."""
