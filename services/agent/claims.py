"""Lets claims go whose workload has stopped, ended or was deleted. An agent is told of pods alone, and a workload that
ended long before it is deleted has none: so it asks cluster_sync about those whose claims nothing here uses.

Asked again ever less often while the answer is that they are kept; a claim that is used again begins anew.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.cluster_protocol import MOST_FATES, Fate, FatesRequest
from events.subjects import recipes_subject
from services.agent.backends.interface import Backend, BackendError, HeldClaims

LOOK_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 300.0
"""How late a deletion of a workload that had ended long before may reach its claims."""

log = structlog.get_logger(__name__)


class _Asked(msgspec.Struct):
    at: float
    """When to ask again, monotonic."""
    wait_seconds: float


class Claims:
    """Of one cluster."""

    def __init__(
        self, nc: Client, cluster_id: str, backend: Backend, *, in_use: Callable[[], AbstractSet[str] | None]
    ) -> None:
        """`in_use`: ids of workloads of which a pod is there or wanted; None where that is not known now."""
        self._nc = nc
        self._cluster_id = cluster_id
        self._backend = backend
        self._in_use = in_use
        self._asked: dict[str, _Asked] = {}
        """By workload id."""
        self._held: dict[str, HeldClaims] = {}
        self._told: dict[str, Fate] = {}
        """What is to be done yet."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._nc.is_connected or self._backend.standby() or self._backend.problem():
                continue
            found = await self._backend.claims()
            in_use = self._in_use() if found else set[str]()
            if in_use is None:
                continue
            self._held = {held.workload_id: held for held in found if held.workload_id not in in_use}
            await self._remove()
            await self._ask()

    async def _ask(self) -> None:
        now = asyncio.get_running_loop().time()
        self._asked = {workload: asked for workload, asked in self._asked.items() if workload in self._held}
        due = [workload for workload in self._held if workload not in self._asked or self._asked[workload].at <= now]
        due = due[:MOST_FATES]
        if not due:
            return
        for workload in due:
            before = self._asked.get(workload)
            wait = LOOK_SECONDS if before is None else min(before.wait_seconds * 2, LONGEST_SECONDS)
            self._asked[workload] = _Asked(now + wait, wait)
        try:
            request = msgspec.json.encode(FatesRequest(workloads=tuple(due)))
            await self._nc.publish(recipes_subject(self._cluster_id), request)
        except NatsError as error:
            log.info("fates_not_asked", cluster=self._cluster_id, reason=str(error))

    def hear(self, fates: dict[str, Fate]) -> None:
        """What became of workloads that were asked about."""
        self._told |= {workload: fate for workload, fate in fates.items() if workload in self._held}

    async def _remove(self) -> None:
        told, self._told = self._told, {}
        for workload, fate in told.items():
            held = self._held.get(workload)
            if held is None or fate == "kept" or (fate == "ended" and not held.ephemeral):
                continue
            try:
                await self._backend.remove_claims(workload, ephemeral_only=fate == "ended")
            except BackendError as error:
                log.warning("claims_not_deleted", cluster=self._cluster_id, workload=workload, reason=str(error))
