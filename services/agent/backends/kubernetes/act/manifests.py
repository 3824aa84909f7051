"""The objects that we make on a Kubernetes cluster, from an allow-list: nothing a user wrote adds a field. Pure.

Where Kubernetes reads a zero differently from nothing, the zero is written: a request that is left out beside a limit
becomes as large as the limit, and the node would then hold more than the log reserved.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, assert_never

from msgspec.structs import replace

from events.cluster_protocol import EnvironmentSource, RunPod
from events.workload.needs import GPU
from events.workload.pod_sets import Container
from events.workload.rendezvous import with_addresses
from events.workload.repositories import KNOWN_HOSTS as HOSTS_KEY
from events.workload.repositories import PRIVATE_KEY
from events.workload.spec import WHOLE_GPU_MILLI
from events.workload.volumes import BucketFolder, ClonedFolder, checkpoint_of, checkpoint_variables
from services.agent.backends.clone import (
    KEY,
    KEY_FOLDER,
    KNOWN_HOSTS,
    PASSWORD,
    USER,
    clone_command,
    clone_environment,
)
from services.agent.backends.fetching import KEY_ID, SECRET
from services.agent.backends.gpu_share import gpu_share
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.code_manifests import CODE_FOLDER, code_container
from services.agent.backends.kubernetes.act.container_manifests import (
    HOME_FOLDER,
    container_security,
    folders,
    hooks,
    image_and_terminal,
    of_the_host,
    pod_security,
    pull_secrets,
    within_restricted,
)
from services.agent.backends.kubernetes.act.mpi_manifests import mpi_annotations, mpi_variables, server_arguments
from services.agent.backends.kubernetes.act.objects import BUCKET_CONTAINER, CLONE_CONTAINER, MAIN
from services.agent.backends.kubernetes.act.placing import affinity, tolerations
from services.agent.backends.kubernetes.act.port_manifests import port_variables, ports_text
from services.agent.backends.kubernetes.act.secret_manifests import NOTHING, Needs, key_variables, login_variables
from services.agent.backends.kubernetes.act.secret_manifests import variables as secret_variables
from services.agent.backends.kubernetes.act.security import Security, restricted_by, with_project
from services.agent.backends.kubernetes.act.volume_manifests import KEYS_VOLUME, fetched, shared_claims
from services.agent.backends.kubernetes.act.volume_manifests import devices as devices_of

Manifest = dict[str, Any]

SCHEDULER: Final = "muster"
"""Nobody runs a scheduler of this name on the cluster: a pod of ours comes with its node, or not at all."""
NO_DEVICES: Final = "void"
"""Images made for GPUs ask for all devices by default; this word makes NVIDIA's runtime give none."""
RESERVATION_GRACE_SECONDS: Final = 1
"""Zero means without waiting for the node: no finalizer keeps this object, which could be gone before its process."""
RESERVATION_USER: Final = 10001
"""As in deploy/Dockerfile; a number, so that the node can see that it is not root."""

_USER_KEY, _PASSWORD_KEY = "User", "Password"
"""Of a Secret that says no others (R34)."""
_KEY_MOUNT: Final = {"name": KEYS_VOLUME, "mountPath": KEY_FOLDER}
"""In which a key for ssh is a file while its repository is cloned. The pod's own container does not have it."""
_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_MAX_DOMAIN: Final = 253
_WORD: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?\Z")
"""A label's value, or the part of a key behind the slash: at most 63 characters."""
_OF_THE_SYSTEM: Final = re.compile(r"(.*\.)?(kubernetes|k8s)\.io\Z")
_FREE_FOR_USERS: Final = frozenset({"app.kubernetes.io", "cluster-autoscaler.kubernetes.io"})
"""Of the domains above: names that people put on their pods, and whether an autoscaler may move them."""


def shares_devices(run: RunPod) -> bool:
    """Whether it gets parts of devices, which Kubernetes does not give out: it needs reservation pods."""
    return any(share.milli != WHOLE_GPU_MILLI for share in run.devices)


