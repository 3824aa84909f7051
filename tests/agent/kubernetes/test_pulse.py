"""A process that stood still knows it before it acts, and for as long as it may lag behind."""

import time

import pytest

from services.agent.backends.kubernetes import pulse
from services.agent.backends.kubernetes.pulse import STILL_SECONDS, Pulse

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> list[float]:
    """Its only element is the time."""
    return [1000.0]


def beat(felt: Pulse, clock: list[float], seconds: float) -> None:
    for _ in range(round(seconds / pulse.BEAT_SECONDS)):
        clock[0] += pulse.BEAT_SECONDS
        felt._feel()


def test_one_that_has_just_begun_is_not_steady(clock: list[float]) -> None:
    felt = Pulse(lambda: clock[0])
    felt._feel()
    assert not felt.is_steady()
    beat(felt, clock, pulse.CATCH_UP_SECONDS + 1)
    assert felt.is_steady()


def test_standing_still_is_known_before_the_next_beat_and_for_a_while_after_it(clock: list[float]) -> None:
    felt = Pulse(lambda: clock[0])
    beat(felt, clock, pulse.CATCH_UP_SECONDS + 1)
    began = clock[0]
    clock[0] += STILL_SECONDS
    assert not felt.is_steady()
    assert felt.stood_still_since(began)
    felt._feel()
    again = clock[0] + pulse.BEAT_SECONDS
    beat(felt, clock, 1.0)
    assert felt.stood_still_since(began)
    assert not felt.stood_still_since(again)
    assert not felt.is_steady()
    beat(felt, clock, pulse.CATCH_UP_SECONDS)
    assert felt.is_steady()


async def test_it_beats_by_itself() -> None:
    felt = Pulse()
    felt.start()
    began = time.monotonic()
    assert not felt.stood_still_since(began + 1)
    await felt.close()
