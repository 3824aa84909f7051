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
    over_quota_only: bool
    """Whether the windows are about what the project uses beyond its quota: workloads start within it at any time."""
    open: bool
    """Whether workloads may start now, or, with `over_quota_only`, the project may go over its quota."""
    changes_at: Moment | None
    """When the next window opens, or the one that is open closes. Null if it always is as it is now."""


class StartWindowsOfProjects(Form, frozen=True, kw_only=True):
    """Windows of projects that have any."""

    windows: list[StartWindows]
    """By name of the project."""


class CapacityReservation(Form, frozen=True, kw_only=True):
    """Nodes of a cluster, or GPUs of them, that only some may use for a time: workloads to which all fits that is said
    of these.
    """

    id: Uuid
    """Its id. A later one of the same name has another."""
    cluster_id: Uuid
    """Its cluster."""
    cluster_name: str
    """Name of its cluster."""
    name: str
    """Unique in its cluster among those that are not over."""
    project_id: Uuid | None
    """The project whose workloads may use the nodes meanwhile. Null: of any project, or one that you may not see."""
    project_name: str
    """Its name; `another project` where you may not see it, and empty where it is for any project."""
    department_id: Uuid | None
    """The department whose projects' workloads may. Null: of any department, or one that you may not see."""
    department_name: str
    """Its name; `another department` where you may not see it, and empty where it is for any department."""
    workload_labels: dict[str, str]
    """Labels that a workload must have, all of them; empty: whatever labels it has."""
    state: Literal["Planned", "InProgress", "Over"]
    """Whether it is still to come, goes on, or is over. It is over, too, when its project, or department, is deleted.
    """
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
    node_count: int | None
    """How many of these nodes, in the order of their names. Null: all."""
    exact: bool
    """Whether of the last node no more GPUs are kept than are wanted, with their part of its CPU and memory."""
    lead_seconds: int
    """For so long before it begins no pod of others is placed on the nodes that is non-preemptible and may still run
    then.
    """
    reserved_by: str
    """Who made it, or changed it last."""


class CapacityReservations(Form, frozen=True, kw_only=True):
    """Reservations that are planned, go on, or were over less than 30 days ago."""

    reservations: list[CapacityReservation]
    """By cluster, in the order in which they begin the first time."""