def pod_manifest(
    run: RunPod,
    *,
    cluster_id: str,
    namespace: str,
    security: Security = "baseline",
    devices: Sequence[str] = (),
    reservations: Sequence[str] = (),
    device_memory_bytes: int = 0,
    service: str = "",
    code_maps: int = 0,
    needs: Needs = NOTHING,
    own_image: str = "muster",
) -> Manifest:
    """The pod of a run. `security`: what its namespace enforces. `devices` (visible device ids), `reservations` (names
    of the pods that hold them) and `device_memory_bytes` (of one device, 0: unknown) are for a run that shares devices;
    `code_maps` (how many ConfigMaps hold its code) for one that has code; `needs` for one that needs credentials;
    `own_image` (of Muster) for one that fetches buckets.
    """
    if run.code and not code_maps:
        raise ValueError(f"{run.pod_key}: a run with code must be told where it is")
    if shares_devices(run) and not devices:
        raise ValueError(f"{run.pod_key}: a run that shares devices needs to know which devices they are")
    level = with_project(security, run.pod_security)
    if level == "restricted" and security != level:
        run = replace(run, container=within_restricted(run.container))
    working_dir = CODE_FOLDER if run.code else run.working_dir
    mounts, volumes = folders(run, cluster_id, code_maps=code_maps, needs=needs, level=level)
    before = _before(run, level, needs, own_image)
    container = {
        "name": MAIN,
        "image": run.image,
        **image_and_terminal(run.container),
        "env": list(_environment(run, cluster_id, devices, device_memory_bytes, service=service, needs=needs)),
        "resources": _resources(run),
        **_program(run),
        **({"workingDir": working_dir} if working_dir else {}),
        **({"volumeMounts": mounts} if mounts else {}),
        **devices_of(run),
        **hooks(run),
        **container_security(level, run.container),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.pod_name(run),
            "namespace": namespace,
            **_marks(run, cluster_id, service, reservations, security, code_maps=code_maps, needs=needs),
            "finalizers": [names.FINALIZER],
        },
        "spec": {
            "nodeName": run.node_name,
            "schedulerName": SCHEDULER,
            "restartPolicy": "Never",
            "serviceAccountName": "default",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": run.grace_seconds,
            "tolerations": [*_tolerations(), *tolerations(run)],
            **affinity(run, cluster_id),
            **of_the_host(run.container),
            "securityContext": pod_security(level, run.container),
            **pull_secrets(run.container, needs),
            **({"hostname": names.hostname(run), "subdomain": service} if service else {}),
            **({"volumes": volumes} if volumes else {}),
            **({"initContainers": before} if before else {}),
            "containers": [container],
        },
    }


def namespace_manifest(
    name: str, *, cluster_id: str, project_id: str, project_name: str, security: Security = "baseline"
) -> Manifest:
    labels = {**managed_labels(cluster_id), names.PROJECT: project_id, names.ENFORCE: security}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels, "annotations": {names.PROJECT_NAME: project_name}},
    }


def service_manifest(name: str, *, namespace: str, workload_key: str, workload_name: str, cluster_id: str) -> Manifest:
    """The headless Service by which a workload's pods find each other: `main-0.<service>` and so on.

    Names are told before a pod is ready: the ranks of a training wait for each other in order to become so.
    """
    marks = {names.CLUSTER: cluster_id, names.WORKLOAD_KEY: workload_key}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**managed_labels(cluster_id), **marks},
            "annotations": {names.WORKLOAD_NAME: workload_name},
        },
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": marks},
    }


def reservation_manifest(
    *, cluster_id: str, namespace: str, node_name: str, device: int, image: str, service_account: str = ""
) -> Manifest:
    """The pod that holds one of a node's devices for those who share it. Its program writes down which device that is.

    With a service account it gets a token, to write to itself.
    """
    container = {
        "name": MAIN,
        "image": image,
        "command": ["python", "-m", "services.agent.reservation"],
        "env": [
            _field("MUSTER_POD_NAME", "metadata.name"),
            _field("MUSTER_POD_NAMESPACE", "metadata.namespace"),
        ],
        "resources": {
            "requests": {"cpu": "0", "memory": "0", GPU: "1"},
            "limits": {GPU: "1"},
        },
        **container_security("restricted"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names.reservation_name(cluster_id, node_name, device),
            "namespace": namespace,
            "labels": {**managed_labels(cluster_id), names.GPU_RESERVATION: str(device)},
            "annotations": {names.RESERVED_NODE: node_name},
        },
        "spec": {
            "nodeName": node_name,
            "schedulerName": SCHEDULER,
            # Its container may die without losing the device: that belongs to the pod.
            "restartPolicy": "Always",
            "serviceAccountName": service_account or "default",
            "automountServiceAccountToken": bool(service_account),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": RESERVATION_GRACE_SECONDS,
            "tolerations": _tolerations(),
            "securityContext": {**pod_security("restricted"), "runAsUser": RESERVATION_USER},
            "containers": [container],
        },
    }


