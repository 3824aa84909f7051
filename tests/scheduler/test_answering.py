"""What is asked of a scheduler beside its work, and how much of its time that may take (S048)."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from development.servers import NatsServer
from events.subjects import WHAT_IF, WHY
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests, UnansweredError
from services.scheduler import service
from services.scheduler.fold import SchedulingState
from services.scheduler.service import RESTS, Answering

pytestmark = pytest.mark.anyio

TAKES_SECONDS = 0.05
"""One answer, of all the scheduler's time."""


@pytest.fixture
async def spans(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[tuple[float, float]]]:
    """When each answer began and ended, of six questions of both kinds that come at once."""
    spans: list[tuple[float, float]] = []

    def answer(fold: SchedulingState, question: bytes, now: datetime) -> bytes:
        began = time.monotonic()
        time.sleep(TAKES_SECONDS)
        spans.append((began, time.monotonic()))
        if question == b"bad":
            raise ValueError(question)
        return question

    monkeypatch.setattr(service, "ANSWERS", {WHAT_IF: answer, WHY: answer})
    asking = await connect(nats_server.settings("api"), "api")
    asked = await connect(nats_server.settings("scheduler"), "scheduler")
    answering = Answering(asked)
    answering.fold = SchedulingState()
    await answering.start()
    await asked.flush()
    requests = Requests(asking)

    async def ask(subject: str, question: bytes) -> bytes | None:
        try:
            return await requests.ask(subject, question, seconds=1 if question == b"bad" else 60)
        except UnansweredError:
            return None

    questions = [(subject, each) for subject in (WHAT_IF, WHY) for each in (b"1", b"bad", b"2")]
    answers = await asyncio.gather(*(ask(*each) for each in questions))
    assert answers == [b"1", None, b"2"] * 2
    yield spans
    await asking.close()
    await asked.close()


async def test_questions_of_all_kinds_take_a_fifth_of_a_schedulers_time_also_those_that_fail(
    spans: list[tuple[float, float]],
) -> None:
    assert len(spans) == 6
    for (began, ended), (next_began, _) in itertools.pairwise(spans):
        assert next_began - ended >= RESTS * TAKES_SECONDS, (began, ended, next_began)
