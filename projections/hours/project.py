"""The rows of measured hours: each event adds to them. Pure."""

from typing import Final

from events.aggregate import HOURS, Chain, advance
from events.commit import Commit
from events.hours import Hours
from projections.changes import Changes

EMPTY: Final = Chain(state=HOURS.initial)


class HoursWork:
    """One project's month while the commits of a batch are folded into it."""

    def __init__(self, _: str, before: Chain[Hours]) -> None:
        self._after = before

    def add(self, commit: Commit, into: Changes) -> None:
        """Raises BrokenChainError."""
        state = self._after.state
        self._after = advance(HOURS, self._after, commit)
        for event in commit.events:
            before, state = state, HOURS.evolve(state, event)
            if state is not before:
                for row in event.rows:
                    into.shifts.measure(event.project_id, event.hour, row)

    def finish(self, into: Changes) -> Chain[Hours]:  # noqa: ARG002 (other kinds put rows here)
        return self._after
