"""Secrets of pods that need values of credentials, or keys for ssh: one for each such pod, there as long as the pod is.

As with Services (headless.py) what should be there follows from the pods alone: the pod is made first and says that it
has one, it waits for it, and the Secret is deleted before the pod is let go. Who dies in between finds a pod that says
so. Secrets are made and deleted here, and never read: whether one is there is told by nodes, which miss it, and by the
API server, which refuses a second one of its name. Values stand in no error and in no log, and are kept nowhere: where
they are needed again, they are asked for again (services/agent/values.py).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from weakref import WeakValueDictionary

import structlog

from events.cluster_protocol import RunPod, SealedValues
from events.workload.commands import PodWarning
from services.agent.backends.interface import NO_CREDENTIALS, BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.manifests import managed_labels
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.act.pauses import Pauses
from services.agent.backends.kubernetes.act.secret_manifests import needs_of, secret_manifest, secret_name
from services.agent.backends.kubernetes.client import CONFLICT, FORBIDDEN, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.view import View, token_of
from services.runtime.process.failpoints import reached

type _Name = tuple[str, str]
"""Namespace and name."""

log = structlog.get_logger(__name__)


class Secrets:
    def __init__(
        self,
        client: KubeClient,
        view: View,
        cluster_id: str,
        be_sure: Callable[[], None],
        *,
        project_of: Callable[[str], str],
    ) -> None:
        """`be_sure`: as with Services (headless.py). `project_of`: the id of the project that a namespace is for."""
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._be_sure = be_sure
        self._project_of = project_of
        self._there: dict[_Name, datetime] = {}
        """Made by us, and not deleted since: when."""
        self._missed: set[_Name] = set()
        """Of those, which a node did not find."""
        self._left: set[_Name] = set()
        """Those that should be gone, and could not be deleted."""
        self._leaving: set[str] = set()
        """Uids of pods that are just being let go."""
        self._pauses = Pauses[_Name]()
        self._turns: WeakValueDictionary[_Name, asyncio.Lock] = WeakValueDictionary()
        """One call at a time for each, so that none is made of a pod that is being let go."""

    async def ensure(self, pod: Pod, run: RunPod, values: SealedValues) -> None:
        """Make this pod's, where it is not known to be there. Raises BackendError; a refusal is told on the pod."""
        if not self._has_one(pod) or run.project_id != self._project_of(pod.metadata.namespace):
            return
        name = self._name(pod)
        async with self._turn(name):
            if not self._lacks(pod, name):
                return
            if not needs_of(values, name[1]).secret:
                self._tell(pod, run.no_credentials or "nobody says what the values of its credentials are")
                self._pauses.rest(name)
                return
            try:
                await self._make(pod, values, name)
            except ApiError as error:
                self._pauses.rest(name)
                sentence = _sentence(error, values)
                if not error.unreachable:
                    self._tell(pod, sentence)
                raise BackendError(sentence, again_seconds=error.retry_after_seconds) from None
        reached("secret_made")

    def lacking(self) -> Sequence[tuple[str, int]]:
        """Pod keys and tokens of runs that wait for theirs."""
        waiting = (pod for pod in self._view.pods.values() if self._has_one(pod))
        found = [
            (pod.metadata.labels.pod_key, token_of(pod))
            for pod in waiting
            if self._lacks(pod, name := self._name(pod)) and not self._pauses.is_resting(name)
        ]
        self._pauses.keep(self._left | {self._name(pod) for pod in self._view.pods.values()})
        return found

    @contextlib.asynccontextmanager
    async def leaving(self, pod: Pod) -> AsyncGenerator[None]:
        """The pod is let go inside; its Secret is deleted before that. Raises ApiError, BackendError."""
        self._leaving.add(pod.metadata.uid)
        try:
            if self._has_one(pod):
                await self._delete(self._name(pod))
            yield
        finally:
            self._leaving.discard(pod.metadata.uid)

    def miss(self, namespace: str, name: str, at: datetime) -> None:
        """A node did not find it then."""
        made_at = self._there.get((namespace, name))
        if made_at is not None and at >= made_at:
            self._missed.add((namespace, name))

    async def tidy(self) -> None:
        """Level-based, called every second or so: deletes what could not be deleted with its pod."""
        for name in [name for name in self._left if not self._pauses.is_resting(name)]:
            with contextlib.suppress(ApiError, BackendError):
                await self._delete(name)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _turn(self, name: _Name) -> asyncio.Lock:
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    def _name(self, pod: Pod) -> _Name:
        return pod.metadata.namespace, secret_name(self._cluster_id, pod)

    def _has_one(self, pod: Pod) -> bool:
        """None where a pod says that it is another project's than its namespace: whoever may make pods there would get
        values that are not for them.
        """
        labels, namespace = pod.metadata.labels, pod.metadata.namespace
        return bool(pod.metadata.annotations.credentials) and self._project_of(namespace) == labels.project

    def _lacks(self, pod: Pod, name: _Name) -> bool:
        """What runs has read it, and is never started again."""
        if pod.ended or pod.status.phase == "Running" or pod.metadata.uid in self._leaving:
            return False
        known = self._view.pods.get(pod.metadata.labels.pod_key)
        if known is None or known.metadata.uid != pod.metadata.uid or known.metadata.deletion_timestamp is not None:
            return False
        return name not in self._there or name in self._missed

    async def _make(self, pod: Pod, values: SealedValues, name: _Name) -> None:
        namespace, secret = name
        labels = managed_labels(self._cluster_id) | {names.WORKLOAD: pod.metadata.labels.workload}
        manifest = secret_manifest(pod, values, secret, labels)
        try:
            await self._client.create(_path(namespace), manifest, sure=self._be_sure)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            # Of the agent before this one, or of somebody who knew the name: what is in it nobody can say.
            await self._delete_object(name)
            await self._client.create(_path(namespace), manifest, sure=self._be_sure)
        self._there[name] = datetime.now(UTC)
        self._missed.discard(name)
        self._pauses.end(name)

    async def _delete(self, name: _Name) -> None:
        async with self._turn(name):
            try:
                await self._delete_object(name)
            except ApiError as error:
                if error.unreachable:
                    raise
                # It must not keep a pod that has ended. An API server that just began refuses what it allows a moment
                # later, while it has not read its roles.
                self._left.add(name)
                pause = self._pauses.rest(name)
                log.warning("secret_left", namespace=name[0], secret=name[1], again_seconds=pause, reason=str(error))
                return
            finally:
                self._there.pop(name, None)
                self._missed.discard(name)
            self._left.discard(name)
            self._pauses.end(name)

    async def _delete_object(self, name: _Name) -> None:
        try:
            await self._client.delete(f"{_path(name[0])}/{name[1]}", sure=self._be_sure)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def _tell(self, pod: Pod, message: str) -> None:
        self._view.warn(pod.metadata.uid, PodWarning(reason=NO_CREDENTIALS, message=message, at=datetime.now(UTC)))


def _sentence(error: ApiError, values: SealedValues) -> str:
    """Of what the server says only what it surely says of names: a webhook may quote what it was shown."""
    of_credentials = bool(values.environment or values.registries or values.logins or values.keys)
    what = "the values of its credentials" if of_credentials else "its keys for ssh"
    said = f"{what} cannot be put on the cluster ({error.status} {error.reason})"
    if error.status == FORBIDDEN and "exceeded quota" in error.message:
        return f"{said}; an administrator may raise the ResourceQuota of the project's namespace; it is tried again"
    if error.status == FORBIDDEN:
        return (
            f"{said}; an administrator of the cluster gives the agent the rights of deploy/kubernetes/roles.yaml and "
            "policy.yaml; it is tried again"
        )
    return f"{said}; it is tried again"


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"
