"""What the agent says on `obs.<cluster>.>`: what changed, ends and everything else again and again.

OBSERVED is a memory stream that may be lost, and keeps nothing for long, so nothing is said only once. Every message is
acknowledged by the stream; one that is not waits here, where newer news of the same pod or node take its place, and is
said again ever more slowly. Messages are encoded once.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod
from events.ids import node_key
from events.subjects import observed_cluster_subject, observed_node_subject, observed_pod_subject
from services.agent.backends.interface import LIVE_KINDS
from services.runtime.nats.jetstream_api import JetStreamError, PubAck, decode_ack
from services.runtime.nats.requests import Requests, UnansweredError

ENDS_AGAIN_SECONDS: Final = 5.0
"""Somebody waits for an end: its node stays reserved until it is in the log."""
ALL_AGAIN_SECONDS: Final = 30.0
AGAIN_PER_SECOND: Final = 1_000
"""Where there is so much to say again that it would be more than this, it is said less often."""
HELD_SECONDS: Final = 5.0
"""How long a pod is starting until that is said, where there is nothing else to tell. Each word becomes a commit, which
every service reads; most pods run sooner, and then one word says both.
"""
LOOK_SECONDS: Final = 1.0
"""How late what falls due may be said."""
ACK_SECONDS: Final = 5.0
AT_ONCE: Final = 250
"""Messages on their way that are not acknowledged yet: enough to hide the round trip."""
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
"""Between tries, while OBSERVED takes nothing; heartbeats go on."""

log = structlog.get_logger(__name__)
_ENCODER: Final = msgspec.json.Encoder()


class Reports:
    """The newest word on every pod and node, and who still has to hear it."""

    def __init__(self, nc: Client, cluster_id: str, *, silent: Callable[[], bool]) -> None:
        """`silent`: whether another agent speaks for this cluster."""
        self._nc = nc
        self._requests = Requests(nc)
        self._cluster_id = cluster_id
        self._silent = silent
        self._was_silent = False
        self._said: dict[str, bytes] = {}
        self._ends: set[str] = set()
        self._unsaid: set[str] = set()
        self._held: dict[str, float] = {}
        """Subjects of pods that are only starting, and when that is said; in this order."""
        self._heartbeat_seq = 0
        self._reconnects = nc.stats["reconnects"]
        self._ends_at = 0.0
        self._all_at = 0.0
        self._news = asyncio.Event()
        self._sending = asyncio.Lock()
        self._pause = 0.0
        """Seconds until the next try, while nothing is taken; 0 where the last words were."""
        self._again_at = 0.0

    async def run(self) -> None:
        """Say what there is to say, for ever."""
        while True:
            self.fall_due(asyncio.get_running_loop().time())
            await self.flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._news.wait()
            self._news.clear()

    def pod(self, pod: ObservedPod) -> None:
        subject = observed_pod_subject(self._cluster_id, pod.pod_key)
        first = subject not in self._said or subject in self._held
        if not self._say(subject, pod):
            return
        if first and pod.kind == "starting" and not pod.message and not pod.warnings:
            self._unsaid.discard(subject)
            self._held.setdefault(subject, asyncio.get_running_loop().time() + HELD_SECONDS)
        else:
            self._held.pop(subject, None)
        if pod.kind in LIVE_KINDS:
            self._ends.discard(subject)
        else:
            self._ends.add(subject)

    def no_pod(self, pod_key: str) -> None:
        """Its end stands in the log, nothing about it need be said."""
        subject = observed_pod_subject(self._cluster_id, pod_key)
        self._said.pop(subject, None)
        self._ends.discard(subject)
        self._unsaid.discard(subject)
        self._held.pop(subject, None)

    def node(self, node: ObservedNode) -> None:
        self._say(observed_node_subject(self._cluster_id, node_key(self._cluster_id, node.name)), node)

    def _say(self, subject: str, message: ObservedPod | ObservedNode) -> bool:
        """Whether it is news."""
        encoded = _ENCODER.encode(message)
        if self._said.get(subject) == encoded:
            return False
        self._said[subject] = encoded
        self._unsaid.add(subject)
        self._news.set()
        return True

    def say_all_again(self) -> None:
        self._unsaid |= self._said.keys() - self._held.keys()

    def fall_due(self, now: float) -> None:
        """Take up what must be said again by now (monotonic seconds)."""
        if self._nc.stats["reconnects"] != self._reconnects:
            self._reconnects = self._nc.stats["reconnects"]
            self._pause = 0.0
            self.say_all_again()
        for subject in list(itertools.takewhile(lambda held: self._held[held] <= now, self._held)):
            del self._held[subject]
            self._unsaid.add(subject)
        if now >= self._all_at:
            self._all_at = now + max(ALL_AGAIN_SECONDS, len(self._said) / AGAIN_PER_SECOND)
            self.say_all_again()
        if now >= self._ends_at:
            self._ends_at = now + max(ENDS_AGAIN_SECONDS, len(self._ends) / AGAIN_PER_SECOND)
            self._unsaid |= self._ends

    async def flush(self) -> None:
        """Send what is unsaid, where there is a connection and the stream takes it; else it stays."""
        before, self._was_silent = self._was_silent, self._silent()
        if self._was_silent:
            return
        if before:
            self.say_all_again()
        async with self._sending:
            if not self._unsaid or not self._nc.is_connected:
                return
            if self._pause and asyncio.get_running_loop().time() < self._again_at:
                return
            unsaid, self._unsaid = list(self._unsaid), set()
            for start in range(0, len(unsaid), AT_ONCE):
                await self._send(unsaid[start : start + AT_ONCE])
                if self._pause:
                    self._unsaid.update(unsaid[start + AT_ONCE :])
                    return

    async def _send(self, subjects: Iterable[str]) -> None:
        messages = [(subject, self._said[subject]) for subject in subjects if subject in self._said]
        if self._pause and messages:
            # One is asked first: a stream that is full or away must not be asked by all of them at every try.
            if why := await self._say_one(*messages[0]):
                self._not_taken([subject for subject, _ in messages], why)
                return
            messages = messages[1:]
        failures = await asyncio.gather(*(self._say_one(*message) for message in messages))
        if not_taken := [subject for (subject, _), why in zip(messages, failures, strict=True) if why]:
            self._not_taken(not_taken, next(why for why in failures if why))
        else:
            self._pause = 0.0

    def _not_taken(self, subjects: list[str], why: str) -> None:
        self._unsaid.update(subject for subject in subjects if subject in self._said)
        self._pause = min(max(2 * self._pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        # Jittered, so that agents do not come back all at once.
        again_seconds = self._pause * random.uniform(0.5, 1.0)  # noqa: S311
        self._again_at = asyncio.get_running_loop().time() + again_seconds
        log.warning("reports_not_taken", reports=len(subjects), reason=why, again_seconds=round(again_seconds, 1))

    async def _say_one(self, subject: str, message: bytes) -> str:
        """Why it was not taken; empty where it was."""
        try:
            await self._ask(subject, message)
        except (UnansweredError, JetStreamError, NatsError) as error:
            return str(error) or type(error).__name__
        return ""

    async def _ask(self, subject: str, message: bytes) -> PubAck:
        ack = decode_ack(await self._requests.ask(subject, message, seconds=ACK_SECONDS))
        if ack.error is not None:
            raise JetStreamError(ack.error)
        return ack

    async def heartbeat(self, message: ObservedCluster) -> None:
        """By the sequence of its acknowledgement a lost stream is noticed."""
        if not self._nc.is_connected:
            return
        try:
            ack = await self._ask(observed_cluster_subject(self._cluster_id), _ENCODER.encode(message))
        except (UnansweredError, JetStreamError, NatsError) as error:
            log.warning("heartbeat_not_taken", reason=str(error) or type(error).__name__)
            self._heartbeat_seq = 0
            self.say_all_again()
            return
        if ack.seq <= self._heartbeat_seq:
            log.info("observed_was_lost", seq=ack.seq, before=self._heartbeat_seq)
            self.say_all_again()
        self._heartbeat_seq = ack.seq
