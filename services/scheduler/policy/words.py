"""Numbers and units as they stand in reasons. Pure."""

from events.quantities import format_bytes
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def nodes(count: int) -> str:
    return counted(count, "node")


def gpus(milli: int) -> str:
    return f"{milli / WHOLE_GPU_MILLI:g} {'GPU' if milli <= WHOLE_GPU_MILLI else 'GPUs'}"


def cores(milli: int) -> str:
    return f"{max(milli, 0) / 1000:g}"


def listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def wish(request: PodRequest) -> str:
    """All that a pod asks for."""
    parts = [
        counted(request.gpu_devices, "GPU") if request.gpu_devices else "",
        f"{told} CPU core{'' if told == '1' else 's'}" if (told := cores(request.cpu_milli)) != "0" else "",
        f"{format_bytes(request.memory_bytes)} of memory" if request.memory_bytes else "",
        *(f"{each.amount} of {each.resource}" for each in request.extended),
    ]
    return " and ".join(part for part in parts if part) or "room for a pod"
