"""In the node's decider, the plan, its batches and its releases."""

from typing import Any, Final

from tests.mutants.mutant import Mutant


def _room_for_everything(_: Any) -> Any:
    return lambda *_args, **_kwargs: None


def _without_others(original: Any) -> Any:
    return lambda self: original(self) + self.facts.foreign_gpus


def _rounded_down(original: Any) -> Any:
    def shares_milli(nodes: Any, request: Any, rows: Any) -> Any:
        import numpy as np

        if not request.gpu_memory_bytes:
            return original(nodes, request, rows)
        sizes = [int(size) for size in nodes.gpu_memory_bytes[rows]]
        shares = [max(min(1000 * request.gpu_memory_bytes // n, 2000), 1) if n > 0 else 2000 for n in sizes]
        return np.array(shares, dtype=np.int64)

    return shares_milli


def _in_any_pool(original: Any) -> Any:
    def pools_to_try(snapshot: Any, pod_class: Any) -> Any:
        cluster = snapshot.clusters.get(pod_class.cluster_id)
        return original(snapshot, pod_class) or (() if cluster is None else cluster.pools)

    return pools_to_try


def _before_the_end(phase: str) -> Any:
    """Releases what runs in this phase hold."""

    def make(original: Any) -> Any:
        def settle_workload(self: Any, key: str, now: Any) -> None:
            from events.node import reservation_id

            original(self, key, now)
            if (chain := self.workloads.get(key)) is None:
                return
            state, held = chain.state, self.held.of(key)
            for (name, index), pod in state.pods.items():
                id_ = reservation_id(state.workload_id, name, index, pod.attempt, pod.try_)
                if pod.phase == phase and id_ in held and id_ not in self.held.stale:
                    self.held.stale[id_] = held[id_]
                    self.freed += 1

        return settle_workload

    return make


def _only_with_bindings(original: Any) -> Any:
    def batches(plan: Any, *, max_messages: int) -> Any:
        found, _ = original(plan, max_messages=max_messages)
        return found, {}

    return batches


SCHEDULING: Final[list[Mutant]] = [
    Mutant(
        name="room-for-everything",
        function="events.node:_shortage",
        invariant="room",
        bug="A node reserves everything that is requested, even if it does not have it.",
        make=_room_for_everything,
    ),
    Mutant(
        name="devices-of-others",
        function="events.node:Node.free_devices",
        invariant="room",
        bug="Devices that pods of other programs use count as free.",
        make=_without_others,
    ),
    Mutant(
        name="shares-are-rounded-down",
        function="services.scheduler.room:shares_milli",
        invariant="room",
        bug="A share that is requested as memory is rounded down, so two pods fit on a device that together need more "
        "than it "
        "has.",
        make=_rounded_down,
    ),
    Mutant(
        name="any-pool-will-do",
        function="services.scheduler.planning:pools_to_try",
        invariant="asked",
        bug="A workload whose node pools do not exist is placed in any other pool.",
        make=_in_any_pool,
    ),
    Mutant(
        name="kept-for-gpus-and-taken-by-all",
        function="services.scheduler.policy.filters.taints:tolerates",
        invariant="asked",
        bug="Pods without GPUs are placed on nodes that a taint reserves for pods with GPUs.",
        make=lambda real: lambda request, taint: taint.key == "nvidia.com/gpu" or real(request, taint),
    ),
    Mutant(
        name="released-when-told-to-go",
        function="services.scheduler.fold:SchedulingState._settle_workload",
        invariant="released",
        bug="What a run holds is released when the run is told to end, and not when it has ended.",
        make=_before_the_end("Stopping"),
    ),
    Mutant(
        name="released-when-out-of-sight",
        function="services.scheduler.fold:SchedulingState._settle_workload",
        invariant="released",
        bug="What a run holds on a node that does not answer is released, although the run may still be alive.",
        make=_before_the_end("Unknown"),
    ),
    Mutant(
        name="released-only-for-the-next",
        function="services.scheduler.batches:batches",
        invariant="released",
        bug="What ended runs hold on a node is released only with the next reservation on that node.",
        make=_only_with_bindings,
    ),
]
