"""How our things are called in a Kubernetes cluster, and the marks by which they are known. Pure.

A pod's name comes from its workload's name and its pod key alone, the same for every run of that pod: the API server
itself then refuses a second object for one rank, whoever asks for it. Attempt, try and token stand in labels.
"""

import re
from typing import Final

from events.cluster_protocol import CREDENTIAL_SECRETS, RunPod
from events.cluster_protocol import SHARED_CLAIMS as SHARED_PREFIX
from events.ids import name_key
from events.workload.fields.connections import ServiceType

CLUSTER: Final = "muster.dev/cluster"
POD_KEY: Final = "muster.dev/pod-key"
TOKEN: Final = "muster.dev/token"  # noqa: S105 - orders the runs of a pod, no secret
WORKLOAD: Final = "muster.dev/workload"
"""The workload's id; PROJECT has the project's. Their names may be no label values, and stand in annotations."""
WORKLOAD_KEY: Final = "muster.dev/workload-key"
"""Of the workload's name, through all its incarnations: what a headless Service selects."""
PROJECT: Final = "muster.dev/project"
POD_SET: Final = "muster.dev/pod-set"
INDEX: Final = "muster.dev/index"
ATTEMPT: Final = "muster.dev/attempt"
TRY: Final = "muster.dev/try"
GPU_RESERVATION: Final = "muster.dev/gpu-reservation"
"""On a reservation pod: the logical device that it holds."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "muster"
"""Value of MANAGED_BY on everything that we make."""

WORKLOAD_NAME: Final = "muster.dev/workload-name"
"""Annotation; likewise all below."""
PROJECT_NAME: Final = "muster.dev/project-name"
LABELS_LEFT_OUT: Final = "muster.dev/labels-left-out"
"""Keys of the user's labels that Kubernetes would not take, as a JSON list."""
ANNOTATIONS_LEFT_OUT: Final = "muster.dev/annotations-left-out"
RESERVATIONS: Final = "muster.dev/reservations"
"""On a pod that shares devices: names of the reservation pods that hold them, with commas between."""
ASKED_TO_END_AT: Final = "muster.dev/asked-to-end-at"
"""On a pod that we are about to delete: since when (RFC 3339). The API server's own record of that is overwritten when
the node has ended the pod."""
VISIBLE_DEVICES: Final = "muster.dev/visible-devices"
"""On a reservation pod, written by its own program: which devices the node gave it."""
DEVICE_PROBLEM: Final = "muster.dev/device-problem"
"""On a reservation pod, written by its own program: why it cannot say which device it has."""
RESERVED_NODE: Final = "muster.dev/reserved-node"
RESTRICTED_BY: Final = "muster.dev/restricted-by"
"""On a pod that keeps to the strictest Pod Security: who wants that, `namespace`, `project` or both, with a comma."""
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: where it is to be made, if it waits for its first pod. Schedulers say so."""
CLAIM_ATTRIBUTES: Final = "muster.dev/claim-attributes"
"""Annotation of a storage class, written by its administrator: keys that new claims may give, with commas between."""
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
"""Annotation of a storage class; the next one is what it was called before."""
FORMER_DEFAULT_CLASS: Final = "storageclass.beta.kubernetes.io/is-default-class"
DATA_VOLUME: Final = "muster.dev/data-volume"
"""Label of a claim and a volume by which pods read a data volume: its id."""
SHARED_FROM: Final = "muster.dev/shared-from"
"""Annotation of such a claim: namespace and name of the claim that is shared, with a slash between."""
MOUNT_OPTIONS: Final = "volume.beta.kubernetes.io/mount-options"
"""Kubernetes' own annotation of a volume: its mount options, with commas between, in place of those of its `spec`."""
SHARED_CLAIMS: Final = "muster.dev/shared-claims"
"""Annotation of a pod: names of such claims that it has, with commas between."""
EPHEMERAL: Final = "muster.dev/ephemeral"
"""Label of a claim that goes each time its workload stops or ends."""
MPI_HOSTFILE: Final = "muster.dev/mpi-hostfile"
"""On the launcher of an MPI training: its host file for Open MPI, with a line for each worker."""
MPI_MACHINEFILE: Final = "muster.dev/mpi-machinefile"
"""The same for MPICH and Intel MPI."""
CODE: Final = "muster.dev/code"
"""On a pod that starts with code: the archive's SHA-256, in hexadecimal digits."""
CREDENTIALS: Final = "muster.dev/credentials"
"""On a pod that has a Secret with values of credentials."""
PROBED: Final = "muster.dev/probed"
"""On a pod that is asked whether it is ready."""
CHECKPOINT_DIR: Final = "muster.dev/checkpoint-dir"
"""On a pod with a folder that outlives it: where that is in the pod."""
PORTS: Final = "muster.dev/ports"
"""On a pod that is reached from outside its workload: its ports (port_manifests.py)."""
CODE_MAPS: Final = "muster.dev/code-maps"
"""On such a pod: in how many ConfigMaps the archive lies."""

