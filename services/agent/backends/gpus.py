# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# NVML's binding has no types.
"""The GPUs of this machine by NVML, or stand-in devices that were declared. Only the local backend uses it."""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec
import pynvml
import structlog

STAND_IN_MEMORY_BYTES: Final = 80 * 1024**3
"""Of a declared device: that of the GPUs that people most often plan for."""
STAND_IN_MODEL: Final = "stand-in"

log = structlog.get_logger(__name__)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """What CUDA_VISIBLE_DEVICES takes: the UUID of a real device, the number of a stand-in."""
    model: str
    memory_bytes: int


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    utilization_percent: float
    memory_bytes: int


class Gpus(Protocol):
    stand_in: bool
    devices: tuple[Gpu, ...]

    def use(self, devices: Iterable[int], pids: set[int]) -> GpuUse | None:
        """What these processes use of these devices: utilization averaged over them, memory in sum; None: unknown."""
        ...

    def close(self) -> None: ...


def open_gpus(stand_ins: int) -> Gpus:
    """The real GPUs where NVML finds some, else the declared number of stand-ins."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return StandInGpus(stand_ins)
    real = NvmlGpus()
    if real.devices:
        if stand_ins:
            log.info("stand_in_gpus_ignored", reason="this machine has real ones", real=len(real.devices))
        return real
    real.close()
    return StandInGpus(stand_ins)


class StandInGpus:
    """Devices that only the scheduler sees."""

    stand_in = True

    def __init__(self, count: int) -> None:
        self.devices = tuple(
            Gpu(name=str(number), model=STAND_IN_MODEL, memory_bytes=STAND_IN_MEMORY_BYTES) for number in range(count)
        )

    def use(self, devices: Iterable[int], pids: set[int]) -> GpuUse | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        return


class NvmlGpus:
    stand_in = False

    def __init__(self) -> None:
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        self.devices = tuple(
            Gpu(
                name=str(pynvml.nvmlDeviceGetUUID(handle)),
                model=str(pynvml.nvmlDeviceGetName(handle)),
                memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
            for handle in self._handles
        )

    def use(self, devices: Iterable[int], pids: set[int]) -> GpuUse | None:
        chosen = list(devices)
        memory, utilization = 0, 0.0
        for device in chosen:
            try:
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handles[device])
            except pynvml.NVMLError:
                return None
            memory += sum(int(p.usedGpuMemory or 0) for p in processes if p.pid in pids)
            utilization += self._utilization(device, pids)
        if not chosen:
            return None
        return GpuUse(utilization_percent=utilization / len(chosen), memory_bytes=memory)

    def _utilization(self, device: int, pids: set[int]) -> float:
        """Newest sample of each process, summed; a device without samples of them is idle for them."""
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handles[device], 0)
        except pynvml.NVMLError:
            return 0.0
        newest = {int(s.pid): s for s in sorted(samples, key=lambda s: int(s.timeStamp)) if int(s.pid) in pids}
        return min(float(sum(int(sample.smUtil) for sample in newest.values())), 100.0)

    def close(self) -> None:
        pynvml.nvmlShutdown()
