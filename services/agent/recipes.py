"""Asks cluster_sync what runs are made of, when they are about to start. Nothing is kept: who asks again is told again.

No answer is one more reason to try again later, like a cluster that does not answer: the run waits, its cluster shows
that, and a run that is no longer wanted is no longer asked for.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from events.cluster_protocol import (
    Fate,
    Fates,
    MessageType,
    RecipeRequest,
    RunPod,
    SealedValues,
    Sources,
    sealed_about,
)
from events.codec import UNDECODABLE
from events.subjects import agent_recipes_subject, recipes_subject
from services.agent.backends.interface import NO_VALUES, BackendError
from services.runtime.credentials.sealed import SealError, new_private, public_of, unseal

ANSWER_SECONDS: Final = 5.0
"""An answer takes milliseconds; this is for one that waits behind many large ones."""
PROBLEM_SECONDS: Final = 30.0
"""Without an answer, until the cluster shows it: cluster_sync may have been started anew."""

log = structlog.get_logger(__name__)


class Recipes:
    """Of one cluster. `start` it before anything is asked, and `close` it."""

    def __init__(
        self,
        nc: Client,
        cluster_id: str,
        *,
        ssh_keys: bool = False,
        on_fates: Callable[[dict[str, Fate]], None] | None = None,
        on_sources: Callable[[Sources], None] | None = None,
    ) -> None:
        """`ssh_keys`: whether pods reach each other by ssh. `on_fates` gets what cluster_sync says of workloads,
        `on_sources` what it says of data sources: they come on the same subject.
        """
        self._nc = nc
        self._ssh_keys = ssh_keys
        self._on_fates = on_fates
        self._on_sources = on_sources
        self._cluster_id = cluster_id
        self._private = new_private()
        """Of this process: what was sealed to another one is of no use to it."""
        self._public = public_of(self._private)
        self._waiting: dict[tuple[str, int], asyncio.Future[RunPod]] = {}
        self._unanswered_since: float | None = None
        """When the first request went that was not answered; None where a later one was."""
        self._unanswered_at = 0.0
        """When it was last found that one is not answered."""
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        subject = agent_recipes_subject(self._cluster_id)
        self._subscription = await self._nc.subscribe(subject, cb=self._on_answer)  # pyright: ignore[reportUnknownMemberType]

    async def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def of(self, pod_key: str, token: int) -> tuple[RunPod, SealedValues]:
        """What this run is made of, and what it needs of credentials, which is written down nowhere. Raises
        BackendError where nobody says so now.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        answer = self._waiting.setdefault((pod_key, token), loop.create_future())
        try:
            request = RecipeRequest(pod_key=pod_key, token=token, public_key=self._public, ssh_keys=self._ssh_keys)
            await self._nc.publish(recipes_subject(self._cluster_id), msgspec.json.encode(request))
            async with asyncio.timeout(ANSWER_SECONDS):
                recipe = await answer
        except (TimeoutError, NatsError) as error:
            self._unanswered_at = loop.time()
            if self._unanswered_since is None:
                self._unanswered_since = asked
            raise BackendError("cluster_sync did not send the recipe of this run") from error
        finally:
            self._waiting.pop((pod_key, token), None)
        self._unanswered_since = None
        return msgspec.structs.replace(recipe, sealed=b""), self._opened(recipe)

    def _opened(self, recipe: RunPod) -> SealedValues:
        """Raises BackendError where they are for another agent."""
        if not recipe.sealed:
            return NO_VALUES
        about = sealed_about(self._cluster_id, recipe.pod_key, recipe.token)
        try:
            return msgspec.json.decode(unseal(self._private, recipe.sealed, about), type=SealedValues)
        except (SealError, *UNDECODABLE) as error:
            # Said to the agent before this one, or to another one of this cluster.
            raise BackendError("the credentials of this run were sealed to another agent") from error

    def problem(self) -> str:
        """Why no run of this cluster can be started now; empty where nothing says so."""
        now = asyncio.get_running_loop().time()
        since = self._unanswered_since
        if since is None or now - since < PROBLEM_SECONDS or now - self._unanswered_at > 2 * PROBLEM_SECONDS:
            return ""
        return (
            f"asked on {recipes_subject(self._cluster_id)} what runs are made of, and nobody has answered for "
            f"{PROBLEM_SECONDS:.0f} s: see that cluster_sync runs, and that the agent's NATS user has today's rights "
            "(muster cluster agent NAME --nats-user)"
        )

    async def _on_answer(self, message: Msg) -> None:
        try:
            type_ = msgspec.json.decode(message.data, type=MessageType).type
            if type_ == Fates.__name__:
                fates = msgspec.json.decode(message.data, type=Fates).fates
                if self._on_fates is not None:
                    self._on_fates(fates)
                return
            if type_ == Sources.__name__:
                sources = msgspec.json.decode(message.data, type=Sources)
                if self._on_sources is not None:
                    self._on_sources(sources)
                return
            recipe = msgspec.json.decode(message.data, type=RunPod)
        except UNDECODABLE as error:
            log.warning("recipe_unreadable", cluster=self._cluster_id, error=str(error))
            return
        answer = self._waiting.get((recipe.pod_key, recipe.token))
        if answer is not None and not answer.done():
            answer.set_result(recipe)
