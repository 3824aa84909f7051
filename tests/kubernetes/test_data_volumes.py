"""Data volumes on a real API server, whose own controllers bind volumes to claims: pods of one namespace read the claim
of another. What needs a kubelet, the mount itself, is not shown here.

Requirement rows: S060; issue section 3.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated import programs
from development.kubernetes.simulated.admin import AdminError
from events.cluster_protocol import SourceToLookAt
from events.workload.volumes import ClaimedFolder, NewClaim, SharedFolder
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.act.shared import SharedVolumes
from services.agent.backends.kubernetes.backend import KubernetesBackend
from tests.agent.given import NOW, WORKLOAD
from tests.kubernetes.given import KubernetesWatched, open_kubernetes, two_agents

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

BOUND = ("persistentvolume-binder", "persistentvolumeclaim-protection", "persistentvolume-protection")
BINDING = ",".join(f"{one}-controller" for one in BOUND)
MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
KEYS = ("abcdefghijkl-main-0", "abcdefghijkl-main-1")
VOLUMES = "/api/v1/persistentvolumes"
ID = "7b0e9f2a-6f0e-4c55-9c6b-2f2f6b3f1a10"
NFS = {"nfs": {"server": "nfs.example.com", "path": "/exports/sets"}}


@pytest.fixture(scope="module")
def binding(control_plane: ControlPlane) -> Iterator[None]:
    """The controllers that bind volumes to claims, and let both go; other tests do without."""
    command = [
        f"--controllers={BINDING}" if word.startswith("--controllers=") else word
        for word in programs.controller_manager(control_plane.cluster)
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.fixture
async def cluster(control_plane: ControlPlane, binding: None, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    opened = await open_kubernetes(control_plane, tmp_path, unused_shared_seconds=0.5)
    yield opened
    await opened.close()


async def admin(cluster: KubernetesWatched, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(cluster.plane.admin, method, path, body)


async def eventually(found: Callable[[], Any]) -> Any:
    """What `found` gives as soon as that is something."""
    async with asyncio.timeout(60):
        while not (value := await asyncio.to_thread(found)):
            await asyncio.sleep(0.1)
        return value


def claims_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


async def owner(cluster: KubernetesWatched) -> str:
    """The namespace of the project whose claims are shared."""
    name = f"muster-o-{cluster.project}"
    own: dict[str, Any] = {"project_name": f"o-{cluster.project}", "project_id": "owner", "workload_id": "w-o"}
    await cluster.backend.apply(cluster.pod(pod_key="owneruserpod-main-0", **own))
    return name


def there(cluster: KubernetesWatched, path: str) -> bool:
    try:
        cluster.plane.admin("GET", path)
    except AdminError as error:
        if error.status != 404:
            raise
        return False
    return True


async def claimed(
    cluster: KubernetesWatched,
    source: dict[str, Any],
    claim: str = "sets",
    *,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> str:
    """A claim of the owner's, bound to a volume of its own; the name of that."""
    name, namespace = f"{claim}-{cluster.project}", f"muster-o-{cluster.project}"
    usual: dict[str, Any] = {
        "capacity": {"storage": "5Gi"},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "",
    }
    await admin(
        cluster,
        "POST",
        VOLUMES,
        {"metadata": {"name": name, "annotations": annotations or {}}, "spec": usual | source | spec},
    )
    body = {
        "metadata": {"name": claim},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
            **({"volumeMode": spec["volumeMode"]} if "volumeMode" in spec else {}),
        },
    }
    await admin(cluster, "POST", claims_of(namespace), body)
    get, path = cluster.plane.admin, f"{claims_of(namespace)}/{claim}"
    await eventually(lambda: get("GET", path)["status"].get("phase") == "Bound")
    return name


def shared(cluster: KubernetesWatched, claim: str = "sets") -> SharedFolder:
    return SharedFolder(
        mount_path="/sets", data_volume=ID, claim=claim, project_id="owner", project_name=f"o-{cluster.project}"
    )


async def apply(cluster: KubernetesWatched, index: int, *volumes: Any, **more: Any) -> None:
    ref = msgspec.structs.replace(cluster.pod().pod, index=index)
    await cluster.backend.apply(cluster.pod(pod_key=KEYS[index], pod=ref, pods=2, volumes=volumes, **more))