def fence_map_manifest(*, cluster_id: str, namespace: str, shard: int, data: Mapping[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.fence_map_name(cluster_id, shard),
            "namespace": namespace,
            "labels": managed_labels(cluster_id),
        },
        "data": dict(data),
    }


# -- marks -----------------------------------------------------------------------------------------------------------


def managed_labels(cluster_id: str) -> dict[str, str]:
    return {names.MANAGED_BY: names.MANAGER, names.CLUSTER: cluster_id}


def _marks(
    run: RunPod,
    cluster_id: str,
    service: str,
    reservations: Sequence[str],
    security: Security,
    *,
    code_maps: int,
    needs: Needs,
) -> Manifest:
    """Labels and annotations: the user's where Kubernetes takes them, ours over them."""
    labels = {key: value for key, value in run.labels.items() if _free_key(key) and _label_value(value)}
    annotations = {key: value for key, value in run.annotations.items() if _free_key(key)}
    labels |= {
        **managed_labels(cluster_id),
        names.POD_KEY: run.pod_key,
        names.TOKEN: str(run.token),
        names.WORKLOAD: run.workload_id,
        names.WORKLOAD_KEY: names.workload_key_of(run.pod_key),
        names.PROJECT: run.project_id,
        names.POD_SET: run.pod.pod_set,
        names.INDEX: str(run.pod.index),
        names.ATTEMPT: str(run.pod.attempt),
        names.TRY: str(run.pod.try_),
    }
    annotations |= {names.WORKLOAD_NAME: run.workload_name, names.PROJECT_NAME: run.project_name}
    if left := sorted(run.labels.keys() - labels.keys()):
        annotations[names.LABELS_LEFT_OUT] = json.dumps(left, ensure_ascii=False)
    if left := sorted(run.annotations.keys() - annotations.keys()):
        annotations[names.ANNOTATIONS_LEFT_OUT] = json.dumps(left, ensure_ascii=False)
    if restricted := restricted_by(security, run.pod_security):
        annotations[names.RESTRICTED_BY] = restricted
    if reservations:
        annotations[names.RESERVATIONS] = ",".join(reservations)
    if run.readiness is not None:
        annotations[names.PROBED] = "true"
    if run.ports:
        annotations[names.PORTS] = ports_text(run.ports)
    if (folder := checkpoint_of(run.volumes)) is not None:
        annotations[names.CHECKPOINT_DIR] = folder.mount_path
    if run.code:
        annotations |= {names.CODE: run.code, names.CODE_MAPS: str(code_maps)}
    annotations |= mpi_annotations(run, service)
    if needs.secret:
        annotations[names.CREDENTIALS] = "true"
    if shared := shared_claims(run):
        annotations[names.SHARED_CLAIMS] = ",".join(shared)
    return {"labels": labels, "annotations": annotations}


def _free_key(key: str) -> bool:
    """Whether Kubernetes takes this key, and it belongs neither to us nor to Kubernetes' own parts."""
    domain, slash, name = key.rpartition("/")
    if not _WORD.match(name):
        return False
    if not slash:
        return True
    if len(domain) > _MAX_DOMAIN or not _DOMAIN.match(domain):
        return False
    system = _OF_THE_SYSTEM.match(domain) and domain not in _FREE_FOR_USERS
    return not system and not key.startswith(names.OUR_PREFIX)


def _label_value(value: str) -> bool:
    return not value or bool(_WORD.match(value))


# -- the container ---------------------------------------------------------------------------------------------------


def _program(run: RunPod) -> Manifest:
    """Nothing where the image says it."""
    if server := server_arguments(run):
        return {"command": list(server)}
    return {"args" if run.keeps_entry_point else "command": list(run.arguments)} if run.arguments else {}


