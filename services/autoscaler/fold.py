"""What the autoscaler knows of the log: inferences that live, and clusters. No I/O, no clock."""

from typing import Any, Final, override

from events.aggregate import CLUSTER, WORKLOAD, Chain
from events.commit import Commit
from events.ids import key_of_id
from events.phases import DesiredPhase
from events.workload.state import Workload
from services.runtime.log.log_fold import LogFold

FOLDED: Final = (WORKLOAD, CLUSTER)
"""Aggregates whose chains are kept, and stored in snapshots."""
SNAPSHOT_SHAPE: Final = 1
"""Raise it when what is forgotten, or kept, changes."""


class Inferences(LogFold):
    """The log's fold: of workloads, only inferences that are not deleted."""

    def __init__(self) -> None:
        super().__init__(FOLDED, forgets=True)
        self.workloads, self.clusters = self.of(WORKLOAD), self.of(CLUSTER)

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        if commit.aggregate == "workload" and (after.state.inference is None or not after.state.living):
            self.forget(WORKLOAD, commit.key)

    def known(self, workload_id: str) -> bool:
        key = key_of_id(workload_id)
        chain = None if key is None else self.workloads.get(key)
        return chain is not None and chain.state.workload_id == workload_id

    def scaled(self) -> list[tuple[str, Chain[Workload]]]:
        """(key, chain) of those whose replicas may become more or fewer now."""
        return [(key, chain) for key, chain in self.workloads.items() if _may_scale(chain.state)]

    def simulated(self, cluster_id: str) -> bool:
        key = key_of_id(cluster_id)
        chain = None if key is None else self.clusters.get(key)
        return chain is not None and chain.state.kind == "simulated"


def _may_scale(state: Workload) -> bool:
    if state.inference is None or state.desired is not DesiredPhase.RUNNING or not state.queued:
        return False
    settings = state.inference.serving.autoscaling
    return settings.min_replicas != settings.max_replicas
