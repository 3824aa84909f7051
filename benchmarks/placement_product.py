"""The product's default policy as a placement run asks it: its own nodes, rules and scores, without a log around
them.

It is told nothing beforehand. What it knows of the pods are those that have come, as the scheduler counts them. The
scheduler makes a plan whenever something changed; here one is made after some more pods, as each costs a look at all
nodes.
"""

from datetime import UTC, datetime
from functools import partial

from benchmarks.placement_trace import Pod, Run
from events.node import Node, NodeFacts, NodeRegistered, evolve
from events.workload.fields.scheduling import MatchExpression, NodeSelectorTerm
from events.workload.spec import PodRequest
from services.scheduler.candidates import Candidates, packed, worth_of
from services.scheduler.columns import Columns
from services.scheduler.mix import Mix, shape_of
from services.scheduler.policy.registry import POLICY
from services.scheduler.room import Room

MODEL = "gpu-model"
"""Label of nodes."""
MIB = 1024**2
MORE_PODS = 0.1
"""A plan ends when so many more pods have come…"""
MORE_CAPACITY = 0.03
"""…or pods that ask for so much of the capacity."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Product:
    """One run."""

    def __init__(self, run: Run) -> None:
        columns = Columns()
        for number, node in enumerate(run.nodes):
            facts = NodeFacts(
                cpu_milli=node.cpu_milli,
                memory_bytes=node.memory_mib * MIB,
                gpu_count=node.gpus,
                gpu_model=node.model,
                max_pods=1_000_000,
                labels={MODEL: node.model},
            )
            name = f"node-{number}"
            state = evolve(Node(), NodeRegistered(cluster_id="c", name=name, facts=facts))
            columns.set(name, state, reachable=True)
        self._nodes = columns.frozen()
        self._pool = self._nodes.pool_numbers["c", "default"]
        self._capacity_milli = run.capacity_milli
        self._mix = Mix()
        self._room = Room(self._nodes)
        self._candidates: dict[PodRequest, Candidates] = {}
        self._came = self._came_milli = 0
        self._next_plan = self._next_plan_milli = 0
        self.plans = 0

    def place(self, pod: Pod) -> int | None:
        request = request_of(pod)
        if self._came >= self._next_plan or self._came_milli >= self._next_plan_milli:
            self._plan()
        candidates = self._candidates.get(request)
        if candidates is None:
            candidates = Candidates(self._room, request, self._pool, POLICY.filters, packed(POLICY.scores))
            self._candidates[request] = candidates
        self._mix.add(shape_of(request), 1, NOW)
        self._came += 1
        self._came_milli += pod.demand_milli
        index = candidates.best()
        if index is None:
            return None
        row = int(candidates.rows[index])
        self._room.take(row, request, candidates.devices(index))
        return row

    def _plan(self) -> None:
        """Begin a plan, on what is free now."""
        room = Room(self._nodes, partial(worth_of, mix=self._mix.told(), filters=POLICY.filters))
        for name in ("cpu", "memory", "pods", "devices", "free_devices"):
            getattr(room, name)[:] = getattr(self._room, name)
        self._room = room
        self._candidates.clear()
        self._next_plan = int(self._came * (1 + MORE_PODS)) + 1
        self._next_plan_milli = self._came_milli + int(MORE_CAPACITY * self._capacity_milli)
        self.plans += 1


def request_of(pod: Pod) -> PodRequest:
    terms = None
    if pod.models:
        accepted = MatchExpression(key=MODEL, operator="In", values=pod.models)
        terms = (NodeSelectorTerm(match_expressions=(accepted,)),)
    return PodRequest(
        cpu_milli=pod.cpu_milli,
        memory_bytes=pod.memory_mib * MIB,
        gpu_devices=pod.gpus,
        gpu_milli=pod.gpu_milli,
        node_terms=terms,
    )
