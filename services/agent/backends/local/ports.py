"""Which ports of this machine a pod listens on. All pods share the machine's, so one may not get the port it asks for:
its environment says which it has (docs/adr/0089).
"""

import errno
import hashlib
import socket
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from msgspec.structs import replace

from events.cluster_protocol import RunPod
from events.workload.exposure import FIRST_NODE_PORT, LAST_NODE_PORT, PORT_VARIABLE
from events.workload.pod import PodAddress, PortAddress
from events.workload.pod_sets import ContainerPort
from services.agent.backends.local.environment import FIRST_PORT, LOOPBACK, PORTS

FIRST_UNPRIVILEGED: Final = 1024
MOST_LOOKED_AT: Final = 500
"""Ports that are tried for one that nobody has."""


class PortTakenError(Exception):
    """The port that it must have cannot be had; the message says why, and what would do."""


def choose_ports(
    pod: RunPod, held: AbstractSet[int], siblings: AbstractSet[int] = frozenset()
) -> tuple[PortAddress, ...]:
    """One for each container port. Raises PortTakenError.

    Args:
        held: those of other pods, which may not listen yet, and Muster's own.
        siblings: those among them of the same workload. What leads to it leads to one of them already.
    """
    chosen: list[PortAddress] = []
    for wanted in pod.ports:
        if wanted.external in siblings:
            wanted = replace(wanted, external=0)  # noqa: PLW2901 (the same port, asked for otherwise)
        port = _choose(wanted, pod.pod_key, held | {one.port for one in chosen})
        external = port if wanted.service == "NodePort" else 0
        chosen.append(PortAddress(container=wanted.container, port=port, external=external))
    return tuple(chosen)


def port_variables(pod: RunPod, ports: tuple[PortAddress, ...]) -> dict[str, str]:
    """What the pod finds in its environment."""
    own = {wanted.container: wanted.variable for wanted in pod.ports}
    named = {own[one.container]: str(one.port) for one in ports if own.get(one.container)}
    return {f"{PORT_VARIABLE}{one.container}": str(one.port) for one in ports} | named


def held_ports(pod: RunPod, environment: Mapping[str, str]) -> tuple[PortAddress, ...]:
    """Those of a run, by its environment, which it cannot change."""
    found: list[PortAddress] = []
    for wanted in pod.ports:
        said = environment.get(f"{PORT_VARIABLE}{wanted.container}", "")
        if said.isdecimal():
            external = int(said) if wanted.service == "NodePort" else 0
            found.append(PortAddress(container=wanted.container, port=int(said), external=external))
    return tuple(found)


def address_of(ports: tuple[PortAddress, ...]) -> PodAddress | None:
    """Where the pod answers; None where it has no ports."""
    if not ports:
        return None
    return PodAddress(host=LOOPBACK, ports=ports, node=LOOPBACK if any(one.external for one in ports) else "")


def moved_ports(ports: tuple[PortAddress, ...]) -> str:
    """Which are others than those that were asked for, in words; empty where none is."""
    moved = [one for one in ports if one.port != one.container]
    told = ", ".join(f"{one.container} is {one.port} ({PORT_VARIABLE}{one.container})" for one in moved[:5])
    more = f" and {len(moved) - 5} more" if len(moved) > 5 else ""  # noqa: PLR2004 (as many as are named)
    return f"port {told}{more} on this machine" if moved else ""


def _choose(wanted: ContainerPort, pod_key: str, held: AbstractSet[int]) -> int:
    if wanted.external:
        if problem := _problem(wanted.external, held):
            what = "node port" if wanted.service == "NodePort" else "port"
            raise PortTakenError(f"{what} {wanted.external} of this machine {problem}: give another one, or none")
        return wanted.external
    for port in _candidates(wanted, pod_key):
        if not _problem(port, held):
            return port
    raise PortTakenError(f"no port of this machine is free for container port {wanted.container}")


def _candidates(wanted: ContainerPort, pod_key: str) -> Iterator[int]:
    """Its own port, where that can be; then others, from a place that each pod and port has for itself."""
    first, count = FIRST_PORT, PORTS
    if wanted.service == "NodePort":
        first, count = FIRST_NODE_PORT, LAST_NODE_PORT - FIRST_NODE_PORT + 1
    elif wanted.container >= FIRST_UNPRIVILEGED:
        yield wanted.container
    begin = int.from_bytes(hashlib.blake2b(f"{pod_key} {wanted.container}".encode(), digest_size=8).digest()) % count
    for step in range(MOST_LOOKED_AT):
        yield first + (begin + step) % count


def _problem(port: int, held: AbstractSet[int]) -> str:
    """Why nobody can listen there now, in words; empty where somebody can."""
    if port in held:
        return "is kept for another pod, or for Muster"
    with socket.socket() as probe:
        # What the last one left behind on its way out is no reason; who listens, is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return "is for its administrator alone" if error.errno == errno.EACCES else "is in use"
    return ""
