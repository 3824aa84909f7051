"""How what a workload serves is reached: its exposed URLs and ports, each with the address that works now."""

from collections.abc import Iterator

from msgspec import UNSET

from events.cluster import ClusterKind
from events.phases import FINISHED, SCALED_TO_ZERO, PodPhase
from events.workload.exposure import ProxyAddress, access_of, called, label_of
from events.workload.fields.connections import Port, ServiceType
from events.workload.pod import Pod, PodAddress, PodId
from events.workload.state import Workload
from services.api.answers import Connection, Connections
from services.api.context import MIN_SEQ, Call, sequence_headers
from services.api.kinds import newest_workload
from services.api.operations import Answer, reads
from services.api.paths import WORKLOAD
from services.api.places import find_cluster


@reads(
    f"{WORKLOAD}/connections",
    tag="Workloads",
    summary="List how what a workload serves is reached, now",
    query=(MIN_SEQ,),
    errors=(404,),
)
async def workload_connections(call: Call) -> Answer[Connections]:
    chain, headers = await newest_workload(call)
    cluster = await find_cluster(call, chain.state.cluster_id)
    found = connections_of(chain.state, None if cluster is None else cluster.kind, call.api.proxy)
    return Answer(Connections(connections=list(found)), headers=sequence_headers(chain.version) | headers)


def connections_of(state: Workload, kind: ClusterKind | None, proxy: ProxyAddress | None) -> Iterator[Connection]:
    """URLs first, then ports, in the order of the request.

    Args:
        kind: of its cluster; None where that was removed.
    """
    address, why_not = _address(state, kind)
    for url in state.exposed_urls:
        access = access_of(url)
        # Whoever asks one that is scaled to zero starts its first replica.
        reached = proxy is not None and (address is not None or state.reason == SCALED_TO_ZERO)
        yield Connection(
            name=called(url),
            connection_type="ExternalUrl",
            tool_type=url.tool_type or UNSET,
            tool_name=url.tool_name or UNSET,
            container=url.container or 0,
            address=UNSET if proxy is None else proxy.url(label_of(url, state.name, state.workload_id)),
            authorization_type=access.type,
            authorized_users=access.members if access.type == "authorizedUsers" else UNSET,
            authorized_groups=access.members if access.type == "authorizedGroups" else UNSET,
            ready=reached,
            message=UNSET if reached else why_not or "this Muster has no proxy any more (MUSTER_PROXY_URL)",
        )
    for port in state.spec.ports:
        yield _of_port(port, address, why_not)


def _of_port(port: Port, address: PodAddress | None, why_not: str) -> Connection:
    service: ServiceType = port.service_type or "ClusterIP"
    found = "" if address is None else _reached_at(port, service, address)
    missing = why_not or "its cluster has not told where it answers"
    return Connection(
        name=called(port),
        connection_type=service,
        tool_type=port.tool_type or UNSET,
        tool_name=port.tool_name or UNSET,
        container=port.container or 0,
        external=port.external or UNSET,
        address=found or UNSET,
        ready=bool(found),
        message=UNSET if found else missing,
    )


def _reached_at(port: Port, service: ServiceType, address: PodAddress) -> str:
    """Host and port; empty where that is not known."""
    container = port.container or 0
    external = next((one.external for one in address.ports if one.container == container), 0)
    if service == "NodePort":
        return _joined(address.node, external) if address.node and external else ""
    if address.service:
        # A load balancer has an address of its own, which its cluster may give it much later.
        return _joined(address.service, port.external or container)
    return _joined(address.host, address.port(container))


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(state: Workload, kind: ClusterKind | None) -> tuple[PodAddress | None, str]:
    """(where its first pod with an address answers, why it has none)."""
    if kind is None:
        return None, "its cluster was removed"
    if kind == "simulated":
        return None, "its cluster is simulated: nothing runs there that could answer"
    if not state.living or state.phase in FINISHED:
        return None, "it has ended"
    running = (pod for _, pod in sorted(_pods(state), key=lambda each: each[0]) if pod.phase is PodPhase.RUNNING)
    found = next((pod.address for pod in running if pod.address is not None), None)
    return found, "" if found is not None else f"it is {state.phase.value}"


def _pods(state: Workload) -> Iterator[tuple[PodId, Pod]]:
    led_to = state.pod_sets[0].name
    return ((pod_id, pod) for pod_id, pod in state.pods.live.items() if pod_id[0] == led_to)
