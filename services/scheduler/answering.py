"""Answers of the scheduler beside its work: where a workload would run, and why another one waits."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.aggregate import WORKLOAD
from events.codec import UNDECODABLE
from events.ids import incarnation_id, workload_key
from events.subjects import WHAT_IF, WHY
from events.what_if import WhatIf, WhatIfAsked
from events.why import Why, WhyAsked
from events.workload.life import WorkloadCreated, WorkloadQueued
from events.workload.life import fold as fold_workload
from services.runtime.nats.inboxes import inbox_prefix, is_inbox
from services.scheduler.fold import SchedulingState
from services.scheduler.line import MOST_ASKED, WAITS_SECONDS, Line
from services.scheduler.rounds import Enough, never
from services.scheduler.what_if import what_if
from services.scheduler.why import why

ANSWER_SECONDS: Final = 0.5
"""Of CPU. Nothing more is tried for an answer then: what was found is told."""
REST: Final = 3.0
"""So many times as long as an answer took, none is begun: placing has three quarters of the time, whoever asks."""

log = structlog.get_logger(__name__)

type _Answer = Callable[[SchedulingState, bytes, datetime, Enough], bytes | None]
"""From the question; None where whoever asked waits no longer."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class _Question(NamedTuple):
    answer: _Answer
    message: Msg


class _Asked(msgspec.Struct):
    """What both kinds of questions have."""

    asker: str = ""


class Answering:
    """Answers one question after the other, of both kinds, and leaves REST times as long between as each took."""

    def __init__(self, nc: Client, clock: Callable[[], datetime] = _utc_now) -> None:
        self._nc = nc
        self._clock = clock
        self._turn = asyncio.Lock()
        self._line = Line[_Question]()
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each question that waits, or waited until it was dropped."""
        self._took = 0.0
        """Seconds, the last answer."""
        self.fold: SchedulingState | None = None
        """None until it is caught up with the log: before, nobody is answered."""

    async def start(self) -> None:
        """Each question goes to one of the schedulers."""
        for subject, answer in ((WHAT_IF, _answer_what_if), (WHY, _answer_why)):
            await self._nc.subscribe(  # pyright: ignore[reportUnknownMemberType]
                subject, queue="scheduler", cb=partial(self._take_in, answer), pending_msgs_limit=MOST_ASKED
            )

    async def stop(self) -> None:
        """Nobody is answered any more."""
        self.fold = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take_in(self, answer: _Answer, message: Msg) -> None:
        if self.fold is None or not is_inbox(message.reply, inbox_prefix("api")):
            return
        try:
            asker = msgspec.json.decode(message.data, type=_Asked).asker
        except UNDECODABLE:
            asker = ""
        self._line.come(_Question(answer, message), asker, asyncio.get_running_loop().time())
        task = asyncio.create_task(self._answer_one())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_one(self) -> None:
        async with self._turn:
            loop = asyncio.get_running_loop()
            question, fold = self._line.next(loop.time(), self._took), self.fold
            if question is None or fold is None:
                return
            began, began_work = loop.time(), time.thread_time()
            try:
                found = question.answer(
                    fold, question.message.data, self._clock(), lambda: time.thread_time() - began_work > ANSWER_SECONDS
                )
                if found is not None:
                    await self._nc.publish(question.message.reply, found)
            except Exception:
                # Whoever asks sees that nobody answered; placing what was submitted goes on.
                log.exception("not_answered", subject=question.message.subject)
            self._took = loop.time() - began
            await asyncio.sleep(max(loop.time() - began, REST * (time.thread_time() - began_work)))


def _answer_what_if(fold: SchedulingState, question: bytes, now: datetime, enough: Enough) -> bytes | None:
    asked = msgspec.json.decode(question, type=WhatIfAsked)
    return None if _is_late(asked.at, now) else msgspec.json.encode(imagined(fold, asked, now, enough))


def _answer_why(fold: SchedulingState, question: bytes, now: datetime, enough: Enough) -> bytes | None:
    asked = msgspec.json.decode(question, type=WhyAsked)
    if _is_late(asked.at, now):
        return None
    if fold.seq < asked.seq:
        return msgspec.json.encode(Why(outcome="unknown", message="the scheduler has not read so far yet; ask again"))
    readable = None if asked.readable is None else frozenset(asked.readable)
    return msgspec.json.encode(why(fold, asked.workload_id, now, readable, enough))


def _is_late(asked_at: datetime, now: datetime) -> bool:
    return abs(now - asked_at) > timedelta(seconds=WAITS_SECONDS)


def imagined(fold: SchedulingState, asked: WhatIfAsked, now: datetime, enough: Enough = never) -> WhatIf:
    """What would become of a workload that was submitted now. It is queued, as the next plan would have it."""
    key = workload_key(asked.project_id, asked.name)
    events = (
        WorkloadCreated(
            workload_id=incarnation_id(key, str(uuid4())),
            name=asked.name,
            requested_name=asked.name,
            kind=asked.kind,
            project_id=asked.project_id,
            cluster_id=asked.cluster_id,
            among=asked.among,
            owner="",
            at=now,
            spec=asked.spec,
            distributed=asked.distributed,
            inference=asked.inference,
        ),
        WorkloadQueued(),
    )
    if key in fold.workloads:
        key = f"~{key}"  # it would get another name, or the other one's once that is gone
    return what_if(fold.imagine(fold_workload(WORKLOAD.initial, events), now, key), key, enough)
