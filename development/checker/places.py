"""Books of departments, projects, clusters, assets and policies: which there are under which name, how they are set,
what clusters say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from development.checker.records import Fields, Record, moment
from development.checker.workloads import Wrong

DEFAULT_POOL: Final = "default"
DEFAULT_DEPARTMENT: Final = "default"


@dataclass
class Project:
    """One incarnation of a name."""

    id: str
    name: str
    created_at: datetime
    version: int
    gpu_quota_milli: int | None = None
    node_pools: list[str] = field(default_factory=list[str])
    pod_security: str | None = None
    privileged: bool = False
    node_types: list[str] = field(default_factory=list[str])
    gpu_limit_milli: int | None = None
    over_quota_weight: float | None = None
    department: str = DEFAULT_DEPARTMENT
    """Its name."""
    deleted: bool = False


@dataclass
class Department:
    """One incarnation of a name."""

    id: str
    name: str
    created_at: datetime
    version: int
    node_pools: list[str] = field(default_factory=list[str])
    node_types: list[str] = field(default_factory=list[str])
    deleted: bool = False


@dataclass
class Cluster:
    """One incarnation of a name."""

    id: str
    name: str
    kind: str
    created_at: datetime
    version: int
    simulated: set[str] = field(default_factory=set[str])
    """How many nodes it was made with."""
    cut_off_at: datetime | None = None
    """Since when a simulated one is cut off."""
    removed: bool = False
    connected: bool = False
    heard_at: datetime | None = None
    """When it was last said whether it is connected."""
    lost_at: datetime | None = None
    """When it was last found to be disconnected: by its silence, or by what its agent says."""
    problem: str = ""
    agent_version: str = ""
    refused: list[Fields] = field(default_factory=list[Fields])
    storage_classes: list[Fields] | None = None
    """None: never told."""
    own_protection: bool | None = None
    """What its own configuration says of ownership protection; None: nothing."""
    set_protection: bool = False
    """What an administrator says."""
    pools: dict[str, Fields] = field(default_factory=dict[str, Fields])
    reservations: dict[str, Fields] = field(default_factory=dict[str, Fields])
    """Of capacity, likewise."""
    maintenance: dict[str, Fields] = field(default_factory=dict[str, Fields])
    """By name: the last one."""


@dataclass
class Asset:
    """One incarnation of a name: an environment, a compute resource or a template."""

    id: str
    kind: str
    name: str
    version: int
    spec: Fields
    deleted: bool = False
    marked: set[str] = field(default_factory=set[str])
    """Ids of clusters on which it cannot be used."""


class Places:
    """Takes the events of projects, clusters, assets and policies."""

    def __init__(self) -> None:
        self.projects: dict[str, Project] = {}
        """Every incarnation, by id; likewise the one below."""
        self.clusters: dict[str, Cluster] = {}
        self.assets: dict[str, Asset] = {}
        self._asset_of: dict[str, Asset] = {}
        self._policy_of: dict[str, Fields] = {}
        """What the newest setting of each policy says, by key; a deleted one has none."""
        self._department_of: dict[str, Department] = {}
        """The newest of each name, by key; likewise those below."""
        self._project_of: dict[str, Project] = {}
        self._cluster_of: dict[str, Cluster] = {}

    @property
    def living_projects(self) -> list[Project]:
        return sorted((each for each in self.projects.values() if not each.deleted), key=lambda each: each.name)

    def last_clusters(self, *, removed: bool) -> list[Cluster]:
        """The last one of each name, where it is there, or where it was removed; by name."""
        return sorted((each for each in self._cluster_of.values() if each.removed == removed), key=lambda c: c.name)

    def is_gone(self, project_id: str) -> bool:
        """Whether there was such a project, and it is deleted."""
        return project_id in self.projects and self.projects[project_id].deleted

    def cluster_is_there(self, cluster_id: str) -> bool:
        """Whether there is such a cluster that was not removed."""
        return cluster_id in self.clusters and not self.clusters[cluster_id].removed

    def left(self, workload: str, data: Fields) -> Iterator[Wrong]:
        """Whether a workload may leave its cluster, as it did: that was lost for so long, and others are alike."""
        known = self.clusters.get(data["cluster_id"])
        since, at = moment(data["lost_since"]), moment(data["at"])
        if known is None or known.lost_at != since:
            yield "cluster", f"{workload} left {data['name']}, lost since {since}, and nobody said that it is"
        elif data["seconds"] <= 0 or at - since < timedelta(seconds=data["seconds"]):
            yield "cluster", f"{workload} left {data['name']} at {at}, before it was lost for {data['seconds']} s"
        kinds = {each.kind == "simulated" for id_ in data["among"] if (each := self.clusters.get(id_))}
        if known is not None and kinds != {known.kind == "simulated"}:
            yield "cluster", f"{workload} left {data['name']}, and not all of {data['among']} are as real as that is"

    def take_project(self, record: Record, type_: str, data: Fields) -> Iterator[Wrong]:
        known = self._project_of.get(record.key)
        if type_ == "ProjectCreated":
            if known is not None and not known.deleted:
                yield "project", f"{data['name']} is made a second time"
            known = Project(data["project_id"], data["name"], moment(data["at"]), record.seq)
            self._project_of[record.key] = self.projects[known.id] = known
        elif known is None or known.deleted:
            yield "project", f"{type_} on {record.subject}, which is deleted or never was"
            return
        known.version = record.seq
        if type_ in {"ProjectCreated", "ProjectChanged"}:
            known.gpu_quota_milli = data.get("gpu_quota_milli")
            known.node_pools = data.get("node_pools", [])
            known.pod_security = data.get("pod_security")
            known.privileged = data.get("privileged", False)
            known.node_types = data.get("node_types", [])
            known.gpu_limit_milli = data.get("gpu_limit_milli")
            known.over_quota_weight = data.get("over_quota_weight")
            known.department = data.get("department_name", known.department)
        elif type_ == "ProjectMoved":
            if known.department == data["department_name"] == DEFAULT_DEPARTMENT:
                yield "project", f"{known.name} is moved to where it is"
            known.department = data["department_name"]
        elif type_ == "ProjectDeleted":
            known.deleted = True

    def take_department(self, record: Record, type_: str, data: Fields) -> Iterator[Wrong]:
        known = self._department_of.get(record.key)
        if type_ == "DepartmentCreated":
            if known is not None and not known.deleted:
                yield "department", f"{data['name']} is made a second time"
            known = Department(data["department_id"], data["name"], moment(data["at"]), record.seq)
            self._department_of[record.key] = known
        elif known is None or known.deleted:
            yield "department", f"{type_} on {record.subject}, which is deleted or never was"
            return
        known.version = record.seq
        if type_ in {"DepartmentCreated", "DepartmentChanged"}:
            known.node_pools, known.node_types = data.get("node_pools", []), data.get("node_types", [])
        elif type_ == "DepartmentDeleted":
            if known.name == DEFAULT_DEPARTMENT:
                yield "department", "the default department is deleted"
            known.deleted = True
        else:
            yield "unknown", f"the checker does not know {type_}"

    def take_asset(self, record: Record, type_: str, data: Fields) -> Iterator[Wrong]:
        known = self._asset_of.get(record.key)
        if type_ == "AssetCreated":
            if known is not None and not known.deleted:
                yield "asset", f"{data['name']} is made a second time"
            if data["asset_id"] in self.assets:
                yield "asset", f"{data['asset_id']} was made twice"
            places = {place: data.get(f"{place}_id", "") for place in ("project", "cluster", "department")}
            if {scope for scope, id_ in places.items() if id_} != {data["scope"]} - {"tenant"}:
                yield "asset", f"{data['name']} is for a {data['scope']}, and names {places}"
            if (data["kind"] == "data-volume") != ("offeredClaim" in data["spec"]):
                yield "asset", f"{data['name']} is of kind {data['kind']}, and of {data['spec'].get('offeredClaim')}"
            known = Asset(data["asset_id"], data["kind"], data["name"], record.seq, data["spec"])
            self._asset_of[record.key] = self.assets[known.id] = known
            return
        if known is None or known.deleted:
            yield "asset", f"{type_} on {record.subject}, which is deleted or never was"
            return
        known.version = record.seq
        if type_ == "AssetChanged":
            if data["spec"] == known.spec:
                yield "asset", f"{known.name} is changed into what it was"
            if data["spec"].get("offeredClaim") != known.spec.get("offeredClaim"):
                yield "asset", f"data volume {known.name} is another claim than it was"
            known.spec = data["spec"]
            known.marked.clear()
        elif type_ == "DataSourceMarked":
            cluster_id, issue = data["cluster_id"], data.get("issue", "")
            if bool(issue) == (cluster_id in known.marked):
                yield "asset", f"{known.name} is marked as it was for {cluster_id}"
            known.marked ^= {cluster_id}
        elif type_ == "AssetDeleted":
            known.deleted = True
        else:
            yield "unknown", f"the checker does not know {type_}"

    def take_policy(self, record: Record, type_: str, data: Fields) -> Iterator[Wrong]:
        known = self._policy_of.get(record.key)
        own = ("workload_type", "project_id", "department_id")
        if known is not None and any(data.get(name, "") != known.get(name, "") for name in own):
            yield "policy", f"{record.subject} is of {[known.get(name) for name in own]}, and {type_} of another"
        if type_ == "PolicySet":
            if known is not None and known["policy_id"] != data["policy_id"]:
                yield "policy", f"{data['policy_id']} takes the place of {known['policy_id']}, which was not deleted"
            if known is not None and (known["defaults"], known["rules"]) == (data["defaults"], data["rules"]):
                yield "policy", f"{record.subject} is set to what it was"
            self._policy_of[record.key] = data
        elif type_ == "PolicyDeleted":
            if known is None:
                yield "policy", f"{record.subject} is deleted, and there is none"
            self._policy_of.pop(record.key, None)
        else:
            yield "unknown", f"the checker does not know {type_}"

    def take_cluster(self, record: Record, type_: str, data: Fields) -> Iterator[Wrong]:
        known = self._cluster_of.get(record.key)
        if type_ == "ClusterAdded":
            if known is not None and not known.removed:
                yield "cluster", f"{data['name']} is added a second time"
            known = Cluster(data["cluster_id"], data["name"], data["kind"], moment(data["at"]), record.seq)
            known.simulated = {name for group in data.get("simulated_nodes", []) for name in group["names"]}
            self._cluster_of[record.key] = self.clusters[known.id] = known
        elif known is None or known.removed:
            yield "cluster", f"{type_} on {record.subject}, which is removed or never was"
            return
        known.version = record.seq
        match type_:
            case "ClusterAdded":
                pass
            case "ClusterConnected" | "ClusterDisconnected":
                connects, at = type_ == "ClusterConnected", moment(data["at"])
                # Of one that is lost already it is only told what its agent says of it.
                if connects or known.connected or known.heard_at is None:
                    known.heard_at = at
                    known.lost_at = known.lost_at if connects else at
                known.connected = connects
                known.problem = data.get("reason", "")
                known.agent_version = data.get("agent_version", "") if known.connected else known.agent_version
            case "ClusterReportsRefused":
                known.refused = data.get("refused", [])
            case "StorageClassesReported":
                known.storage_classes = data.get("classes", [])
            case "OwnershipProtectionSet" if data["source"] == "cluster":
                known.own_protection = data["enabled"]
            case "OwnershipProtectionSet":
                known.set_protection = data["enabled"]
            case "OwnershipProtectionUnset":
                known.own_protection = None
            case "NodePoolSet":
                known.pools[data["pool"]["name"]] = data["pool"]
            case "NodePoolRemoved":
                if known.pools.pop(data["name"], None) is None:
                    yield "cluster", f"{known.name}: the pool {data['name']} is removed, and was not there"
            case "SimulatedNodesAdded" | "SimulatedNodesRemoved" | "SimulatedNodeChanged":
                yield from _simulated_nodes(known, type_, data)
            case "SimulatedClusterCutOff" | "SimulatedClusterReconnected":
                yield from _cut_off(known, type_, data)
            case "MaintenancePlanned":
                if moment(data["ends_at"]) <= max(moment(data["starts_at"]), moment(data["at"])):
                    yield "maintenance", f"{known.name}: {data['name']} is planned for a time that is none to come"
                known.maintenance[data["name"]] = data
            case "MaintenanceCancelled":
                gone = known.maintenance.pop(data["name"], None)
                if gone is None or moment(gone["ends_at"]) <= moment(data["at"]):
                    yield "maintenance", f"{known.name}: {data['name']} is cancelled, and is over or never was"
            case "CapacityReserved":
                if moment(data["ends_at"]) <= moment(data["starts_at"]):
                    yield "reservation", f"{known.name}: {data['name']} ends before it begins"
                known.reservations[data["name"]] = data
            case "CapacityReservationCancelled":
                if known.reservations.pop(data["name"], None) is None:
                    yield "reservation", f"{known.name}: {data['name']} is cancelled, and never was"
            case "ClusterRemoved":
                known.removed, known.connected = True, False
            case _:
                yield "unknown", f"the checker does not know {type_}"


def _cut_off(known: Cluster, type_: str, data: Fields) -> Iterator[Wrong]:
    cuts = type_ == "SimulatedClusterCutOff"
    if known.kind != "simulated" or cuts == (known.cut_off_at is not None):
        yield "cluster", f"{known.name}: {type_} of one that is not simulated, or is so already"
    known.cut_off_at = moment(data["at"]) if cuts else None


def _simulated_nodes(known: Cluster, type_: str, data: Fields) -> Iterator[Wrong]:
    if known.kind != "simulated":
        yield "cluster", f"{known.name} is of kind {known.kind}, and {type_} is of a simulated one"
    if type_ == "SimulatedNodesAdded":
        names = [name for group in data["nodes"] for name in group["names"]]
        if len(set(names)) < len(names) or known.simulated.intersection(names):
            yield "cluster", f"{known.name}: nodes are added that are there already"
        known.simulated |= set(names)
        return
    names = data["names"] if type_ == "SimulatedNodesRemoved" else data["node"]["names"]
    if missing := set(names) - known.simulated:
        yield "cluster", f"{known.name}: {type_} of {min(missing)}, which is not there"
    if type_ == "SimulatedNodesRemoved":
        known.simulated -= set(names)
