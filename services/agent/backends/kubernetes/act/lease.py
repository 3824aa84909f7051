"""Which agent of a cluster acts: the one that holds the cluster's Lease. Others know all that it knows, and wait.

The Lease is renewed every few seconds. Nobody's wall clock counts: who waits measures, with a clock of its own, how
long the Lease has not changed; who holds it counts from the moment before its last renewal was sent, and stops acting
seconds before another may begin. A process that stood still finds its time over when it goes on.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act.fences import make_namespace
from services.agent.backends.kubernetes.act.manifests import managed_labels
from services.agent.backends.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.names import lease_name

DURATION_SECONDS: Final = 10
"""How long a Lease that nobody renews keeps others waiting."""
HELD_SECONDS: Final = 6.0
"""How long after it was asked for a renewal is relied on. The rest is what a call may take from the last look at the
Lease to the API server."""
RENEW_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.5
"""Between two turns at least."""
FIRST_SECONDS: Final = 5.0
"""How long the first list waits to know who acts; one that acts need not list again."""


log = structlog.get_logger(__name__)


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


def _awake_or_not() -> float:
    """Seconds that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """`run` must be running. `term` rises whenever this agent becomes the one that acts."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        cluster_id: str,
        identity: str,
        clock: Callable[[], float] = _awake_or_not,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._cluster_id = cluster_id
        self._identity = identity
        self._clock = clock
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._leases}/{lease_name(cluster_id)}"
        self._held_until = 0.0
        self._seen = ""
        """resourceVersion of somebody else's Lease, and since when it has been that."""
        self._seen_at = 0.0
        self._version = ""
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.term = 0
        self.other = ""
        """Who acts in our place; empty where we do, or where it is not known that somebody does."""

    def held(self) -> bool:
        """Whether this agent is the one that acts, now and for some seconds more."""
        return self._clock() < self._held_until

    async def start(self) -> None:
        """Begin, and wait until it is known who acts, but not for long. Does nothing the second time."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS):
                await self._known.wait()

    async def close(self) -> None:
        """Give it back, so that nobody has to wait for its end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.held():
            self._held_until = 0.0
            with contextlib.suppress(ApiError, TimeoutError):
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._client.patch(self._path, self._body("", self._version))

    async def _run(self) -> None:
        while True:
            began = self._clock()
            try:
                async with asyncio.timeout(HELD_SECONDS):
                    await self._turn()
            except (ApiError, BackendError, TimeoutError) as error:
                log.warning("lease_not_renewed", reason=str(error) or "the API server did not answer in time")
            self._known.set()
            # From turn to turn: a server that answers slowly is asked no more rarely.
            took = self._clock() - began
            await asyncio.sleep(max(RENEW_SECONDS * random.uniform(0.8, 1.2) - took, PAUSE_SECONDS))  # noqa: S311 (jitter)

    async def _turn(self) -> None:
        """Renew it where it is ours, take it where nobody renews it. Raises ApiError."""
        # Held, it is as we left it, or somebody else's: then the version tells, and a look at it costs nothing more.
        if self.held() and await self._take(self._identity, self._version, 0):
            return
        try:
            found = msgspec.json.decode(await self._client.read(self._path), type=_Lease)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            await self._make()
            return
        holder, version = found.spec.holder_identity or "", found.metadata.resource_version
        if holder not in {"", self._identity} and not self._is_over(version):
            self._follow(holder)
            return
        await self._take(holder, version, found.spec.lease_transitions or 0)

    def _is_over(self, version: str) -> bool:
        """Whether a Lease of somebody else's has not changed for as long as it lasts."""
        if version != self._seen:
            self._seen, self._seen_at = version, self._clock()
        return self._clock() - self._seen_at > DURATION_SECONDS

    def _follow(self, holder: str) -> None:
        self._held_until = 0.0
        if holder != self.other:
            log.info("standing_by", cluster_id=self._cluster_id, acts=holder)
        self.other = holder

    async def _make(self) -> None:
        body = self._body(self._identity, "")
        metadata = {"name": lease_name(self._cluster_id), "labels": managed_labels(self._cluster_id)}
        body |= {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        for has_namespace in (False, True):
            asked_at = self._clock()
            try:
                answer = await self._client.create(self._leases, body, tries=1)
            except ApiError as error:
                if error.status == CONFLICT:
                    return  # somebody was faster
                if error.status != NOT_FOUND or has_namespace:
                    raise
                await make_namespace(self._client, self._namespace)
            else:
                self._hold(answer, asked_at)
                return

    async def _take(self, holder: str, version: str, transitions: int) -> bool:
        """Whether nobody was faster."""
        body = self._body(self._identity, version)
        if holder != self._identity:
            body["spec"] |= {"acquireTime": _now(), "leaseTransitions": transitions + 1}
        asked_at = self._clock()
        try:
            answer = await self._client.patch(self._path, body)
        except ApiError as error:
            if error.status in {CONFLICT, NOT_FOUND}:
                return False
            raise
        self._hold(answer, asked_at)
        return True

    def _hold(self, answer: bytes, asked_at: float) -> None:
        if not self.held():
            # While we did not hold it, somebody else may have.
            self.term += 1
            log.info("acting", cluster_id=self._cluster_id, term=self.term, before=self.other)
        self.other = ""
        self._held_until = asked_at + HELD_SECONDS
        self._version = msgspec.json.decode(answer, type=_Lease).metadata.resource_version

    def _body(self, holder: str, version: str) -> dict[str, Any]:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": _now()}
        return {"metadata": {"resourceVersion": version} if version else {}, "spec": spec}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Identity:
    """Who we are to other agents. The same again after a restart in the same folder: our predecessor is surely gone,
    for its lock on the folder is, so nobody has to wait for the end of its Lease.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "identity", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fresh = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.name = fresh
            return
        self.name = os.pread(self._lock, 100, 0).decode("utf-8", "replace")
        # Of another machine: the folder was copied, and nobody's lock tells whether the one it is from still runs.
        if self.name.rpartition("-")[0] != socket.gethostname():
            self.name = fresh
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, fresh.encode(), 0)
            os.fsync(self._lock)

    def close(self) -> None:
        """Let the folder go; the second time does nothing."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
