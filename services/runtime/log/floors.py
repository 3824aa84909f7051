"""Reads of the log that never go back behind what is known to be in it (docs/adr/0029).

A leader that stood still, and was replaced meanwhile, goes on answering from its old state until it hears of that. Its
answers are told by what this process knows: every sequence that was acknowledged to it or read by it is a floor for the
next read of that subject, and `min_seq` is one for the whole log, brought by whoever asks.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import structlog

from events.ids import TENANT_KEY
from events.subjects import EVENTS_STREAM, aggregate_filter, aggregate_subject, split_aggregate_subject
from services.runtime.log.looks import Looks
from services.runtime.nats.jetstream_api import StoredMessage, last_as_of, last_message, stream_info
from services.runtime.nats.requests import Requests, UnansweredError

KEPT_FLOORS: Final = 50_000
"""Subjects whose floors are kept, the least recently raised going first: some 10 MB, and more than what changes in the
seconds for which a leader can be wrong about itself."""
FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 0.25
ASK_SECONDS: Final = 5.0
"""One question at most; a whole read has its own deadline."""

_WITNESS: Final = aggregate_subject("tenant", TENANT_KEY)
"""A subject that every log in use has: with it, a replica also says how far it is where it has nothing of the other."""
_WHOLE_LOG: Final = ""

log = structlog.get_logger(__name__)


class StaleLogError(UnansweredError):
    """What answers is behind what is known to be in the log: its leader stood still, or nobody has come that far."""


class Floors:
    """What is known to be in the log, and reads that are at least as new."""

    def __init__(self, requests: Requests, *, kept: int = KEPT_FLOORS) -> None:
        self._requests = requests
        self._looks = Looks(self._last_message)
        self._kept = kept
        self._floors: OrderedDict[str, int] = OrderedDict()

    def of(self, subject: str) -> int:
        return self._floors.get(subject, 0)

    @property
    def known_seq(self) -> int:
        """The newest sequence of the whole log that this process knows of."""
        return self.of(_WHOLE_LOG)

    def saw(self, subject: str, seq: int) -> None:
        """A commit of this subject is in the log, as far as anybody has acknowledged, delivered or read it."""
        self.saw_all(((subject, seq),))

    def saw_all(self, commits: Iterable[tuple[str, int]]) -> None:
        """Args: commits, subject and sequence of each."""
        newest: dict[str, tuple[str, int]] = {}
        """By kind: subject and sequence of one."""
        for subject, seq in commits:
            self._rise(subject, seq)
            kind = subject[: subject.rfind(".")]
            if kind not in newest or seq > newest[kind][1]:
                newest[kind] = (subject, seq)
        for subject, seq in newest.values():
            aggregate, _ = split_aggregate_subject(subject)
            self._rise(aggregate_filter(aggregate), seq)
            self._rise(_WHOLE_LOG, seq)

    def _rise(self, name: str, seq: int) -> None:
        if seq > self._floors.get(name, 0):
            self._floors[name] = seq
            self._floors.move_to_end(name)
            if len(self._floors) > self._kept:
                self._floors.popitem(last=False)

    async def newest(self, subject: str, *, min_seq: int = 0, seconds: float) -> StoredMessage | None:
        """The newest message of a subject, or of a filter, with all that is known of it and all up to `min_seq`.

        Raises StaleLogError where nothing as new answers in time, UnansweredError, JetStreamError.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            found = await self._looks.at(subject, min(seconds, ASK_SECONDS))
            seq = 0 if found is None else found.seq
            if seq >= self.of(subject):
                if seq >= min_seq:
                    return self._seen(subject, found)
                newer, up_to = await last_as_of(
                    self._requests, EVENTS_STREAM, subject, _WITNESS, seconds=min(seconds, ASK_SECONDS)
                )
                if up_to >= min_seq:
                    return self._seen(subject, newer if newer is not None and newer.seq > seq else found)
            pause = await self._again(deadline, pause, f"{subject} at {seq}", max(self.of(subject), min_seq))

    async def _last_message(self, subject: str, seconds: float) -> StoredMessage | None:
        return await last_message(self._requests, EVENTS_STREAM, subject, seconds=seconds)

    def _seen(self, subject: str, found: StoredMessage | None) -> StoredMessage | None:
        if found is not None:
            self._rise(subject, found.seq)
        return found

    async def last_seq(self, *, min_seq: int = 0, seconds: float) -> int:
        """Sequence of the newest message of the log; `min_seq` at least. Raises StaleLogError."""
        deadline = asyncio.get_running_loop().time() + seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            info = await stream_info(self._requests, EVENTS_STREAM, seconds=min(seconds, ASK_SECONDS))
            if info.state.last_seq >= max(self.of(_WHOLE_LOG), min_seq):
                self._rise(_WHOLE_LOG, info.state.last_seq)
                return info.state.last_seq
            pause = await self._again(
                deadline, pause, f"the log at {info.state.last_seq}", max(self.of(_WHOLE_LOG), min_seq)
            )

    async def _again(self, deadline: float, pause: float, told: str, floor: int) -> float:
        """Wait before the next look; the pause after that. Raises StaleLogError at the deadline."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise StaleLogError(f"what answers has {told}, but {floor} is known: it is behind")
        log.info("log_answer_is_old", told=told, floor=floor)
        await asyncio.sleep(min(left, pause * (0.5 + random.random())))  # noqa: S311 (jitter)
        return min(2 * pause, LONGEST_PAUSE_SECONDS)
