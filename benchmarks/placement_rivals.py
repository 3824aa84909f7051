"""The policies that the product is compared with, from their published definitions: FGD and best fit.

FGD (Weng et al., USENIX ATC 2023) places a pod where the GPU that is of no use to the usual pods grows least. Its
score is that growth in GPUs, put through a sigmoid and told in whole per cent, as in the published experiments: exact
numbers make it worse. Where several nodes have the best score, the first of a fixed order gets the pod.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.placement_trace import WHOLE_MILLI, Pod, Run

USUAL = 0.95
"""Of the pods: the most frequent kinds that make so many are those that FGD looks at."""

type Array = NDArray[Any]


class Policy(Protocol):
    """One run of one policy."""

    def place(self, pod: Pod) -> int | None:
        """Index of the node that the pod goes to, None where none has room; the pods come in order."""
        ...


type Begins = Callable[[Run], Policy]


class _Kind:
    """Pods alike: the score of each node, -inf where there is no room. Kept, and only nodes that changed are looked at
    again.
    """

    def __init__(self, pod: Pod, open_: Array) -> None:
        self.pod = pod
        self.open = open_
        """Which nodes have an accepted model."""
        self.scores = np.full(len(open_), -np.inf)
        self.devices = np.zeros(len(open_), dtype=np.int64)
        """Where the pod takes a share: of which device."""
        self.seen = -1
        """How many changes were taken in; -1: not even the first state."""


class _Rival(ABC):
    """What FGD and best fit have in common: the state of the cluster and the search for the best node."""

    def __init__(self, run: Run) -> None:
        nodes = run.nodes
        self.cpu = np.array([node.cpu_milli for node in nodes])
        self.memory = np.array([node.memory_mib for node in nodes])
        most = max(node.gpus for node in nodes)
        self.free = np.array([[WHOLE_MILLI] * node.gpus + [-1] * (most - node.gpus) for node in nodes])
        """Thousandths of each device; -1 where there is none."""
        self.models = np.array([node.model for node in nodes])
        self._kinds: dict[Pod, _Kind] = {}
        self._changed: list[int] = []

    def place(self, pod: Pod) -> int | None:
        kind = self._kinds.get(pod)
        if kind is None:
            kind = self._kinds[pod] = _Kind(pod, self.accepts(pod))
        everything = kind.seen < 0
        rows = np.arange(len(self.cpu)) if everything else np.unique(np.array(self._changed[kind.seen :], dtype=int))
        kind.seen = len(self._changed)
        fits = kind.open[rows] & (self.cpu[rows] >= pod.cpu_milli) & (self.memory[rows] >= pod.memory_mib)
        fits &= (self.free[rows] >= pod.gpu_milli).sum(axis=1) >= pod.gpus
        kind.scores[rows[~fits]] = -np.inf
        if len(rows := rows[fits]):
            kind.scores[rows], kind.devices[rows] = self.score(pod, rows)
        node = int(kind.scores.argmax())
        if kind.scores[node] == -np.inf:
            return None
        self._take(pod, node, int(kind.devices[node]))
        return node

    def accepts(self, pod: Pod) -> Array:
        return np.isin(self.models, pod.models) if pod.models else np.ones(len(self.models), dtype=bool)

    @abstractmethod
    def score(self, pod: Pod, rows: Array) -> tuple[Array, Array]:
        """(score, device of a share) of nodes with room; the greatest score is the best."""

    def _take(self, pod: Pod, node: int, device: int) -> None:
        self.cpu[node] -= pod.cpu_milli
        self.memory[node] -= pod.memory_mib
        free = self.free[node]
        devices = [device] if is_share(pod) else np.flatnonzero(free >= pod.gpu_milli)[: pod.gpus]
        free[devices] -= pod.gpu_milli
        self._changed.append(node)


class BestFit(_Rival):
    """Where least is left: CPU and GPUs, each as a part of the largest node's. On a node, the device with least."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._most_cpu = int(self.cpu.max())
        self._most_gpu = int(np.maximum(self.free, 0).sum(axis=1).max())

    def score(self, pod: Pod, rows: Array) -> tuple[Array, Array]:
        free = self.free[rows]
        left = np.maximum(free, 0).sum(axis=1) - pod.demand_milli
        score = -((self.cpu[rows] - pod.cpu_milli) / self._most_cpu + left / self._most_gpu)
        return score, np.where(free >= pod.gpu_milli, free, WHOLE_MILLI + 1).argmin(axis=1)


