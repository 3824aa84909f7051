"""The volumes of a pod, and the claims behind them, as Kubernetes has them. Pure."""

from typing import Any, Final, assert_never

from events.cluster_protocol import SHARED_CLAIMS, RunPod
from events.workload.volumes import (
    BucketFolder,
    ClaimedFolder,
    ClonedFolder,
    ConfigFiles,
    EmptyFolder,
    FetchedFolder,
    NewClaim,
    NfsFolder,
    NodeFolder,
    SharedFolder,
    Volume,
)
from services.agent.backends.clone import CLONE_BYTES, KEY_BYTES
from services.agent.backends.fetching import BUCKET_BYTES
from services.agent.backends.kubernetes import names

type Manifest = dict[str, Any]

KEYS_VOLUME: Final = "repository-keys"
"""Memory for keys for ssh while repositories are cloned."""


def volume_manifests(run: RunPod) -> tuple[list[Manifest], list[Manifest]]:
    """(mounts of the run's own container, volumes of its pod). Devices are no mounts."""
    named = [(f"volume-{number}", volume) for number, volume in enumerate(run.volumes)]
    mounts = [_mount(name, volume) for name, volume in named if not _is_device(volume)]
    volumes = [{"name": name, **_source(volume, run)} for name, volume in named]
    if any(isinstance(volume, ClonedFolder) and volume.over_ssh for volume in run.volumes):
        # Of the containers that clone alone: what a pod shares by itself, such as /dev/shm, its own container has, too.
        volumes.append({"name": KEYS_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": str(KEY_BYTES)}})
    return mounts, volumes


def fetched[T: FetchedFolder](run: RunPod, kind: type[T]) -> list[tuple[T, Manifest]]:
    """Volumes that are filled before the pod's program starts, each with the mount of its folder."""
    return [
        (volume, _mount(f"volume-{number}", volume))
        for number, volume in enumerate(run.volumes)
        if isinstance(volume, kind)
    ]


def devices(run: RunPod) -> Manifest:
    """Claims that the container finds as devices."""
    found = [
        {"name": f"volume-{number}", "devicePath": volume.mount_path}
        for number, volume in enumerate(run.volumes)
        if _is_device(volume)
    ]
    return {"volumeDevices": found} if found else {}


def claim_manifest(run: RunPod, claim: ClaimedFolder, new: NewClaim, *, namespace: str, cluster_id: str) -> Manifest:
    """The claim that a workload brings along."""
    labels = {
        names.MANAGED_BY: names.MANAGER,
        names.CLUSTER: cluster_id,
        names.WORKLOAD: run.workload_id,
        names.WORKLOAD_KEY: names.workload_key_of(run.pod_key),
        names.PROJECT: run.project_id,
        **({names.EPHEMERAL: "true"} if new.ephemeral else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim_name(run, claim.claim, claim.number),
            "namespace": namespace,
            "labels": labels,
            # Keys of attributes have no `/`: none is another's.
            "annotations": {
                **new.attributes,
                names.WORKLOAD_NAME: run.workload_name,
                names.SELECTED_NODE: run.node_name,
            },
        },
        "spec": {
            "accessModes": list(new.modes),
            "volumeMode": "Block" if new.block else "Filesystem",
            "resources": {"requests": {"storage": str(new.size_bytes)}},
            **({"storageClassName": new.storage_class} if new.storage_class else {}),
        },
    }


def shared_claims(run: RunPod) -> list[str]:
    """Of its claims, those that stand for data volumes."""
    of_claims = [volume.claim for volume in run.volumes if isinstance(volume, ClaimedFolder)]
    return [claim for claim in of_claims if claim.startswith(SHARED_CLAIMS)]


def _is_device(volume: Volume) -> bool:
    return isinstance(volume, ClaimedFolder) and volume.new is not None and volume.new.block


def _source(volume: Volume, run: RunPod) -> Manifest:
    match volume:
        case ClaimedFolder():
            claim = {"claimName": names.claim_name(run, volume.claim, volume.number)}
            return {"persistentVolumeClaim": {**claim, **({"readOnly": True} if volume.read_only else {})}}
        case ClonedFolder():
            return {"emptyDir": {"sizeLimit": str(CLONE_BYTES)}}
        case BucketFolder():
            return {"emptyDir": {"sizeLimit": str(BUCKET_BYTES)}}
        case EmptyFolder():
            medium = {"medium": "Memory"} if volume.in_memory else {}
            limit = {"sizeLimit": str(volume.most_bytes)} if volume.most_bytes else {}
            return {"emptyDir": {**medium, **limit}}
        case NodeFolder():
            return {"hostPath": {"path": volume.path}}
        case NfsFolder():
            read_only = {"readOnly": True} if volume.read_only else {}
            return {"nfs": {"server": volume.server, "path": volume.path, **read_only}}
        case ConfigFiles(secret=True):
            return {"secret": {"secretName": volume.object_name, "defaultMode": volume.mode}}
        case ConfigFiles():
            return {"configMap": {"name": volume.object_name, "defaultMode": volume.mode}}
        case SharedFolder():
            raise ValueError(f"data volume {volume.data_volume}: its claim must be known by now")
        case _:
            assert_never(volume)


def _mount(name: str, volume: Volume) -> Manifest:
    mount: Manifest = {"name": name, "mountPath": volume.mount_path}
    match volume:
        case EmptyFolder() | ClonedFolder() | BucketFolder() | SharedFolder():
            pass
        case NodeFolder():
            mount |= {"readOnly": True} if volume.read_only else {}
            mount |= {"mountPropagation": volume.propagation} if volume.propagation else {}
        case NfsFolder() | ClaimedFolder():
            mount |= {"readOnly": True} if volume.read_only else {}
        case ConfigFiles():
            mount |= {"readOnly": True, **({"subPath": volume.only_key} if volume.only_key else {})}
        case _:
            assert_never(volume)
    return mount
