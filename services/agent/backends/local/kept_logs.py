"""Logs of runs, those that are settled included, until they are too old or too many."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from events.cluster_protocol import LogLine, LogsRequest
from events.workload.pod import PodRef
from services.agent.backends.interface import LogsUnavailableError
from services.agent.backends.local.environment import LocalMachine
from services.agent.backends.local.files import delete_old_logs
from services.agent.backends.local.log_file import read_log
from services.agent.backends.local.run_folder import RunFolder
from services.agent.backends.local.runs import Runs
from services.agent.backends.which_run import which_run

log = structlog.get_logger(__name__)
CLEAN_SECONDS: Final = 3600.0
"""How often logs that are too old or too many are looked for."""


class KeptLogs:
    def __init__(self, machine: LocalMachine, runs: Runs) -> None:
        self._machine = machine
        self._root = machine.data_dir
        self._runs = runs

    async def read(self, request: LogsRequest) -> AsyncIterator[Sequence[LogLine]]:
        token, opened = self._open_run(request)
        try:
            run = self._runs.by_key.get((request.pod_key, token))
            running = None if run is None or not request.follow else lambda: run.live
            file = Path(f"/proc/self/fd/{opened}/log")
            lines = read_log(file, tail_lines=request.tail_lines, since=request.since, running=running)
            async for batch in lines:
                yield batch
        finally:
            os.close(opened)

    def _open_run(self, request: LogsRequest) -> tuple[int, int]:
        """The token of the newest run that the request means, and its folder, opened: it is moved when the run is
        settled, and what is read then must not depend on where it lies. Raises LogsUnavailableError.
        """
        folders = self._kept_runs(request)
        token = which_run(request, {token: pod for token, (pod, _) in folders.items()})
        with contextlib.suppress(FileNotFoundError):
            return token, os.open(folders[token][1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # Moved in this very moment, which happens once.
        settled = self._root / "settled" / request.pod_key / str(token)
        try:
            return token, os.open(settled, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LogsUnavailableError("this log was deleted a moment ago", no_such_run=True) from None

    def _kept_runs(self, request: LogsRequest) -> dict[int, tuple[PodRef, Path]]:
        """By token: a pod key is shared by all incarnations of a workload's name."""
        runs: dict[int, tuple[PodRef, Path]] = {}
        # In the order in which a run is moved: one that is moved meanwhile is found there.
        for part in ("pods", "settled"):
            for path in (self._root / part / request.pod_key).glob("*"):
                file = RunFolder(path).read_run()
                if file is not None and file.pod.workload_id == request.workload_id:
                    runs[file.pod.token] = (file.pod.pod, path)
        return runs

    async def clean_up(self) -> None:
        while True:
            machine = self._machine
            count = await asyncio.to_thread(
                delete_old_logs, self._root / "settled", machine.log_retention_seconds, machine.logs_total_max_bytes
            )
            if count:
                log.info("old_logs_deleted", runs=count)
            await asyncio.sleep(CLEAN_SECONDS)
