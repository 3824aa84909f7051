"""Keeps WANTED as it should be: publishes what changed, and everything again where the stream was lost."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from events.cluster import Cluster
from events.cluster_protocol import ObservedPod, SettledPod, WantedCluster, WantedPod
from events.codec import UNDECODABLE
from events.simulated import packed
from events.subjects import ALL_WANTED, WANTED_STREAM, wanted_cluster_subject
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.observe import answer_to_stale
from services.cluster_sync.reconcile import UNREADABLE, WANTED_POD, Held, reconcile
from services.runtime.log.latest import read_latest
from services.runtime.nats.jetstream_api import JetStreamError, decode_ack, stream_info
from services.runtime.nats.requests import Requests
from services.runtime.process.failpoints import reached

PUBLISH_SECONDS: Final = 3.0
IN_FLIGHT: Final = 256
"""Publishes that wait for their answer at once: enough to hide the round trip, few enough to bound memory."""
ANSWER_TTL: Final = "600s"
"""How long a word about a run that is over stays for an agent that was away; later ones ask again by reporting the run.
So an agent that speaks of very many runs that never were fills the stream for minutes, and not for ever.
"""

log = structlog.get_logger(__name__)


class WantedLostError(Exception):
    """WANTED holds less than was published: the stream was emptied, as after a restart of the server."""


class Wanted:
    """What WANTED holds, as far as we know, and how it is changed. One task calls its methods."""

    def __init__(self, nc: Client, requests: Requests) -> None:
        self._nc = nc
        self._requests = requests
        self._pods: dict[str, Held] = {}
        self._clusters: dict[str, bytes] = {}
        self._newest_seq = 0
        """Highest sequence that was seen of the stream: of its end when it was read, and of our publishes since."""

    async def read(self) -> None:
        """Learn anew what the stream holds. Raises TimeoutError, UnansweredError, JetStreamError."""
        info = await stream_info(self._requests, WANTED_STREAM, seconds=PUBLISH_SECONDS)
        found = await read_latest(self._nc, self._requests, WANTED_STREAM, ALL_WANTED)
        self._pods, self._clusters, self._newest_seq = {}, {}, info.state.last_seq
        for subject, payload in found.items():
            if subject.endswith(".cluster"):
                self._clusters[subject] = payload
                continue
            try:
                word = WANTED_POD.decode(payload)
            except UNDECODABLE as error:
                log.warning("wanted_unreadable", subject=subject, error=str(error))
                self._pods[subject] = UNREADABLE
                continue
            if not isinstance(word, SettledPod):
                self._pods[subject] = Held(type(word), word.token)

    async def check(self) -> None:
        """Raises WantedLostError where the stream is behind what we published, UnansweredError where it is away."""
        newest_seq = self._newest_seq  # before asking: publishes go on meanwhile
        info = await stream_info(self._requests, WANTED_STREAM, seconds=PUBLISH_SECONDS)
        if info.state.last_seq < newest_seq:
            raise WantedLostError(f"it ends at {info.state.last_seq}, and went up to {newest_seq}")

    async def tell_all(self, fold: DesiredState) -> None:
        """Make the whole stream say what the log says."""
        await self.tell_clusters(fold, [key for key, chain in fold.clusters.items() if chain.state.cluster_id])
        await self.tell_pods(fold, {*fold.desired, *self._pods})

    async def answer(self, fold: DesiredState, stale: Mapping[str, ObservedPod]) -> None:
        """Tell agents what to do with runs that are over. Call it before `tell_pods`: where a newer run of a pod is
        desired, that must be the last word.
        """
        answers = [
            (subject, answer_to_stale(observed))
            for subject, observed in stale.items()
            if (desired := fold.desired.get(subject)) is None or desired.token < observed.token
        ]
        await self._publish(answers, lasting=False)

    async def tell_pods(self, fold: DesiredState, subjects: set[str]) -> None:
        """Raises UnansweredError or JetStreamError after all that could be published was: tell the same again later."""
        await self._publish(reconcile(sorted(subjects), fold.desired, self._pods), lasting=True)

    async def tell_clusters(self, fold: DesiredState, keys: Sequence[str]) -> None:
        for key in keys:
            cluster = fold.clusters[key].state
            subject = wanted_cluster_subject(cluster.cluster_id)
            payload = msgspec.json.encode(_cluster_word(cluster))
            if self._clusters.get(subject) != payload:
                await self._put(subject, payload, lasting=True)
                self._clusters[subject] = payload

    async def _publish(self, words: Sequence[tuple[str, WantedPod]], *, lasting: bool) -> None:
        """Publish words about pods, some hundred at a time. Those about runs that are over do not last."""
        failed: list[BaseException] = []
        for start in range(0, len(words), IN_FLIGHT):
            results = await asyncio.gather(
                *(
                    self._publish_pod(subject, word, lasting=lasting)
                    for subject, word in words[start : start + IN_FLIGHT]
                ),
                return_exceptions=True,
            )
            failed.extend(result for result in results if isinstance(result, BaseException))
        if failed:
            raise failed[0]

    async def _publish_pod(self, subject: str, word: WantedPod, *, lasting: bool) -> None:
        lasting = lasting and not isinstance(word, SettledPod)
        await self._put(subject, msgspec.json.encode(word), lasting=lasting)
        reached("wanted_published")
        if not lasting:
            self._pods.pop(subject, None)
        else:
            self._pods[subject] = Held(type(word), word.token)

    async def _put(self, subject: str, payload: bytes, *, lasting: bool) -> None:
        headers = None if lasting else {"Nats-TTL": ANSWER_TTL}
        ack = decode_ack(await self._requests.ask(subject, payload, seconds=PUBLISH_SECONDS, headers=headers))
        if ack.error is not None:
            raise JetStreamError(ack.error)
        self._newest_seq = max(self._newest_seq, ack.seq)


def _cluster_word(cluster: Cluster) -> WantedCluster:
    return WantedCluster(
        cluster_id=cluster.cluster_id,
        name=cluster.name,
        kind=cluster.kind,
        removed=cluster.removed,
        packed_nodes=packed(cluster.simulated_nodes),
        cut_off=cluster.cut_off_at is not None,
    )