def _environment(
    run: RunPod, cluster_id: str, devices: Sequence[str], device_memory_bytes: int, *, service: str, needs: Needs
) -> Iterator[Manifest]:
    """What Muster says first, then what comes from Secrets and the like, then values of credentials, then plain ones:
    each may refer to those before it as `$(NAME)`, and nobody may change ours.
    """
    own = {
        "MUSTER_WORKLOAD_ID": run.workload_id,
        "MUSTER_WORKLOAD_NAME": run.workload_name,
        "MUSTER_PROJECT_ID": run.project_id,
        "MUSTER_POD_SET": run.pod.pod_set,
        "MUSTER_POD_INDEX": str(run.pod.index),
        "MUSTER_ATTEMPT": str(run.pod.attempt),
        "MUSTER_RUN": str(run.pod.try_ + 1),
        "MUSTER_NODE_NAME": run.node_name,
        # As Kubernetes' indexed Jobs call it.
        "JOB_COMPLETION_INDEX": str(run.pod.index),
        "MUSTER_RUN_ID": f"{cluster_id}/{run.pod_key}/{run.token}",
        **checkpoint_variables(run.volumes),
        **port_variables(run),
        **({"MUSTER_SERVICE": service} if service else {}),
        **({"HOME": HOME_FOLDER} if run.container.home else {}),
        **_devices(run, devices, device_memory_bytes),
        **mpi_variables(run),
        **with_addresses(run.rendezvous, host=partial(_address, service), port=lambda _, usual: usual),
    }
    # Which devices a pod sees is never the user's to say: naming others would take what was not given.
    taken = own.keys() | {"NVIDIA_VISIBLE_DEVICES"}
    yield from ({"name": name, "value": value} for name, value in own.items())
    sources = {source.name: source for source in run.environment_from if source.name not in taken}
    yield from (_from_source(source) for source in sources.values())
    taken |= sources.keys()
    yield from (one for one in secret_variables(needs) if one["name"] not in taken)
    taken |= set(needs.variables)
    plain = {name: value for name, value in run.environment.items() if name not in taken}
    yield from ({"name": name, "value": value} for name, value in plain.items())


def _address(service: str, pod_set: str, index: int) -> str:
    """By which the other pods of the workload find this one; a pod that is alone finds itself."""
    return f"{names.hostname_of(pod_set, index)}.{service}" if service else "localhost"


def _devices(run: RunPod, devices: Sequence[str], device_memory_bytes: int) -> dict[str, str]:
    """Which devices to use, and how much of them."""
    if not run.devices:
        return {"NVIDIA_VISIBLE_DEVICES": NO_DEVICES}
    share = gpu_share(run, device_memory_bytes)
    # Whole devices are named by the node, which alone knows them.
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(devices), **share} if shares_devices(run) else share


def _from_source(source: EnvironmentSource) -> Manifest:
    match source.kind:
        case "secret":
            reference = {"secretKeyRef": {"name": source.object_name, "key": source.key}}
        case "config_map":
            reference = {"configMapKeyRef": {"name": source.object_name, "key": source.key}}
        case "field":
            return _field(source.name, source.key)
        case _:
            assert_never(source.kind)
    return {"name": source.name, "valueFrom": reference}


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _before(run: RunPod, level: Security, needs: Needs, own_image: str) -> list[Manifest]:
    """The containers that run before the pod's own, one after the other."""
    unpacking = [_unpacking(run, level)] if run.code else []
    return [*unpacking, *_cloning(run, level, needs), *_fetching(run, level, needs, own_image)]


def _unpacking(run: RunPod, level: Security) -> Manifest:
    """The container that unpacks the run's code, as the same user. It needs no device and no extended resource, and
    gets none.
    """
    unpacks = code_container(
        image=run.image,
        digest=run.code,
        environment=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": NO_DEVICES}],
        resources=_resources(run, devices=False),
    )
    pulls = image_and_terminal(Container(pull_policy=run.container.pull_policy))
    return {**unpacks, **pulls, **container_security(level, run.container)}