async def end(cluster: KubernetesWatched, index: int, token: int = 1) -> None:
    await cluster.backend.delete(KEYS[index], token, 0)
    await cluster.until("stopped", key=KEYS[index], token=token)
    await cluster.backend.forget(KEYS[index], token)


def claims(cluster: KubernetesWatched) -> list[dict[str, Any]]:
    return cluster.plane.admin("GET", claims_of(cluster.namespace))["items"]


def volumes(cluster: KubernetesWatched) -> list[dict[str, Any]]:
    """Those that the agent made."""
    found = cluster.plane.admin("GET", VOLUMES)["items"]
    return [one for one in found if one["metadata"].get("labels", {}).get("muster.dev/cluster") == cluster.project]


async def test_pods_of_another_namespace_read_the_claim_until_the_last_one_has_ended(
    cluster: KubernetesWatched,
) -> None:
    """S060: the storage is that of the claim, and what was made for it goes; the claim and its volume stay."""
    namespace = await owner(cluster)
    source = await claimed(cluster, NFS, mountOptions=["nfsvers=4.1"])
    for index in (0, 1):
        await apply(cluster, index, shared(cluster))
        await cluster.until("running", key=KEYS[index])
    (claim,), (volume,) = claims(cluster), volumes(cluster)
    assert claim["metadata"]["name"] == volume["metadata"]["name"] == claim["spec"]["volumeName"]
    assert claim["metadata"]["annotations"]["muster.dev/shared-from"] == f"{namespace}/sets"
    spec = volume["spec"]
    assert spec["nfs"] == {**NFS["nfs"], "readOnly": True}
    assert (spec["accessModes"], spec["persistentVolumeReclaimPolicy"]) == (["ReadOnlyMany"], "Retain")
    assert (spec["mountOptions"], spec["capacity"]) == (["nfsvers=4.1"], {"storage": "5Gi"})
    assert (await eventually(lambda: claims(cluster)[0]["status"]))["phase"] in {"Pending", "Bound"}
    await eventually(lambda: claims(cluster)[0]["status"].get("phase") == "Bound")
    for pod in cluster.pods():
        (mounted,) = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
        assert mounted["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"], "readOnly": True}
        (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == mounted["name"]]
        assert mount == {"name": mounted["name"], "mountPath": "/sets", "readOnly": True} | {
            name: mount[name] for name in mount.keys() & {"recursiveReadOnly"}
        }
    await end(cluster, 0)
    await asyncio.sleep(1.5)
    assert claims(cluster) == claims(cluster) != []
    assert "deletionTimestamp" not in claims(cluster)[0]["metadata"], "a pod has it"
    await end(cluster, 1)
    await eventually(lambda: not claims(cluster) and not volumes(cluster))
    kept = await admin(cluster, "GET", f"{VOLUMES}/{source}")
    assert kept["status"]["phase"] == "Bound"
    await apply(cluster, 0, shared(cluster), token=3)
    await cluster.until("running", key=KEYS[0], token=3)
    await eventually(lambda: claims(cluster)[0]["status"].get("phase") == "Bound")


