"""Cases of the planner whose whole plan is the expectation: it stands in `goldens`, as `Plan.render` prints it.

After a change that means to change plans: `python -m tests.scheduler.cases` writes the goldens again; read their diff.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.scheduler.world import GIB, World

GOLDENS: Final = Path(__file__).parent / "goldens"
GPU_NODE: Final[dict[str, Any]] = {"gpu_count": 8, "gpu_model": "A100", "gpu_memory_bytes": 80 * GIB}
SMALL: Final = "small"
"""Stands for the id of a project with a quota of two GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Nodes by name with their facts, and specs of workloads: `before` are bound already, `submitted` are planned."""

    name: str
    nodes: dict[str, dict[str, Any]]
    before: tuple[dict[str, Any], ...] = ()
    submitted: tuple[dict[str, Any], ...]

    def run(self) -> tuple[World, str]:
        """The world at rest after it, and the plan that was made for what was submitted."""
        world = World()
        world.cluster()
        world.project()
        small = world.project(SMALL, quota=2_000)
        for name, facts in self.nodes.items():
            world.node(name, **facts)
        for n, spec in enumerate(self.before):
            world.submit(f"before{n}", **spec)
            world.settle()
        for n, spec in enumerate(self.submitted):
            project = {"project_id": small} if spec.get("project_id") == SMALL else {}
            world.submit(f"w{n}", **spec | project)
        plan = world.cycle().render()
        world.settle()
        return world, plan


BEST_FIT: Final = (
    Case(name="a pod that asks for nothing goes anywhere", nodes={"a": {}}, submitted=({},)),
    Case(
        name="without a GPU request, a node without GPUs is preferred",
        nodes={"gpus": GPU_NODE, "plain": {}},
        submitted=({"cpu_core_request": 1.0},),
    ),
    Case(
        name="of nodes alike, the one with less free CPU is filled first",
        nodes={"large": {"cpu_milli": 64_000}, "small": {"cpu_milli": 8_000}},
        submitted=({"cpu_core_request": 4.0}, {"cpu_core_request": 4.0}, {"cpu_core_request": 4.0}),
    ),
    Case(
        name="whole GPUs take the lowest free devices",
        nodes={"a": GPU_NODE},
        submitted=({"gpu_devices_request": 2}, {"gpu_devices_request": 1}),
    ),
    Case(
        name="whole GPUs go to the node with the fewest free ones",
        nodes={"eight": GPU_NODE, "two": GPU_NODE | {"gpu_count": 2}},
        submitted=({"gpu_devices_request": 1}, {"gpu_devices_request": 2}),
    ),
    Case(
        name="portions fill a shared device before they open another",
        nodes={"a": GPU_NODE},
        submitted=tuple(
            {"gpu_request_type": "portion", "gpu_portion_request": share} for share in (0.5, 0.3, 0.4, 0.2)
        ),
    ),
    Case(
        name="a portion goes where least is left over, on whichever node",
        nodes={"a": GPU_NODE, "b": GPU_NODE | {"gpu_count": 1}},
        submitted=tuple({"gpu_request_type": "portion", "gpu_portion_request": share} for share in (0.7, 0.9, 0.1)),
    ),
    Case(
        name="several devices with a portion each take different devices",
        nodes={"a": GPU_NODE},
        submitted=({"gpu_devices_request": 3, "gpu_request_type": "portion", "gpu_portion_request": 0.5},),
    ),
    Case(
        name="GPU memory becomes a share of the node's own device, rounded up",
        nodes={"a": GPU_NODE},
        submitted=({"gpu_request_type": "memory", "gpu_memory_request": "30Gi"},),
    ),
    Case(
        name="GPU memory does not fit where the device's size is not known",
        nodes={"unknown": {"gpu_count": 8}, "known": {"gpu_count": 8, "gpu_memory_bytes": 3 * GIB}},
        submitted=({"gpu_request_type": "memory", "gpu_memory_request": "1Gi"},),
    ),
    Case(
        name="devices of others are left alone",
        nodes={"a": GPU_NODE | {"foreign_gpus": 7}, "b": GPU_NODE},
        submitted=({"gpu_devices_request": 1}, {"gpu_devices_request": 1}),
    ),
    Case(
        name="a node that is full of pods takes no more",
        nodes={"a": {"max_pods": 1, "cpu_milli": 1_000}, "b": {}},
        submitted=({}, {}),
    ),
)
NEVER_FITS: Final = (
    Case(name="no nodes at all", nodes={}, submitted=({},)),
    Case(name="a pool that does not exist", nodes={"a": {}}, submitted=({"node_pools": ("h100",)},)),
    Case(
        name="more GPUs than any node has",
        nodes={"a": GPU_NODE, "b": GPU_NODE | {"gpu_count": 4}},
        submitted=({"gpu_devices_request": 9},),
    ),
    Case(name="more GPUs than the only node has", nodes={"a": GPU_NODE}, submitted=({"gpu_devices_request": 9},)),
    Case(
        name="more GPU memory than any device has",
        nodes={"a": GPU_NODE},
        submitted=({"gpu_request_type": "memory", "gpu_memory_request": "96Gi"},),
    ),
    Case(
        name="each wish fits some node, no node fits all",
        nodes={"a": GPU_NODE | {"cpu_milli": 4_000}, "b": {"cpu_milli": 64_000}},
        submitted=({"gpu_devices_request": 1, "cpu_core_request": 32.0},),
    ),
    Case(
        name="non-preemptible and larger than the quota",
        nodes={"a": GPU_NODE},
        submitted=({"project_id": "small", "gpu_devices_request": 3, "preemptibility": "non-preemptible"},),
    ),
)
NO_ROOM: Final = (
    Case(
        name="GPUs",
        nodes={"a": GPU_NODE},
        before=({"gpu_devices_request": 7},),
        submitted=({"gpu_devices_request": 2},),
    ),
    Case(
        name="shares of GPUs",
        nodes={"a": GPU_NODE | {"gpu_count": 1}},
        before=({"gpu_request_type": "portion", "gpu_portion_request": 0.6},),
        submitted=({"gpu_request_type": "portion", "gpu_portion_request": 0.5},),
    ),
    Case(
        name="CPU",
        nodes={"a": {"cpu_milli": 4_000}},
        before=({"cpu_core_request": 3.5},),
        submitted=({"cpu_core_request": 1.0},),
    ),
    Case(
        name="memory",
        nodes={"a": {"memory_bytes": 4 * GIB}},
        before=({"cpu_memory_request": "3Gi"},),
        submitted=({"cpu_memory_request": "2Gi"},),
    ),
    Case(name="pods", nodes={"a": {"max_pods": 1}}, before=({},), submitted=({},)),
    Case(
        name="one thing here, another there",
        nodes={
            "a": GPU_NODE | {"gpu_count": 2, "cpu_milli": 9_000},
            "b": GPU_NODE | {"gpu_count": 1, "cpu_milli": 8_000},
        },
        before=({"gpu_devices_request": 1}, {"gpu_devices_request": 1, "cpu_core_request": 8.0}),
        submitted=({"gpu_devices_request": 1, "cpu_core_request": 4.0},),
    ),
    Case(
        name="what is too small is named, and does not hide the reason",
        nodes={"a": GPU_NODE, "plain": {}},
        before=({"gpu_devices_request": 8},),
        submitted=({"gpu_devices_request": 8},),
    ),
)
TABLES: Final[dict[str, tuple[Case, ...]]] = {"best_fit": BEST_FIT, "never_fits": NEVER_FITS, "no_room": NO_ROOM}
"""By the name of the golden."""


def read(table: str) -> dict[str, str]:
    """The expected plan of each case, by its name."""
    sections = (GOLDENS / f"{table}.txt").read_text().split("# ")[1:]
    return {name: plan.strip() for name, _, plan in (section.partition("\n") for section in sections)}


def write() -> None:
    for table, cases in TABLES.items():
        text = "\n".join(f"# {case.name}\n{case.run()[1]}\n" for case in cases)
        (GOLDENS / f"{table}.txt").write_text(text)


if __name__ == "__main__":
    write()