def _cloning(run: RunPod, level: Security, needs: Needs) -> list[Manifest]:
    """The containers that clone repositories, of the pod's own image and as the same user. It needs two programs."""
    return [
        {
            "name": f"{CLONE_CONTAINER}{number}",
            "image": run.image,
            "command": _clone_command(volume),
            "env": [
                *({"name": name, "value": value} for name, value in clone_environment(volume).items()),
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": NO_DEVICES},
                *_login(volume, needs),
            ],
            "resources": _resources(run, devices=False),
            "volumeMounts": [mount, *([dict(_KEY_MOUNT)] if volume.over_ssh else [])],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            **image_and_terminal(Container(pull_policy=run.container.pull_policy)),
            **container_security(level, run.container),
        }
        for number, (volume, mount) in enumerate(fetched(run, ClonedFolder))
    ]


def _clone_command(volume: ClonedFolder) -> list[str]:
    shell, flags, script, *words = clone_command(volume)
    return [shell, flags, script, *map(_literal, words)]


def _fetching(run: RunPod, level: Security, needs: Needs, own_image: str) -> list[Manifest]:
    """The containers that fetch buckets, of Muster's own image: no image of a user need have a program for it. As the
    same user as the pod's own container, where one is said.
    """
    return [
        {
            "name": f"{BUCKET_CONTAINER}{number}",
            "image": own_image,
            "command": [
                "python",
                "-m",
                "services.agent.bucket",
                *map(_literal, (volume.url, volume.bucket, volume.mount_path)),
            ],
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": NO_DEVICES}, *_access_key(volume, needs)],
            "resources": _resources(run, devices=False),
            "volumeMounts": [mount],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            **container_security(level, run.container),
        }
        for number, (volume, mount) in enumerate(fetched(run, BucketFolder))
    ]


def _literal(word: str) -> str:
    """Kubernetes puts values of variables where `$(NAME)` stands: an address could have the secret sent to it, and git
    would tell it to the log of the run.
    """
    return word.replace("$", "$$")


def _access_key(volume: BucketFolder, needs: Needs) -> list[Manifest]:
    """Variables with which a bucket is read that not everybody may read."""
    login = volume.login
    if login is None:
        return []
    if login.credential:
        return login_variables(needs, volume.mount_path, KEY_ID, SECRET)
    keys = ((KEY_ID, login.user_key), (SECRET, login.password_key))
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": login.name, "key": key}}} for name, key in keys]


def _login(volume: ClonedFolder, needs: Needs) -> list[Manifest]:
    """Variables with which a repository is cloned that not everybody may read."""
    login = volume.login
    if login is None:
        return []
    if login.credential and volume.over_ssh:
        return key_variables(needs, volume.mount_path, KEY, KNOWN_HOSTS)
    if login.credential:
        return login_variables(needs, volume.mount_path, USER, PASSWORD)
    if volume.over_ssh:
        keys = ((KEY, login.password_key or PRIVATE_KEY), (KNOWN_HOSTS, HOSTS_KEY))
        return [{"name": name, "valueFrom": {"secretKeyRef": {"name": login.name, "key": key}}} for name, key in keys]
    user = {"name": login.name, "key": login.user_key or _USER_KEY, **({} if login.user_key else {"optional": True})}
    password = {"name": login.name, "key": login.password_key or _PASSWORD_KEY}
    return [{"name": name, "valueFrom": {"secretKeyRef": ref}} for name, ref in ((USER, user), (PASSWORD, password))]


def _resources(run: RunPod, *, devices: bool = True) -> Manifest:
    requests = {"cpu": _milli(run.cpu_milli), "memory": str(run.memory_bytes)}
    limits: dict[str, str] = {}
    if run.cpu_limit_milli:
        limits["cpu"] = _milli(run.cpu_limit_milli)
    if run.memory_limit_bytes:
        limits["memory"] = str(run.memory_limit_bytes)
    if devices and run.devices and not shares_devices(run):
        requests[GPU] = limits[GPU] = str(len(run.devices))
    for each in run.extended if devices else ():
        requests[each.resource] = limits[each.resource] = str(each.amount)
    return {"requests": requests, **({"limits": limits} if limits else {})}


def _milli(value: int) -> str:
    return f"{value}m" if value % 1000 else str(value // 1000)


# -- what every pod has ----------------------------------------------------------------------------------------------


def _tolerations() -> list[Manifest]:
    """A node that does not answer keeps its pods: when they are given up is decided with the log, not by a taint."""
    silent = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    return [
        *({"key": key, "operator": "Exists", "effect": "NoExecute"} for key in silent),
        {"key": GPU, "operator": "Exists"},
    ]