async def test_a_volume_of_a_driver_is_made_of_what_mounts_it_and_can_change_nothing(
    cluster: KubernetesWatched,
) -> None:
    await owner(cluster)
    key = {"namespace": "storage", "name": "key"}
    csi = {"driver": "sets.csi.example.com", "volumeHandle": "v-1", "volumeAttributes": {"share": "a"}}
    affinity = {
        "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    }
    of_driver = csi | {"nodeStageSecretRef": key, "controllerExpandSecretRef": key}
    await claimed(cluster, {"csi": of_driver}, nodeAffinity=affinity)
    await apply(cluster, 0, shared(cluster))
    await cluster.until("running", key=KEYS[0])
    (volume,) = volumes(cluster)
    assert volume["spec"]["csi"] == {**csi, "nodeStageSecretRef": key, "readOnly": True}
    assert volume["spec"]["nodeAffinity"] == affinity


@pytest.mark.usefixtures("binding")
async def test_what_a_dead_agent_left_half_made_is_made_whole_or_taken_away(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died when the claim was there, and its volume was not; and again when the volume was deleted, and the claim
    was not.
    """

    async def dies(*_: Any) -> Any:
        raise BackendError("the agent is dead")

    cluster = await open_kubernetes(control_plane, tmp_path / "one")
    try:
        await owner(cluster)
        await claimed(cluster, NFS)
        with monkeypatch.context() as patch:
            patch.setattr(SharedVolumes, "_make_volume", dies)
            with pytest.raises(BackendError, match="dead"):
                await apply(cluster, 0, shared(cluster))
        assert (len(claims(cluster)), len(volumes(cluster))) == (1, 0)
    finally:
        await cluster.close()
    other = await open_kubernetes(control_plane, tmp_path / "other", cluster_id=cluster.project)
    try:
        await eventually(other.backend.may_start)
        await apply(other, 0, shared(other))
        await other.until("running", key=KEYS[0])
        assert (len(claims(other)), len(volumes(other))) == (1, 1)
        await end(other, 0)
        name = volumes(other)[0]["metadata"]["name"]
    finally:
        await other.close()
    await asyncio.to_thread(control_plane.admin, "DELETE", f"{VOLUMES}/{name}")
    third = await open_kubernetes(
        control_plane, tmp_path / "third", cluster_id=cluster.project, unused_shared_seconds=0.0
    )
    try:
        await eventually(lambda: not claims(third) and not volumes(third))
    finally:
        await third.close()


@pytest.mark.usefixtures("binding")
async def test_of_two_agents_that_live_one_makes_it_and_who_was_killed_midway_makes_nothing_more(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stands still between claim and volume, says nothing any more, as after `kill -9`, and wakes up late."""
    make = SharedVolumes._make_volume
    reached, wakes = asyncio.Event(), asyncio.Event()
    async with two_agents(control_plane, tmp_path, unused_shared_seconds=0.5) as (one, late):
        assert isinstance(one.backend, KubernetesBackend)
        assert isinstance(late.backend, KubernetesBackend)
        stands_still = one.backend._shared

        async def stopped(of: SharedVolumes, *given: Any) -> Any:
            if of is stands_still:
                reached.set()
                await wakes.wait()
            return await make(of, *given)

        await owner(one)
        await claimed(one, NFS)
        monkeypatch.setattr(SharedVolumes, "_make_volume", stopped)
        making = asyncio.create_task(apply(one, 0, shared(one)))
        async with asyncio.timeout(60):
            await reached.wait()
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            await apply(late, 0, shared(late))
        assert (len(claims(one)), len(volumes(one))) == (1, 0)
        renews = one.backend._lease._task
        assert renews is not None
        renews.cancel()
        async with asyncio.timeout(120):
            while not late.backend._lease.held():
                await asyncio.sleep(0.1)
        await late.backend.list_all()
        # It lists and watches anew, as an agent does that has become the one that acts.
        acts = KubernetesWatched(late.backend, control_plane, late.node, late.project)
        await apply(acts, 0, shared(late))
        await acts.until("running", key=KEYS[0])
        wakes.set()
        with pytest.raises(BackendError):
            await making
        (claim,), (volume,) = claims(late), volumes(late)
        assert volume["metadata"]["name"] == claim["metadata"]["name"]
        assert len(late.pods()) == 1
        await end(acts, 0)
        await eventually(lambda: not claims(late) and not volumes(late))


async def test_a_claim_of_a_workload_stays_while_pods_of_others_read_it(cluster: KubernetesWatched) -> None:
    """The API server keeps a claim for pods of its own namespace alone."""
    new = NewClaim(size_bytes=1024**3, modes=("ReadWriteMany",), storage_class="none")
    made = ClaimedFolder(mount_path="/out", claim="made", new=new)
    await owner(cluster)
    of_owner = {"project_name": f"o-{cluster.project}", "project_id": "owner"}
    await apply(cluster, 0, made, **of_owner)
    body = {
        "metadata": {"name": f"made-{cluster.project}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "none",
            "claimRef": {"namespace": f"muster-o-{cluster.project}", "name": "made"},
            **NFS,
        },
    }
    await admin(cluster, "POST", VOLUMES, body)
    path = f"{claims_of(f'muster-o-{cluster.project}')}/made"
    get = cluster.plane.admin
    await eventually(lambda: get("GET", path)["status"].get("phase") == "Bound")
    await apply(cluster, 1, shared(cluster, "made"), workload_id="w-2")
    await cluster.until("running", key=KEYS[1])
    await end(cluster, 0)
    await cluster.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    assert "deletionTimestamp" not in get("GET", path)["metadata"]
    await end(cluster, 1)
    await eventually(lambda: not claims(cluster))
    await cluster.backend.remove_claims(WORKLOAD, ephemeral_only=False)
    await eventually(lambda: not there(cluster, path))


async def marked(cluster: KubernetesWatched, namespace: str, claim: str, *, name: str) -> None:
    """A claim that somebody makes by hand, with the marks of one of ours for this claim."""
    await admin(
        cluster,
        "POST",
        claims_of(namespace),
        {
            "metadata": {
                "name": name,
                "labels": {"muster.dev/cluster": cluster.project, "muster.dev/data-volume": ID},
                "annotations": {"muster.dev/shared-from": claim},
            },
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    )


@pytest.mark.usefixtures("binding")
async def test_a_claim_that_somebody_marked_by_hand_keeps_no_claim_of_others(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    new = NewClaim(size_bytes=1024**3, modes=("ReadWriteMany",), storage_class="none")
    made = ClaimedFolder(mount_path="/out", claim="made", new=new)
    cluster = await open_kubernetes(control_plane, tmp_path / "one")
    try:
        victim = await owner(cluster)
        await apply(cluster, 0, made, project_name=f"o-{cluster.project}", project_id="owner")
        await apply(cluster, 1, workload_id="w-2")
        await end(cluster, 0)
        await marked(cluster, cluster.namespace, f"{victim}/made", name="muster-shared-hand")
    finally:
        await cluster.close()
    path = f"{claims_of(victim)}/made"
    other = await open_kubernetes(control_plane, tmp_path / "other", cluster_id=cluster.project)
    try:
        await eventually(other.backend.may_start)
        assert there(other, path)
        await other.backend.remove_claims(WORKLOAD, ephemeral_only=False)
        await eventually(lambda: not there(other, path))
    finally:
        await other.close()


@pytest.mark.usefixtures("binding")
async def test_a_claim_of_the_same_name_elsewhere_takes_no_volume_along(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Somebody makes one by hand, which goes as ours do: the volume is for another claim of that name."""
    cluster = await open_kubernetes(control_plane, tmp_path / "one")
    try:
        elsewhere = await owner(cluster)
        await claimed(cluster, NFS)
        await apply(cluster, 0, shared(cluster))
        await cluster.until("running", key=KEYS[0])
        (volume,) = volumes(cluster)
        name = volume["metadata"]["name"]
        await marked(cluster, elsewhere, f"{elsewhere}/sets", name=name)
    finally:
        await cluster.close()
    other = await open_kubernetes(
        control_plane, tmp_path / "other", cluster_id=cluster.project, unused_shared_seconds=0.0
    )
    try:
        await eventually(lambda: not there(other, f"{claims_of(elsewhere)}/{name}"))
        (left,) = volumes(other)
        assert left["metadata"]["uid"] == volume["metadata"]["uid"]
        assert "deletionTimestamp" not in left["metadata"]
    finally:
        await other.close()


async def test_mount_options_of_an_annotation_are_those_of_the_volume(cluster: KubernetesWatched) -> None:
    """kubelet takes the annotation in place of `mountOptions`; nobody may give a volume of ours annotations."""
    await owner(cluster)
    options = {"volume.beta.kubernetes.io/mount-options": "hard,nfsvers=4.1"}
    await claimed(cluster, NFS, annotations=options, mountOptions=["soft"])
    await apply(cluster, 0, shared(cluster))
    await cluster.until("running", key=KEYS[0])
    (volume,) = volumes(cluster)
    assert volume["spec"]["mountOptions"] == ["hard", "nfsvers=4.1"]
    assert not volume["metadata"].get("annotations", {}).keys() & options.keys()


async def test_the_mark_of_who_made_a_volume_is_not_told_to_the_driver_of_the_next(cluster: KubernetesWatched) -> None:
    await owner(cluster)
    told = {"fsName": "sets", "storage.kubernetes.io/csiProvisionerIdentity": "1-sets"}
    await claimed(cluster, {"csi": {"driver": "sets.csi.example.com", "volumeHandle": "v-1", "volumeAttributes": told}})
    await apply(cluster, 0, shared(cluster))
    await cluster.until("running", key=KEYS[0])
    (volume,) = volumes(cluster)
    assert volume["spec"]["csi"]["volumeAttributes"] == {"fsName": "sets"}


@pytest.mark.parametrize(
    ("source", "more", "told"),
    [
        (None, {}, "there is no claim sets of project"),
        ({"hostPath": {"path": "/sets"}}, {}, "of the kind hostPath, and one of the kind csi or nfs"),
        (NFS, {"volumeMode": "Block"}, "is a device"),
    ],
)
async def test_what_cannot_be_shared_fails_the_run_and_marks_the_data_volume_by_name(
    cluster: KubernetesWatched, source: dict[str, Any] | None, more: dict[str, Any], told: str
) -> None:
    looked = SourceToLookAt(
        asset_id=ID, spec_at=NOW, volume=shared(cluster), project_id="owner", project_name=f"o-{cluster.project}"
    )
    assert "has no namespace" in await cluster.backend.look(looked)
    await owner(cluster)
    if source is not None:
        await claimed(cluster, source, **more)
    assert told in await cluster.backend.look(looked)
    await apply(cluster, 0, shared(cluster))
    seen = await cluster.until("failed", key=KEYS[0])
    assert seen.reason == "no_claim"
    assert told in seen.message
    assert volumes(cluster) == []
    assert claims(cluster) == []


async def test_a_run_whose_data_volume_was_taken_back_or_that_names_its_claim_fails_and_says_so(
    cluster: KubernetesWatched,
) -> None:
    cases: tuple[tuple[int, dict[str, Any], str], ...] = (
        (1, {"no_volume": "data volume 'sets' is not shared with project p"}, "is not shared with project p"),
        (2, {"volumes": (ClaimedFolder(mount_path="/a", claim="muster-shared-a"),)}, "is of a data volume"),
    )
    for token, more, told in cases:
        await cluster.backend.apply(cluster.pod(token, **more))
        seen = await cluster.until("failed", token=token)
        assert (seen.reason, told in seen.message) == ("no_claim", True), seen.message


@pytest.mark.usefixtures("binding")
async def test_without_the_optional_role_they_are_refused_by_name_and_with_it_the_policy_says_which_drivers(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    plane = control_plane
    names = ("namespace.yaml", "accounts.yaml", "roles.yaml", "volumes.yaml")
    documents = {name: [*yaml.safe_load_all((MANIFESTS / name).read_text())] for name in names}
    for name in names[:3]:
        plane.apply(documents[name])
    token = plane.service_account_token("muster-system", "muster-agent")
    cluster = await open_kubernetes(
        plane,
        tmp_path,
        kubeconfig=plane.kubeconfig(token),
        namespace="muster-system",
        unused_shared_seconds=0.5,
    )
    try:
        await owner(cluster)
        await claimed(cluster, NFS)
        await claimed(cluster, {"csi": {"driver": "block.example.com", "volumeHandle": "v"}}, "block")
        await apply(cluster, 0, shared(cluster))
        told = (await cluster.until("failed", key=KEYS[0])).message
        assert "kubectl apply -f deploy/kubernetes/volumes.yaml" in told
        plane.apply(documents["volumes.yaml"])
        try:
            sources = {
                claim: SourceToLookAt(asset_id=ID, spec_at=NOW, volume=shared(cluster, claim), project_id="owner")
                for claim in ("sets", "block")
            }
            async with asyncio.timeout(60):
                while await cluster.backend.look(sources["sets"]):
                    await asyncio.sleep(0.2)
                while "driver block.example.com is not among" not in await cluster.backend.look(sources["block"]):
                    await asyncio.sleep(0.2)
            await apply(cluster, 1, shared(cluster, "block"))
            told = (await cluster.until("failed", key=KEYS[1])).message
            assert "driver block.example.com is not among those whose volumes can be shared" in told
            await eventually(lambda: not claims(cluster))
            await apply(cluster, 0, shared(cluster), token=2)
            await cluster.until("running", key=KEYS[0], token=2)
            await end(cluster, 0, token=2)
            await eventually(lambda: not claims(cluster) and not volumes(cluster))
        finally:
            for one in reversed(documents["volumes.yaml"]):
                plane.admin("DELETE", _path(one))
    finally:
        await cluster.close()


def _path(document: dict[str, Any]) -> str:
    kind = document["kind"]
    plural = f"{kind[:-1].lower()}ies" if kind.endswith("y") else f"{kind.lower()}s"
    return f"/apis/{document['apiVersion']}/{plural}/{document['metadata']['name']}"
