"""Questions to the scheduler: one person's leave room for those of others."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.api.asking import QUESTIONS_EACH, ask_scheduler
from services.api.context import Call
from services.api.limits import Slots
from services.runtime.nats.requests import UnansweredError

pytestmark = pytest.mark.anyio


class Requests:
    """Of a scheduler that answers once it may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may = asyncio.Event()

    async def ask(self, _subject: str, payload: bytes, *, seconds: float) -> bytes:
        assert seconds
        self.asked += 1
        await self.may.wait()
        if not payload:
            raise UnansweredError("no answer")
        return payload


async def test_a_principal_has_only_so_many_questions_open_and_others_have_theirs() -> None:
    requests, questions = Requests(), Slots(most=QUESTIONS_EACH + 1, each=QUESTIONS_EACH)

    async def ask(sub: str, question: bytes = b"?") -> bytes:
        api, identity = SimpleNamespace(requests=requests, questions=questions), SimpleNamespace(iss="i", sub=sub)
        call: Any = SimpleNamespace(api=api, identity=identity)
        return await ask_scheduler(cast("Call", call), "s", question, seconds=2.0)

    first = [asyncio.create_task(ask("ann")) for _ in range(QUESTIONS_EACH)]
    other = asyncio.create_task(ask("bob"))
    while requests.asked < QUESTIONS_EACH + 1:
        await asyncio.sleep(0)
    with pytest.raises(UnansweredError, match="too many questions wait for the scheduler already; ask again"):
        await ask("ann")
    requests.may.set()
    assert await asyncio.gather(*first, other) == [b"?"] * (QUESTIONS_EACH + 1)
    assert await ask("ann") == b"?"
    with pytest.raises(UnansweredError, match="the scheduler did not answer within 2 s; ask again"):
        await ask("ann", b"")
    assert questions.objection(("i", "ann"), "questions") is None
