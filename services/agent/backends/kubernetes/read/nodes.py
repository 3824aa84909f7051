"""Nodes: what they have, what others' pods take of it, and how long one that does not answer is waited for. Pure."""

import heapq
import operator
from collections.abc import Callable, Iterable
from decimal import ROUND_CEILING
from functools import lru_cache
from typing import Final, Literal

import msgspec

from events.agent_bounds import MAX_BYTES, MAX_CPU_MILLI, MAX_GPUS, MAX_PIECES, MAX_PODS
from events.cluster_protocol import ObservedNode
from events.node import NodeFacts, Taint
from events.quantities import MAX_QUANTITY, QuantityError, parse_quantity
from events.workload.needs import GPU, is_extended
from services.agent.backends.kubernetes.act.objects import Container, Node, Pod, PodLevelResources, Quantities
from services.agent.backends.kubernetes.read.ends import SIDECAR

GPU_MODEL: Final = "nvidia.com/gpu.product"
GPU_MEMORY_MIB: Final = "nvidia.com/gpu.memory"
"""Of one device; both labels are made by NVIDIA's feature discovery."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which a person says that a node is off and will not come back as it was."""
_MIB: Final = 1024**2
_REMEMBERED_QUANTITIES: Final = 4096
"""Pods write the same few amounts over and over."""

# -- what there is and what is taken ---------------------------------------------------------------------------------


class ForeignUse(msgspec.Struct, frozen=True, kw_only=True):
    """What pods request together."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0
    pods: int = 0
    extended: dict[str, int] = {}
    """By name; none is 0."""

    def __add__(self, other: "ForeignUse") -> "ForeignUse":
        return ForeignUse(
            cpu_milli=self.cpu_milli + other.cpu_milli,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            gpus=self.gpus + other.gpus,
            pods=self.pods + other.pods,
            extended=_by_name(operator.add, self.extended, other.extended),
        )

    def __sub__(self, other: "ForeignUse") -> "ForeignUse":
        return ForeignUse(
            cpu_milli=self.cpu_milli - other.cpu_milli,
            memory_bytes=self.memory_bytes - other.memory_bytes,
            gpus=self.gpus - other.gpus,
            pods=self.pods - other.pods,
            extended=_by_name(operator.sub, self.extended, other.extended),
        )


NO_USE: Final = ForeignUse()


def takes_room(pod: Pod) -> bool:
    """Whether it takes of a node, as the kubelet counts; ended pods take nothing."""
    return bool(pod.spec.node_name) and not pod.ended


def use_of(pod: Pod) -> ForeignUse:
    """What one pod takes of its node: its effective requests, as the kubelet counts them.

    Init containers run one after another before the others, so the largest of them counts where it is more than the
    others' sum; a sidecar among them starts in its turn, and stays. A request of the pod as a whole takes the place of
    its containers'. What the pod's own sandbox needs (overhead) comes on top.
    """
    total = _sum(pod.spec.containers)
    sidecars, peak = NO_USE, NO_USE
    for container in pod.spec.init_containers:
        needs = _requests(container.resources.requests)
        if container.restart_policy == SIDECAR:
            total, sidecars = total + needs, sidecars + needs
            peak = _larger(peak, sidecars)
        else:
            peak = _larger(peak, sidecars + needs)
    effective = _as_a_whole(_larger(total, peak), pod.spec.resources) + _requests(pod.spec.overhead)
    return msgspec.structs.replace(effective, pods=1)


def observed_node(node: Node, foreign: ForeignUse, *, ready: bool) -> ObservedNode:
    has = _requests(node.status.allocatable)
    labels = node.metadata.labels
    memory = labels.get(GPU_MEMORY_MIB, "")
    return ObservedNode(
        name=node.metadata.name,
        facts=NodeFacts(
            cpu_milli=has.cpu_milli,
            memory_bytes=has.memory_bytes,
            gpu_count=has.gpus,
            gpu_model=labels.get(GPU_MODEL, "") if has.gpus else "",
            gpu_memory_bytes=int(memory) * _MIB if has.gpus and memory.isdecimal() else 0,
            # Each device may need a reservation pod, which takes a place of its own.
            max_pods=max(_whole(node.status.allocatable.get("pods", "0")) - has.gpus, 0),
            labels=labels,
            taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in node.spec.taints),
            ready=ready,
            unschedulable=node.spec.unschedulable,
            # A pod may ask for anything: beyond what any node has, more of it says nothing more.
            foreign_cpu_milli=min(foreign.cpu_milli, MAX_CPU_MILLI),
            foreign_memory_bytes=min(foreign.memory_bytes, MAX_BYTES),
            foreign_gpus=min(foreign.gpus, MAX_GPUS),
            foreign_pods=min(foreign.pods, MAX_PODS),
            extended={name: min(amount, MAX_PIECES) for name, amount in has.extended.items()},
            # Only of what the node has: pods that ended may have asked for what was there before.
            foreign_extended={
                name: min(amount, MAX_PIECES) for name, amount in foreign.extended.items() if name in has.extended
            },
        ),
    )


def is_ready(node: Node) -> bool:
    """What its Ready condition says now."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def out_of_service(node: Node) -> bool:
    """Whether somebody vouches that it is off: not ready, and tainted `node.kubernetes.io/out-of-service`.

    The taint alone is not enough, as for Kubernetes' own pod collector: a node that answers still runs its pods.
    """
    return not is_ready(node) and any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints)


def _sum(containers: Iterable[Container]) -> ForeignUse:
    return sum((_requests(container.resources.requests) for container in containers), NO_USE)


