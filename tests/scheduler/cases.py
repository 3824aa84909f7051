"""Cases of the planner whose whole plan is the expectation: it stands in `goldens`, as `Plan.render` prints it.

After a change that means to change plans: `python -m tests.scheduler.cases` writes the goldens again; read their diff.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from events.node import Taint
from events.workload.fields.compute import ExtendedResource
from events.workload.fields.scheduling import (
    MatchExpression,
    NodeAffinityRequired,
    NodeSelectorTerm,
    PodAffinity,
    Toleration,
)
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


def affinity(*terms: tuple[tuple[str, Any, tuple[str, ...]], ...]) -> NodeAffinityRequired:
    """Terms of (key, operator, values)."""
    return NodeAffinityRequired(
        node_selector_terms=tuple(
            NodeSelectorTerm(
                match_expressions=tuple(MatchExpression(key=k, operator=o, values=v) for k, o, v in expressions)
            )
            for expressions in terms
        )
    )


ZONES: Final[dict[str, dict[str, Any]]] = {
    "x1": {"labels": {"zone": "x"}, "max_pods": 1, "cpu_milli": 1_000},
    "y1": {"labels": {"zone": "y"}, "max_pods": 2, "cpu_milli": 3_000},
    "y2": {"labels": {"zone": "y"}, "max_pods": 1, "cpu_milli": 2_000},
    "without": {"max_pods": 9, "cpu_milli": 4_000},
}
DISKS: Final[dict[str, dict[str, Any]]] = {
    "a": {"labels": {"disk": "ssd", "rank": "3"}},
    "b": {"labels": {"disk": "ssd", "rank": "9"}},
    "c": {"labels": {"disk": "hdd"}},
}
TAINTED: Final[dict[str, dict[str, Any]]] = {
    "a": {"taints": (Taint(key="dedicated", value="ml"),)},
    "b": {
        "taints": (
            Taint(key="dedicated", value="ml"),
            Taint(key="old", effect="NoExecute"),
            Taint(key="slow", effect="PreferNoSchedule"),
        )
    },
}
HCAS: Final[dict[str, dict[str, Any]]] = {
    "a": {"extended": {"rdma/hca": 2}, "foreign_extended": {"rdma/hca": 1}},
    "b": {"extended": {"rdma/hca": 4}, "taints": (Taint(key="rdma/hca"),)},
    "c": {},
}
TWO_HCAS: Final = {"extended_resources": (ExtendedResource(resource="rdma/hca", quantity="2"),)}
PLACING: Final = (
    Case(
        name="only nodes of the type",
        nodes={"a": {"labels": {"run.ai/type": "a100"}}, "b": {"labels": {"run.ai/type": "h100"}}, "c": {}},
        submitted=({"node_type": "h100"},),
    ),
    Case(
        name="a type that no node has can never fit",
        nodes={"a": {"labels": {"run.ai/type": "a100"}}, "b": {}},
        submitted=({"node_type": "h100"},),
    ),
    Case(
        name="a type that the only node does not have",
        nodes={"a": {"labels": {"run.ai/type": "a100"}}},
        submitted=({"node_type": "h100"},),
    ),
    Case(
        name="expressions of a term are all to match, and one term is enough",
        nodes=DISKS,
        submitted=(
            {"node_affinity_required": affinity((("disk", "In", ("ssd", "nvme")), ("rank", "Gt", ("5",))))},
            {"node_affinity_required": affinity((("rank", "Lt", ("5",)),), (("disk", "In", ("tape",)),))},
            {"node_affinity_required": affinity((("rank", "DoesNotExist", ()), ("disk", "Exists", ())))},
            {"node_affinity_required": affinity((("disk", "NotIn", ("ssd",)),))},
        ),
    ),
    Case(
        name="an empty term matches nothing",
        nodes=DISKS,
        submitted=({"node_affinity_required": affinity((), (("disk", "In", ("tape",)),))},),
    ),
    Case(
        name="labels are lacking here, and room there",
        nodes={"a": {"labels": {"disk": "ssd"}, "max_pods": 1}, "b": {"labels": {"disk": "hdd"}}, "c": {}},
        before=({"node_affinity_required": affinity((("disk", "Exists", ()), ("disk", "NotIn", ("hdd",))))},),
        submitted=({"node_affinity_required": affinity((("disk", "In", ("ssd",)),))},),
    ),
    Case(
        name="the node with the labels is too small",
        nodes={"a": {"labels": {"disk": "ssd"}}, "b": {"cpu_milli": 128_000}},
        submitted=({"node_affinity_required": affinity((("disk", "In", ("ssd",)),)), "cpu_core_request": 99.0},),
    ),
    Case(name="taints keep away who tolerates nothing", nodes=TAINTED, submitted=({},)),
    Case(
        name="a toleration of another value or effect helps nothing",
        nodes=TAINTED,
        submitted=(
            {
                "tolerations": (
                    Toleration(key="dedicated", operator="Equal", value="db", effect="Any"),
                    Toleration(key="dedicated", operator="Exists", effect="NoExecute"),
                    Toleration(key="old", operator="Exists", effect="Any"),
                )
            },
        ),
    ),
    Case(
        name="tolerated taints let the pod in",
        nodes=TAINTED,
        submitted=(
            {
                "tolerations": (Toleration(key="dedicated", operator="Equal", value="ml", effect="NoSchedule"),),
                "cpu_core_request": 1.0,
            },
            {
                "tolerations": tuple(
                    Toleration(key=key, operator="Exists", effect="Any") for key in ("dedicated", "old")
                ),
                "cpu_core_request": 32.0,
            },
        ),
    ),
    Case(
        name="extended resources are counted, and their own taint is tolerated",
        nodes=HCAS,
        before=(TWO_HCAS, TWO_HCAS),
        submitted=(TWO_HCAS,),
    ),
    Case(
        name="more of an extended resource than any node has",
        nodes=HCAS,
        submitted=(
            {
                "extended_resources": (
                    ExtendedResource(resource="rdma/hca", quantity="5"),
                    ExtendedResource(resource="vpu/card", quantity="1"),
                )
            },
        ),
    ),
    Case(
        name="pods that must stay together go where most of them fit, and the rest waits for room there",
        nodes=ZONES,
        submitted=(
            {"pod_affinity": PodAffinity(type="Required", key="zone"), "completions": 4, "parallelism": 4},
            {"pod_affinity": PodAffinity(type="Required", key="zone")},
        ),
    ),
    Case(
        name="pods that had better stay together go elsewhere once there is no room",
        nodes=ZONES,
        submitted=({"pod_affinity": PodAffinity(type="Preferred", key="zone"), "completions": 4, "parallelism": 4},),
    ),
    Case(
        name="no node has the label by which pods must stay together",
        nodes={"a": {}, "b": {}},
        submitted=({"pod_affinity": PodAffinity(type="Required", key="rack")},),
    ),
    Case(
        name="no node has the label by which pods had better stay together",
        nodes={"a": {}},
        submitted=({"pod_affinity": PodAffinity(type="Preferred", key="rack")},),
    ),
)
TABLES: Final[dict[str, tuple[Case, ...]]] = {
    "best_fit": BEST_FIT,
    "never_fits": NEVER_FITS,
    "no_room": NO_ROOM,
    "placing": PLACING,
}
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
