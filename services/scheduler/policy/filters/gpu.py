"""A node has the GPUs: enough devices, each with the share free that the request takes there."""

from typing import Final

import numpy as np

from events.phases import WaitingReason
from events.quantities import format_bytes
from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.policy.words import counted, gpus
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Integers


def too_small(view: View) -> Booleans:
    too_few = view.room.nodes.capacity_devices[view.rows] < view.request.gpu_devices
    return too_few | (view.share_milli > WHOLE_GPU_MILLI)


def largest(view: View) -> str:
    request, nodes = view.request, view.room.nodes
    most = int(nodes.capacity_devices[view.rows].max())
    if request.gpu_devices > most:
        return f"needs {counted(request.gpu_devices, 'GPU')} on one node (largest has {most})"
    if request.gpu_memory_bytes and int(view.share_milli.min()) > WHOLE_GPU_MILLI:
        memory = format_bytes(int(nodes.gpu_memory_bytes[view.rows].max()))
        return f"needs {format_bytes(request.gpu_memory_bytes)} of GPU memory (largest device has {memory})"
    return ""


def full(view: View) -> Booleans:
    """Where the devices that have room are too few: as the node's decider counts."""
    return (_fitting(view) < view.request.gpu_devices) | (view.room.free_devices[view.rows] < 0)


def _fitting(view: View) -> Integers:
    """Per node: how many of its devices have room for such a share."""
    return view.device_fits.sum(axis=1) - view.withheld


def need(view: View) -> str:
    return f"short of GPU ({_need(view)})"


def _need(view: View) -> str:
    request = view.request
    if request.gpu_memory_bytes:
        share = gpus(_largest_share_milli(view))
        return f"need {format_bytes(request.gpu_memory_bytes)} of a device, largest free share {share}"
    if request.gpu_milli < WHOLE_GPU_MILLI:
        share = gpus(request.gpu_milli)
        each = f"need {request.gpu_devices} × {share}" if request.gpu_devices > 1 else f"need {share}"
        return f"{each}, largest free share {gpus(_largest_share_milli(view))}"
    most = max(int(np.minimum(view.room.free_devices[view.rows], _fitting(view)).max()), 0)
    return f"need {request.gpu_devices}, largest free {most}"


def _largest_share_milli(view: View) -> int:
    """The most that any device of these nodes has to give."""
    milli, free = view.devices, view.room.free_devices[view.rows]
    opened = np.where(milli < WHOLE_GPU_MILLI, milli, 0).max(axis=1, initial=0)
    return int(np.where(free > 0, WHOLE_GPU_MILLI, np.where(free < 0, 0, opened)).max(initial=0))


FILTER: Final = Filter(
    name="gpu",
    asks=lambda request: request.gpu_devices > 0,
    never=Check(refuses=too_small, words=largest),
    full=Check(refuses=full, words=need),
    by_room=True,
    reason=WaitingReason.INSUFFICIENT_GPU,
)
