"""What the agent says on `obs.<cluster>.>`: what changed, ends and everything else again and again.

OBSERVED is a memory stream that may be lost, so nothing is said only once. Messages are encoded once and sent as bytes:
to say two thousand things again costs some milliseconds.
"""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError

from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod
from events.ids import node_key
from events.subjects import observed_cluster_subject, observed_node_subject, observed_pod_subject
from services.agent.backends.interface import LIVE_KINDS

ENDS_AGAIN_SECONDS: Final = 5.0
"""Somebody waits for an end: its node stays reserved until it is in the log."""
ALL_AGAIN_SECONDS: Final = 30.0
HELD_SECONDS: Final = 5.0
"""How long a pod is starting until that is said, where there is nothing else to tell. Each word becomes a commit, which
every service reads; most pods run sooner, and then one word says both.
"""
ACK_SECONDS: Final = 5.0
AT_ONCE: Final = 250
"""Messages after which others of this process get their turn."""

log = structlog.get_logger(__name__)
_ENCODER: Final = msgspec.json.Encoder()


class Reports:
    """The newest word on every pod and node, and who still has to hear it."""

    def __init__(self, nc: Client, cluster_id: str) -> None:
        self._nc = nc
        self._cluster_id = cluster_id
        self._said: dict[str, bytes] = {}
        self._ends: set[str] = set()
        self._unsaid: set[str] = set()
        self._held: dict[str, float] = {}
        """Subjects of pods that are only starting, and when that is said; in this order."""
        self._heartbeat_seq = 0
        self._reconnects = nc.stats["reconnects"]
        self._ends_at = 0.0
        self._all_at = 0.0

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
        return True

    def say_all_again(self) -> None:
        self._unsaid |= self._said.keys() - self._held.keys()

    def fall_due(self, now: float) -> None:
        """Take up what must be said again by now (monotonic seconds)."""
        if self._nc.stats["reconnects"] != self._reconnects:
            self._reconnects = self._nc.stats["reconnects"]
            self.say_all_again()
        for subject in list(itertools.takewhile(lambda held: self._held[held] <= now, self._held)):
            del self._held[subject]
            self._unsaid.add(subject)
        if now >= self._all_at:
            self._all_at = now + ALL_AGAIN_SECONDS
            self.say_all_again()
        if now >= self._ends_at:
            self._ends_at = now + ENDS_AGAIN_SECONDS
            self._unsaid |= self._ends

    async def flush(self) -> None:
        """Send what is unsaid, where there is a connection; else it stays."""
        if not self._unsaid or not self._nc.is_connected:
            return
        unsaid, self._unsaid = self._unsaid, set()
        await self._send(unsaid)

    async def _send(self, subjects: Iterable[str]) -> None:
        for number, subject in enumerate(subjects, start=1):
            message = self._said.get(subject)
            if message is None:
                continue
            try:
                await self._nc.publish(subject, message)
            except NatsError as error:
                # The connection is away or its buffer full: all is said again after it is back.
                log.info("report_not_sent", reason=str(error) or type(error).__name__)
                self._unsaid.add(subject)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def heartbeat(self, message: ObservedCluster) -> None:
        """The only message that asks for an answer: by its sequence a lost stream is noticed."""
        if not self._nc.is_connected:
            return
        subject = observed_cluster_subject(self._cluster_id)
        try:
            ack = await self._nc.jetstream().publish(  # pyright: ignore[reportUnknownMemberType]
                subject, _ENCODER.encode(message), timeout=ACK_SECONDS
            )
        except (NatsError, JetStreamError, TimeoutError) as error:
            log.warning("heartbeat_not_taken", reason=str(error) or type(error).__name__)
            self._heartbeat_seq = 0
            self.say_all_again()
            return
        if ack.seq <= self._heartbeat_seq:
            log.info("observed_was_lost", seq=ack.seq, before=self._heartbeat_seq)
            self.say_all_again()
        self._heartbeat_seq = ack.seq
