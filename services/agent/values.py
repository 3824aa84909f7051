"""Brings values of credentials to runs that were started and lack them: who made a run may have died before it gave
them to the cluster, or somebody deleted them there. They are asked for anew, for nobody keeps them.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from services.agent.backends.interface import Backend, BackendError
from services.agent.recipes import Recipes

LOOK_SECONDS: Final = 2.0
AT_ONCE: Final = 16
FIRST_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 60.0
"""How late a run is asked for again that nobody answered for."""

log = structlog.get_logger(__name__)

type _Run = tuple[str, int]
"""Pod key and token."""


class Values:
    """Of one cluster."""

    def __init__(
        self, cluster_id: str, backend: Backend, recipes: Recipes, *, is_wanted: Callable[[str, int], bool]
    ) -> None:
        """`is_wanted`: whether a run is known to be wanted now; nobody answers for others."""
        self._cluster_id = cluster_id
        self._backend = backend
        self._recipes = recipes
        self._is_wanted = is_wanted
        self._rests: dict[_Run, tuple[float, float]] = {}
        """Runs for which it failed: until when (of the loop's clock), and for how long."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._backend.standby() or self._backend.problem():
                continue
            lacking = [run for run in self._backend.lacking() if self._is_wanted(*run)]
            self._rests = {run: rest for run, rest in self._rests.items() if run in lacking}
            now = asyncio.get_running_loop().time()
            due = [run for run in lacking if run not in self._rests or self._rests[run][0] <= now]
            await asyncio.gather(*(self._bring(run) for run in due[:AT_ONCE]))

    async def _bring(self, run: _Run) -> None:
        pod_key, token = run
        try:
            recipe, values = await self._recipes.of(pod_key, token)
            await self._backend.apply(recipe, values)
        except BackendError as error:
            before = self._rests.get(run, (0.0, FIRST_SECONDS / 2))[1]
            pause = max(min(before * 2, LONGEST_SECONDS), error.again_seconds)
            wait = pause * random.uniform(1.0, 1.5)  # noqa: S311 (what failed together does not come back together)
            self._rests[run] = (asyncio.get_running_loop().time() + wait, pause)
            log.warning("values_not_brought", cluster=self._cluster_id, pod=pod_key, reason=str(error))
