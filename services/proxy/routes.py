"""What is where: which workload has which address of the proxy, and where its pods answer. A fold of the log; no I/O,
no clock.

Two workloads may ask for one address. The one that was created first has it, until it has ended or was deleted; every
proxy finds the same.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, override

from events.aggregate import CLUSTER, WORKLOAD, Chain
from events.cluster import ClusterKind
from events.commit import Commit
from events.phases import FINISHED, DesiredPhase, PodPhase
from events.workload.exposure import Access, access_of, label_of
from events.workload.fields.connections import ExposedUrl
from events.workload.pod import Pod, PodAddress
from events.workload.state import Workload
from services.runtime.log.log_fold import LogFold

FOLDED: Final = (CLUSTER, WORKLOAD)
"""Aggregates whose chains are kept, and stored in snapshots."""
SNAPSHOT_SHAPE: Final = 1
"""Raise it when what is forgotten changes."""
FIRST_LOCAL_PORT: Final = 1024
"""Below it listen servers of the machine, and no pod: pods are ordinary users' processes."""
_ANSWERS: Final = frozenset({PodPhase.RUNNING, PodPhase.UNKNOWN})
"""Of one whose node does not answer nobody knows whether it does."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)

type Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Target(NamedTuple):
    """Where a pod answers."""

    host: str
    """An IP address."""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One address of the proxy."""

    label: str
    """The name before the proxy's domain."""
    key: str
    """Of the workload in the log."""
    workload_id: str
    workload_name: str
    project_id: str
    container: int
    """Port, as the workload calls it."""
    access: Access
    serves: bool = False
    """Whether it leads to an inference, whose replicas follow the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where a pod may be, whatever its agent says."""

    pod_networks: tuple[Network, ...] = ()
    """Of all Kubernetes clusters."""
    networks_of_clusters: Mapping[str, tuple[Network, ...]] = field(default_factory=dict[str, tuple[Network, ...]])
    """Of the pods of one cluster alone, by its id."""
    own_ports: frozenset[int] = frozenset()
    """Of Muster's own servers on this machine, which is the local cluster's, too."""
    cluster_id: str = ""
    """The only cluster that is served; empty: all."""

    def target(self, kind: ClusterKind, address: PodAddress, container: int, cluster_id: str) -> Target | None:
        """Where that port of the pod answers; None where no pod can be there."""
        try:
            host = ipaddress.ip_address(address.host)
        except ValueError:
            return None
        match kind:
            case "local":
                port = address.port(container)
                fit = host.is_loopback and host.version == 4 and port >= FIRST_LOCAL_PORT  # noqa: PLR2004 (of IP)
                return Target(str(host), port) if fit and port not in self.own_ports else None
            case "kubernetes":
                # There a pod has an address of its own, and its ports are those that its submitter named.
                networks = (*self.pod_networks, *self.networks_of_clusters.get(cluster_id, ()))
                inside = any(host.version == network.version and host in network for network in networks)
                never = host.is_loopback or host.is_link_local or host.is_multicast or host.is_unspecified
                return Target(str(host), container) if inside and not never else None
            case "simulated":
                return None


