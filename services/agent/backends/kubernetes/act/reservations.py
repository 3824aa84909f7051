"""Reservation pods: each holds one device of a node for the pods that share it, and says which device it was given.

Kubernetes gives out whole devices only; those who share one get its id by environment. That is no isolation: nothing
keeps a program from using more of the device than its portion. What exists is known from the informer alone, so an
agent that starts anew goes on where the last one stopped, and two at once do the same things to the same names.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec
import structlog

from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act.fences import make_namespace
from services.agent.backends.kubernetes.act.manifests import reservation_manifest
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.names import CLUSTER, reservation_name
from services.runtime.process.failpoints import reached

LOOK_SECONDS: Final = 3.0
"""How often a pod is asked for itself while somebody waits for it, should the watch be silent."""
LEAVE_SECONDS: Final = 30.0
"""How long a reservation pod may take to go; its program ends at once."""
FIRST_PAUSE_SECONDS: Final = 1.0
"""Before a pod that failed is made again; doubled each time."""
LAST_PAUSE_SECONDS: Final = 30.0


State = Literal["missing", "waiting", "ready", "failed", "leaving"]

log = structlog.get_logger(__name__)


class NoDeviceError(BackendError):
    """The node gave the reservation pod no device: what is placed there may have to go elsewhere."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod that shares devices is told; one entry per device, in the order asked for."""

    names: tuple[str, ...]
    """Of the reservation pods, for `pod_manifest(reservations=…)`."""
    devices: tuple[str, ...]
    """Visible device ids, for `pod_manifest(devices=…)`."""


class _Place:
    """A logical device of a node."""

    def __init__(self, node_name: str, device: int, name: str) -> None:
        self.node_name = node_name
        self.device = device
        self.name = name
        self.pod: Pod | None = None
        self.former: set[str] = set()
        """Uids of objects that are gone: late words about them are not heard."""
        self.doomed = ""
        """Uid of the object that we have asked to be deleted."""
        self.holds = 0
        """Blocks of `hold` that run."""
        self.unused_since: float | None = None
        self.told = ""
        """The device that was given out last."""
        self.again_at = 0.0
        self.pause_seconds = FIRST_PAUSE_SECONDS
        self.changed = asyncio.Event()
        self.turn = asyncio.Lock()

    def __str__(self) -> str:
        return f"device {self.device} of node {self.node_name}"

    @property
    def state(self) -> State:
        if self.pod is None:
            return "missing"
        meta = self.pod.metadata
        if meta.deletion_timestamp is not None or meta.uid == self.doomed:
            return "leaving"
        if self.pod.ended or meta.annotations.device_problem:
            return "failed"
        return "ready" if meta.annotations.visible_devices else "waiting"


class _PodList(msgspec.Struct, frozen=True):
    items: tuple[Pod, ...] = ()


