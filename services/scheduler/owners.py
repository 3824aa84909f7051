"""Projects, departments and clusters, as the planner sees them. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta

from events.aggregate import Chain
from events.cluster import DEFAULT_POOL, Cluster
from events.department import Department
from events.ids import key_of_id
from events.project import Project
from events.quotas import MAX_CLUSTER_LOST, MAX_MINIMUM_RUNTIME, PoolQuota
from events.workload.state import Workload
from services.scheduler.classes import Rights, rights_of
from services.scheduler.snapshot import Bound, Closed, ClusterView, Labelled, ProjectView, Weights


class Owners:
    """Whose workloads are placed, and where. It reads what the log says of them, which others keep up to date."""

    def __init__(
        self,
        clusters: Mapping[str, Chain[Cluster]],
        projects: Mapping[str, Chain[Project]],
        departments: Mapping[str, Chain[Department]],
    ) -> None:
        self._clusters, self._projects, self._departments = clusters, projects, departments

    def cluster(self, cluster_id: str) -> Cluster | None:
        key = key_of_id(cluster_id)
        chain = None if key is None else self._clusters.get(key)
        return chain.state if chain is not None and chain.state.cluster_id == cluster_id else None

    def views(self, on_nodes: Iterable[tuple[str, str]]) -> dict[str, ClusterView]:
        """By id of each cluster.

        Args:
            on_nodes: cluster id and pool of nodes that are there.
        """
        pools: dict[str, set[str]] = {}
        for cluster_id, pool in on_nodes:
            pools.setdefault(cluster_id, set()).add(pool)
        states = (chain.state for chain in self._clusters.values())
        return {state.cluster_id: _cluster_view(state, pools.get(state.cluster_id, set())) for state in states}

    def project(self, project_id: str, closed: Closed | None, within_quota: Closed | None) -> ProjectView | None:
        """Args: closed, within_quota: as of ProjectView."""
        key = key_of_id(project_id)
        chain = None if key is None else self._projects.get(key)
        if chain is None:
            return None
        department = self.department(chain.state.department_id)
        return ProjectView(
            name=chain.state.name,
            exists=chain.state.exists and chain.state.project_id == project_id,
            department_id=chain.state.department_id,
            pools=chain.state.node_pools or (() if department is None else department.node_pools),
            bounds=(
                *_bounds("project", project_id, chain.state),
                *_of_window(project_id, chain.state, within_quota),
                *(() if department is None else _bounds("department", department.department_id, department)),
            ),
            closed=closed,
            within_quota=within_quota,
            weights=_weights(chain.state),
            department_weights=_weights(department),
            minimum_runtime=_minimum_runtime(chain.state, department),
            time_limits=chain.state.time_limits,
        )

    def department(self, department_id: str) -> Department | None:
        chain = self._departments.get(key_of_id(department_id) or "")
        return chain.state if chain is not None and chain.state.department_id == department_id else None

    def department_of(self, project_id: str) -> str:
        chain = self._projects.get(key_of_id(project_id) or "")
        return "" if chain is None else chain.state.department_id

    def leaves_after(self, project_id: str) -> timedelta | None:
        """For how long a cluster is lost before workloads of this project leave it; None: they never do."""
        chain = self._projects.get(key_of_id(project_id) or "")
        if chain is None:
            return None
        department = self.department(chain.state.department_id)
        seconds = chain.state.cluster_lost_seconds
        if seconds is None and department is not None:
            seconds = department.cluster_lost_seconds
        # The log may say any number, of seconds that no span can hold.
        return timedelta(seconds=min(seconds, MAX_CLUSTER_LOST)) if seconds is not None and seconds > 0 else None

    def rights(self, state: Workload, labelled: Labelled) -> Rights:
        """Args: labelled, as of Snapshot."""
        chain = self._projects.get(key_of_id(state.project_id) or "")
        return rights_of(() if chain is None else chain.state.time_limits, labelled, state)


def _cluster_view(state: Cluster, on_nodes: AbstractSet[str]) -> ClusterView:
    others = (on_nodes | set(state.node_pools)) - {DEFAULT_POOL}
    return ClusterView(
        name=state.name,
        kind=state.kind,
        exists=state.exists,
        connected=state.connected,
        problem=state.problem,
        pools=(DEFAULT_POOL, *sorted(others)),
    )


def _weights(of: Project | Department | None) -> Weights:
    if of is None:
        return Weights()
    pools = {each.node_pool: each.over_quota_weight for each in of.pool_quotas if each.over_quota_weight is not None}
    return (
        Weights(pools=pools) if of.over_quota_weight is None else Weights(everywhere=of.over_quota_weight, pools=pools)
    )


def _minimum_runtime(project: Project, department: Department | None) -> timedelta:
    seconds = project.minimum_runtime_seconds
    if seconds is None and department is not None:
        seconds = department.minimum_runtime_seconds
    # The log may say any number, of seconds that no span can hold.
    return timedelta(seconds=min(max(seconds or 0, 0), MAX_MINIMUM_RUNTIME))


def _bounds(noun: str, id_: str, of: Project | Department) -> Iterator[Bound]:
    everywhere = PoolQuota(node_pool="", gpu_quota_milli=of.gpu_quota_milli, gpu_limit_milli=of.gpu_limit_milli)
    for each in (everywhere, *of.pool_quotas):
        for firm, milli in ((True, each.gpu_quota_milli), (False, each.gpu_limit_milli)):
            if milli is not None:
                yield Bound(holder=f"{noun} {of.name}", id=id_, pool=each.node_pool, firm=firm, milli=milli)


def _of_window(id_: str, of: Project, closed: Closed | None) -> Iterator[Bound]:
    """Outside of windows for what is over quota: the quotas bound all that the project holds. Where it has none beside
    those of node pools, it may hold as much as these are together.
    """
    if closed is None:
        return
    pools = {each.node_pool: each.gpu_quota_milli for each in of.pool_quotas if each.gpu_quota_milli is not None}
    everywhere = sum(pools.values()) if of.gpu_quota_milli is None else of.gpu_quota_milli
    for pool, milli in ({"": everywhere} | pools).items():
        yield Bound(holder=f"project {of.name}", id=id_, pool=pool, firm=False, milli=milli, window=closed)
