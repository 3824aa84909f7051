"""The pods of one workload, as a value of which one pod can be changed without copying all.

They are held in chunks, and counted as they change: whatever is asked of one pod, or of how many there are in a phase,
costs the same in a workload of ten thousand pods as in one of ten. What the phases mean stands in `pod.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from events.phases import PodPhase
from events.workload.pod import LIVE_POD_PHASES, Pod, PodId
from events.workload.spec import WHOLE_GPU_MILLI

CHUNK_PODS: Final = 64
"""Pods that are copied where one changes: a few microseconds, and 10,000 pods are 157 chunks."""

_ChunkId = tuple[str, int]
"""(pod set, index // CHUNK_PODS)."""
_COMING: Final = frozenset({PodPhase.BOUND, PodPhase.STARTING})


class PodMap[V](msgspec.Struct, frozen=True):
    """Something of each pod, by its id. Two of them share the chunks that are alike."""

    chunks: dict[_ChunkId, dict[int, V]] = {}
    """By index within a chunk; none is empty."""
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def __contains__(self, pod_id: PodId) -> bool:
        return self.get(pod_id) is not None

    def __iter__(self) -> Iterator[PodId]:
        return (pod_id for pod_id, _ in self.items())

    def __getitem__(self, pod_id: PodId) -> V:
        return self.chunks[_chunk_of(pod_id)][pod_id[1]]

    def get(self, pod_id: PodId) -> V | None:
        chunk = self.chunks.get(_chunk_of(pod_id))
        return None if chunk is None else chunk.get(pod_id[1])

    def of_set(self, name: str) -> int:
        """How many are of this pod set."""
        return sum(len(chunk) for (pod_set, _), chunk in self.chunks.items() if pod_set == name)

    def first(self) -> tuple[PodId, V] | None:
        """The one with the least id; None where there are none."""
        if not self.chunks:
            return None
        chunk_id = min(self.chunks)
        index = min(self.chunks[chunk_id])
        return (chunk_id[0], index), self.chunks[chunk_id][index]

    def items(self) -> Iterator[tuple[PodId, V]]:
        return (((name, index), pod) for (name, _), chunk in self.chunks.items() for index, pod in chunk.items())

    def values(self) -> Iterator[V]:
        return (pod for chunk in self.chunks.values() for pod in chunk.values())


_NO_PODS: Final = PodMap[Pod]()


class Pods(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All pods of a workload that hold a node or wait to be run again, and how many are in which phase."""

    live: PodMap[Pod] = PodMap[Pod]()
    """Those that hold a node."""
    waiting: PodMap[Pod] = PodMap[Pod]()
    """Those that wait to be run again."""
    coming: int = 0
    """Bound or starting."""
    running: int = 0
    behind: int = 0
    """Those that ran in this attempt, ended, and do not run again yet."""
    unseen: tuple[tuple[str, int], ...] = ()
    """(node name, pods of which nobody knows whether they run), by name."""
    gpu_milli: int = 0
    """What the live ones hold of GPUs, in thousandths of a device."""
    gpu_memory_bytes: int = 0
    """What the live ones hold of the memory of GPUs, as far as that is known."""

    def __len__(self) -> int:
        return self.live.size + self.waiting.size

    def __contains__(self, pod_id: PodId) -> bool:
        return self.get(pod_id) is not None

    def __iter__(self) -> Iterator[PodId]:
        return (pod_id for pod_id, _ in self.items())

    def __getitem__(self, pod_id: PodId) -> Pod:
        """Raises KeyError."""
        pod = self.get(pod_id)
        if pod is None:
            raise KeyError(pod_id)
        return pod

    def get(self, pod_id: PodId) -> Pod | None:
        return self.live.get(pod_id) or self.waiting.get(pod_id)

    def items(self) -> Iterator[tuple[PodId, Pod]]:
        yield from self.live.items()
        yield from self.waiting.items()

    def values(self) -> Iterator[Pod]:
        yield from self.live.values()
        yield from self.waiting.values()


def changed(before: Pods, after: Pods) -> dict[PodId, tuple[Pod | None, Pod | None]]:
    """The pods that are not the same in both, as (before, after), None where there is none. Chunks that both share are
    not looked at.
    """
    if before.live.chunks is after.live.chunks and before.waiting.chunks is after.waiting.chunks:
        return {}
    if not (before.live.chunks or before.waiting.chunks):
        return {pod_id: (None, pod) for pod_id, pod in after.items()}
    ids = {*_changed(before.live, after.live), *_changed(before.waiting, after.waiting)}
    return {pod_id: (before.get(pod_id), after.get(pod_id)) for pod_id in ids}


def changed_left(
    before: Mapping[str, PodMap[Pod]], after: Mapping[str, PodMap[Pod]]
) -> Iterator[tuple[str, PodId, Pod | None, Pod | None]]:
    """Likewise of runs that were left on lost clusters, by id of the cluster."""
    for cluster_id in sorted(before.keys() | after.keys()) if before is not after else ():
        was, now = before.get(cluster_id, _NO_PODS), after.get(cluster_id, _NO_PODS)
        for pod_id in _changed(was, now):
            yield cluster_id, pod_id, was.get(pod_id), now.get(pod_id)


def _changed(before: PodMap[Pod], after: PodMap[Pod]) -> Iterator[PodId]:
    if before.chunks is after.chunks:
        return
    for chunk_id, new in after.chunks.items():
        old = before.chunks.get(chunk_id)
        if old is None:
            yield from ((chunk_id[0], index) for index in new)
        elif old is not new:
            for index in old.keys() | new.keys():
                if old.get(index) is not new.get(index):
                    yield (chunk_id[0], index)
    for chunk_id in before.chunks.keys() - after.chunks.keys():
        yield from ((chunk_id[0], index) for index in before.chunks[chunk_id])


class MapEdit[V]:
    """A map that changes in place; the value it began with stays as it was."""

    __slots__ = ("_before", "_chunks", "_owned", "size")

    def __init__(self, before: PodMap[V]) -> None:
        self._before = before
        self._chunks = before.chunks
        self._owned: set[_ChunkId] = set()
        """Chunks that were copied here already."""
        self.size = before.size

    def get(self, pod_id: PodId) -> V | None:
        chunk = self._chunks.get(_chunk_of(pod_id))
        return None if chunk is None else chunk.get(pod_id[1])

    def ids(self) -> list[PodId]:
        return [pod_id for pod_id, _ in self.items()]

    def items(self) -> list[tuple[PodId, V]]:
        return [((name, index), pod) for (name, _), chunk in self._chunks.items() for index, pod in chunk.items()]

    def of_set(self, name: str) -> int:
        """How many are of this pod set."""
        return sum(len(chunk) for (pod_set, _), chunk in self._chunks.items() if pod_set == name)

    def put(self, pod_id: PodId, pod: V) -> None:
        chunk = self._own(_chunk_of(pod_id))
        self.size += pod_id[1] not in chunk
        chunk[pod_id[1]] = pod

    def take(self, pod_id: PodId) -> None:
        chunk_id = _chunk_of(pod_id)
        chunk = self._own(chunk_id)
        del chunk[pod_id[1]]
        self.size -= 1
        if not chunk:
            del self._chunks[chunk_id]
            self._owned.discard(chunk_id)

    def value(self) -> PodMap[V]:
        """Must be the last call: chunks are the value's own from now on."""
        return self._before if self._chunks is self._before.chunks else PodMap(self._chunks, self.size)

    def _own(self, chunk_id: _ChunkId) -> dict[int, V]:
        if chunk_id in self._owned:
            return self._chunks[chunk_id]
        if self._chunks is self._before.chunks:
            self._chunks = self._chunks.copy()
        chunk = self._chunks[chunk_id] = self._chunks.get(chunk_id, {}).copy()
        self._owned.add(chunk_id)
        return chunk


class PodsEdit:
    """Pods that change in place while the events of a commit are folded. What an event did can be undone."""

    __slots__ = (
        "_before",
        "_journal",
        "behind",
        "coming",
        "gpu_memory_bytes",
        "gpu_milli",
        "live",
        "running",
        "unseen",
        "waiting",
    )

    def __init__(self, before: Pods) -> None:
        self._before = before
        self._journal: list[tuple[PodId, Pod | None]] = []
        self.live = MapEdit(before.live)
        self.waiting = MapEdit(before.waiting)
        self.coming, self.running, self.behind = before.coming, before.running, before.behind
        self.gpu_milli, self.gpu_memory_bytes = before.gpu_milli, before.gpu_memory_bytes
        self.unseen = dict(before.unseen)

    def get(self, pod_id: PodId) -> Pod | None:
        return self.live.get(pod_id) or self.waiting.get(pod_id)

    def put(self, pod_id: PodId, pod: Pod | None) -> None:
        """Give this pod another state; None where it leaves."""
        before = self.get(pod_id)
        self._journal.append((pod_id, before))
        self._set(pod_id, before, pod)

    def clear(self) -> None:
        """All leave."""
        for pod_id in (*self.live.ids(), *self.waiting.ids()):
            self.put(pod_id, None)

    def begin(self) -> None:
        """What follows belongs to one event."""
        self._journal.clear()

    def undo(self) -> None:
        """Take back what was done since `begin`."""
        while self._journal:
            pod_id, before = self._journal.pop()
            self._set(pod_id, self.get(pod_id), before)

    def value(self) -> Pods:
        """Must be the last call."""
        live, waiting = self.live.value(), self.waiting.value()
        if live is self._before.live and waiting is self._before.waiting:
            return self._before
        return Pods(
            live=live,
            waiting=waiting,
            coming=self.coming,
            running=self.running,
            behind=self.behind,
            unseen=tuple(sorted(self.unseen.items())),
            gpu_milli=self.gpu_milli,
            gpu_memory_bytes=self.gpu_memory_bytes,
        )

    def _set(self, pod_id: PodId, before: Pod | None, after: Pod | None) -> None:
        was = None if before is None else self._count(before, -1)
        now = None if after is None else self._count(after, +1)
        if was is not None and was is not now:
            was.take(pod_id)
        if now is not None and after is not None:
            now.put(pod_id, after)

    def _count(self, pod: Pod, sign: int) -> MapEdit[Pod]:
        """Where such a pod is kept, once it is counted."""
        if pod.phase not in LIVE_POD_PHASES:
            self.behind += sign * (pod.try_ > 0)
            return self.waiting
        if pod.phase is PodPhase.RUNNING:
            self.running += sign
        elif pod.phase in _COMING:
            self.coming += sign
            self.behind += sign * (pod.try_ > 0)
        elif pod.phase is PodPhase.UNKNOWN:
            self.unseen[pod.node_name] = self.unseen.get(pod.node_name, 0) + sign
            if not self.unseen[pod.node_name]:
                del self.unseen[pod.node_name]
        for share in pod.devices:
            self.gpu_milli += sign * share.milli
            self.gpu_memory_bytes += sign * (share.milli * pod.gpu_memory_bytes // WHOLE_GPU_MILLI)
        return self.live


def _chunk_of(pod_id: PodId) -> _ChunkId:
    return pod_id[0], pod_id[1] // CHUNK_PODS
