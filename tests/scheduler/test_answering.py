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
from services.scheduler import answering as module
from services.scheduler import line
from services.scheduler.answering import REST, Answering
from services.scheduler.fold import SchedulingState
from services.scheduler.rounds import Enough

pytestmark = pytest.mark.anyio

TAKES_SECONDS = 0.02
"""Of CPU, one answer."""


@pytest.fixture
async def spans(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[tuple[float, float]]]:
    """When each answer began and ended, of six questions of both kinds that come at once."""
    spans: list[tuple[float, float]] = []

    def answer(_: SchedulingState, question: bytes, now: datetime, enough: Enough) -> bytes:
        began, began_work = time.monotonic(), time.thread_time()
        while time.thread_time() - began_work < TAKES_SECONDS:
            assert not enough()
        spans.append((began, time.monotonic()))
        if question == b"bad":
            raise ValueError(question)
        return question

    monkeypatch.setattr(line, "WAITS_SECONDS", 600.0)
    for name in ("_answer_what_if", "_answer_why"):
        monkeypatch.setattr(module, name, answer)
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
    await answering.stop()
    await asking.close()
    await asked.close()


async def test_questions_of_all_kinds_take_a_quarter_of_a_schedulers_time_also_those_that_fail(
    spans: list[tuple[float, float]],
) -> None:
    assert len(spans) == 6
    for (began, ended), (next_began, _) in itertools.pairwise(spans):
        assert next_began - ended >= 0.9 * REST * TAKES_SECONDS, (began, ended, next_began)
