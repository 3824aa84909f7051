"""Work that runs save: what is found in the folders of their checkpoints."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from events.cluster_protocol import RunPod
from events.workload.commands import PodWarning
from events.workload.volumes import checkpoint_of
from services.agent.backends.local.checkpoints import MOST_ENTRIES, NOT_WHOLE, Newest, newest_file
from services.agent.backends.local.claims import ClaimError, Claims
from services.agent.backends.local.runs import Run, Runs, now


class SavedWork:
    def __init__(self, runs: Runs, claims: Claims, look_seconds: float) -> None:
        self._runs = runs
        self._claims = claims
        self._look_seconds = look_seconds

    def folder_of(self, pod: RunPod) -> Path | None:
        claim = checkpoint_of(pod.volumes)
        with contextlib.suppress(ClaimError):
            return None if claim is None else self._claims.folder_of(pod, claim)
        return None

    async def look(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            running: dict[Path, list[Run]] = {}
            for run in self._runs.all():
                if run.seen.kind == "running" and (folder := self.folder_of(run.pod)) is not None:
                    running.setdefault(folder, []).append(run)
            for folder, runs in running.items():
                newest = await asyncio.to_thread(newest_file, folder)
                for run in runs:
                    if run.live and self.note(run, newest):
                        self._runs.tell(run)

    def note(self, run: Run, newest: Newest) -> bool:
        """Note what was found in its checkpoint folder; whether that is news."""
        before, warnings = run.seen, run.seen.warnings
        if not newest.whole and all(told.reason != NOT_WHOLE for told in warnings):
            message = (
                f"its checkpoint folder holds more than {MOST_ENTRIES:,} files, or is very deep: newer ones may have "
                "been overlooked, so its work at risk may be less than is shown"
            )
            warnings = (*warnings, PodWarning(reason=NOT_WHOLE, message=message, at=now()))
        # A file may say any time; one that is still to come was changed by now.
        at = run.seen.checkpoint_at if newest.at is None else datetime.fromtimestamp(min(newest.at, time.time()), UTC)
        run.seen = msgspec.structs.replace(run.seen, checkpoint_at=at, warnings=warnings)
        return run.seen != before
