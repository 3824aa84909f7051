"""Which projects may start workloads at a moment, by their windows. Part of the fold; no clock of its own."""

from datetime import datetime
from typing import Final

from events.project import Project
from events.windows import StartWindows, State, state_at
from services.scheduler.snapshot import Closed

_ALWAYS: Final = State(is_open=True, changes_at=None)


class ProjectWindows:
    """Mutable. What was found out of a project holds until its windows change next."""

    def __init__(self) -> None:
        self._windows: dict[str, StartWindows] = {}
        """By project id."""
        self._states: dict[str, State] = {}
        """As they were found out last, at the time below."""
        self._at: datetime | None = None

    def set_project(self, project: Project) -> None:
        windows = project.start_windows if project.exists else None
        if windows == self._windows.get(project.project_id):
            return
        self._states.pop(project.project_id, None)
        if windows is None:
            del self._windows[project.project_id]
        else:
            self._windows[project.project_id] = windows

    def settle(self, now: datetime) -> bool:
        """Look at the time; whether a window opened or closed since."""
        changed = False
        set_back = self._at is not None and now < self._at
        self._at = now
        for project_id, windows in self._windows.items():
            known = self._states.get(project_id)
            if known is None or set_back or (known.changes_at is not None and known.changes_at <= now):
                found = self._states[project_id] = state_at(windows, now)
                changed = changed or known is None or known.is_open != found.is_open or known != found
        return changed

    def closed(self, project_id: str) -> Closed | None:
        """None where its workloads may start now, as of the last look at the time."""
        return self._closed(project_id, over_quota_only=False)

    def within_quota(self, project_id: str) -> Closed | None:
        """Likewise, None where it may go over its quota now."""
        return self._closed(project_id, over_quota_only=True)

    def _closed(self, project_id: str, *, over_quota_only: bool) -> Closed | None:
        state = self._states.get(project_id, _ALWAYS)
        if state.is_open or self._windows[project_id].over_quota_only != over_quota_only:
            return None
        windows = self._windows[project_id]
        return Closed(windows.told, state.changes_at, windows.ends_running)

    def closed_that_end(self) -> list[str]:
        """Ids of projects of which what gives way is told to end now."""
        return sorted(
            project_id
            for project_id, state in self._states.items()
            if not state.is_open and self._windows[project_id].ends_running
        )

    def ends_running_at(self, project_id: str) -> datetime | None:
        """When its window closes of which what runs then ends, too; None where it has none, or where it is closed."""
        state, windows = self._states.get(project_id, _ALWAYS), self._windows.get(project_id)
        return state.changes_at if state.is_open and windows is not None and windows.ends_running else None

    def next_change(self) -> datetime | None:
        times = (state.changes_at for state in self._states.values() if state.changes_at is not None)
        return min(times, default=None)
