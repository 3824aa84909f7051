"""Code on the cluster: ConfigMaps of a project's namespace, by digest, there as long as one of the pods that has it is.

All pods that start with one archive share it, whatever workload they are of: the store of a cluster is small, and
thousands of pods are not. What should be there follows from the pods alone, whoever made them, as with Services
(headless.py): made after the first pod, which waits for it, and deleted before the last one is let go. Who dies in
between finds a pod that says so. ConfigMaps are made and deleted here, and never read.
"""

import asyncio
import contextlib
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from weakref import WeakValueDictionary

import structlog

from events.cluster_protocol import RunPod
from events.ids import KEY_PATTERN
from events.workload.commands import PodWarning
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.code_manifests import MAP_BYTES, code_map_manifest
from services.agent.backends.kubernetes.act.manifests import managed_labels
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.act.pauses import Pauses
from services.agent.backends.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.view import View
from services.agent.code import BadCodeError, CodeArchives
from services.runtime.code.kept import Code
from services.runtime.code.limits import KUBERNETES_MAX_BYTES
from services.runtime.process.failpoints import reached

MOST_MAPS: Final = -(-KUBERNETES_MAX_BYTES // MAP_BYTES)
"""Of one archive."""
HELD_ARCHIVES: Final = 8
"""Archives in memory at once, between their reading and their ConfigMaps: what goes early is read again."""
READ_AT_ONCE: Final = 4
STORE_MAPS: Final = 256 * 1024 * 1024 // MAP_BYTES
"""How many ConfigMaps with code may be in the cluster's store, deleted ones that still take room there counted: an
eighth of what etcd takes by default. Pods beyond that are placed again later."""
PROJECT_MAPS: Final = STORE_MAPS // 4
"""And how many of one project, so that none takes the room of all others."""
FREED_SECONDS: Final = 600.0
"""How long a deleted object takes room: the API server compacts its store every five minutes."""
TIDY_SECONDS: Final = 15.0
"""For one archive, when order is made: other things wait for it."""
NOT_THERE: Final = "code"
"""Code of the warning on pods that wait for their code."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_COUNT: Final = re.compile(r"[0-9]{1,3}\Z")

type _Name = tuple[str, str]
"""Namespace and digest."""

log = structlog.get_logger(__name__)


class NoRoomError(Exception):
    """The cluster's store has no room for more code now; the message says so."""


class CodeMaps:
    def __init__(
        self,
        client: KubeClient,
        view: View,
        cluster_id: str,
        archives: CodeArchives,
        be_sure: Callable[[], None],
        *,
        project_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`be_sure`: as with Services (headless.py). `project_of`: the id of the project that a namespace is for."""
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._archives = archives
        self._be_sure = be_sure
        self._project_of = project_of
        self._clock = clock
        self._there: dict[_Name, int] = {}
        """Made or found by us, and not deleted since: how many ConfigMaps."""
        self._doubted: set[_Name] = set()
        """Of those, which somebody may have deleted."""
        self._deleted: set[_Name] = set()
        """By us, a moment ago: pods that end together need not ask for it again each."""
        self._held: OrderedDict[_Name, Sequence[bytes]] = OrderedDict()
        """Archives in parts, for pods that are being made."""
        self._freed: deque[tuple[float, str, int]] = deque()
        """When ConfigMaps were deleted, in which namespace, and how many."""
        self._leaving: set[str] = set()
        """Uids of pods that are just being let go."""
        self._pauses = Pauses[_Name](clock)
        self._turns: WeakValueDictionary[_Name, asyncio.Lock] = WeakValueDictionary()
        """One call at a time for each, so that nothing is deleted that was just found to be there."""
        self._reading = asyncio.Semaphore(READ_AT_ONCE)

    # -- asked for by those who make and end pods --------------------------------------------------------------------

    async def prepare(self, namespace: str, run: RunPod) -> int:
        """In how many ConfigMaps this run's code lies, or will: its pod may be made. Raises BadCodeError where it never
        may, NoRoomError, BackendError.
        """
        name = (namespace, run.code)
        async with self._turn(name):
            if self._is_sure(name):
                return self._there[name]
            parts = await self._parts(name, run.project_id)
            self._check_room(name, len(parts))
            return len(parts)

    async def ensure(self, pod: Pod) -> None:
        """Make what this pod waits for, where it is not there. Raises ApiError, BadCodeError, BackendError."""
        name = self._set_of(pod)
        if name is None or not _waits(pod) or self._is_sure(name):
            return
        async with self._turn(name):
            # One that is just being let go needs it no more, and nobody would delete it then.
            if self._is_sure(name) or not self._is_used(name):
                return
            parts = await self._parts(name, pod.metadata.labels.project)
            # From the first on there is something to delete.
            self._deleted.discard(name)
            for number, part in enumerate(parts):
                await self._make(name, number, part)
                reached("code_map_made")
            self._there[name] = len(parts)
            self._held.pop(name, None)
            self._pauses.end(name)
            self._doubted.discard(name)

    @contextlib.asynccontextmanager
    async def leaving(self, pod: Pod) -> AsyncGenerator[None]:
        """The pod is let go inside; the code of the last one is deleted before that. Raises ApiError, BackendError."""
        self._leaving.add(pod.metadata.uid)
        try:
            if (name := self._set_of(pod)) is not None:
                await self._delete_unused(name, count_of(pod))
            yield
        finally:
            self._leaving.discard(pod.metadata.uid)

    def doubt(self) -> None:
        """Everything was listed anew, but ConfigMaps are not."""
        self._doubted |= self._there.keys()
        self._deleted.clear()

    def doubt_one(self, namespace: str, digest: str) -> None:
        """A node did not find it."""
        if (namespace, digest) in self._there:
            self._doubted.add((namespace, digest))

    async def tidy(self) -> None:
        """Level-based, called every second or so: makes what pods wait for, and deletes what no pod has any more. What
        goes wrong is told on those pods, and tried again ever more slowly.
        """
        self._deleted.clear()
        for pod in [pod for pod in self._view.pods.values() if _waits(pod)]:
            name = self._set_of(pod)
            if name is None or self._is_sure(name) or self._pauses.is_resting(name):
                continue
            try:
                async with asyncio.timeout(TIDY_SECONDS):
                    await self.ensure(pod)
            except TimeoutError:
                self._rest(name, BackendError(f"its code was not put on the cluster within {TIDY_SECONDS:.0f} s"))
            except (ApiError, BadCodeError, BackendError) as error:
                self._rest(name, error)
        used = self._used()
        for name, count in [each for each in self._there.items() if each[0] not in used]:
            if not self._pauses.is_resting(name):
                with contextlib.suppress(ApiError, BackendError):
                    await self._delete_unused(name, count)
        self._pauses.keep(used.keys() | self._there.keys())

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _turn(self, name: _Name) -> asyncio.Lock:
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    def _is_sure(self, name: _Name) -> bool:
        return name in self._there and name not in self._doubted

    def _is_used(self, name: _Name) -> bool:
        return any(
            self._set_of(pod) == name and pod.metadata.uid not in self._leaving for pod in self._view.pods.values()
        )

    def _set_of(self, pod: Pod) -> _Name | None:
        """The code that a pod has; none where it says that it is another project's than its namespace: whoever may make
        pods there would read code that is not for them.
        """
        name = set_of(pod)
        return name if name is not None and self._project_of(name[0]) == pod.metadata.labels.project else None

    def _used(self) -> dict[_Name, int]:
        """How many ConfigMaps each archive has whose pods are there."""
        return {name: count_of(pod) for pod in self._view.pods.values() if (name := self._set_of(pod)) is not None}

    async def _parts(self, name: _Name, project_id: str) -> Sequence[bytes]:
        """Raises BadCodeError, BackendError."""
        if (held := self._held.get(name)) is not None:
            return held
        code = Code(cluster_id=self._cluster_id, project_id=project_id, digest=name[1])
        async with self._reading:
            archive = await self._archives.read(code, most_bytes=KUBERNETES_MAX_BYTES)
        parts = [archive[at : at + MAP_BYTES] for at in range(0, len(archive), MAP_BYTES)]
        self._held[name] = parts
        while len(self._held) > HELD_ARCHIVES:
            self._held.popitem(last=False)
        return parts

    def _check_room(self, name: _Name, count: int) -> None:
        """Raises NoRoomError."""
        while self._freed and self._freed[0][0] < self._clock() - FREED_SECONDS:
            self._freed.popleft()
        there = {held: len(parts) for held, parts in self._held.items()} | self._used()
        there.pop(name, None)
        taken = [(place, parts) for (place, _), parts in there.items()]
        taken += [(place, parts) for _, place, parts in self._freed]
        for whose, parts, most in (
            ("", sum(parts for _, parts in taken), STORE_MAPS),
            (" of this project", sum(parts for place, parts in taken if place == name[0]), PROJECT_MAPS),
        ):
            if parts + count > most:
                # Else those that are refused would keep each other out.
                self._held.pop(name, None)
                raise NoRoomError(
                    f"the cluster's store holds {parts * MAP_BYTES // 1024**2} MiB of code{whose}, and takes at most "
                    f"{most * MAP_BYTES // 1024**2} MiB; it is tried again, and there is room once other pods with "
                    "code have ended"
                )

    async def _make(self, name: _Name, number: int, part: bytes) -> None:
        namespace, digest = name
        manifest = code_map_manifest(
            part,
            cluster_id=self._cluster_id,
            namespace=namespace,
            digest=digest,
            number=number,
            labels=managed_labels(self._cluster_id),
        )
        try:
            await self._client.create(_path(namespace), manifest, sure=self._be_sure)
        except ApiError as error:
            if error.status != CONFLICT:
                raise

    async def _delete_unused(self, name: _Name, count: int) -> None:
        async with self._turn(name):
            if name in self._deleted or self._is_used(name):
                return
            namespace, digest = name
            refused: ApiError | None = None
            for number in range(count):
                try:
                    map_name = names.code_map_name(self._cluster_id, digest, number)
                    await self._client.delete(f"{_path(namespace)}/{map_name}", sure=self._be_sure)
                except ApiError as error:
                    if error.unreachable:
                        raise
                    if error.status != NOT_FOUND:
                        refused = error
            if refused is not None:
                self._leave(name, count, refused)
                return
            self._freed.append((self._clock(), namespace, count))
            self._there.pop(name, None)
            self._doubted.discard(name)
            self._pauses.end(name)
            self._deleted.add(name)

    def _leave(self, name: _Name, count: int, error: ApiError) -> None:
        """It harms nobody, and must not keep a pod that has ended: it is deleted when order is made. An API server that
        just began refuses what it allows a moment later, while it has not read its roles.
        """
        self._there[name] = count
        # Some of its parts may be deleted.
        self._doubted.add(name)
        pause = self._pauses.rest(name)
        log.warning("code_left", namespace=name[0], digest=name[1], again_seconds=pause, reason=str(error))

    def _rest(self, name: _Name, error: ApiError | BadCodeError | BackendError) -> None:
        pause = self._pauses.rest(name)
        log.warning("code_not_made", namespace=name[0], digest=name[1], again_seconds=pause, reason=str(error))
        if isinstance(error, ApiError) and error.unreachable:
            return
        warning = PodWarning(reason=NOT_THERE, message=_sentence(error), at=datetime.now(UTC))
        for pod in self._view.pods.values():
            if self._set_of(pod) == name and _waits(pod):
                self._view.warn(pod.metadata.uid, warning)


def _sentence(error: ApiError | BadCodeError | BackendError) -> str:
    if not isinstance(error, ApiError):
        return str(error)
    advice = ""
    if "cannot create resource" in error.message:
        advice = "; an administrator of the cluster gives the agent the rights of deploy/kubernetes/roles.yaml"
    elif "exceeded quota" in error.message:
        advice = "; an administrator may raise the ResourceQuota of the project's namespace"
    return f"its code cannot be put on the cluster: {error.message}; it is tried again{advice}"


def set_of(pod: Pod) -> _Name | None:
    """The code that a pod's marks name. Others may change marks: what no agent writes is none."""
    digest = pod.metadata.annotations.code
    usable = _DIGEST.match(digest) and KEY_PATTERN.match(pod.metadata.labels.project)
    return (pod.metadata.namespace, digest) if usable else None


def count_of(pod: Pod) -> int:
    text = pod.metadata.annotations.code_maps
    return min(int(text), MOST_MAPS) if _COUNT.match(text) else 0


def _waits(pod: Pod) -> bool:
    """Whether it may not have its code yet: volumes are there before anything of a pod runs."""
    return not pod.ended and pod.status.phase != "Running" and set_of(pod) is not None


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"