FINALIZER: Final = "muster.dev/observed"
"""Keeps an ended pod's object until its end stands in the log."""
OUR_PREFIX: Final = "muster.dev/"
CODE_MAP: Final = "muster-code-"
"""How names of ConfigMaps with code begin."""
ENFORCE: Final = "pod-security.kubernetes.io/enforce"
"""Label of a namespace: which level of Pod Security its pods must keep."""

MAX_NAME: Final = 63
"""Characters of a DNS label: pods (as host names), Services and namespaces."""
_POD_KEY: Final = re.compile(r"(?P<workload>[a-z0-9]{1,12})-(?P<pod_set>[a-z]{1,20})-(?P<index>[0-9]{1,9})\Z")
_NOT_IN_LABEL: Final = re.compile(r"[^a-z0-9-]+")


def pod_name(run: RunPod) -> str:
    """Name of the one object that this pod can have, whichever run: `train-abcdefghijkl-main-0`.

    Different keys give different names: a key is read back from the name's last three parts, and a key of another
    shape becomes a hash, which leaves fewer parts.
    """
    key = run.pod_key if _POD_KEY.match(run.pod_key) else name_key("pod", run.pod_key)
    return _with_ending(run.workload_name, key)


def workload_key_of(pod_key: str) -> str:
    """The key of the workload that a pod belongs to."""
    match = _POD_KEY.match(pod_key)
    return match["workload"] if match else name_key("pod", pod_key)


def service_name(run: RunPod) -> str:
    """Name of the headless Service of the run's workload; in a pod's object it is `spec.subdomain`."""
    return _with_ending(run.workload_name, workload_key_of(run.pod_key))


def port_service_name(workload_name: str, workload_id: str, service: ServiceType) -> str:
    """Name of the Service of one type for the ports of one incarnation of a workload."""
    return _with_ending(workload_name, name_key("ports", workload_id, service))


def claim_name(run: RunPod, given: str, number: int) -> str:
    """Name of a persistent volume claim: the given one, or one that no other incarnation of the workload has."""
    return given or _with_ending(run.workload_name, name_key("claim", run.workload_id, str(number)))


def shared_name(cluster_id: str, data_volume: str, namespace: str, source_uid: str) -> str:
    """Name of the claim and of the volume by which pods of a namespace read a data volume that is this volume now."""
    return f"{SHARED_PREFIX}{name_key('shared', cluster_id, data_volume, namespace, source_uid)}"


def hostname(run: RunPod) -> str:
    """How the other pods of the workload call this one, before the Service's name: `main-0`."""
    return hostname_of(run.pod.pod_set, run.pod.index)


def hostname_of(pod_set: str, index: int) -> str:
    return _with_ending(pod_set, str(index))


def namespace_of(format_: str, project_name: str) -> str:
    """The project's namespace. A name that Kubernetes would not take is changed, and a hash keeps it apart."""
    plain = format_.replace("{project}", project_name)
    if len(plain) <= MAX_NAME and _dns_label(plain) == plain:
        return plain
    return _with_ending(plain, name_key("namespace", format_, project_name))


def reservation_name(cluster_id: str, node_name: str, device: int) -> str:
    """Name of the pod that holds a node's logical device while portions of it are in use."""
    return _with_ending(f"gpu-{node_name}", f"{device}-{name_key('gpu', cluster_id, node_name, str(device))}")


def fence_map_name(cluster_id: str, shard: int) -> str:
    return f"muster-fences-{name_key('fences', cluster_id)}-{shard}"


def code_map_name(cluster_id: str, digest: str, number: int) -> str:
    """One part of an archive, in the namespace of the project that it was sent for."""
    return f"{CODE_MAP}{name_key('code', cluster_id)}-{digest}-{number}"


def secret_name(cluster_id: str, pod_key: str, token: int) -> str:
    """Of one run alone: the next one of its rank may need other values."""
    return f"{CREDENTIAL_SECRETS}{name_key('credentials', cluster_id, pod_key, str(token))}"


def lease_name(cluster_id: str) -> str:
    """Of the Lease by which one agent at a time acts."""
    return f"muster-agent-{name_key('lease', cluster_id)}"


def _with_ending(text: str, ending: str) -> str:
    """A DNS label of at most 63 characters that begins with a letter and keeps the ending whole."""
    start = _dns_label(text)[: MAX_NAME - len(ending) - 1].rstrip("-")
    if not start[:1].isalpha():
        start = f"w{start}"[: MAX_NAME - len(ending) - 1].rstrip("-")
    return f"{start}-{ending}"


def _dns_label(text: str) -> str:
    return _NOT_IN_LABEL.sub("-", text.lower()).strip("-")
