"""What a service may rely on of its connection to NATS."""

import pytest

from services.runtime.connection import connect
from tests.support.servers import EVERYTHING, NatsServer

pytestmark = pytest.mark.anyio

ROUNDS = 20
MANY = 200


async def test_after_a_flush_the_server_has_heard_of_every_subscription(nats_server: NatsServer) -> None:
    """Else who says that it is ready misses what others send it at once."""
    hears = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    speaks = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    try:
        for round_ in range(ROUNDS):
            subscriptions = [await hears.subscribe(f"usage.{round_}.{number}") for number in range(MANY)]
            await hears.flush()
            await speaks.publish(f"usage.{round_}.{MANY - 1}", b"heard")
            assert (await subscriptions[-1].next_msg(timeout=5)).data == b"heard"
    finally:
        await hears.close()
        await speaks.close()
