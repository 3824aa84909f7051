"""cluster_sync's part of an agent's questions: what runs are made of."""

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from development.servers import EVERYTHING, NatsServer
from events.cluster_protocol import RecipeRequest, RunPod
from events.subjects import ALL_RECIPES, agent_recipes_subject
from services.runtime.nats.connection import connect

type Recipes = Mapping[tuple[str, int], RunPod]
"""By pod key and token."""


async def answer_recipes(nc: Client, known: Recipes, subject: str = ALL_RECIPES) -> None:
    """From now on, for as long as the connection lasts."""

    async def answer(message: Msg) -> None:
        request = msgspec.json.decode(message.data, type=RecipeRequest)
        recipe = known.get((request.pod_key, request.token))
        if recipe is not None:
            await nc.publish(agent_recipes_subject(message.subject.partition(".")[2]), msgspec.json.encode(recipe))

    await nc.subscribe(subject, cb=answer)
    await nc.flush()


@contextlib.asynccontextmanager
async def answering(server: NatsServer, recipes: Iterable[RunPod]) -> AsyncGenerator[None]:
    """Answer these until the block ends."""
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    await answer_recipes(nc, {(recipe.pod_key, recipe.token): recipe for recipe in recipes})
    try:
        yield
    finally:
        await nc.close()
