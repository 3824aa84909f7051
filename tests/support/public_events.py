"""The public events of a log in memory, by a fold that keeps everything for ever: what any other must agree with."""

from collections.abc import Iterable
from typing import Any

from events.aggregate import AGGREGATES, Chain, advance
from events.commit import Commit
from events.phases import FINISHED
from events.project import Project
from events.public.publish import FeedMessage, messages
from events.workload.state import Workload


class Everything:
    """All aggregates of a log, and the public events so far."""

    def __init__(self) -> None:
        self.chains: dict[tuple[str, str], Chain[Any]] = {}
        self.previous: dict[str, str] = {}
        self.told: list[FeedMessage] = []

    def take(self, commits: Iterable[Commit]) -> "Everything":
        for commit in commits:
            place, aggregate = (commit.aggregate, commit.key), AGGREGATES[commit.aggregate]
            before = self.chains.get(place, Chain(state=aggregate.initial))
            after = self.chains[place] = advance(aggregate, before, commit)
            self.told += messages(commit, before.state, after.state, self, self.previous)
        return self

    def _states(self, aggregate: str) -> list[Any]:
        return [chain.state for (name, _), chain in self.chains.items() if name == aggregate]

    def project_of(self, workload_key: str) -> str:
        chain = self.chains.get(("workload", workload_key))
        return chain.state.project_id if chain is not None and chain.state.living else ""

    def projects_on(self, cluster_id: str) -> list[str]:
        workloads: list[Workload] = self._states("workload")
        return sorted(
            {w.project_id for w in workloads if w.living and w.phase not in FINISHED and w.cluster_id == cluster_id}
        )

    def projects(self) -> list[str]:
        projects: list[Project] = self._states("project")
        return sorted(project.project_id for project in projects if project.exists)
