"""Our pods' objects on the API server: made, ended, let go. One object per rank, held until its end is settled."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from events.cluster_protocol import CREDENTIAL_SECRETS, ObservedPod, RunPod, SealedValues
from events.phases import NO_CLAIM, NODE_PORT_TAKEN
from events.workload.commands import PodFactKind
from events.workload.needs import GPU
from events.workload.pod import PodRef
from events.workload.volumes import BucketFolder, ClonedFolder, ConfigFiles, FolderLogin
from services.agent.backends.interface import BAD_CODE, NO_CREDENTIALS, BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.claims import ClaimError, Claims
from services.agent.backends.kubernetes.act.code_maps import CodeMaps, NoRoomError
from services.agent.backends.kubernetes.act.fences import Fences
from services.agent.backends.kubernetes.act.headless import HeadlessServices
from services.agent.backends.kubernetes.act.manifests import pod_manifest, shares_devices
from services.agent.backends.kubernetes.act.namespaces import Namespaces, Place
from services.agent.backends.kubernetes.act.node_ports import NodePorts, NodePortTakenError
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.act.reservations import Held, NoDeviceError, Reservations
from services.agent.backends.kubernetes.act.secret_manifests import needs_of
from services.agent.backends.kubernetes.act.secrets import Secrets
from services.agent.backends.kubernetes.act.security import violates
from services.agent.backends.kubernetes.act.shared import SharedVolumes
from services.agent.backends.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.configuration import Configuration
from services.agent.backends.kubernetes.read.logs import LoggedRun, PodLogs
from services.agent.backends.kubernetes.read.observe import creation_refused
from services.agent.backends.kubernetes.read.view import View, token_of
from services.agent.backends.privileged import NOT_PRIVILEGED, beyond_baseline
from services.agent.code import BadCodeError
from services.runtime.process.failpoints import reached

RELEASE_TRIES: Final = 3
IN_THE_MAKING_SECONDS: Final = 1.0
"""Twice what an agent takes between its last look at what may be made and the call that makes it."""
NOTHING_HELD: Final = Held(names=(), devices=())
FINISH_LOGS_SECONDS: Final = 10.0
IN_FLIGHT_SECONDS: Final = 5.0
"""How long the server may be busy with a request whose connection is gone; it gives up most of them at once."""

_TOO_MANY: Final = 429


class Runs:
    """Methods raise ApiError, and BackendError where the cluster's state must change first."""

    def __init__(
        self,
        client: KubeClient,
        view: View,
        cluster_id: str,
        *,
        configuration: Configuration,
        fences: Fences,
        namespaces: Namespaces,
        services: HeadlessServices,
        code: CodeMaps,
        secrets: Secrets,
        claims: Claims,
        shared: SharedVolumes,
        reservations: Reservations,
        logs: PodLogs,
        is_current: Callable[[], bool],
        on_news: Callable[[], None],
    ) -> None:
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._configuration = configuration
        self._fences = fences
        self._namespaces = namespaces
        self._services = services
        self._node_ports = NodePorts(client, view, cluster_id)
        self._code = code
        self._secrets = secrets
        self._claims = claims
        self._shared = shared
        self._reservations = reservations
        self._logs = logs
        self._is_current = is_current
        """Whether this agent is the one that acts, and the view and the fences that it read show what is so now."""
        self._on_news = on_news
        self._unsure: dict[str, tuple[str, float]] = {}
        """By pod key: paths of objects that may have been made, though no answer came, and when (monotonic)."""
        self._finishing: dict[str, asyncio.Task[None]] = {}
        """By uid: what fetches the rest of an ended pod's log."""

    async def close(self) -> None:
        for task in self._finishing.values():
            task.cancel()
        await asyncio.gather(*self._finishing.values(), return_exceptions=True)

    # -- made --------------------------------------------------------------------------------------------------------

    async def apply(self, pod: RunPod, values: SealedValues) -> None:
        there = self._view.pods.get(pod.pod_key)
        if self._is_over(pod):
            if there is not None and token_of(there) == pod.token:
                await self._secrets.ensure(there, pod, values)
            return
        if wrong := pod.no_credentials or _taken_secret(pod):
            self._refuse(pod, NO_CREDENTIALS, wrong, kind="failed")
            return
        if pod.no_volume:
            self._refuse(pod, NO_CLAIM, pod.no_volume, kind="failed")
            return
        if wrong := await self._impossible(pod):
            self._refuse(pod, "no_such_place", wrong)
            return
        if there is not None:
            await self._make_room(there)
        await self._create(pod, values)

    def _is_over(self, pod: RunPod) -> bool:
        """Whether this run was made already. Raises BackendError where it may not be made any more."""
        ended, there = self._view.end_of(pod.pod_key), self._view.pods.get(pod.pod_key)
        newest = max(ended.token if ended else -1, token_of(there) if there else -1)
        if newest < pod.token < self._fences.tokens.get(pod.pod_key, 0):
            raise BackendError(f"run {pod.token} of {pod.pod_key} may not be started any more")
        return newest >= pod.token

    async def _impossible(self, pod: RunPod) -> str:
        """Why this run cannot be where it was bound; empty where it can."""
        node = self._view.nodes.get(pod.node_name)
        if node is None:
            if await self._has_node(pod.node_name):
                raise BackendError(f"the API server has node {pod.node_name!r} but has not listed it yet")
            return f"there is no node {pod.node_name!r} in the cluster"
        devices = int(node.status.allocatable.get(GPU, "0"))
        missing = [share.device for share in pod.devices if share.device >= devices]
        return f"node {pod.node_name!r} has no device {missing[0]}, it has {devices}" if missing else ""

    def _refuse(self, pod: RunPod, reason: str, message: str, *, kind: PodFactKind = "refused") -> None:
        self._end_without_object(
            ObservedPod(
                pod_key=pod.pod_key,
                token=pod.token,
                workload_id=pod.workload_id,
                pod=pod.pod,
                kind=kind,
                at=datetime.now(UTC),
                node_name=pod.node_name,
                reason=reason,
                message=message,
            )
        )

    def _end_without_object(self, seen: ObservedPod) -> None:
        self._view.refuse(seen)
        self._on_news()

    async def _make_room(self, before: Pod) -> None:
        """An older run's object has the name that a newer one needs."""
        key, token = before.metadata.labels.pod_key, token_of(before)
        if before.ended:
            await self._fences.raise_to(key, token + 1)
            await self._release(before)
            return
        await self.delete(key, token, self._configuration.superseded_grace_seconds)
        if key in self._view.pods:
            raise BackendError(f"pod {before.metadata.name} of an earlier run is still there")

    async def _create(self, pod: RunPod, values: SealedValues) -> None:
        if message := beyond_baseline(pod):
            self._refuse(pod, NOT_PRIVILEGED, message, kind="failed")
            return
        place = await self._namespaces.ensure(pod)
        try:
            code_maps = await self._code.prepare(place.name, pod) if pod.code else 0
        except BadCodeError as error:
            self._refuse(pod, BAD_CODE, str(error), kind="failed")
            return
        except NoRoomError as error:
            self._refuse(pod, "no_room_for_code", str(error))
            return
        try:
            async with self._shared.making(pod, place.name) as run, self._claims.making(run, place.name):
                await self._create_in(place, run, values, code_maps)
        except ClaimError as error:
            self._refuse(pod, NO_CLAIM, str(error), kind="failed")

    async def _create_in(self, place: Place, pod: RunPod, values: SealedValues, code_maps: int) -> None:
        indexes = [share.device for share in pod.devices]
        if shares_devices(pod):
            if not self._may_make(pod):
                return
            try:
                async with self._reservations.hold(pod.node_name, indexes) as held:
                    await self._post(pod, place, held, values, code_maps)
            except NoDeviceError as error:
                self._refuse(pod, "no_device", str(error))
            return
        if indexes:
            await self._reservations.vacate(pod.node_name, indexes)
        await self._post(pod, place, NOTHING_HELD, values, code_maps)

    async def _post(self, pod: RunPod, place: Place, held: Held, values: SealedValues, code_maps: int) -> None:
        try:
            pod = await self._node_ports.chosen(pod, place.name)
        except NodePortTakenError as error:
            self._refuse(pod, NODE_PORT_TAKEN, str(error), kind="failed")
            return
        manifest = pod_manifest(
            pod,
            cluster_id=self._cluster_id,
            namespace=place.name,
            security=place.security,
            devices=held.devices,
            reservations=held.names,
            device_memory_bytes=self._view.device_memory_bytes(pod.node_name),
            service=names.service_name(pod) if pod.pods > 1 else "",
            code_maps=code_maps,
            own_image=self._configuration.reservation_image,
            needs=needs_of(values, names.secret_name(self._cluster_id, pod.pod_key, pod.token)),
        )
        namespace = place.name
        path = f"/api/v1/namespaces/{namespace}/pods"
        if not self._may_make(pod):
            return
        try:
            # Once: sent again some seconds later, it would be from before the look. And looked at last of all, after
            # the wait for a turn and for credentials.
            answer = await self._client.create(path, manifest, tries=1, sure=lambda: self._be_sure(pod))
        except ApiError as error:
            if error.unreachable and error.status != _TOO_MANY and error.reason != "Refused":
                self._unsure[pod.pod_key] = (f"{path}/{names.pod_name(pod)}", time.monotonic())
            if error.status == CONFLICT and error.reason == "AlreadyExists":
                await self._take_existing(pod, f"{path}/{names.pod_name(pod)}")
                self._unsure.pop(pod.pod_key, None)
                return
            if error.status == NOT_FOUND:
                self._namespaces.doubt(namespace)
            if violates(error.message) and await self._namespaces.changed(place, pod):
                raise BackendError(f"namespace {namespace} enforces another Pod Security by now") from error
            at = datetime.now(UTC)
            seen = creation_refused(pod, namespace=namespace, status=error.status, message=error.message, at=at)
            if seen is None:
                raise
            self._end_without_object(seen)
            return
        reached("pod_created")
        self._unsure.pop(pod.pod_key, None)
        made = self._see(answer)
        # What it lacks of these is seen by who keeps order among them, and tried again.
        with contextlib.suppress(BackendError):
            await self._secrets.ensure(made, pod, values)
        with contextlib.suppress(ApiError, BackendError, BadCodeError):
            await self._code.ensure(made)
        with contextlib.suppress(ApiError, BackendError):
            await self._services.ensure(made)

    def _may_make(self, pod: RunPod) -> bool:
        """False: it was made. Raises BackendError where it may not be made, or we do not know enough of now."""
        if not self._is_current():
            raise BackendError(
                "another agent of this cluster acts, or what the cluster looks like is not known at the moment: "
                "nothing is started"
            )
        return not self._is_over(pod)

    def _be_sure(self, pod: RunPod) -> None:
        """Raises BackendError where this run may not be made now."""
        if not self._may_make(pod):
            raise BackendError(f"run {pod.token} of {pod.pod_key} was made meanwhile")

    async def _take_existing(self, pod: RunPod, path: str) -> None:
        """Something has the name already: this run (made by us before we died, or by another agent), another run of
        this pod, or somebody else's pod.
        """
        found = msgspec.json.decode(await self._client.read(path), type=Pod)
        if not found.ours(self._cluster_id) or found.metadata.labels.pod_key != pod.pod_key:
            name = f"{found.metadata.namespace}/{found.metadata.name}"
            self._refuse(pod, "name_taken", f"a pod that is not Muster's has the name {name}: delete it")
            return
        self._view.see_pod(found)
        self._on_news()
        if token_of(found) < pod.token:
            raise BackendError(f"pod {found.metadata.name} of an earlier run is still there")

    def _see(self, answer: bytes) -> Pod:
        pod = msgspec.json.decode(answer, type=Pod)
        self._view.see_pod(pod)
        self._on_news()
        return pod

    # -- ended -------------------------------------------------------------------------------------------------------

    async def delete(self, pod_key: str, token: int, grace_seconds: int) -> None:
        await self._fences.raise_to(pod_key, token + 1)
        reached("fence_raised")
        await self._make_sure(pod_key)
        pod = self._view.pods.get(pod_key)
        self._view.fence_moved(pod_key)
        self._on_news()
        if pod is None or token_of(pod) > token or pod.ended:
            return
        if await self._is_fenced(pod):
            await self._take_away(pod, why="it is no longer in the cluster, or out of service")
            return
        if await self._mark_asked(pod):
            await self._delete_object(pod, grace_seconds)
        reached("pod_deleted")

    async def _mark_asked(self, pod: Pod) -> bool:
        """Write down since when the pod is asked to go, so that its own end before that is known for one ever after.
        False: this object is gone.
        """
        if pod.metadata.annotations.asked_to_end_at or pod.metadata.deletion_timestamp is not None:
            return True
        now = datetime.now(UTC).isoformat(timespec="seconds")
        body = {"metadata": {"uid": pod.metadata.uid, "annotations": {names.ASKED_TO_END_AT: now}}}
        try:
            self._see(await self._client.patch(_path(pod), body))
        except ApiError as error:
            if error.status in {NOT_FOUND, CONFLICT}:
                return False
            raise
        return True

    async def _make_sure(self, pod_key: str) -> None:
        """Find out whether an object was made that no answer came for: nobody may say "it never was" before."""
        path, asked_at = self._unsure.get(pod_key, ("", 0.0))
        if not path:
            return
        try:
            self._see(await self._client.read(path))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            if time.monotonic() - asked_at < IN_FLIGHT_SECONDS:
                raise BackendError(f"the API server did not say whether it made {path}, and may still do so") from error
        self._unsure.pop(pod_key, None)

    async def give_up(self, pod: Pod, why: str) -> None:
        """End a live run on a node that does not answer, where the settings say so; it may still run there."""
        await self._fences.raise_to(pod.metadata.labels.pod_key, token_of(pod) + 1)
        await self._take_away(pod, why=why)

    async def forget(self, pod_key: str, token: int) -> None:
        await self._fences.raise_to(pod_key, token + 1)
        pod = self._view.pods.get(pod_key)
        if pod is not None and token_of(pod) <= token:
            if not pod.ended:
                return
            await self._release(pod)
        self._view.forget(pod_key, token)

    async def is_there(self, pod_key: str, token: int) -> bool:
        """Twice: another agent may have been about to make it when the fence was raised."""
        await self._make_sure(pod_key)
        if await self._find(pod_key, token):
            return True
        await asyncio.sleep(IN_THE_MAKING_SECONDS)
        return await self._find(pod_key, token)

    async def _find(self, pod_key: str, token: int) -> bool:
        selector = f"{names.CLUSTER}={self._cluster_id},{names.POD_KEY}={pod_key}"
        answer = await self._client.read("/api/v1/pods", labelSelector=selector)
        found = msgspec.json.decode(answer, type=_PodList).items
        for pod in found:
            self._view.see_pod(pod)
        self._on_news()
        # One of an earlier run that has ended stays until it is let go. A copy elsewhere is none of ours.
        return any(token_of(pod) == token for pod in found if self._namespaces.has(pod.metadata.namespace))

    async def _is_fenced(self, pod: Pod) -> bool:
        """Whether nothing can run on the pod's node any more. That it has no object is asked of the server itself."""
        node = pod.spec.node_name
        if not self._view.fenced(node):
            return False
        return node in self._view.nodes or not await self._has_node(node)

    async def _has_node(self, name: str) -> bool:
        """Asked of the API server, for a list may be behind or a lie."""
        return await self._client.has(f"/api/v1/nodes/{name}")

    async def _take_away(self, pod: Pod, *, why: str) -> None:
        """Take away the object of a live run whose node cannot end it any more."""
        seen = self._view.lost(pod, datetime.now(UTC), why)
        await self._release(pod, by_force=True)
        if seen is not None:
            self._end_without_object(seen)

    async def _release(self, pod: Pod, *, by_force: bool = False) -> None:
        """Let an object go whose end is known. Its log is fetched before."""
        if not by_force:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_LOGS_SECONDS):
                    await self.finish_log(pod)
            self._finishing.pop(pod.metadata.uid, None)
        async with self._services.leaving(pod), self._code.leaving(pod), self._secrets.leaving(pod):
            for _ in range(RELEASE_TRIES):
                held = await self._delete_object(pod, 0 if by_force else None)
                if held is None or await self._remove_finalizer(held):
                    break
            else:
                raise BackendError(f"pod {pod.metadata.name} changes too often to be released")
            reached("finalizer_removed")
            self._view.released(pod)

    def finish_log(self, pod: Pod) -> asyncio.Task[None]:
        """Fetch the rest of an ended pod's log, once."""
        task = self._finishing.get(pod.metadata.uid)
        if task is None:
            task = self._finishing[pod.metadata.uid] = asyncio.create_task(self._logs.finish(logged_run(pod)))
        return task

    async def _delete_object(self, pod: Pod, grace_seconds: int | None) -> Pod | None:
        """The object as it is now, where something still holds it."""
        try:
            answer = await self._client.delete(_path(pod), uid=pod.metadata.uid, grace_seconds=grace_seconds)
        except ApiError as error:
            if error.status in {NOT_FOUND, CONFLICT}:
                return None  # gone; another object may have its name by now
            raise
        found = msgspec.json.decode(answer, type=_Deleted)
        return msgspec.json.decode(answer, type=Pod) if found.kind == "Pod" else None

    async def _remove_finalizer(self, pod: Pod) -> bool:
        """False: the object has changed meanwhile."""
        if names.FINALIZER not in pod.metadata.finalizers:
            return True
        left = [one for one in pod.metadata.finalizers if one != names.FINALIZER]
        version = pod.metadata.resource_version
        body = {"metadata": {"uid": pod.metadata.uid, "resourceVersion": version, "finalizers": left}}
        try:
            await self._client.patch(_path(pod), body)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return True
            if error.status == CONFLICT:
                return False
            raise
        return True