class Routes(LogFold):
    """The fold. Workloads without any address are forgotten at once.

    Args:
        bounds: where pods may be.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        super().__init__(FOLDED, forgets=True)
        self._bounds = bounds or Bounds()
        self._by_label: dict[str, dict[str, None]] = {}
        """Keys of the workloads that ask for it."""
        self._clusters: dict[str, str] = {}
        """Keys of clusters, by id."""
        self._targets: dict[tuple[str, int], tuple[int, tuple[Target, ...]]] = {}
        """By workload and container port: the version of the workload that they are of, and where its pods answer."""
        self._moved: set[str] = set()
        """Ids of workloads with addresses that a commit changed; likewise below."""
        self._all_moved = False

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        if commit.aggregate == CLUSTER.name:
            self._clusters[after.state.cluster_id] = commit.key
            self._targets.clear()
            self._all_moved = True
            return
        was, now = before.state, after.state
        self._moved.update(state.workload_id for state in (was, now) if asks(state))
        if (was.workload_id, asks(was)) != (now.workload_id, asks(now)):
            self._let_go(commit.key, was)
            self._enter(commit.key, now)
        if not asks(now):
            self.forget(WORKLOAD, commit.key)
            for place in [place for place in self._targets if place[0] == commit.key]:
                del self._targets[place]

    @override
    def restore(self, seq: int, chains: Any) -> None:
        super().restore(seq, chains)
        self._clusters = {chain.state.cluster_id: key for key, chain in self.of(CLUSTER).items()}
        for key, chain in self.of(WORKLOAD).items():
            self._enter(key, chain.state)

    def moved(self) -> frozenset[str] | None:
        """Ids of workloads of which something changed since this was asked last; None: perhaps of all."""
        moved = None if self._all_moved else frozenset(self._moved)
        self._moved.clear()
        self._all_moved = False
        return moved

    def __len__(self) -> int:
        return len(self._by_label)

    def find(self, label: str) -> Route | None:
        """Who has the address; None where nobody does."""
        asking = [(key, self.of(WORKLOAD)[key].state) for key in self._by_label.get(label, ())]
        if not asking:
            return None
        key, state = min(asking, key=lambda each: (each[1].created_at or _LONG_AGO, each[1].workload_id))
        url = next(url for url in state.exposed_urls if _label(url, state) == label)
        return Route(
            label=label,
            key=key,
            workload_id=state.workload_id,
            workload_name=state.name,
            project_id=state.project_id,
            container=url.container or 0,
            access=access_of(url),
            serves=state.inference is not None,
        )

    def targets(self, route: Route) -> tuple[Target, ...]:
        """Where its pods answer now, by index; none where the workload has ended meanwhile, or is another one."""
        chain = self.of(WORKLOAD).get(route.key)
        if chain is None or chain.state.workload_id != route.workload_id:
            return ()
        place = (route.key, route.container)
        known = self._targets.get(place)
        if known is None or known[0] != chain.version:
            known = (chain.version, tuple(self._found(chain.state, route.container)))
            self._targets[place] = known
        return known[1]

    def may_come(self, route: Route) -> bool:
        """Whether a pod of it may answer before long, though none does now."""
        chain = self.of(WORKLOAD).get(route.key)
        return (
            chain is not None
            and chain.state.workload_id == route.workload_id
            and asks(chain.state)
            and chain.state.desired is DesiredPhase.RUNNING
            and self.chain(CLUSTER, self._clusters.get(chain.state.cluster_id, "")).state.kind != "simulated"
        )

    def inferences(self) -> list[str]:
        """Ids of those that this proxy forwards to."""
        return [
            chain.state.workload_id
            for chain in self.of(WORKLOAD).values()
            if chain.state.inference is not None and self._bounds.cluster_id in ("", chain.state.cluster_id)
        ]

    def how_it_is(self, route: Route) -> str:
        """Of a workload that does not answer: why, as the end of a sentence."""
        state = self.chain(WORKLOAD, route.key).state
        if not asks(state) or state.workload_id != route.workload_id:
            return "has ended"
        kind = self.chain(CLUSTER, self._clusters.get(state.cluster_id, "")).state.kind
        if kind == "simulated":
            return "is on a simulated cluster, where nothing runs that could answer"
        if any(pod.phase in _ANSWERS and pod.address is not None for pod in state.pods.live.values()):
            return "has a pod, but at an address to which the proxy does not forward (MUSTER_PROXY_POD_NETWORKS)"
        told = f": {state.message}" if state.message else ""
        return f"is {state.phase.value}{told}"

    def _found(self, state: Workload, container: int) -> Iterator[Target]:
        cluster = self.chain(CLUSTER, self._clusters.get(state.cluster_id, "")).state
        if self._bounds.cluster_id not in ("", state.cluster_id) or not cluster.exists:
            return
        led_to = state.pod_sets[0].name
        for _, pod in sorted(_answering(state, led_to)):
            if pod.address is None:
                continue
            target = self._bounds.target(cluster.kind, pod.address, container, state.cluster_id)
            if target is not None:
                yield target

    def _enter(self, key: str, state: Workload) -> None:
        for label in _labels(state):
            self._by_label.setdefault(label, {})[key] = None

    def _let_go(self, key: str, state: Workload) -> None:
        for label in _labels(state):
            asking = self._by_label.get(label, {})
            asking.pop(key, None)
            if not asking:
                self._by_label.pop(label, None)


def asks(state: Workload) -> bool:
    """Whether it asks for addresses: until it has ended for good."""
    return bool(
        state.living
        and state.exposed_urls
        and state.phase not in FINISHED
        and state.desired is not DesiredPhase.DELETED
    )


def _labels(state: Workload) -> Iterable[str]:
    return {_label(url, state) for url in state.exposed_urls} if asks(state) else ()


def _label(url: ExposedUrl, state: Workload) -> str:
    return label_of(url, state.name, state.workload_id)


def _answering(state: Workload, pod_set: str) -> Iterator[tuple[int, Pod]]:
    return ((index, pod) for (name, index), pod in state.pods.live.items() if name == pod_set and pod.phase in _ANSWERS)
