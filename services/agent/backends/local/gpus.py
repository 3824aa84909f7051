# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# NVML's binding has no types.
"""The GPUs of this machine by NVML, or stand-in devices that were declared. Only the local backend uses it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

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
    """Those that work, as last looked."""

    def look(self) -> None:
        """See anew which devices work. Blocks for some milliseconds."""
        ...

    def use(self, names: Iterable[str], pids: set[int]) -> GpuUse | None:
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


class NoSuchDeviceError(Exception):
    """A device cannot be given; the message says why."""


def choose(numbers: Sequence[int], held: Mapping[int, str], working: Sequence[str]) -> tuple[str, ...]:
    """Names of the devices that stand behind these numbers of the node. Raises NoSuchDeviceError. Pure.

    A number is the scheduler's word for one device among as many as work; NVML counts anew whenever the machine or its
    driver starts, and passes by what is dead. So what a live run holds (`held`, its name by number) stays what it is,
    and any other number means a device that no live run holds: its own by NVML's order, where that one is free.
    """
    chosen: dict[int, str] = {}
    for number in numbers:
        name = held.get(number)
        if name is None:
            if number >= len(working):
                raise NoSuchDeviceError(f"this machine has {len(working)} devices, and no device {number}")
            taken = {*held.values(), *chosen.values()}
            name = next((name for name in (working[number], *working) if name not in taken), None)
            if name is None:
                raise NoSuchDeviceError(f"every working device of this machine is in use, and none is device {number}")
        elif name not in working:
            raise NoSuchDeviceError(f"device {number} is {name}, which does not work any more")
        chosen[number] = name
    return tuple(chosen[number] for number in numbers)


class StandInGpus:
    """Devices that only the scheduler sees."""

    stand_in = True

    def __init__(self, count: int) -> None:
        self.devices = tuple(
            Gpu(name=str(number), model=STAND_IN_MODEL, memory_bytes=STAND_IN_MEMORY_BYTES) for number in range(count)
        )

    def look(self) -> None:
        return

    def use(self, names: Iterable[str], pids: set[int]) -> GpuUse | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        return


class NvmlGpus:
    stand_in = False

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        """By name."""
        self.devices: tuple[Gpu, ...] = ()
        self.look()

    def look(self) -> None:
        handles: dict[str, Any] = {}
        devices: list[Gpu] = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                gpu = Gpu(
                    name=str(pynvml.nvmlDeviceGetUUID(handle)),
                    model=str(pynvml.nvmlDeviceGetName(handle)),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                )
            except pynvml.NVMLError as error:
                # Such as one that has fallen off its bus: the others work on.
                log.warning("gpu_passed_by", number=number, reason=str(error))
                continue
            handles[gpu.name] = handle
            devices.append(gpu)
        self._handles, self.devices = handles, tuple(devices)

    def use(self, names: Iterable[str], pids: set[int]) -> GpuUse | None:
        chosen = [self._handles.get(name) for name in names]
        memory, utilization = 0, 0.0
        for handle in chosen:
            if handle is None:
                return None
            try:
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError:
                return None
            memory += sum(int(p.usedGpuMemory or 0) for p in processes if p.pid in pids)
            utilization += self._utilization(handle, pids)
        if not chosen:
            return None
        return GpuUse(utilization_percent=utilization / len(chosen), memory_bytes=memory)

    def _utilization(self, handle: Any, pids: set[int]) -> float:
        """Newest sample of each process, summed; a device without samples of them is idle for them."""
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
        except pynvml.NVMLError:
            return 0.0
        newest = {int(s.pid): s for s in sorted(samples, key=lambda s: int(s.timeStamp)) if int(s.pid) in pids}
        return min(float(sum(int(sample.smUtil) for sample in newest.values())), 100.0)

    def close(self) -> None:
        pynvml.nvmlShutdown()
