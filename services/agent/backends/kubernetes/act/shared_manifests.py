"""Volumes and claims by which pods of one namespace read the claim of another, as Kubernetes has them. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from services.agent.backends.kubernetes import names

type Manifest = dict[str, Any]

_KINDS: Final = ("csi", "nfs")
"""Of volumes of which a second one can be made for the same storage. Others are of a node, or of a driver that
Kubernetes does not have any more.
"""
_NO_KINDS: Final = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)
"""What a volume has beside that which it is."""
_CSI: Final = ("driver", "volumeHandle", "fsType")
_CSI_SECRETS: Final = ("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef")
"""Secrets by which a driver mounts it. Those to change its size are left out: nobody changes it through this one."""
_PROVISIONER: Final = "storage.kubernetes.io/csiProvisionerIdentity"
"""The attribute by which whoever made a volume knows it again. No driver mounts by it."""


def kind_of(spec: Mapping[str, Any]) -> str:
    """Of a volume, such as `csi`."""
    return next((name for name in spec if name not in _NO_KINDS), "")


def not_shareable(spec: Mapping[str, Any]) -> str:
    """Why no second volume can be made for the storage of this one, in words; empty where one can."""
    kind = kind_of(spec)
    if kind not in _KINDS:
        return f"its volume is of the kind {kind or 'none'}, and one of the kind csi or nfs can be shared"
    if spec.get("volumeMode") == "Block":
        return "its volume is a device (volumeMode Block), and one with a file system can be shared"
    return ""


def volume_manifest(source: Mapping[str, Any], name: str, namespace: str, labels: Mapping[str, str]) -> Manifest:
    """A volume for the same storage, for the claim of its own name in this namespace: it is read and never changed, and
    what it is made of stays when it goes.
    """
    kind = kind_of(source)
    given: Mapping[str, Any] = source[kind]
    if kind == "csi":
        made = {field: given[field] for field in (*_CSI, *_CSI_SECRETS) if given.get(field)}
        attributes: Mapping[str, str] = given.get("volumeAttributes") or {}
        if told := {key: value for key, value in attributes.items() if key != _PROVISIONER}:
            made["volumeAttributes"] = told
    else:
        made = {"server": given["server"], "path": given["path"]}
    kept = {field: source[field] for field in ("mountOptions", "nodeAffinity") if source.get(field)}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": dict(labels)},
        "spec": {
            "capacity": {"storage": source["capacity"]["storage"]},
            "accessModes": ["ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "volumeMode": "Filesystem",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name},
            kind: {**made, "readOnly": True},
            **kept,
        },
    }


def claim_manifest(
    source: Mapping[str, Any], name: str, namespace: str, labels: Mapping[str, str], claim_of: str
) -> Manifest:
    """Args: claim_of, namespace and name of the claim that it is shared from."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels),
            "annotations": {names.SHARED_FROM: claim_of},
        },
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "storageClassName": "",
            "volumeMode": "Filesystem",
            "volumeName": name,
            "resources": {"requests": {"storage": source["capacity"]["storage"]}},
        },
    }
