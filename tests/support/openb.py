"""The openb trace (Alibaba cluster-trace-gpu-v2023, as used by Weng et al., USENIX ATC 2023), where it is present.

Research data, read from the folder beside the project; never copied into it.
"""

import csv
from pathlib import Path
from typing import Any

from events.node import NodeFacts
from tests.support.lacking import lacking

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "openb"
NODES = "openb_node_list_gpu_node"
MIB = 1024**2
DEVICE_BYTES = 16 * 1024**3
"""The list names models, not memory; the pods used here ask for shares, so any size does."""


def rows(name: str) -> list[dict[str, str]]:
    """Rows of one of its lists; skips the test where the data is not there."""
    path = FOLDER / f"{name}.csv"
    if not path.exists():
        lacking(f"the openb trace is not here ({path})")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def nodes() -> dict[str, NodeFacts]:
    """Facts by node name."""
    return {
        row["sn"]: NodeFacts(
            cpu_milli=int(row["cpu_milli"]),
            memory_bytes=int(row["memory_mib"]) * MIB,
            gpu_count=int(row["gpu"]),
            gpu_model=row["model"],
            gpu_memory_bytes=DEVICE_BYTES,
            stand_in=True,
        )
        for row in rows(NODES)
    }


def pods(count: int, name: str = "openb_pod_list_default") -> dict[str, dict[str, Any]]:
    """Compute fields by pod name; GPU models are left out."""
    return {row["name"]: _compute(row) for row in rows(name)[:count]}


def _compute(row: dict[str, str]) -> dict[str, Any]:
    compute: dict[str, Any] = {
        "cpu_core_request": int(row["cpu_milli"]) / 1000,
        "cpu_memory_request": f"{row['memory_mib']}Mi",
    }
    devices, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    if devices:
        compute["gpu_devices_request"] = devices
        if milli < 1000:
            compute |= {"gpu_request_type": "portion", "gpu_portion_request": milli / 1000}
    return compute
