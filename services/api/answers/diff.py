"""What differs between two moments. Pure."""

from typing import Literal

from events.phases import Phase
from services.api.answers.forms import Form, Uuid
from services.api.answers.workloads import Moment

Difference = Literal["appeared", "changed", "gone"]
"""Whether something is at the later moment only, at both and not the same, or at the earlier one only."""


class DiffMoment(Form, frozen=True, kw_only=True):
    """One of the two moments."""

    sequence: int
    """Sequence of the log."""
    at: Moment | None
    """Its time. Null before the first commit."""


class WorkloadThen(Form, frozen=True, kw_only=True):
    """A workload at a moment."""

    phase: Phase
    """Its phase."""
    phase_message: str | None
    """The reason for the phase, as a sentence."""
    priority_class_name: str
    """Its priority class."""
    running_pods: int
    """Number of pods that were running."""
    gpu_allocated: float
    """GPUs that were reserved for it."""
    nodes: list[str]
    """Nodes that its pods were on."""


class WorkloadDiff(Form, frozen=True, kw_only=True):
    """A workload that is not the same at both moments."""

    id: Uuid
    """Id of the workload."""
    name: str
    """Its name."""
    project_name: str | None
    """Name of its project."""
    difference: Difference
    """What became of it."""
    before: WorkloadThen | None
    """At the earlier moment. Null if there was none."""
    after: WorkloadThen | None
    """At the later moment. Null if it was deleted."""


class QuotaThen(Form, frozen=True, kw_only=True):
    """The settings of a project at a moment."""

    gpu_quota: float | None
    """GPUs that its non-preemptible workloads could hold. Null: no limit."""
    budget: str | None
    """What it could use in a month, such as `1000 GPU hours per month`. Null: no limit."""
    node_pools: list[str]
    """Order in which node pools were tried."""


class QuotaDiff(Form, frozen=True, kw_only=True):
    """A project whose quota or node pools are not the same at both moments."""

    project_id: Uuid
    """Id of the project."""
    name: str
    """Its name."""
    difference: Difference
    """What became of it."""
    before: QuotaThen | None
    """At the earlier moment. Null if there was none."""
    after: QuotaThen | None
    """At the later moment. Null if it was deleted."""


class NodeThen(Form, frozen=True, kw_only=True):
    """A node at a moment."""

    node_pool: str
    """The pool that it was in."""
    ready: bool
    """Whether it took part at all."""
    schedulable: bool
    """Whether it took new pods."""
    gpus: int
    """Number of GPUs."""
    reserved_gpus: float
    """GPUs that were reserved on it."""
    reserved_pods: int
    """Pods that had a reservation on it."""


class NodeDiff(Form, frozen=True, kw_only=True):
    """A node that is not the same at both moments."""

    name: str
    """Name of the node in its cluster."""
    cluster_name: str | None
    """Name of its cluster."""
    difference: Difference
    """What became of it."""
    before: NodeThen | None
    """At the earlier moment. Null if there was none."""
    after: NodeThen | None
    """At the later moment. Null if it was gone."""


About = Literal["workload", "project", "department", "cluster", "node", "asset"]
"""What something happened to."""


class Happening(Form, frozen=True, kw_only=True):
    """One thing that happened between the moments."""

    sequence: int
    """Sequence of its commit in the log."""
    at: Moment
    """When it was decided."""
    about: About
    """What it happened to."""
    id: Uuid | None
    """Id of that workload, project, cluster or asset. Null for a node."""
    name: str
    """Name of that workload, project, cluster, node or asset."""
    type: str
    """Name of the event."""
    message: str
    """What happened, as a sentence."""


class Diff(Form, frozen=True, kw_only=True):
    """What differs between two moments, and what happened between them."""

    earlier: DiffMoment
    """The earlier moment."""
    later: DiffMoment
    """The later moment."""
    workloads: list[WorkloadDiff]
    """Workloads that differ, by project and name."""
    quotas: list[QuotaDiff]
    """Projects whose settings differ, by name."""
    nodes: list[NodeDiff]
    """Nodes that differ, by cluster and name."""
    events: list[Happening]
    """What happened to workloads, to quotas and budgets of projects, to clusters and to nodes, the oldest first."""
    more_workloads: bool
    """Whether there are more workloads that changed than were looked at."""
    more_events: bool
    """Whether more happened than is listed."""
