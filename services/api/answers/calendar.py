"""What the calendar holds. Pure."""

from typing import Literal

from services.api.answers.forms import Form, Uuid
from services.api.shown_events import Moment


class Maintenance(Form, frozen=True, kw_only=True):
    """Nodes of a cluster that are out of service for a time."""

    id: Uuid
    """Its id. A later one of the same name has another."""
    cluster_id: Uuid
    """Its cluster."""
    cluster_name: str
    """Name of its cluster."""
    name: str
    """Unique in its cluster among those that are not over."""
    state: Literal["Planned", "InProgress", "Over"]
    """Whether it is still to come, goes on, or is over."""
    starts_at: Moment
    """When the nodes are drained."""
    ends_at: Moment
    """When they take pods again."""
    nodes: list[str]
    """Names of nodes; empty for nodes of any name."""
    node_pools: list[str]
    """Names of node pools; empty for nodes of any pool."""
    labels: dict[str, str]
    """Labels that the nodes have, all of them; empty for nodes with any labels."""
    lead_seconds: int
    """For so long before it begins no pod is placed on the nodes that is non-preemptible and may still run then."""
    force: bool
    """Whether pods of non-preemptible workloads are told to end when it begins, too."""
    planned_by: str
    """Who planned it, or changed it last."""


class Maintenances(Form, frozen=True, kw_only=True):
    """Maintenance that is planned, goes on, or was over less than 30 days ago."""

    maintenance: list[Maintenance]
    """By cluster, in the order in which it begins."""
