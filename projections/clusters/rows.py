"""The row of a cluster: one declaration per column (projections/columns.py). Pure."""

from datetime import datetime
from typing import Annotated

import msgspec

from events.cluster import Cluster
from projections.columns import Column, Folded
from projections.values import clean, to_json

_Column = Column[Folded[Cluster]]


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of a cluster's name."""

    id: Annotated[str, _Column(lambda cluster: cluster.state.cluster_id, key=True)]
    version: Annotated[int, _Column(lambda cluster: cluster.version, often=True)]
    name: Annotated[str, _Column(lambda cluster: clean(cluster.state.name))]
    kind: Annotated[str, _Column(lambda cluster: cluster.state.kind)]
    created_at: Annotated[datetime, _Column(lambda cluster: cluster.state.created_at)]
    removed: Annotated[bool, _Column(lambda cluster: cluster.state.removed)]
    connected: Annotated[bool, _Column(lambda cluster: cluster.state.connected)]
    connection_changed_at: Annotated[datetime | None, _Column(lambda cluster: cluster.state.connection_changed_at)]
    problem: Annotated[str, _Column(lambda cluster: clean(cluster.state.problem))]
    """Why it is disconnected, as its agent said."""
    agent_version: Annotated[str, _Column(lambda cluster: clean(cluster.state.agent_version))]
    protection_reported: Annotated[bool | None, _Column(lambda cluster: cluster.state.protection_reported)]
    protection_set: Annotated[bool, _Column(lambda cluster: cluster.state.protection_set)]
    node_pools: Annotated[
        str, _Column(lambda cluster: to_json(msgspec.to_builtins(cluster.state.node_pools)), type="json")
    ]
    """JSON object: name to {"name", "label_key", "label_value"}."""