class Reservations:
    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        cluster_id: str,
        image: str,
        acts: Callable[[], bool],
        service_account: str = "",
        wait_seconds: float = 60.0,
        unused_seconds: float = 5.0,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._cluster_id = cluster_id
        self._image = image
        self._service_account = service_account
        self._acts = acts
        """Whether this agent is the one that acts, and knows what is so now."""
        self._wait_seconds = wait_seconds
        self._unused_seconds = unused_seconds
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._places: dict[str, _Place] = {}

    # -- what is there -------------------------------------------------------------------------------------------------

    def see(self, pod: Pod) -> None:
        """A reservation pod (`Pod.holds_gpu`) as the informer has it: listed, added or changed; may repeat."""
        place = self._place_of(pod.spec.node_name, pod.metadata.name)
        if place is None or pod.metadata.namespace != self._namespace or pod.metadata.uid in place.former:
            return
        if place.pod is not None and place.pod.metadata.uid != pod.metadata.uid:
            place.former.add(place.pod.metadata.uid)
        place.pod = pod
        if place.state == "ready":
            place.pause_seconds = FIRST_PAUSE_SECONDS
            self._hear(place, pod.metadata.annotations.visible_devices)
        place.changed.set()

    def see_gone(self, name: str, uid: str) -> None:
        """The object is gone: by a watch event, or a list without it."""
        place = self._places.get(name)
        if place is None:
            return
        place.former.add(uid)
        if place.pod is not None and place.pod.metadata.uid == uid:
            place.pod = None
            place.changed.set()

    def _hear(self, place: _Place, device: str) -> None:
        if place.told and place.told != device:
            log.warning(
                "shared_device_changed",
                node=place.node_name,
                device=place.device,
                before=place.told,
                now=device,
                reason="its reservation pod was made again; pods that began before still use the former device",
            )
        place.told = device

    def _place(self, node_name: str, device: int) -> _Place:
        name = reservation_name(self._cluster_id, node_name, device)
        return self._places.setdefault(name, _Place(node_name, device, name))

    def _place_of(self, node_name: str, name: str) -> _Place | None:
        """By the name of a reservation pod; None: no name of ours."""
        if name not in self._places:
            device = name.split("-")[-2:][0]
            if not device.isdecimal() or reservation_name(self._cluster_id, node_name, int(device)) != name:
                return None
            return self._place(node_name, int(device))
        return self._places[name]

    # -- for those who start pods --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def hold(self, node_name: str, devices: Sequence[int]) -> AsyncGenerator[Held]:
        """Make sure that these logical devices of a node are held, and wait until each says which it is; as long as the
        block runs, none of them is given up. The pod that shares them is created inside. Raises BackendError, and of
        those NoDeviceError where the node has none to give.
        """
        places = [self._place(node_name, device) for device in devices]
        for place in places:
            place.holds += 1
            place.unused_since = None
        try:
            # All are asked for before one is waited for.
            for place in places:
                if place.state == "missing":
                    await self._try(place, self._make)
            give_up = _now() + self._wait_seconds
            told = [await self._device(place, give_up) for place in places]
            yield Held(names=tuple(place.name for place in places), devices=tuple(told))
        finally:
            for place in places:
                place.holds -= 1
                # What was created may not have been seen yet.
                place.unused_since = None

    async def _device(self, place: _Place, give_up: float) -> str:
        refused = ""
        while True:
            place.changed.clear()
            pod, state = place.pod, place.state
            if pod is not None and state == "ready":
                return pod.metadata.annotations.visible_devices
            if pod is not None and state == "failed":
                await self._try(place, self._delete)
                if problem := pod.metadata.annotations.device_problem:
                    raise BackendError(f"{place} cannot be shared: {problem}")
                refused = _words(pod)
            elif state == "missing" and _now() >= place.again_at:
                await self._try(place, self._make)
            else:
                await self._wait(place, give_up)
            if _now() >= give_up:
                if refused:
                    raise NoDeviceError(f"{place} cannot be shared: {refused}")
                words = "it is not there" if place.pod is None else _words(place.pod)
                raise BackendError(
                    f"{place}: the pod {self._namespace}/{place.name} that holds it did not say which device it has "
                    f"within {self._wait_seconds:.0f} s: {words}"
                )

    async def vacate(self, node_name: str, devices: Sequence[int]) -> None:
        """Make sure that nothing of ours holds these devices for sharing, so that a pod which gets them whole is not
        refused by the node; costs nothing where none is held. Raises BackendError, also while somebody shares them.
        """
        names = [reservation_name(self._cluster_id, node_name, device) for device in devices]
        places = [self._places[name] for name in names if name in self._places]
        give_up = _now() + LEAVE_SECONDS
        for place in places:
            while place.pod is not None:
                place.changed.clear()
                if place.state == "leaving":
                    await self._wait(place, give_up)
                elif not await self._try(place, self._give_up):
                    raise BackendError(f"{place} is still being shared")
                if _now() >= give_up:
                    raise BackendError(f"{place}: the pod {self._namespace}/{place.name} that holds it is not deleted")

    async def _wait(self, place: _Place, give_up: float) -> None:
        """For news of it, and ask for some where none come."""
        until = min(_now() + LOOK_SECONDS, give_up)
        if place.state == "missing":
            until = min(until, place.again_at)
        try:
            async with asyncio.timeout_at(until):
                await place.changed.wait()
        except TimeoutError:
            await self._try(place, self._look)
            await self._try(place, self._delete)

    # -- keeping order -------------------------------------------------------------------------------------------------

    async def tidy(self, pods: Iterable[Pod]) -> None:
        """Level-based, called every second or so with the objects of all our runs: gives up reservations that nobody
        has used for a while, makes again those that are used and gone. Errors are logged; the next call tries again.
        """
        users: dict[str, list[str]] = {}
        for pod in pods:
            for name in _shares(pod):
                if self._place_of(pod.spec.node_name, name) is not None:
                    users.setdefault(name, []).append(f"{pod.metadata.namespace}/{pod.metadata.name}")
        await asyncio.gather(*(self._tidy(place, users.get(name, [])) for name, place in [*self._places.items()]))

    async def _tidy(self, place: _Place, users: Sequence[str]) -> None:
        if place.holds:
            return
        try:
            if users:
                place.unused_since = None
                await self._restore(place, users)
            elif place.pod is None:
                self._places.pop(place.name, None)
            elif place.unused_since is None:
                place.unused_since = _now()
            elif _now() >= place.unused_since + self._unused_seconds:
                await self._try(place, self._give_up)
        except BackendError as error:
            log.warning("reservation_not_tidied", pod=place.name, reason=str(error))

    async def _restore(self, place: _Place, users: Sequence[str]) -> None:
        await self._try(place, self._delete)
        if place.state == "missing" and _now() >= place.again_at:
            log.warning(
                "reservation_lost",
                node=place.node_name,
                device=place.device,
                users=users,
                reason="the pod that held a shared device was deleted; it is made again, perhaps with another device",
            )
            place.again_at = _now() + place.pause_seconds
            await self._try(place, self._make)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _try[T](self, place: _Place, call: Callable[[_Place], Awaitable[T]]) -> T:
        """One at a time for each place. Raises BackendError."""
        async with place.turn:
            try:
                return await call(place)
            except ApiError as error:
                words = f"{place}: the pod {self._namespace}/{place.name} that holds it: {error}"
                raise BackendError(words, again_seconds=error.retry_after_seconds) from error

    async def _make(self, place: _Place) -> None:
        if place.pod is not None:
            return
        manifest = reservation_manifest(
            cluster_id=self._cluster_id,
            namespace=self._namespace,
            node_name=place.node_name,
            device=place.device,
            image=self._image,
            service_account=self._service_account,
        )

        def sure() -> None:
            if not self._acts():
                raise BackendError(f"{place}: another agent of this cluster acts, or it is not known which one does")

        try:
            try:
                answer = await self._client.create(self._pods, manifest, tries=1, sure=sure)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                await make_namespace(self._client, self._namespace)
                answer = await self._client.create(self._pods, manifest, tries=1, sure=sure)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            await self._look(place)
        else:
            reached("reservation_made")
            self.see(msgspec.json.decode(answer, type=Pod))

    async def _look(self, place: _Place) -> None:
        """See the object as the API server has it."""
        try:
            pod = msgspec.json.decode(await self._client.read(f"{self._pods}/{place.name}"), type=Pod)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            if place.pod is not None:
                self.see_gone(place.name, place.pod.metadata.uid)
            return
        if not pod.holds_gpu(self._cluster_id) or pod.spec.node_name != place.node_name:
            raise BackendError(f"{place}: a pod {self._namespace}/{place.name} that Muster did not make has that name")
        self.see(pod)

    async def _delete(self, place: _Place) -> None:
        """One that failed, to be made again after a pause; or once more one whose deletion did not arrive."""
        unheard = place.pod is not None and place.state == "leaving" and place.pod.metadata.deletion_timestamp is None
        if place.state != "failed" and not unheard:
            return
        place.again_at = _now() + place.pause_seconds
        place.pause_seconds = min(place.pause_seconds * 2, LAST_PAUSE_SECONDS)
        if place.pod is not None:
            await self._send_delete(place, place.pod.metadata.uid)

    async def _give_up(self, place: _Place) -> bool:
        """Delete it, unless somebody uses it: asked of the API server, for what we have seen may be old."""
        pod = place.pod
        if pod is None:
            return True
        selectors = {
            "fieldSelector": f"spec.nodeName={place.node_name}",
            "labelSelector": f"{CLUSTER}={self._cluster_id}",
        }
        there = msgspec.json.decode(await self._client.read("/api/v1/pods", **selectors), type=_PodList)
        if place.holds or any(place.name in _shares(other) for other in there.items):
            place.unused_since = None
            return False
        # By its uid: meanwhile another agent may have given it up, and made another.
        await self._send_delete(place, pod.metadata.uid)
        return True

    async def _send_delete(self, place: _Place, uid: str) -> None:
        place.doomed = uid
        try:
            await self._client.delete(f"{self._pods}/{place.name}", uid=uid)
        except ApiError as error:
            # Without an answer it may be done yet: nobody may be given this device any more.
            if error.status not in {NOT_FOUND, CONFLICT}:
                raise
        await self._look(place)


def _shares(pod: Pod) -> list[str]:
    """Names of the reservations that a pod needs now."""
    names = pod.metadata.annotations.reservations
    return names.split(",") if names and not pod.ended else []


def _words(pod: Pod) -> str:
    """Why it is not what it should be, for a person."""
    status = pod.status
    waiting = next((c.state.waiting for c in status.container_statuses if c.state.waiting is not None), None)
    if waiting is not None:
        reason, message = waiting.reason, waiting.message
    else:
        reason, message = status.reason or f"it is {status.phase or 'new'}", status.message
    return f"{reason}: {message}" if message else reason


def _now() -> float:
    return asyncio.get_running_loop().time()
