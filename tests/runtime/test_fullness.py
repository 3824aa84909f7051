"""The alarm before a stream is full, on a real NATS."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from development.servers import EVERYTHING, NatsServer
from events.subjects import (
    ACTORS_STREAM,
    AUDIT_STREAM,
    CODE_STREAM,
    CREDENTIALS_STREAM,
    EVENTS_STREAM,
    OBSERVED_STREAM,
    SNAPSHOTS_STREAM,
    WANTED_STREAM,
)
from services.runtime.nats.connection import connect
from services.runtime.nats.fullness import WATCHED, Alarms, Fullness, fullness
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health

pytestmark = pytest.mark.anyio


@pytest.fixture
async def nc(fresh_log: NatsServer) -> AsyncIterator[Any]:
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()


async def test_a_stream_that_is_four_fifths_full_raises_an_alarm_until_there_is_room(nc: Any) -> None:
    stream, requests, health = nc.jetstream(), Requests(nc), Health("cluster_sync")
    config = (await stream.stream_info(WANTED_STREAM)).config
    await stream.update_stream(config.evolve(max_bytes=10_000))
    alarms = Alarms(health)
    alarms.look(await fullness(requests))
    assert health.warnings == {}
    for number in range(9):
        await stream.publish(f"want.c.pod.{number}", b"x" * 950)
    alarms.look(await fullness(requests))
    assert list(health.warnings) == [f"stream {WANTED_STREAM}"]
    assert "of 10,000 bytes are used" in health.warnings[f"stream {WANTED_STREAM}"]
    await stream.purge_stream(WANTED_STREAM)
    alarms.look(await fullness(requests))
    assert health.warnings == {}
    await stream.update_stream(config)


def test_what_lets_go_of_the_oldest_is_full_in_good_order() -> None:
    assert set(WATCHED) == {ACTORS_STREAM, CODE_STREAM, CREDENTIALS_STREAM, EVENTS_STREAM, WANTED_STREAM}
    assert not {AUDIT_STREAM, OBSERVED_STREAM, SNAPSHOTS_STREAM} & set(WATCHED)


def test_around_the_mark_an_alarm_stays() -> None:
    health = Health("cluster_sync")
    alarms = Alarms(health)
    told: list[bool] = []
    for used in (79, 80, 79, 76, 74, 79):
        alarms.look([Fullness("OBSERVED", used, 100)])
        told.append(bool(health.warnings))
    assert told == [False, True, True, True, False, False]