class _PodList(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...] = ()


class _Deleted(msgspec.Struct, frozen=True):
    """What a deletion answers with: the object where something still holds it, else a `Status`."""

    kind: str = ""


def _taken_secret(run: RunPod) -> str:
    """Why a run may not name the Secrets that it names; empty where it may. Its pod alone refers to its own."""
    named = [source.object_name for source in run.environment_from if source.kind == "secret"]
    for volume in run.volumes:
        match volume:
            case (
                ConfigFiles(secret=True, object_name=name)
                | ClonedFolder(login=FolderLogin(credential=False, name=name))
                | BucketFolder(login=FolderLogin(credential=False, name=name))
            ):
                named.append(name)
            case _:
                pass
    taken = next((name for name in (*named, *run.container.pull_secrets) if name.startswith(CREDENTIAL_SECRETS)), "")
    return f"Secret {taken} holds values of somebody's credentials: name a credential of your own" if taken else ""


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def logged_run(pod: Pod) -> LoggedRun:
    labels = pod.metadata.labels
    return LoggedRun(
        pod_key=labels.pod_key,
        token=int(labels.token),
        workload_id=labels.workload,
        pod=PodRef(pod_set=labels.pod_set, index=int(labels.index), attempt=int(labels.attempt), try_=int(labels.try_)),
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
    )
