"""Claims of workloads on a real API server: made with the first pod, shared, and gone when their workload is over."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from events.cluster_protocol import SourceToLookAt
from events.workload.volumes import ClaimedFolder, ConfigFiles, NewClaim, NfsFolder, NodeFolder, Volume
from services.agent.backends.interface import HeldClaims
from services.agent.backends.kubernetes import names
from tests.agent.given import WORKLOAD
from tests.kubernetes.given import KubernetesWatched, open_kubernetes

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

KEPT = ClaimedFolder(mount_path="/data", number=0, new=NewClaim(size_bytes=1024**3, modes=("ReadWriteOnce",)))
SHORT = ClaimedFolder(
    mount_path="/scratch", number=1, new=NewClaim(size_bytes=1024**3, modes=("ReadWriteMany",), ephemeral=True)
)
KEYS = ("abcdefghijkl-main-0", "abcdefghijkl-main-1")


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    opened = await open_kubernetes(control_plane, tmp_path)
    yield opened
    await opened.close()


async def claims(cluster: KubernetesWatched) -> list[dict[str, Any]]:
    """Those that are not on their way out: the API server keeps one for as long as a pod has it."""
    path = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    found = (await asyncio.to_thread(cluster.plane.admin, "GET", path))["items"]
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


async def apply(cluster: KubernetesWatched, index: int, *volumes: ClaimedFolder, **more: Any) -> None:
    ref = msgspec.structs.replace(cluster.pod().pod, index=index)
    await cluster.backend.apply(cluster.pod(pod_key=KEYS[index], pod=ref, pods=2, volumes=volumes, **more))


async def test_pods_share_the_claims_of_their_workload_which_go_when_it_is_over(cluster: KubernetesWatched) -> None:
    """S052, R40, C16."""
    for index in (0, 1):
        await apply(cluster, index, KEPT, SHORT)
    made = {one["metadata"]["labels"].get(names.EPHEMERAL, "no"): one for one in await claims(cluster)}
    assert made.keys() == {"no", "true"}
    assert made["no"]["metadata"]["annotations"][names.SELECTED_NODE] == cluster.node
    assert await cluster.backend.claims() == (), "pods of it are there"
    await cluster.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    assert len(await claims(cluster)) == 2
    for key in KEYS:
        await cluster.backend.delete(key, 1, 0)
        await cluster.until("stopped", key=key)
        await cluster.backend.forget(key, 1)
    assert await cluster.backend.claims() == (HeldClaims(workload_id=WORKLOAD, ephemeral=True),)
    await cluster.backend.remove_claims(WORKLOAD, ephemeral_only=True)
    assert [one["metadata"]["name"] for one in await claims(cluster)] == [made["no"]["metadata"]["name"]]
    assert await cluster.backend.claims() == (HeldClaims(workload_id=WORKLOAD),)
    await cluster.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    assert await claims(cluster) == []


async def test_a_claim_that_names_no_class_is_of_the_only_one_that_the_cluster_has(cluster: KubernetesWatched) -> None:
    """R28. Kubernetes gives it none unless the class is marked as the default, and then does so by itself."""
    classes = "/apis/storage.k8s.io/v1/storageclasses"
    body = {"metadata": {"name": "slow"}, "provisioner": "example.com/none"}
    await asyncio.to_thread(cluster.plane.admin, "POST", classes, body)
    try:
        await apply(cluster, 0, KEPT)
        (made,) = await claims(cluster)
        assert made["spec"]["storageClassName"] == "slow"
    finally:
        await asyncio.to_thread(cluster.plane.admin, "DELETE", f"{classes}/slow")


async def test_an_agent_that_comes_after_another_finds_its_claims(cluster: KubernetesWatched, tmp_path: Path) -> None:
    await apply(cluster, 0, KEPT)
    await cluster.backend.delete(KEYS[0], 1, 0)
    await cluster.until("stopped", key=KEYS[0])
    await cluster.backend.forget(KEYS[0], 1)
    await cluster.look_away()
    await cluster.backend.list_all()
    assert await cluster.backend.claims() == (HeldClaims(workload_id=WORKLOAD),)


@pytest.mark.parametrize(
    ("volume", "told"),
    [
        (ClaimedFolder(mount_path="/a", claim="nobodys"), "there is no claim nobodys"),
        (msgspec.structs.replace(KEPT, claim="theirs"), "did not make"),
        (msgspec.structs.replace(KEPT, claim="none", new=NewClaim(size_bytes=1)), "cannot be made"),
    ],
)
async def test_a_claim_that_cannot_be_had_fails_the_run_and_says_why(
    cluster: KubernetesWatched, volume: ClaimedFolder, told: str
) -> None:
    await apply(cluster, 1)
    body = {
        "metadata": {"name": "theirs"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    await asyncio.to_thread(cluster.plane.admin, "POST", path, body)
    await apply(cluster, 0, volume)
    end = await cluster.until("failed", key=KEYS[0])
    assert end.reason == "no_claim"
    assert told in end.message
    await apply(cluster, 0, ClaimedFolder(mount_path="/a", claim="theirs"), token=2)
    await cluster.until("running", token=2, key=KEYS[0])
    assert await cluster.backend.claims() == ()


async def test_a_data_source_is_looked_at_with_the_agents_own_rights(cluster: KubernetesWatched) -> None:
    """S053. Of a project that has no namespace here nothing is known."""

    def source(volume: Volume, **more: Any) -> SourceToLookAt:
        project = {"project_id": cluster.run["project_id"], "project_name": cluster.project}
        return SourceToLookAt(asset_id="a", spec_at=datetime(2026, 1, 1, tzinfo=UTC), volume=volume, **project | more)

    sets = ClaimedFolder(mount_path="/sets", claim="sets")
    assert await cluster.backend.look(source(sets)) == "", "it has no namespace yet"
    await apply(cluster, 0, KEPT)
    assert await cluster.backend.look(source(sets)) == f"there is no claim sets in namespace {cluster.namespace}"
    (kept,) = await claims(cluster)
    there = ClaimedFolder(mount_path="/sets", claim=kept["metadata"]["name"])
    assert await cluster.backend.look(source(there)) == ""
    assert await cluster.backend.look(source(sets, project_id="another")) == ""
    assert await cluster.backend.look(source(sets, project_id="", project_name="")) == ""
    for volume in (
        ConfigFiles(mount_path="/a", object_name="gone"),
        ConfigFiles(mount_path="/a", object_name="gone", secret=True),
        NodeFolder(mount_path="/a", path="/gone"),
        NfsFolder(mount_path="/a", server="127.0.0.1", path="/gone"),
    ):
        assert await cluster.backend.look(source(volume)) == "", "the agent cannot see it, or is not sent there"
