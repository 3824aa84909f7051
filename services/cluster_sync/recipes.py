"""Tells agents what runs are made of, when they ask. Answers go to the cluster's own subject, never where a request
says: nobody can have one sent elsewhere.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.agent_bounds import refused
from events.asset import MarkDataSource
from events.cluster_protocol import (
    MOST_FATES,
    MOST_SOURCES,
    Fate,
    Fates,
    FatesRequest,
    MessageType,
    RecipeRequest,
    RunPod,
    Sources,
    SourcesRequest,
)
from events.codec import UNDECODABLE
from events.subjects import ALL_RECIPES, agent_recipes_subject, wanted_subject
from services.cluster_sync.budget import LEAST_RECIPE_BYTES, recipes_budget
from services.cluster_sync.credentials import Credentials, needed
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.reconcile import Desired, run_pod
from services.cluster_sync.sources import marks, next_sources, with_data_volumes

log = structlog.get_logger(__name__)

OPENINGS: Final = 16
"""Answers whose credentials are read at once."""
MOST_OPENINGS: Final = 1_000
"""That wait for it; who asks beyond that asks again."""

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
        on_mark: Callable[[str, MarkDataSource], None] = lambda _key, _command: None,
        fates: FindFates | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`on_wait` gets a cluster whose agent asks for more than it is told now; `on_unwanted` gets the subject in
        WANTED of a run that should not be started; `on_mark` gets the key of a data source and what its agent found;
        `fates` finds out what became of workloads of a cluster,
        `credentials` what runs need of those.
        """
        self._nc = nc
        self._fold = fold
        self._on_wait = on_wait
        self._on_unwanted = on_unwanted
        self._on_mark = on_mark
        self._budget = recipes_budget()
        self._fates = fates
        self._credentials = credentials
        self._opening: dict[tuple[str, str, int], asyncio.Task[None]] = {}
        """By cluster, pod key and token: answers whose credentials are sought."""
        self._openings = asyncio.Semaphore(OPENINGS)
        self._finding: dict[str, asyncio.Task[None]] = {}
        """By cluster: one answer about workloads at a time."""

    async def start(self) -> None:
        """Ends with the connection. Once it returns, the server has the subscription: no request after that is lost."""
        await self._nc.subscribe(ALL_RECIPES, cb=self._on_request)  # pyright: ignore[reportUnknownMemberType]
        await self._nc.flush()

    async def _on_request(self, message: Msg) -> None:
        cluster_id, now = message.subject.partition(".")[2], time.monotonic()
        if self._budget.wait_seconds(cluster_id, now):
            self._on_wait(cluster_id)
            return
        match asked := _asked_about(message.data):
            case FatesRequest():
                workloads = asked.workloads[:MOST_FATES]
                self._budget.take(cluster_id, LEAST_RECIPE_BYTES * max(len(workloads), 1), now)
                self._find(cluster_id, workloads)
                return
            case SourcesRequest():
                sources = msgspec.json.encode(self._on_sources(cluster_id, asked))
                self._budget.take(cluster_id, max(LEAST_RECIPE_BYTES * MOST_SOURCES, len(sources)), now)
                await self._tell(cluster_id, sources)
                return
            case None:
                pass
            case _:
                assert_never(asked)
        if (found := self._asked_for(cluster_id, message.data)) is None:
            self._budget.take(cluster_id, LEAST_RECIPE_BYTES, now)
            return
        about, desired = found
        recipe = msgspec.json.encode(self._recipe(desired, about, cluster_id))
        self._budget.take(cluster_id, max(LEAST_RECIPE_BYTES, len(recipe)), now)
        if not needed(desired, ssh_keys=about.ssh_keys).nothing:
            self._open(cluster_id, about, desired)
            return
        await self._tell(cluster_id, recipe)

    def _recipe(self, desired: Desired, asked: RecipeRequest, cluster_id: str) -> RunPod:
        """Without what it needs of credentials."""
        return with_data_volumes(self._fold, run_pod(desired, ssh_keys=asked.ssh_keys), cluster_id)

    def _open(self, cluster_id: str, asked: RecipeRequest, desired: Desired) -> None:
        """Answer once what it needs of credentials is there. Who asks while that is sought is answered once."""
        which = (cluster_id, asked.pod_key, asked.token)
        if self._credentials is None or which in self._opening or len(self._opening) >= MOST_OPENINGS:
            return
        task = asyncio.create_task(self._tell_sealed(self._credentials, cluster_id, asked, desired))
        self._opening[which] = task
        task.add_done_callback(lambda _: self._opening.pop(which, None))

    async def _tell_sealed(
        self, credentials: Credentials, cluster_id: str, asked: RecipeRequest, desired: Desired
    ) -> None:
        async with self._openings:
            recipe = self._recipe(desired, asked, cluster_id)
            answer = await credentials.sealed(recipe, desired, cluster_id, asked)
        if answer is not None:
            await self._tell(cluster_id, msgspec.json.encode(answer))

    def _on_sources(self, cluster_id: str, asked: SourcesRequest) -> Sources:
        """Takes what the agent found, and says what comes next. What is out of bounds is passed over."""
        for key, command in marks(self._fold, cluster_id, asked.looked):
            self._on_mark(key, command)
        return next_sources(self._fold, cluster_id, asked.after)

    async def _tell(self, cluster_id: str, recipe: bytes) -> None:
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

    def _asked_for(self, cluster_id: str, request: bytes) -> tuple[RecipeRequest, Desired] | None:
        """The run that a request is about; None where it has no answer."""
        try:
            asked = msgspec.json.decode(request, type=RecipeRequest)
            subject = wanted_subject(cluster_id, asked.pod_key)
        except (*UNDECODABLE, ValueError) as error:
            log.warning("recipe_request_unreadable", cluster_id=cluster_id, error=str(error))
            return None
        desired = self._fold.desired.get(subject)
        if desired is None or desired.stop or desired.token != asked.token:
            self._on_unwanted(subject)
            return None
        return asked, desired


def _asked_about(request: bytes) -> FatesRequest | SourcesRequest | None:
    """None where it asks for a recipe, or cannot be read."""
    try:
        match msgspec.json.decode(request, type=MessageType).type:
            case FatesRequest.__name__:
                return msgspec.json.decode(request, type=FatesRequest)
            case SourcesRequest.__name__:
                asked = msgspec.json.decode(request, type=SourcesRequest)
                return asked if refused(asked) is None else SourcesRequest(after=asked.after[:64])
            case _:
                return None
    except UNDECODABLE:
        return None
