"""Keeps WANTED as it should be: publishes what changed, and everything again where the stream was lost."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from events.cluster import Cluster
from events.cluster_protocol import SettledPod, WantedCluster, WantedPod
from events.subjects import ALL_WANTED, WANTED_STREAM, wanted_cluster_subject
from services.cluster_sync.fold import Fold
from services.cluster_sync.reconcile import WANTED_POD, Held, reconcile
from services.runtime.failpoints import reached
from services.runtime.jetstream_api import JetStreamError, decode_ack, stream_info
from services.runtime.latest import read_latest
from services.runtime.requests import Requests

PUBLISH_SECONDS: Final = 3.0
IN_FLIGHT: Final = 256
"""Publishes that wait for their answer at once: enough to hide the round trip, few enough to bound memory."""
SETTLED_TTL: Final = "600s"
"""How long a settled run's word stays for an agent that was away; later ones ask again by reporting the run."""

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
            word = WANTED_POD.decode(payload)
            if not isinstance(word, SettledPod):
                self._pods[subject] = Held(type(word), word.token)

    async def check(self) -> None:
        """Raises WantedLostError where the stream is behind what we published, UnansweredError where it is away."""
        newest_seq = self._newest_seq  # before asking: publishes go on meanwhile
        info = await stream_info(self._requests, WANTED_STREAM, seconds=PUBLISH_SECONDS)
        if info.state.last_seq < newest_seq:
            raise WantedLostError(f"it ends at {info.state.last_seq}, and went up to {newest_seq}")

    async def tell_all(self, fold: Fold) -> None:
        """Make the whole stream say what the log says."""
        await self.tell_clusters(fold, list(fold.clusters))
        await self.tell_pods(fold, {*fold.desired, *self._pods})

    async def tell_pods(self, fold: Fold, subjects: set[str]) -> None:
        """Raises UnansweredError or JetStreamError after all that could be published was: tell the same again later."""
        await self.publish(reconcile(sorted(subjects), fold.desired, self._pods))

    async def tell_clusters(self, fold: Fold, keys: Sequence[str]) -> None:
        for key in keys:
            cluster = fold.clusters[key].state
            subject = wanted_cluster_subject(cluster.cluster_id)
            payload = msgspec.json.encode(_cluster_word(cluster))
            if self._clusters.get(subject) != payload:
                await self._put(subject, payload, settled=False)
                self._clusters[subject] = payload

    async def publish(self, words: Sequence[tuple[str, WantedPod]]) -> None:
        """Publish words about pods, some hundred at a time."""
        failed: list[BaseException] = []
        for start in range(0, len(words), IN_FLIGHT):
            results = await asyncio.gather(
                *(self._publish_pod(subject, word) for subject, word in words[start : start + IN_FLIGHT]),
                return_exceptions=True,
            )
            failed.extend(result for result in results if isinstance(result, BaseException))
        if failed:
            raise failed[0]

    async def _publish_pod(self, subject: str, word: WantedPod) -> None:
        settled = isinstance(word, SettledPod)
        await self._put(subject, msgspec.json.encode(word), settled=settled)
        reached("wanted_published")
        if settled:
            self._pods.pop(subject, None)
        else:
            self._pods[subject] = Held(type(word), word.token)

    async def _put(self, subject: str, payload: bytes, *, settled: bool) -> None:
        headers = {"Nats-TTL": SETTLED_TTL} if settled else None
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
        simulated_nodes=cluster.simulated_nodes,
    )
