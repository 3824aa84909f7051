"""Nodes and pods of a placement run: read from files in the form of the published trace, or generated.

The trace is Alibaba's cluster-trace-gpu-v2023, as the FGD paper uses it (Weng et al., "Beware of Fragmentation",
USENIX ATC 2023). Its files are not part of this project: they are read where they are, and nothing here knows what is
in them.
"""

import csv
import random
from dataclasses import dataclass
from pathlib import Path

WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    """Of each GPU; 0 where it has none."""
    models: tuple[str, ...] = ()
    """Those that it accepts; empty: any."""

    @property
    def demand_milli(self) -> int:
        return self.gpus * self.gpu_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    name: str
    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]

    @property
    def capacity_milli(self) -> int:
        return WHOLE_MILLI * sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One seed of a trace: nodes in the order in which ties are broken, pods in the order in which they come."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    mix: tuple[Pod, ...]
    """All pods of the trace, from which a policy that is told the mix takes it."""
    capacity_milli: int


def read_nodes(file: Path) -> tuple[Node, ...]:
    with file.open(newline="") as lines:
        return tuple(
            Node(
                cpu_milli=int(row["cpu_milli"]),
                memory_mib=int(row["memory_mib"]),
                gpus=int(row["gpu"]),
                model=row["model"],
            )
            for row in csv.DictReader(lines)
        )


def read_pods(file: Path) -> tuple[Pod, ...]:
    """Sorted by name."""
    with file.open(newline="") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda row: row["name"])
    return tuple(
        Pod(
            cpu_milli=int(row["cpu_milli"]),
            memory_mib=int(row["memory_mib"]),
            gpus=int(row["num_gpu"]),
            gpu_milli=int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            models=tuple(filter(None, (row.get("gpu_spec") or "").split("|"))),
        )
        for row in rows
    )


def run_of(trace: Trace, *, seed: int, demand: float) -> Run:
    """Shuffled; then clones of random pods are appended, or random pods removed, until GPUs of `demand` times the
    capacity are asked for.
    """
    rng = random.Random(seed)
    pods, wanted = list(trace.pods), demand * trace.capacity_milli
    rng.shuffle(pods)
    asked, first = sum(pod.demand_milli for pod in pods), tuple(pods)
    if not asked:
        raise SystemExit(f"{trace.name}: no pod asks for a GPU")
    while asked < wanted:
        pods.append(rng.choice(first))
        asked += pods[-1].demand_milli
    while asked > wanted:
        asked -= pods.pop(rng.randrange(len(pods))).demand_milli
    nodes = list(trace.nodes)
    rng.shuffle(nodes)
    return Run(nodes=tuple(nodes), pods=tuple(pods), mix=trace.pods, capacity_milli=trace.capacity_milli)


def a_part(trace: Trace, *, one_in: int) -> Trace:
    """A smaller cluster of the same kind, with as much less to do."""
    return Trace(name=f"{trace.name}, 1/{one_in}", nodes=trace.nodes[::one_in], pods=trace.pods[::one_in])


def generated(name: str = "generated", *, nodes: int = 1_000, pods: int = 6_000) -> Trace:
    """Drawn from the numbers below, which are nobody's: three kinds of nodes, shares in tenths, some wide pods."""
    rng = random.Random(name)
    kinds = (
        Node(cpu_milli=96_000, memory_mib=393_216, gpus=8, model="large"),
        Node(cpu_milli=64_000, memory_mib=262_144, gpus=4, model="middle"),
        Node(cpu_milli=32_000, memory_mib=131_072, gpus=2, model="small"),
    )
    shares = (200, 300, 400, 500, 600, 700)
    made: list[Pod] = []
    for _ in range(pods):
        kind = rng.random()
        gpus, milli = (1, rng.choice(shares)) if kind < 0.5 else (1, WHOLE_MILLI)
        if kind >= 0.9:
            gpus = 0 if kind < 0.96 else rng.choice((2, 4, 8))
        cores = rng.choice((4, 6, 8, 12)) * max(gpus, 1) * (milli / WHOLE_MILLI if gpus else 1)
        pod = Pod(cpu_milli=int(cores * 1000), memory_mib=int(cores * 4096), gpus=gpus, gpu_milli=milli if gpus else 0)
        made.append(pod)
    return Trace(name=name, nodes=tuple(rng.choice(kinds) for _ in range(nodes)), pods=tuple(made))
