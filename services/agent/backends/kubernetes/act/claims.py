"""Persistent volume claims of workloads: made before the first pod that has one, deleted when the control plane says
that their workload is over. Whose they are stands on the claims themselves, so whoever dies in between finds them all.

The API server keeps a claim until no pod has it any more. So none is deleted while a pod of its workload is there, or
is being made: that pod would run, and none after it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec
import structlog

from events.cluster_protocol import RunPod
from events.workload.volumes import ClaimedFolder, NewClaim
from services.agent.backends.interface import BackendError, HeldClaims
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.marked_claims import ClaimName, claim_path, marked_claims
from services.agent.backends.kubernetes.act.objects import Claim
from services.agent.backends.kubernetes.act.volume_manifests import claim_manifest
from services.agent.backends.kubernetes.client import CONFLICT, FORBIDDEN, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.view import View

log = structlog.get_logger(__name__)


class ClaimError(Exception):
    """A pod cannot have a claim, and never will as things are; the message says why."""


class Claims:
    def __init__(
        self,
        client: KubeClient,
        view: View,
        cluster_id: str,
        be_sure: Callable[[], None],
        *,
        is_place: Callable[[str], bool],
        is_read: Callable[[ClaimName], Awaitable[bool]],
        usual_class: Callable[[], Awaitable[str]],
    ) -> None:
        """`be_sure`: as with Services (headless.py). `is_place`: whether a namespace is a project's. `is_read`: whether
        pods of other namespaces read a claim. `usual_class`: of claims that name none; empty: the API server knows.
        """
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._be_sure = be_sure
        self._is_place = is_place
        self._is_read = is_read
        self._usual_class = usual_class
        self._there: dict[ClaimName, Claim] = {}
        """All that bear this cluster's marks."""
        self._making: Counter[str] = Counter()
        """By workload id: pods that are just being made."""
        self._turn = asyncio.Lock()
        """One call at a time, so that none is deleted that was just found to be there."""

    async def load(self) -> None:
        """Read again which there are. Raises ApiError."""
        async with self._turn:
            found = await marked_claims(self._client, f"{names.CLUSTER}={self._cluster_id}")
            if found is None:
                # It makes none either, and says so when it should.
                log.warning("claims_not_readable")
            self._there = found or {}

    @contextlib.asynccontextmanager
    async def making(self, run: RunPod, namespace: str) -> AsyncGenerator[None]:
        """The pod is made inside, and finds its claims. Raises ClaimError, ApiError, BackendError."""
        claims = [volume for volume in run.volumes if isinstance(volume, ClaimedFolder)]
        if not claims:
            yield
            return
        self._making[run.workload_id] += 1
        try:
            for claim in claims:
                name = names.claim_name(run, claim.claim, claim.number)
                if claim.new is None:
                    await self._find(namespace, name)
                else:
                    await self._ensure(run, claim, claim.new, (namespace, name))
            yield
        finally:
            self._making[run.workload_id] -= 1
            if not self._making[run.workload_id]:
                del self._making[run.workload_id]

    def held(self) -> Sequence[HeldClaims]:
        """Workloads with claims, but those of which a pod is there or is being made."""
        found: dict[str, HeldClaims] = {}
        used = {pod.metadata.labels.workload for pod in self._view.pods.values()} | self._making.keys()
        for (namespace, _), one in self._there.items():
            labels, workload = one.metadata.labels, one.metadata.labels.workload
            # Elsewhere, somebody else gave it our marks.
            ours = self._is_place(namespace) and one.metadata.deletion_timestamp is None
            if ours and workload and workload not in used:
                before = found.get(workload, HeldClaims(workload_id=workload))
                found[workload] = msgspec.structs.replace(before, ephemeral=before.ephemeral or bool(labels.ephemeral))
        return tuple(found.values())

    async def remove(self, workload_id: str, *, ephemeral_only: bool) -> None:
        """Those of a workload that is over, or that has stopped. Raises ApiError, BackendError."""
        async with self._turn:
            if self._is_used(workload_id):
                return
            for name, claim in list(self._there.items()):
                labels = claim.metadata.labels
                wanted = labels.workload == workload_id and (labels.ephemeral or not ephemeral_only)
                if not (wanted and self._is_place(name[0])):
                    continue
                if await self._is_read(name):
                    continue  # the API server would delete it: what uses it is in another namespace
                try:
                    await self._client.delete(claim_path(name), uid=claim.metadata.uid, sure=self._be_sure)
                except ApiError as error:
                    if error.status not in {NOT_FOUND, CONFLICT}:
                        raise
                log.info("claim_deleted", namespace=name[0], claim=name[1], workload=workload_id)
                self._there.pop(name, None)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _is_used(self, workload_id: str) -> bool:
        return workload_id in self._making or any(
            pod.metadata.labels.workload == workload_id for pod in self._view.pods.values()
        )

    async def _find(self, namespace: str, name: str) -> None:
        if not await self._client.has(claim_path((namespace, name))):
            raise ClaimError(
                f"there is no claim {name} in the project's namespace, {namespace}: make it, or leave existingPvc out "
                "to have it made"
            )

    async def _ensure(self, run: RunPod, claim: ClaimedFolder, new: NewClaim, name: ClaimName) -> None:
        async with self._turn:
            found = self._there.get(name)
            if found is None:
                if not new.storage_class:
                    new = msgspec.structs.replace(new, storage_class=await self._usual_class())
                manifest = claim_manifest(run, claim, new, namespace=name[0], cluster_id=self._cluster_id)
                found = await self._make(manifest, name)
            if found.metadata.labels.workload != run.workload_id or found.metadata.labels.cluster != self._cluster_id:
                raise ClaimError(
                    f"there is a claim {name[1]} in namespace {name[0]} that this workload did not make: give another "
                    "claimName, or existingPvc true to use it"
                )
            if found.metadata.deletion_timestamp is not None:
                self._there.pop(name, None)
                raise BackendError(f"claim {name[1]} of this workload is being deleted")
            self._there[name] = found
            if not found.spec.volume_name:
                await self._select_node(name, found, run.node_name)

    async def _make(self, manifest: dict[str, object], name: ClaimName) -> Claim:
        """Make it, or find the one that is there."""
        path = f"/api/v1/namespaces/{name[0]}/persistentvolumeclaims"
        try:
            answer = await self._client.create(path, manifest, sure=self._be_sure)
        except ApiError as error:
            if error.status == CONFLICT and error.reason == "AlreadyExists":
                answer = await self._client.read(claim_path(name))
            elif error.unreachable or error.status == NOT_FOUND:
                raise
            else:
                advice = (
                    "; the agent needs the rights of deploy/kubernetes/roles.yaml" if error.status == FORBIDDEN else ""
                )
                raise ClaimError(f"claim {name[1]} cannot be made: {error.message}{advice}") from error
        return msgspec.json.decode(answer, type=Claim)

    async def _select_node(self, name: ClaimName, claim: Claim, node: str) -> None:
        """One that waits for its first pod is made where that pod is, wherever an earlier one was to be."""
        now = msgspec.json.decode(await self._client.read(claim_path(name)), type=Claim)
        self._there[name] = now
        if now.spec.volume_name or now.metadata.annotations.selected_node == node:
            return
        body = {"metadata": {"uid": claim.metadata.uid, "annotations": {names.SELECTED_NODE: node}}}
        self._there[name] = msgspec.json.decode(await self._client.patch(claim_path(name), body), type=Claim)
