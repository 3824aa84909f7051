"""Per pod key the smallest token that may still be started, kept in ConfigMaps of the agent's namespace.

Keys are spread over a fixed number of maps (shards), each value is `<token> <hour of the last change>`, such as
`17 2026-11-21T06Z`. A map is changed only as it was read (resourceVersion), so that two agents at once lose nothing of
each other's, and what we learn of another's changes is taken over. Many changes of one map that are asked for at the
same time become one patch. A fence is never lowered; one that did not move for 30 days is dropped.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

import msgspec
import structlog

from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act.manifests import fence_map_manifest
from services.agent.backends.kubernetes.act.objects import ConfigMap
from services.agent.backends.kubernetes.client import CONFLICT, FORBIDDEN, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.names import CLUSTER, fence_map_name

HOUR_SECONDS: Final = 3600
KEPT_HOURS: Final = 30 * 24
"""How long a fence is kept after it last moved. Messages that could start an old run are long gone."""
MAP_BYTES: Final = 900 * 1024
"""How large a map may grow; Kubernetes takes 1 MiB."""
TRIES: Final = 10
"""How often a change is sent at most, where others change the same map."""
PAUSE_SECONDS: Final = 0.1
"""Longest wait before the next try; jittered, so that two agents do not stay in step."""
PAGE_MAPS: Final = 16
"""Maps in one answer to a list: 15 MB where all are full."""


log = structlog.get_logger(__name__)


class _Fence(msgspec.Struct, frozen=True, gc=False):
    token: int
    hour: int
    """Of the last change, since 1970."""

    @property
    def text(self) -> str:
        return f"{self.token} {datetime.fromtimestamp(self.hour * HOUR_SECONDS, UTC):%Y-%m-%dT%HZ}"


class _Shard:
    def __init__(self, number: int) -> None:
        self.number = number
        self.version: str | None = None
        """resourceVersion at which the map held `stored`; empty: there was none; None: to be read."""
        self.stored: dict[str, _Fence] = {}
        self.asked: dict[str, int] = {}
        """Tokens for the next patch."""
        self.patch: asyncio.Task[None] | None = None
        """The one that will carry `asked`, until it does."""
        self.look: asyncio.Task[None] | None = None
        """One that will read the map, until it asks."""
        self.turn = asyncio.Lock()


class Fences:
    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        cluster_id: str,
        shards: int = 32,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._cluster_id = cluster_id
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._clock = clock
        self._shards = [_Shard(number) for number in range(shards)]
        self._tokens: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.tokens: Mapping[str, int] = MappingProxyType(self._tokens)
        """What is persisted, as far as we know; the same object for ever."""

    async def load(self) -> None:
        """Read all; may be called again. Raises ApiError."""
        by_name = {fence_map_name(self._cluster_id, shard.number): shard for shard in self._shards}
        start = fence_map_name(self._cluster_id, 0).removesuffix("0")
        page = {"limit": str(PAGE_MAPS), "labelSelector": f"{CLUSTER}={self._cluster_id}"}
        again = {}
        while True:
            answer = msgspec.json.decode(await self._client.read(self._maps, **page, **again), type=_MapList)
            for item in answer.items:
                name = item.metadata.name
                if shard := by_name.get(name):
                    await self._look_at(shard, item)
                elif name.startswith(start):
                    # From a time with more shards: kept, and never changed again.
                    self._learn(self._parse(item))
            if not answer.metadata.continue_:
                return
            again = {"continue": answer.metadata.continue_}

    async def look(self, pod_key: str) -> None:
        """Learn what is persisted for this pod, asked for after now. Raises ApiError."""
        shard = self._shard(pod_key)
        if shard.look is None:
            shard.look = self._begin(self._look(shard))
        await asyncio.shield(shard.look)

    async def _look(self, shard: _Shard) -> None:
        async with shard.turn:
            shard.look = None
            try:
                answer = await self._client.read(f"{self._maps}/{fence_map_name(self._cluster_id, shard.number)}")
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
            else:
                self._compare(shard, msgspec.json.decode(answer, type=ConfigMap))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that several wait for: whoever asked may go away."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _shard(self, pod_key: str) -> _Shard:
        return self._shards[crc32(pod_key.encode()) % len(self._shards)]

    async def _look_at(self, shard: _Shard, found: ConfigMap) -> None:
        async with shard.turn:
            self._compare(shard, found)

    def _compare(self, shard: _Shard, found: ConfigMap) -> None:
        if shard.version is None and not shard.stored:
            self._take(shard, found)
        elif shard.version != found.metadata.resource_version:
            # What of ours it may have lost is stored again with the next change.
            self._learn(self._parse(found))
            shard.version = None

    async def raise_to(self, pod_key: str, token: int) -> None:
        """Returns when no smaller token can be started any more, whoever reads the fences. Raises ApiError, or
        BackendError where others changed the same map again and again.
        """
        if self._tokens.get(pod_key, 0) >= token:
            return
        shard = self._shard(pod_key)
        shard.asked[pod_key] = max(shard.asked.get(pod_key, 0), token)
        if shard.patch is None:
            shard.patch = self._begin(self._patch(shard))
        await asyncio.shield(shard.patch)

    async def close(self) -> None:
        """Give up what is on its way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Seen here, for those who waited may all be gone.
            task.exception()

    async def _patch(self, shard: _Shard) -> None:
        """All that is asked for once it is our turn: what comes while another patch is on its way goes together."""
        async with shard.turn:
            asked, shard.asked, shard.patch = shard.asked, {}, None
            hour = int(self._clock() // HOUR_SECONDS)
            wanted = {key: _Fence(token, hour) for key, token in asked.items()}
            try:
                await self._store(shard, wanted)
            except BaseException:
                # Whether the server did it is not known.
                shard.version = None
                raise

    async def _store(self, shard: _Shard, wanted: dict[str, _Fence]) -> None:
        for _ in range(TRIES):
            if shard.version is None:
                wanted = _newest(wanted, await self._read(shard))
            changes = self._changes(shard, wanted)
            if not changes:
                return
            try:
                answer = await self._send(shard, changes)
            except ApiError as error:
                if error.status not in {CONFLICT, NOT_FOUND}:
                    raise
                # Somebody changed, made or deleted the map since we read it.
                shard.version = None
                await asyncio.sleep(random.uniform(0, PAUSE_SECONDS))  # noqa: S311 (jitter)
                continue
            shard.version = answer.metadata.resource_version
            for key, fence in changes.items():
                if fence is None:
                    del shard.stored[key]
                    self._tokens.pop(key, None)
                else:
                    shard.stored[key] = fence
                    self._learn({key: fence})
            return
        name = fence_map_name(self._cluster_id, shard.number)
        raise BackendError(f"ConfigMap {self._namespace}/{name} changes too often: {TRIES} of its writes conflicted")

    async def _read(self, shard: _Shard) -> dict[str, _Fence]:
        """The map as it is now. Answers with what was in it before and must be stored again."""
        before = shard.stored
        try:
            answer = await self._client.read(f"{self._maps}/{fence_map_name(self._cluster_id, shard.number)}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            shard.version, shard.stored = "", {}
        else:
            self._take(shard, msgspec.json.decode(answer, type=ConfigMap))
        return {key: fence for key, fence in before.items() if fence.token > _token(shard.stored.get(key))}

    def _take(self, shard: _Shard, found: ConfigMap) -> None:
        shard.version, shard.stored = found.metadata.resource_version, self._parse(found)
        self._learn(shard.stored)

    def _changes(self, shard: _Shard, wanted: Mapping[str, _Fence]) -> dict[str, _Fence | None]:
        """What to write into the map; None: to be dropped."""
        changes: dict[str, _Fence | None] = {
            key: fence for key, fence in wanted.items() if fence.token > _token(shard.stored.get(key))
        }
        if not changes:
            return {}
        oldest = int(self._clock() // HOUR_SECONDS) - KEPT_HOURS
        kept = {key: fence for key, fence in shard.stored.items() if key not in changes}
        changes |= {key: None for key, fence in kept.items() if fence.hour < oldest}
        size = _size(kept.items()) + _size((key, fence) for key, fence in changes.items() if fence is not None)
        if size > MAP_BYTES:
            log.warning("fences_dropped", shard=shard.number, reason="the map is full: the oldest fences go early")
            for key in sorted(kept, key=lambda key: kept[key].hour):
                if size <= MAP_BYTES:
                    break
                changes[key] = None
                size -= _size([(key, kept[key])])
        return changes

    async def _send(self, shard: _Shard, changes: Mapping[str, _Fence | None]) -> ConfigMap:
        data = {key: None if fence is None else fence.text for key, fence in changes.items()}
        # No record of who wrote which key: it would be as large as the map, and everybody here is an agent of ours.
        metadata: dict[str, Any] = {"managedFields": [{}]}
        if shard.version:
            metadata["resourceVersion"] = shard.version
            path = f"{self._maps}/{fence_map_name(self._cluster_id, shard.number)}"
            answer = await self._client.patch(path, {"metadata": metadata, "data": data})
            return msgspec.json.decode(answer, type=ConfigMap)
        whole = {key: text for key, text in data.items() if text is not None}
        manifest = fence_map_manifest(
            cluster_id=self._cluster_id, namespace=self._namespace, shard=shard.number, data=whole
        )
        try:
            answer = await self._client.create(self._maps, manifest)
        except ApiError as error:
            if error.status == NOT_FOUND:
                await make_namespace(self._client, self._namespace)
            raise
        return msgspec.json.decode(answer, type=ConfigMap)

    def _learn(self, fences: Mapping[str, _Fence]) -> None:
        for key, fence in fences.items():
            if fence.token > self._tokens.get(key, 0):
                self._tokens[key] = fence.token

    def _parse(self, found: ConfigMap) -> dict[str, _Fence]:
        fences: dict[str, _Fence] = {}
        for key, text in found.data.items():
            try:
                token, hour = text.split(" ")
                changed = datetime.fromisoformat(hour).timestamp()
                fences[key] = _Fence(int(token), int(changed // HOUR_SECONDS))
            except ValueError:
                log.warning("fence_unreadable", config_map=found.metadata.name, key=key, value=text)
        return fences


class _Page(msgspec.Struct, frozen=True):
    continue_: str = msgspec.field(name="continue", default="")


class _MapList(msgspec.Struct, frozen=True):
    metadata: _Page
    items: tuple[ConfigMap, ...] = ()


async def make_namespace(client: KubeClient, namespace: str) -> None:
    """The agent's own, where it is missing. Raises BackendError where we may not, ApiError."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    try:
        await client.create("/api/v1/namespaces", manifest)
    except ApiError as error:
        if error.status == FORBIDDEN:
            raise BackendError(
                f"there is no namespace {namespace!r} on the cluster, and the agent may not make it: "
                "it is the agent's own, for what it must remember"
            ) from error
        if error.status != CONFLICT:
            raise


def _token(fence: _Fence | None) -> int:
    return 0 if fence is None else fence.token


def _newest(one: Mapping[str, _Fence], other: Mapping[str, _Fence]) -> dict[str, _Fence]:
    both = {**other, **one}
    return {key: max(fence, other.get(key, fence), key=_token) for key, fence in both.items()}


def _size(fences: Iterable[tuple[str, _Fence]]) -> int:
    """In the server's store; 8 for what stands around each."""
    return sum(len(key) + len(fence.text) + 8 for key, fence in fences)
