"""A reservation of capacity as it stands, and when it holds. A part of the cluster aggregate; see `capacity`."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from events.calendar_entry import DEFAULT_LEAD_SECONDS, is_about
from events.node import Node

WEEK: Final = timedelta(days=7)


class ReservedFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Nodes that are kept for some for a time: those to which all fits that is said of them. Meanwhile only workloads
    may use them to which all fits that is said of these.
    """

    id: str
    """Id. A later one of the same name has another."""
    name: str
    """Unique in its cluster among those that are not over."""
    project_id: str = ""
    """The project whose workloads may use the nodes meanwhile; empty: those of any project."""
    project_name: str = ""
    """Its name."""
    department_id: str = ""
    """The department whose projects' workloads may; empty: those of any department."""
    department_name: str = ""
    """Its name."""
    workload_labels: dict[str, str] = {}
    """Labels that a workload must have to use the nodes, all of them; empty: whatever labels it has."""
    starts_at: datetime
    """When it begins, the first time."""
    ends_at: datetime
    """When it is over, the first time."""
    weekly: bool = False
    """Whether it comes again 168 hours later, until it is cancelled."""
    nodes: tuple[str, ...] = ()
    """Names of nodes; empty for nodes of any name."""
    node_pools: tuple[str, ...] = ()
    """Names of node pools; empty for nodes of any pool."""
    labels: dict[str, str] = {}
    """Labels that the nodes have, all of them; empty for nodes with any labels."""
    gpus: int | None = None
    """How many GPUs: of these nodes, in the order of their names, as many as have so many together. None: all."""
    node_count: int | None = None
    """How many of these nodes, in the order of their names. None: all."""
    exact: bool = False
    """Whether of the last node no more GPUs are kept than are wanted, with their part of its CPU and memory; otherwise
    whole nodes.
    """
    lead_seconds: int = DEFAULT_LEAD_SECONDS
    """For so long before it begins no pod of others is placed on the nodes that is non-preemptible and may still run
    then.
    """
    reserved_by: str = ""
    """Id of who made it, or changed it last."""
    made_at: datetime | None = None
    """When it was made."""

    def holder_told(self, *, quoted: bool = False) -> str:
        """For whom it is, for a person, such as `project vision` or `department ai with team=nlp`."""
        noun, name = ("department", self.department_name) if self.department_id else ("project", self.project_name)
        known = self.project_id or self.department_id
        whose = f"{noun} {repr(name) if quoted else name}" if known else "workloads"
        labels = ",".join(f"{key}={value}" for key, value in sorted(self.workload_labels.items()))
        return f"{whose} with {labels}" if labels else whose


class Times(NamedTuple):
    """When a reservation holds, the time that goes on or comes next."""

    starts_at: datetime
    ends_at: datetime


class Reserved(ReservedFields, frozen=True, kw_only=True, omit_defaults=True):
    """As it is, or was until it was over, changed or cancelled."""

    since: datetime | None = None
    """Since when it wants so much of these nodes at these times."""
    until: datetime | None = None
    """Until when it did. None: it still does."""
    gone_since: datetime | None = None
    """Since when it is known here that its project or department is deleted. None: nothing is known of that."""

    @property
    def form(self) -> str:
        """Which one it is among all that are, and were."""
        return self.id if self.until is None else f"{self.id} until {self.until.isoformat()}"

    @property
    def about(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Which nodes it is about: for two that say the same of them these are the same nodes."""
        return self.nodes, self.node_pools, tuple(sorted(self.labels.items()))

    def fits(self, node: Node) -> bool:
        """Whether it is about such a node."""
        return node.present and is_about(self, node)

    @property
    def counted(self) -> bool:
        """Whether it is about so many of its nodes, or of their GPUs, and not about all."""
        return self.gpus is not None or self.node_count is not None

    @property
    def holder(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """For whom it is."""
        return self.project_id, self.department_id, tuple(sorted(self.workload_labels.items()))

    def is_for(self, project_id: str, department_id: str) -> bool:
        """Whether it is for workloads of such a project, as far as their labels fit, too."""
        return self.project_id in ("", project_id) and self.department_id in ("", department_id)

    def fits_labels(self, labels: Mapping[str, str]) -> bool:
        """Whether it is for workloads with these labels, as far as their project fits, too."""
        return self.workload_labels.items() <= labels.items()

    def times(self, now: datetime) -> Times | None:
        """None where it is over."""
        if now < self.ends_at:
            return Times(self.starts_at, self.ends_at)
        if not self.weekly:
            return None
        weeks = WEEK * ((now - self.ends_at) // WEEK + 1)
        return Times(self.starts_at + weeks, self.ends_at + weeks)

    def clashes(self, other: "Reserved", now: datetime) -> bool:
        """Whether both keep the same nodes at the same time, from now on, as far as that can be told without nodes. So
        many nodes, or GPUs, and so many others are never the same (`shared_out`).
        """
        both_counted = self.counted and other.counted
        return not both_counted and self._may_share_nodes(other) and self._share_time(other, now)

    def meets(self, other: "Reserved") -> bool:
        """Whether neither has what the other one has: both want so many, and hold at one time."""
        return (
            self.counted
            and other.counted
            and self.id != other.id
            and self._share_time(other, min(self.starts_at, other.starts_at))
        )

    def wants_as(self, other: "Reserved") -> bool:
        """Whether it is about so much of the same nodes at the same times."""
        return all(getattr(self, name) == getattr(other, name) for name in _WANTED)

    def _may_share_nodes(self, other: "Reserved") -> bool:
        """A node has one name, one pool, and of each label one value."""
        for mine, others in ((self.nodes, other.nodes), (self.node_pools, other.node_pools)):
            if mine and others and not set(mine) & set(others):
                return False
        return all(other.labels.get(key, value) == value for key, value in self.labels.items())

    def _share_time(self, other: "Reserved", now: datetime) -> bool:
        if other.weekly and not self.weekly:
            return other._share_time(self, now)  # noqa: SLF001 (of the same class)
        begin = max(now, other.starts_at)
        if other.weekly:
            begin = max(begin, self.starts_at)
        mine, theirs = self.times(begin), other.times(begin)
        if mine is None or theirs is None:
            return False
        # Of two that come again each week, one of either may meet the one before or after of the other.
        shifts = (-WEEK, timedelta(0), WEEK) if other.weekly else (timedelta(0),)
        return any(mine.starts_at < theirs.ends_at + each and theirs.starts_at + each < mine.ends_at for each in shifts)


_WANTED: Final = ("starts_at", "ends_at", "weekly", "nodes", "node_pools", "labels", "gpus", "node_count", "exact")
