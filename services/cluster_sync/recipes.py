"""Tells agents what runs are made of, when they ask. Answers go to the cluster's own subject, never where a request
says: nobody can have one sent elsewhere.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.cluster_protocol import MOST_FATES, Fate, Fates, FatesRequest, MessageType, RecipeRequest
from events.codec import UNDECODABLE
from events.subjects import ALL_RECIPES, agent_recipes_subject, wanted_subject
from services.cluster_sync.budget import LEAST_RECIPE_BYTES, recipes_budget
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.reconcile import run_pod

log = structlog.get_logger(__name__)

Wait = Callable[[str], None]
FindFates = Callable[[tuple[str, ...], str], Awaitable[dict[str, Fate]]]


class Recipes:
    """`start` it once the fold has caught up with the log: before that, it would know too little."""

    def __init__(
        self,
        nc: Client,
        fold: DesiredState,
        *,
        on_wait: Wait,
        on_unwanted: Callable[[str], None],
        fates: FindFates | None = None,
    ) -> None:
        """`on_wait` gets a cluster whose agent asks for more than it is told now; `on_unwanted` gets the subject in
        WANTED of a run that should not be started; `fates` finds out what became of workloads of a cluster.
        """
        self._nc = nc
        self._fold = fold
        self._on_wait = on_wait
        self._on_unwanted = on_unwanted
        self._budget = recipes_budget()
        self._fates = fates
        self._finding: dict[str, asyncio.Task[None]] = {}
        """By cluster: one answer about workloads at a time."""

    async def start(self) -> None:
        """Ends with the connection."""
        await self._nc.subscribe(ALL_RECIPES, cb=self._on_request)  # pyright: ignore[reportUnknownMemberType]

    async def _on_request(self, message: Msg) -> None:
        cluster_id, now = message.subject.partition(".")[2], time.monotonic()
        if self._budget.wait_seconds(cluster_id, now):
            self._on_wait(cluster_id)
            return
        if (asked := _asked_about(message.data)) is not None:
            self._budget.take(cluster_id, LEAST_RECIPE_BYTES * max(len(asked), 1), now)
            self._find(cluster_id, asked)
            return
        recipe = self._recipe(cluster_id, message.data)
        self._budget.take(cluster_id, max(LEAST_RECIPE_BYTES, len(recipe)), now)
        if not recipe:
            return
        try:
            await self._nc.publish(agent_recipes_subject(cluster_id), recipe)
        except NatsError as error:
            log.warning("recipe_not_sent", cluster_id=cluster_id, error=str(error) or type(error).__name__)

    def _find(self, cluster_id: str, workload_ids: tuple[str, ...]) -> None:
        """Who asks while an answer is sought asks again."""
        if self._fates is None or cluster_id in self._finding:
            return
        task = asyncio.create_task(self._tell_fates(cluster_id, self._fates(workload_ids, cluster_id)))
        self._finding[cluster_id] = task
        task.add_done_callback(lambda _: self._finding.pop(cluster_id, None))

    async def _tell_fates(self, cluster_id: str, finding: Awaitable[dict[str, Fate]]) -> None:
        if not (fates := await finding):
            return
        try:
            await self._nc.publish(agent_recipes_subject(cluster_id), msgspec.json.encode(Fates(fates=fates)))
        except NatsError as error:
            log.warning("fates_not_sent", cluster_id=cluster_id, error=str(error) or type(error).__name__)

    def _recipe(self, cluster_id: str, request: bytes) -> bytes:
        """The answer; empty where there is none."""
        try:
            asked = msgspec.json.decode(request, type=RecipeRequest)
            subject = wanted_subject(cluster_id, asked.pod_key)
        except (*UNDECODABLE, ValueError) as error:
            log.warning("recipe_request_unreadable", cluster_id=cluster_id, error=str(error))
            return b""
        desired = self._fold.desired.get(subject)
        if desired is None or desired.stop or desired.token != asked.token:
            self._on_unwanted(subject)
            return b""
        return msgspec.json.encode(run_pod(desired))


def _asked_about(request: bytes) -> tuple[str, ...] | None:
    """The workloads that a request is about; None where it asks for a recipe, or cannot be read."""
    try:
        if msgspec.json.decode(request, type=MessageType).type != FatesRequest.__name__:
            return None
        return msgspec.json.decode(request, type=FatesRequest).workloads[:MOST_FATES]
    except UNDECODABLE:
        return None
