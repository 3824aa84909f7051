"""What the feed knows of the log: everything that public events are made of. No I/O, no clock.

Deleted workloads are forgotten, so its memory does not grow with what is over.
"""

from datetime import datetime
from typing import Any, Final, override

from events.aggregate import AGGREGATES, PROJECT, WORKLOAD, Chain
from events.commit import Commit
from events.phases import FINISHED
from events.public.cloudevents import Place
from events.public.publish import FeedMessage, messages
from events.public.registry import PUBLIC
from services.runtime.log.log_fold import LogFold

FOLDED: Final = tuple(AGGREGATES[name] for name in PUBLIC)
"""Aggregates whose chains are kept, and stored in snapshots."""
SNAPSHOT_SHAPE: Final = 1
"""Raise it when what is forgotten, or kept beside the chains, changes."""


class PublicState(LogFold):
    """The log's fold, and the public events that it made.

    Args:
        not_before: none are made of commits before this time.
        written: the place up to which FEED has them; none of those is made.
    """

    def __init__(self, *, not_before: datetime | None = None, written: Place | None = None) -> None:
        super().__init__(FOLDED, forgets=True)
        self._written = written
        self.previous: dict[str, str] = {}
        """By project, the place of its last event."""
        self._not_before = not_before
        self._made: list[FeedMessage] = []
        self._ends: list[int] = []

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        made = messages(commit, before.state, after.state, self, self.previous, written=self._written)
        if self._not_before is None or commit.record.occurred_at >= self._not_before:
            self._made += made
            self._ends += [commit.batch_end] * len(made)
        if commit.aggregate == WORKLOAD.name and not after.state.living:
            self.forget(WORKLOAD, commit.key)

    def take_made(self) -> tuple[list[FeedMessage], list[int]]:
        """The messages since the last call, and for each the sequence at which its batch of the log ends."""
        made, ends = self._made, self._ends
        self._made, self._ends = [], []
        return made, ends

    # -- what public events ask ----------------------------------------------------------------------------------------

    def project_of(self, workload_key: str) -> str:
        chain = self.of(WORKLOAD).get(workload_key)
        return "" if chain is None or not chain.state.living else chain.state.project_id

    def projects_on(self, cluster_id: str) -> list[str]:
        states = (chain.state for chain in self.of(WORKLOAD).values())
        return sorted(
            {
                state.project_id
                for state in states
                if state.cluster_id == cluster_id and state.living and state.phase not in FINISHED
            }
        )

    def projects(self) -> list[str]:
        return sorted(chain.state.project_id for chain in self.of(PROJECT).values() if chain.state.exists)
