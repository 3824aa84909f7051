"""What a program is told of its share of each device, the same on every cluster that runs programs. Pure.

CUDA's Multi-Process Service (MPS) enforces the limits of a program that finds its server: it gives it no more memory,
and no more of the device's threads. Without that server nothing keeps a program from using more (ADR 0132).
"""

from typing import Final

from events.cluster_protocol import RunPod
from events.workload.spec import WHOLE_GPU_MILLI

_MIB: Final = 1024**2


def gpu_share(run: RunPod, device_memory_bytes: int) -> dict[str, str]:
    """Environment of a run with devices (S036): what is kept for it, and what it may grow to where others leave room.

    Args:
        device_memory_bytes: of one device; 0 where unknown, and then nothing is said in bytes to who asked by portion.
    """
    kept = run.devices[0].milli
    most = max(run.gpu_limit_milli, kept)
    most_bytes = device_memory_bytes * most // WHOLE_GPU_MILLI
    if run.gpu_memory_bytes:
        most_bytes = max(run.gpu_memory_limit_bytes, run.gpu_memory_bytes)
        most = min(kept * most_bytes // run.gpu_memory_bytes, WHOLE_GPU_MILLI)
        most_bytes = min(most_bytes, device_memory_bytes or most_bytes)
    return {
        "GPU_PORTION": f"{kept / WHOLE_GPU_MILLI:g}",
        "GPU_PORTION_LIMIT": f"{most / WHOLE_GPU_MILLI:g}",
        **({"GPU_MEMORY_LIMIT_BYTES": str(most_bytes)} if most_bytes else {}),
        **(_enforced(len(run.devices), most, most_bytes) if kept < WHOLE_GPU_MILLI else {}),
    }


def _enforced(devices: int, most: int, most_bytes: int) -> dict[str, str]:
    """The same in the words of MPS, for who shares devices. Devices are counted as the program sees them, from 0."""
    memory = f"{max(most_bytes // _MIB, 1)}M"
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": f"{most * 100 / WHOLE_GPU_MILLI:g}"}
    if most_bytes:
        limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{device}={memory}" for device in range(devices))
    return limits
