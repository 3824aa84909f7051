"""Doubt about lists: an API server that has lost its data, or a proxy that answers for it, says that nothing is there.

What is believed of a list decides whether runs are given up and placed anew, so one that lacks what we knew is checked.
Pods of ours do not vanish by themselves (a finalizer holds them) but where an agent let them go, this one or another;
nodes do, and cost something where runs of ours live on them.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from events.agent_bounds import MAX_ATTRIBUTES, MAX_STORAGE_CLASSES
from events.cluster import StorageClass, usual_class
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import (
    ConfigMap,
    ConfigMaps,
    Node,
    Pod,
    StorageClasses,
    StorageClassObject,
)
from services.agent.backends.kubernetes.client import FORBIDDEN, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.informer import ListResult

MISSING_AT_MOST: Final = 5
"""So many missing objects may be really gone, however few there are in all."""
MISSING_SHARE: Final = 0.1
"""And so many of all that were known."""
ASKED_AT_ONCE: Final = 32
SETTINGS_MAP: Final = "muster-agent"
"""ConfigMap of the agent's namespace in which the cluster's administrator tells us things."""
ACCEPT_MISSING: Final = "acceptMissingUntil"
"""Key there: until this moment (RFC 3339) every list is believed."""
PROTECTION: Final = ("workloadOwnershipProtection", "enableWorkloadOwnershipProtection")
"""Keys there: whether only owners act on their workloads (S084); `true` or `false`."""

STORAGE_CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
MOST_KEY_CHARACTERS: Final = 63
"""Of an attribute of a claim, as requests can name one."""
PUBLIC_NAMESPACE: Final = "runai-public"
"""Where Run:ai's users have the same keys, in a ConfigMap of whatever name."""
MOST_PUBLIC_MAPS: Final = 20
"""That are looked at there."""


log = structlog.get_logger(__name__)


class Breaker:
    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._accept_until: datetime | None = None
        self.ownership_protection: bool | None = None
        """What the cluster's own configuration says; None: nothing."""
        self.storage_classes: tuple[StorageClass, ...] | None = None
        """None where the agent may not read them."""

    async def read_settings(self) -> None:
        """Raises ApiError."""
        try:
            answer = await self._client.read(f"/api/v1/namespaces/{self._namespace}/configmaps/{SETTINGS_MAP}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            data: Mapping[str, str] = {}
        else:
            data = msgspec.json.decode(answer, type=ConfigMap).data
        maps = [data, *await self._public_maps()]
        words = [each[key].strip().lower() for each in maps for key in PROTECTION if key in each]
        self.ownership_protection = "true" in words if words else None
        self._accept_until = _moment(data.get(ACCEPT_MISSING, ""))

    async def read_classes(self) -> None:
        """Those that come first by name, and what each allows of attributes. Raises ApiError."""
        try:
            answer = await self._client.read(f"{STORAGE_CLASSES}?limit={MAX_STORAGE_CLASSES}")
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            self.storage_classes = None
            return
        found = msgspec.json.decode(answer, type=StorageClasses).items
        self.storage_classes = tuple(sorted(map(_class, found), key=lambda each: each.name))

    async def usual_class(self) -> str:
        """Of claims that name none, where the API server would give them none: the only one there is (R28). Raises
        ApiError.
        """
        if self.storage_classes is None:
            await self.read_classes()
        usual = usual_class(self.storage_classes or ())
        return "" if usual is None or usual.default else usual.name

    async def _public_maps(self) -> list[Mapping[str, str]]:
        """What ConfigMaps of that namespace say; nothing where there is none, or the agent may not read there. Raises
        ApiError.
        """
        path = f"/api/v1/namespaces/{PUBLIC_NAMESPACE}/configmaps?limit={MOST_PUBLIC_MAPS}"
        try:
            answer = await self._client.read(path)
        except ApiError as error:
            if error.status in {FORBIDDEN, NOT_FOUND}:
                return []
            raise
        return [each.data for each in msgspec.json.decode(answer, type=ConfigMaps).items]

    async def check(
        self,
        *,
        ours: Collection[Pod],
        is_let_go: Callable[[Pod], bool],
        listed_pods: ListResult[Pod],
        nodes: Collection[str],
        used_nodes: set[str],
        listed_nodes: ListResult[Node],
    ) -> None:
        """`ours`, `nodes` and, among them, `used_nodes` are what was known before; `is_let_go`: whether an agent
        of ours may have let this pod go. Raises BackendError where the lists are not to be believed, else ApiError.
        """
        if self._accept_until is not None and datetime.now(UTC) < self._accept_until:
            return
        await self._check_namespaces()
        version = int(listed_pods.resource_version)
        gone = [
            pod
            for pod in ours
            if (pod.metadata.namespace, pod.metadata.name) not in listed_pods.objects
            and int(pod.metadata.resource_version or 0) <= version
        ]
        there = {node.metadata.name for node in listed_nodes.objects.values()}
        self._count("pods of ours", sum(not is_let_go(pod) for pod in gone), len(ours))
        self._count("nodes with runs of ours", len(used_nodes - there), len(used_nodes))
        pods = [f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}" for pod in gone]
        await self._ask_for([*pods, *(f"/api/v1/nodes/{name}" for name in nodes if name not in there)])

    async def _check_namespaces(self) -> None:
        """Also one who begins, and knows nothing that could be missing, must not believe that nothing is there."""
        page = msgspec.json.decode(await self._client.read("/api/v1/namespaces", limit="1"), type=_List)
        if not page.items:
            raise BackendError(
                "its API server lists no namespaces, not even those that every one makes for itself: not believed, "
                "nothing is given up"
            )

    def _count(self, what: str, missing: int, known: int) -> None:
        if missing > max(MISSING_AT_MOST, known * MISSING_SHARE):
            raise BackendError(
                f"its API server lists only {known - missing} of {known} {what}: not believed, nothing is given "
                f"up. If they are really gone, set {ACCEPT_MISSING} in ConfigMap {self._namespace}/{SETTINGS_MAP} to a "
                "moment to come (RFC 3339)"
            )

    async def _ask_for(self, paths: Sequence[str]) -> None:
        """Each by itself: what is not listed must not be there either."""
        for start in range(0, len(paths), ASKED_AT_ONCE):
            together = paths[start : start + ASKED_AT_ONCE]
            there = await asyncio.gather(*(self._client.has(path) for path in together))
            if found := [path for path, is_there in zip(together, there, strict=True) if is_there]:
                raise BackendError(f"its API server has {found[0]} but does not list it")


class _List(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] = ()


def _class(found: StorageClassObject) -> StorageClass:
    said = found.metadata.annotations
    keys = dict.fromkeys(key.strip() for key in said.get(names.CLAIM_ATTRIBUTES, "").split(","))
    return StorageClass(
        name=found.metadata.name,
        default="true" in (said.get(names.DEFAULT_CLASS), said.get(names.FORMER_DEFAULT_CLASS)),
        attributes=tuple(key for key in keys if 0 < len(key) <= MOST_KEY_CHARACTERS)[:MAX_ATTRIBUTES],
    )


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        log.warning("setting_unreadable", key=ACCEPT_MISSING, value=text)
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
