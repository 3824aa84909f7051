"""Data volumes: claims of one project that pods of others read. A pod mounts claims of its own namespace alone, so
before the first pod there, a volume for the same storage is made, and a claim for it; both go when no pod has them.

The claim comes first and goes last, and says what it is: who dies in between leaves a claim that is found, and never a
volume that nobody knows of. Neither holds data, and each is made again where it is needed: so nobody is asked whether
they may go, as with claims of workloads (claims.py).
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import msgspec
import structlog
from msgspec.structs import replace

from events.cluster_protocol import SHARED_CLAIMS, RunPod
from events.workload.volumes import ClaimedFolder, SharedFolder
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.claims import ClaimError
from services.agent.backends.kubernetes.act.marked_claims import ClaimName, claim_path, marked_claims
from services.agent.backends.kubernetes.act.objects import Claim, PersistentVolume
from services.agent.backends.kubernetes.act.pauses import Pauses
from services.agent.backends.kubernetes.act.shared_manifests import claim_manifest, not_shareable, volume_manifest
from services.agent.backends.kubernetes.client import CONFLICT, FORBIDDEN, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.view import View

_VOLUMES: Final = "/api/v1/persistentvolumes"
_ALLOW: Final = (
    "an administrator of the cluster allows it with deploy/kubernetes/volumes.yaml: `kubectl apply -f "
    "deploy/kubernetes/volumes.yaml`"
)

log = structlog.get_logger(__name__)


class SharedVolumes:
    def __init__(
        self,
        client: KubeClient,
        view: View,
        cluster_id: str,
        be_sure: Callable[[], None],
        *,
        project_of: Callable[[str], str],
        namespace_of: Callable[[str], str],
        unused_seconds: float,
    ) -> None:
        """`be_sure`: as with Services (headless.py). `project_of`: the id of the project that a namespace is for, and
        `namespace_of` the namespace of a project, by its name.
        """
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._be_sure = be_sure
        self._project_of = project_of
        self._namespace_of = namespace_of
        self._unused_seconds = unused_seconds
        self._there: dict[ClaimName, Claim] = {}
        """All claims of data volumes that bear this cluster's marks."""
        self._making: Counter[ClaimName] = Counter()
        """Pods that are just being made."""
        self._unused: dict[ClaimName, float] = {}
        """Since when no pod has it (monotonic)."""
        self._pauses = Pauses[ClaimName]()
        self._turn = asyncio.Lock()
        """One call at a time, so that none is deleted that was just found to be there."""

    async def load(self) -> None:
        """Read again which there are. Raises ApiError."""
        async with self._turn:
            selector = f"{names.CLUSTER}={self._cluster_id},{names.DATA_VOLUME}"
            # Where it may not list them, claims.py says so.
            self._there = await marked_claims(self._client, selector) or {}

    @contextlib.asynccontextmanager
    async def making(self, run: RunPod, namespace: str) -> AsyncGenerator[RunPod]:
        """The pod is made inside, of the run that this gives: with claims that are there in place of its data volumes.
        Raises ClaimError, ApiError, BackendError.
        """
        for volume in run.volumes:
            if isinstance(volume, ClaimedFolder) and volume.claim.startswith(SHARED_CLAIMS):
                raise ClaimError(f"claim {volume.claim} is of a data volume: name the data volume by its id")
        held: list[ClaimName] = []
        volumes = list(run.volumes)
        try:
            for index, volume in enumerate(volumes):
                if isinstance(volume, SharedFolder):
                    name = await self._ensure(volume, namespace, held)
                    volumes[index] = ClaimedFolder(mount_path=volume.mount_path, claim=name, read_only=True)
            yield replace(run, volumes=tuple(volumes)) if held else run
        finally:
            self._making.subtract(held)
            self._making = +self._making

    async def look(self, volume: SharedFolder) -> str:
        """Why pods of other namespaces cannot have it, in words; empty where they can. Raises ApiError."""
        try:
            source, _ = await self._source(volume)
            namespace = self._namespace_of("any")
            name = names.shared_name(self._cluster_id, volume.data_volume, namespace, source.metadata.uid)
            manifest = volume_manifest(source.spec, name, namespace, self._labels(volume.data_volume))
            await self._post_volume(manifest, only_tried=True)
        except ClaimError as error:
            return str(error)
        return ""

    async def reads(self, source: ClaimName) -> bool:
        """Whether pods of other namespaces read this claim through one of ours. Raises ApiError.

        Who can make claims by hand can give them our marks, and the annotation too, and would keep others' claims so.
        But volumes only we make, and what a claim is called says for which volume.
        """
        marked = "/".join(source)
        found = {
            name: one.metadata.labels.data_volume
            for name, one in self._there.items()
            if one.metadata.annotations.shared_from == marked and self._project_of(name[0])
        }
        if not found or not self._making.keys().isdisjoint(found):
            return bool(found)  # the volume of one that is being made may be there in a moment
        try:
            claim = msgspec.json.decode(await self._client.read(claim_path(source)), type=Claim)
            volume = await self._volume(claim.spec.volume_name) if claim.spec.volume_name else None
            if volume is None:
                return False
            for name, data_volume in found.items():
                called = names.shared_name(self._cluster_id, data_volume, name[0], volume.metadata.uid)
                if name[1] == called and self._is_ours(await self._volume(called), name):
                    return True
        except ClaimError:
            # Without the right to read volumes, none is made; an older one may be left, which its pods tell of.
            return not self._used().isdisjoint(found)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
        return False

    async def tidy(self) -> None:
        """Level-based, called every second or so: deletes what no pod has had for a while."""
        if not self._there:
            return
        now, used = time.monotonic(), self._used()
        self._unused = {name: since for name, since in self._unused.items() if name in self._there and name not in used}
        for name, claim in list(self._there.items()):
            if name in used or not self._project_of(name[0]) or self._pauses.is_resting(name):
                continue
            since = self._unused.setdefault(name, now)
            if now - since < self._unused_seconds and claim.metadata.deletion_timestamp is None:
                continue
            try:
                await self._remove(name)
            except (ApiError, BackendError) as error:
                pause = self._pauses.rest(name)
                log.warning(
                    "data_volume_left", namespace=name[0], claim=name[1], again_seconds=pause, reason=str(error)
                )

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _used(self) -> set[ClaimName]:
        """By pods that have not ended, and those that are being made."""
        found = set(self._making)
        for pod in self._view.pods.values():
            if (claims := pod.metadata.annotations.shared_claims) and not pod.ended:
                found |= {(pod.metadata.namespace, name) for name in claims.split(",")}
        return found

    def _is_ours(self, volume: PersistentVolume | None, name: ClaimName) -> bool:
        """Whether we made it, for this claim."""
        if volume is None or volume.metadata.labels.get(names.CLUSTER) != self._cluster_id:
            return False
        of: dict[str, Any] = volume.spec.get("claimRef") or {}
        return (of.get("namespace"), of.get("name")) == name

    def _labels(self, data_volume: str) -> dict[str, str]:
        return {
            names.MANAGED_BY: names.MANAGER,
            names.CLUSTER: self._cluster_id,
            names.DATA_VOLUME: data_volume,
        }

    async def _source(self, volume: SharedFolder) -> tuple[PersistentVolume, str]:
        """(the volume behind the claim that is shared, namespace and name of that). Raises ClaimError, ApiError."""
        namespace = self._namespace_of(volume.project_name)
        called = f"claim {volume.claim} of project {volume.project_name}"
        if not volume.claim or self._project_of(namespace) != volume.project_id:
            raise ClaimError(f"there is no {called}: the project has no namespace {namespace} on this cluster")
        try:
            answer = await self._client.read(claim_path((namespace, volume.claim)))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            raise ClaimError(f"there is no {called}, in namespace {namespace}") from error
        claim = msgspec.json.decode(answer, type=Claim)
        if not claim.spec.volume_name:
            raise ClaimError(f"{called} is not bound to a volume yet: it has to be used once by its own project")
        found = await self._volume(claim.spec.volume_name)
        of: dict[str, Any] = {} if found is None else found.spec.get("claimRef") or {}
        if found is None or of.get("uid") != claim.metadata.uid:
            raise ClaimError(f"{called} has lost its volume {claim.spec.volume_name}")
        if wrong := not_shareable(found.spec):
            raise ClaimError(f"{called} cannot be shared: {wrong}")
        if (options := found.metadata.annotations.mount_options) is not None:
            found = replace(found, spec={**found.spec, "mountOptions": [one for one in options.split(",") if one]})
        return found, f"{namespace}/{volume.claim}"

    async def _volume(self, name: str) -> PersistentVolume | None:
        """Raises ClaimError, ApiError."""
        try:
            return msgspec.json.decode(await self._client.read(f"{_VOLUMES}/{name}"), type=PersistentVolume)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            if error.status != FORBIDDEN:
                raise
            raise ClaimError(f"this cluster's agent shares no claims between projects; {_ALLOW}") from error

    async def _ensure(self, volume: SharedFolder, namespace: str, held: list[ClaimName]) -> str:
        """The name of the claim, which is there. It is in `held` from before it is made."""
        source, claim_of = await self._source(volume)
        name = names.shared_name(self._cluster_id, volume.data_volume, namespace, source.metadata.uid)
        held.append((namespace, name))
        self._making[namespace, name] += 1
        labels = self._labels(volume.data_volume)
        async with self._turn:
            claim = await self._ensure_claim(
                claim_manifest(source.spec, name, namespace, labels, claim_of), (namespace, name), volume.data_volume
            )
            there = await self._volume(name)
            if there is None:
                there = await self._make_volume(
                    volume_manifest(source.spec, name, namespace, labels), (namespace, name), claim
                )
            of: dict[str, Any] = there.spec.get("claimRef") or {}
            if not self._is_ours(there, (namespace, name)):
                raise ClaimError(f"there is a volume {name} that Muster did not make: delete it")
            if there.metadata.deletion_timestamp is not None or of.get("uid") not in {None, "", claim.metadata.uid}:
                self._unused[namespace, name] = float("-inf")
                raise BackendError(f"volume {name} of this data volume is being deleted")
            self._unused.pop((namespace, name), None)
        return name

    async def _ensure_claim(self, manifest: dict[str, Any], name: ClaimName, data_volume: str) -> Claim:
        found = self._there.get(name)
        if found is None:
            path = f"/api/v1/namespaces/{name[0]}/persistentvolumeclaims"
            try:
                answer = await self._client.create(path, manifest, sure=self._be_sure)
            except ApiError as error:
                if error.status == CONFLICT and error.reason == "AlreadyExists":
                    answer = await self._client.read(claim_path(name))
                elif error.unreachable or error.status == NOT_FOUND:
                    raise
                else:
                    raise ClaimError(f"the claim of a data volume cannot be made: {error.message}") from error
            found = msgspec.json.decode(answer, type=Claim)
        labels = found.metadata.labels
        if (labels.cluster, labels.data_volume) != (self._cluster_id, data_volume):
            raise ClaimError(f"there is a claim {name[1]} in namespace {name[0]} that Muster did not make: delete it")
        self._there[name] = found
        if found.metadata.deletion_timestamp is not None:
            raise BackendError(f"claim {name[1]} of this data volume is being deleted")
        return found

    async def _make_volume(self, manifest: dict[str, Any], name: ClaimName, claim: Claim) -> PersistentVolume:
        try:
            return await self._post_volume(manifest)
        except ClaimError:
            # It would wait for ever.
            with contextlib.suppress(ApiError, BackendError):
                await self._client.delete(claim_path(name), uid=claim.metadata.uid, sure=self._be_sure)
                self._there.pop(name, None)
            raise

    async def _post_volume(self, manifest: dict[str, Any], *, only_tried: bool = False) -> PersistentVolume:
        """Raises ClaimError, ApiError, BackendError."""
        try:
            if only_tried:
                answer = await self._client.create(_VOLUMES, manifest, dryRun="All")
            else:
                answer = await self._client.create(_VOLUMES, manifest, sure=self._be_sure)
        except ApiError as error:
            if error.unreachable:
                raise
            if error.status == CONFLICT and error.reason == "AlreadyExists":
                answer = await self._client.read(f"{_VOLUMES}/{manifest['metadata']['name']}")
            else:
                advice = f"; {_ALLOW}" if "cannot create resource" in error.message else ""
                raise ClaimError(f"its volume cannot be shared: {error.message}{advice}") from error
        return msgspec.json.decode(answer, type=PersistentVolume)

    async def _remove(self, name: ClaimName) -> None:
        """The volume, and then the claim, by which both are found. Raises ApiError, BackendError."""
        async with self._turn:
            if name in self._used() or name not in self._there:
                return
            await self._remove_volume(name)
            try:
                await self._client.delete(claim_path(name), uid=self._there[name].metadata.uid, sure=self._be_sure)
            except ApiError as error:
                if error.status not in {NOT_FOUND, CONFLICT}:
                    raise
            log.info("data_volume_removed", namespace=name[0], claim=name[1])
            self._there.pop(name, None)
            self._unused.pop(name, None)
            self._pauses.end(name)

    async def _remove_volume(self, name: ClaimName) -> None:
        try:
            found = await self._volume(name[1])
        except ClaimError as error:
            raise BackendError(str(error)) from error
        # One of somebody else is none of ours to delete, nor one of ours that is for another claim of this name.
        if found is None or not self._is_ours(found, name):
            return
        try:
            await self._client.delete(f"{_VOLUMES}/{name[1]}", uid=found.metadata.uid, sure=self._be_sure)
        except ApiError as error:
            if error.status not in {NOT_FOUND, CONFLICT}:
                raise