class Fgd(_Rival):
    """Told the mix of all pods beforehand, as published."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        counts = Counter((pod.cpu_milli, pod.gpu_milli, pod.gpus, pod.models) for pod in run.mix)
        usual: list[tuple[tuple[int, int, int, tuple[str, ...]], int]] = []
        for each in sorted(counts.items(), key=lambda found: (-found[1], found[0])):
            usual.append(each)
            if sum(count for _, count in usual) >= USUAL * len(run.mix):
                break
        total = sum(count for _, count in usual)
        # Pods without a GPU have no use for any: what is free is of no use to them wherever it is.
        kept = [(kind, count / total) for kind, count in usual if kind[2]]
        self._weights = np.array([weight for _, weight in kept])
        self._cpus = np.array([cpu for (cpu, *_), _ in kept])
        self._counts = np.array([gpus for (_, _, gpus, _), _ in kept])
        self._sizes, self._size = np.unique([milli for (_, milli, *_), _ in kept], return_inverse=True)
        open_ = [
            self.accepts(Pod(cpu_milli=0, memory_mib=0, gpus=1, gpu_milli=1, models=models)) for (*_, models), _ in kept
        ]
        self._open = np.array(open_).T

    def score(self, pod: Pod, rows: Array) -> tuple[Array, Array]:
        before = self._useful(rows, self.cpu[rows], self.free[rows])
        cpu = self.cpu[rows] - pod.cpu_milli
        if not is_share(pod):
            after = self.free[rows]
            fitting = after >= max(pod.gpu_milli, 1)
            after = after - pod.gpu_milli * (fitting & (fitting.cumsum(axis=1) <= pod.gpus))
            return self._growth(pod, before, self._useful(rows, cpu, after)), np.zeros(len(rows), dtype=int)
        which, device = np.nonzero(self.free[rows] >= pod.gpu_milli)
        after = self.free[rows[which]]
        after[np.arange(len(which)), device] -= pod.gpu_milli
        useful = np.full((len(rows), after.shape[1]), -np.inf)
        useful[which, device] = self._useful(rows[which], cpu[which], after)
        best = useful.argmax(axis=1)
        return self._growth(pod, before, useful[np.arange(len(rows)), best]), best

    @staticmethod
    def _growth(pod: Pod, before: Array, after: Array) -> Array:
        """From what is of use before and after to the published score."""
        less = (pod.demand_milli + after - before) / WHOLE_MILLI
        return np.floor(100 / (1 + np.exp(-less)))

    def _useful(self, rows: Array, cpu: Array, free: Array) -> Array:
        """Of the free GPU: what the usual pods could take on the node, each by how frequent it is. A pod that finds no
        room can take none, and otherwise all that is free on devices with enough for it.
        """
        enough = free[:, None, :] >= self._sizes[:, None]
        room = (enough * free[:, None, :]).sum(axis=2)[:, self._size]
        fits = enough.sum(axis=2)[:, self._size] >= self._counts
        fits &= cpu[:, None] >= self._cpus
        fits &= self._open[rows]
        return (room * fits) @ self._weights


def is_share(pod: Pod) -> bool:
    """Whether it takes a part of one device, so that it matters of which."""
    return pod.gpus == 1 and pod.gpu_milli < WHOLE_MILLI
