"""What a program is told of its share of a GPU."""

from typing import Any

import pytest

from events.workload.pod import DeviceShare
from services.agent.backends.gpu_share import gpu_share
from tests.agent.kubernetes.cases import run

GIB = 1024**3


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
    assert gpu_share(run(devices=(DeviceShare(device=0, milli=milli),), **asked), device) == expected
