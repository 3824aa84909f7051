"""What the pods of this machine use: processor time and memory of everything below each shim, GPUs by process."""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from events.cluster_protocol import ObservedPod, RunPod, UsageSample
from services.agent.backends.local import shim
from services.agent.backends.local.gpus import Gpus

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
SHORTEST_SECONDS: Final = 0.5
"""Processor use over less time than this would be mostly rounding: the clock counts hundredths."""

RunKey = tuple[str, int]


class UsageMeter:
    """Keeps the counters of the sample before."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._before: dict[RunKey, tuple[float, int]] = {}

    def sample(self, running: Sequence[tuple[RunPod, ObservedPod, int, Sequence[str]]]) -> list[UsageSample]:
        """One sample per pod, given with its shim's process id and the names of its devices. The process table is read
        once for all. Blocks for some milliseconds.
        """
        table = shim.process_table()
        children = shim.children_of(table)
        samples: list[UsageSample] = []
        for pod, seen, shim_pid, devices in running:
            if shim_pid not in table:
                continue
            pids = shim.descendants(shim_pid, table, children)
            # With the shim's own time comes that of everything it has waited for, so that nothing that ended is lost.
            ticks = sum(table[pid].cpu_ticks for pid in (shim_pid, *pids))
            began = seen.started_at.timestamp() if seen.started_at else time.time()
            at_before, ticks_before = self._before.get((pod.pod_key, pod.token), (began, 0))
            now = time.time()
            if now - at_before < SHORTEST_SECONDS:
                continue
            self._before[pod.pod_key, pod.token] = (now, ticks)
            seconds = max(ticks - ticks_before, 0) / _TICKS_PER_SECOND
            use = self._gpus.use(devices, set(pids)) if devices else None
            samples.append(
                UsageSample(
                    workload_id=pod.workload_id,
                    pod=pod.pod,
                    at=datetime.fromtimestamp(now, UTC),
                    cpu_milli=round(seconds / (now - at_before) * 1000),
                    memory_bytes=sum(table[pid].rss_pages for pid in pids) * _PAGE_BYTES,
                    gpu_utilization_percent=use.utilization_percent if use else None,
                    gpu_memory_bytes=use.memory_bytes if use else None,
                )
            )
        return samples

    def forget(self, pod: RunPod) -> None:
        self._before.pop((pod.pod_key, pod.token), None)
