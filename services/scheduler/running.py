"""Workloads that hold nodes and from which places may be taken. Part of the fold."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from events.workload.state import Workload, schedulable


class RunningWorkloads:
    """Preemptible workloads that hold nodes, and elastic ones, by project. Mutable."""

    def __init__(self) -> None:
        self._of, self._frozen = dict[str, dict[str, Workload]](), dict[str, tuple[Workload, ...]]()
        """By project id and workload key."""

    def put(self, key: str, before: Workload, after: Workload) -> None:
        """Keep it as it is now, where it is one."""
        if before.project_id:
            self._of.get(before.project_id, {}).pop(key, None)
            self._frozen.pop(before.project_id, None)
        if after.pods.live.size and schedulable(after) and (after.preemptible or after.elastic):
            self._of.setdefault(after.project_id, {})[key] = after
            self._frozen.pop(after.project_id, None)

    def of(self, project_id: str) -> Mapping[str, Workload]:
        return self._of.get(project_id, {})

    def frozen(self, *, without: AbstractSet[str] = frozenset()) -> dict[str, tuple[Workload, ...]]:
        """Args: without, keys of workloads that are to stand nowhere in it."""
        for project_id, workloads in list(self._of.items()):
            if not workloads:
                del self._of[project_id]
            elif project_id not in self._frozen:
                self._frozen[project_id] = tuple(workloads[key] for key in sorted(workloads))
        found = {project_id: self._frozen[project_id] for project_id in sorted(self._frozen)}
        for project_id, of in self._of.items():
            if not without.isdisjoint(of):
                found[project_id] = tuple(of[key] for key in sorted(of.keys() - without))
        return found