def _requests(amounts: Quantities) -> ForeignUse:
    # Most pods ask for CPU and memory alone.
    others = {
        name: amount for name, text in amounts.items() if name != GPU and is_extended(name) and (amount := _whole(text))
    }
    return ForeignUse(
        cpu_milli=_milli(amounts.get("cpu", "0")),
        memory_bytes=_whole(amounts.get("memory", "0")),
        gpus=_whole(amounts.get(GPU, "0")),
        extended=others,
    )


def _by_name(combine: Callable[[int, int], int], one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    if not (one or other):
        return one
    names = sorted(one.keys() | other.keys())
    found = {name: combine(one.get(name, 0), other.get(name, 0)) for name in names}
    return {name: amount for name, amount in found.items() if amount}


def _larger(one: ForeignUse, other: ForeignUse) -> ForeignUse:
    return ForeignUse(
        cpu_milli=max(one.cpu_milli, other.cpu_milli),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        gpus=max(one.gpus, other.gpus),
        extended=_by_name(max, one.extended, other.extended),
    )


def _as_a_whole(use: ForeignUse, pod_level: PodLevelResources | None) -> ForeignUse:
    if pod_level is None:
        return use
    return msgspec.structs.replace(
        use,
        cpu_milli=_milli(pod_level.requests.cpu) if pod_level.requests.cpu else use.cpu_milli,
        memory_bytes=_whole(pod_level.requests.memory) if pod_level.requests.memory else use.memory_bytes,
    )


@lru_cache(_REMEMBERED_QUANTITIES)
def _milli(text: str) -> int:
    try:
        return int((parse_quantity(text) * 1000).to_integral_value(rounding=ROUND_CEILING))
    except QuantityError:
        return MAX_QUANTITY


@lru_cache(_REMEMBERED_QUANTITIES)
def _whole(text: str) -> int:
    """Bytes or pieces, rounded up. What cannot be read is no mistake of a server that checks it, but too large."""
    try:
        return int(parse_quantity(text).to_integral_value(rounding=ROUND_CEILING))
    except QuantityError:
        return MAX_QUANTITY


# -- how long it has been silent -------------------------------------------------------------------------------------

NodeState = Literal["ready", "not_ready", "lost"]


class _Watched(msgspec.Struct, kw_only=True):
    state: NodeState
    not_ready_since: float | None = None
    """Monotonic, within this view; None where it was ready at the last look, or nobody has looked yet."""


class Readiness:
    """How long each node has not been ready in an unbroken view of the cluster. Times are monotonic seconds.

    A break of the view stops the clocks that run, and takes back no verdict: a node stays not ready, or lost, until it
    is seen ready.
    """

    def __init__(self, *, not_ready_seconds: float, lost_seconds: float) -> None:
        self._not_ready_seconds = not_ready_seconds
        self._lost_seconds = lost_seconds
        self._nodes: dict[str, _Watched] = {}
        self._due: list[tuple[float, str]] = []
        """A heap of when a node's state may change; entries of clocks that were stopped since do nothing."""

    def observe(self, name: str, *, ready: bool, now: float) -> NodeState:
        """The node's condition as it is now, and what to make of it."""
        node = self._nodes.get(name)
        if ready:
            self._nodes[name] = _Watched(state="ready")
            return "ready"
        if node is None:
            # Nobody has seen it ready: nothing is started there on trust.
            node = self._nodes[name] = _Watched(state="not_ready")
        if node.not_ready_since is None:
            node.not_ready_since = now
            self._await(name, node)
        return self._turn(name, node, now)

    def state(self, name: str) -> NodeState:
        """As it was made of the last look, or by `advance`; a node that nobody has seen is not ready."""
        node = self._nodes.get(name)
        return "not_ready" if node is None else node.state

    def not_ready_for(self, name: str, now: float) -> float:
        """Seconds for which it was not ready in this view; 0 where it is. A lost one at least as long as that takes,
        although its loss may have been found in an earlier view.
        """
        node = self._nodes.get(name)
        if node is None:
            return 0.0
        seconds = 0.0 if node.not_ready_since is None else now - node.not_ready_since
        return max(seconds, self._lost_seconds) if node.state == "lost" else seconds

    def forget(self, name: str) -> None:
        """The node's object is gone."""
        self._nodes.pop(name, None)

    def reset(self) -> None:
        """The view broke: what happened meanwhile is not known, so every wait begins again at the next look."""
        self._due.clear()
        for node in self._nodes.values():
            node.not_ready_since = None

    def advance(self, now: float) -> tuple[str, ...]:
        """Names of the nodes whose state changed because time passed."""
        changed: list[str] = []
        while self._due and self._due[0][0] <= now:
            _, name = heapq.heappop(self._due)
            node = self._nodes.get(name)
            if node is None or node.not_ready_since is None:
                continue
            before = node.state
            if self._turn(name, node, now) != before:
                changed.append(name)
        return tuple(changed)

    def next_due(self) -> float | None:
        """When `advance` may have something to say; None: not before something is observed."""
        return self._due[0][0] if self._due else None

    def _turn(self, name: str, node: _Watched, now: float) -> NodeState:
        """Move the state on as far as the clock has come."""
        while (deadline := self._deadline(node)) is not None and deadline <= now:
            node.state = "not_ready" if node.state == "ready" else "lost"
            self._await(name, node)
        return node.state

    def _await(self, name: str, node: _Watched) -> None:
        if (deadline := self._deadline(node)) is not None:
            heapq.heappush(self._due, (deadline, name))

    def _deadline(self, node: _Watched) -> float | None:
        """When its state changes if it stays as it is."""
        if node.not_ready_since is None or node.state == "lost":
            return None
        return node.not_ready_since + (self._not_ready_seconds if node.state == "ready" else self._lost_seconds)
