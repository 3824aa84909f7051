"""What a program is told of its share of a GPU."""

from typing import Any

import pytest

from events.workload.pod import DeviceShare
from services.agent.backends.gpu_share import gpu_share
from tests.agent.kubernetes.cases import run

GIB = 1024**3
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


@pytest.mark.parametrize(
    ("milli", "asked", "device", "told"),
    [
        (1000, {}, 80 * GIB, ("1", "1", 80 * GIB)),
        (1000, {}, 0, ("1", "1", None)),
        (250, {}, 80 * GIB, ("0.25", "0.25", 20 * GIB)),
        (250, {"gpu_limit_milli": 500}, 80 * GIB, ("0.25", "0.5", 40 * GIB)),
        (250, {"gpu_limit_milli": 1000}, 0, ("0.25", "1", None)),
        (250, {"gpu_memory_bytes": 20 * GIB}, 80 * GIB, ("0.25", "0.25", 20 * GIB)),
        (
            250,
            {"gpu_memory_bytes": 20 * GIB, "gpu_memory_limit_bytes": 40 * GIB},
            80 * GIB,
            ("0.25", "0.5", 40 * GIB),
        ),
        (250, {"gpu_memory_bytes": 20 * GIB, "gpu_memory_limit_bytes": 40 * GIB}, 0, ("0.25", "0.5", 40 * GIB)),
        (
            250,
            {"gpu_memory_bytes": 20 * GIB, "gpu_memory_limit_bytes": 900 * GIB},
            80 * GIB,
            ("0.25", "1", 80 * GIB),
        ),
    ],
    ids=[
        "a whole device",
        "a whole device of unknown size",
        "a portion: no limit is as the request",
        "a portion that may grow",
        "a portion that may grow, of an unknown size",
        "by memory: no limit is as the request",
        "by memory that may grow",
        "by memory that may grow, of an unknown size",
        "never more than the device has",
    ],
)
def test_a_program_is_told_what_is_kept_for_it_and_what_it_may_grow_to(
    milli: int, asked: dict[str, Any], device: int, told: tuple[str, str, int | None]
) -> None:
    """S036 R4 R5."""
    portion, most, most_bytes = told
    expected = {"GPU_PORTION": portion, "GPU_PORTION_LIMIT": most}
    if most_bytes is not None:
        expected["GPU_MEMORY_LIMIT_BYTES"] = str(most_bytes)
    said = gpu_share(run(devices=(DeviceShare(device=0, milli=milli),), **asked), device)
    assert {name: value for name, value in said.items() if name.startswith("GPU_")} == expected


@pytest.mark.parametrize(
    ("milli", "asked", "device", "limits"),
    [
        ((1000, 1000), {}, 80 * GIB, {}),
        ((250,), {}, 80 * GIB, {PERCENTAGE: "25", MEMORY: "0=20480M"}),
        ((250,), {"gpu_limit_milli": 375}, 80 * GIB, {PERCENTAGE: "37.5", MEMORY: "0=30720M"}),
        ((500, 500), {"gpu_limit_milli": 1000}, 16 * GIB, {PERCENTAGE: "100", MEMORY: "0=16384M,1=16384M"}),
        ((250,), {}, 0, {PERCENTAGE: "25"}),
        (
            (250,),
            {"gpu_memory_bytes": 20 * GIB, "gpu_memory_limit_bytes": 30 * GIB},
            80 * GIB,
            {PERCENTAGE: "37.5", MEMORY: "0=30720M"},
        ),
        ((1,), {"gpu_memory_bytes": 1000}, GIB, {PERCENTAGE: "0.1", MEMORY: "0=1M"}),
    ],
    ids=[
        "whole devices are nobody else's",
        "the portion where there is no limit",
        "a limit above the portion",
        "several devices, and all of each where nobody else uses it",
        "no bytes where the size is unknown",
        "by memory",
        "never nothing",
    ],
)
def test_mps_is_told_the_limits_of_who_shares_devices(
    milli: tuple[int, ...], asked: dict[str, Any], device: int, limits: dict[str, str]
) -> None:
    """S036, as the documentation of CUDA MPS writes them."""
    devices = tuple(DeviceShare(device=number, milli=share) for number, share in enumerate(milli))
    said = gpu_share(run(devices=devices, **asked), device)
    assert {name: value for name, value in said.items() if name.startswith("CUDA_MPS")} == limits
