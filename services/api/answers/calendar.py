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


class StartWindows(Form, frozen=True, kw_only=True):
    """At which times workloads of a project may start."""

    project_id: Uuid
    """The project."""
    project_name: str
    """Its name."""
    zone: str | None
    """Zone of the IANA database by whose clock they are. Null if workloads may start at any time."""
    windows: list[str]
    """Such as `Mon-Fri 20:00-06:00`; empty if workloads may start at any time."""
    ends_running: bool
    """Whether preemptible workloads that run are told to end when a window closes."""
    open: bool
    """Whether workloads may start now."""
    changes_at: Moment | None
    """When the next window opens, or the one that is open closes. Null if it always is as it is now."""


class CapacityReservation(Form, frozen=True, kw_only=True):
    """Nodes of a cluster that only one project may use for a time."""

    id: Uuid
    """Its id. A later one of the same name has another."""
    cluster_id: Uuid
    """Its cluster."""
    cluster_name: str
    """Name of its cluster."""
    name: str
    """Unique in its cluster among those that are not over."""
    project_id: Uuid | None
    """Only its workloads may use the nodes meanwhile. Null where you may not see the project."""
    project_name: str
    """Its name; `another project` where you may not see it."""
    state: Literal["Planned", "InProgress", "Over"]
    """Whether it is still to come, goes on, or is over. It is over, too, when its project is deleted."""
    starts_at: Moment
    """When it begins: the time that goes on, or comes next."""
    ends_at: Moment
    """When it is over, likewise."""
    weekly: bool
    """Whether it comes again 168 hours later, until it is cancelled."""
    nodes: list[str]
    """Names of nodes; empty for nodes of any name."""
    node_pools: list[str]
    """Names of node pools; empty for nodes of any pool."""
    labels: dict[str, str]
    """Labels that the nodes have, all of them; empty for nodes with any labels."""
    gpus: int | None
    """How many GPUs: of these nodes, in the order of their names, as many as have so many together. Null: all."""
    lead_seconds: int
    """For so long before it begins no pod of another project is placed on the nodes that is non-preemptible and may
    still run then.
    """
    reserved_by: str
    """Who made it, or changed it last."""


class CapacityReservations(Form, frozen=True, kw_only=True):
    """Reservations that are planned, go on, or were over less than 30 days ago."""

    reservations: list[CapacityReservation]
    """By cluster, in the order in which they begin the first time."""
