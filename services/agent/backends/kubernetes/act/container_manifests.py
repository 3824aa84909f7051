"""How a run's container is made: user and rights, image and terminal, and the folders that it brings along. Pure."""

from typing import Any, Final, assert_never

from msgspec.structs import replace

from events.cluster_protocol import RunPod
from events.workload.pod_sets import Container
from services.agent.backends.kubernetes.act.code_manifests import code_mount, code_volumes
from services.agent.backends.kubernetes.act.mpi_manifests import mpi_mounts, mpi_volumes
from services.agent.backends.kubernetes.act.secret_manifests import Needs, pull_secret
from services.agent.backends.kubernetes.act.security import Security
from services.agent.backends.kubernetes.act.volume_manifests import volume_manifests

type Manifest = dict[str, Any]

HOME_FOLDER: Final = "/muster/home"
"""No image has anything there."""
_HOME_VOLUME, _SHM_VOLUME = "home", "shm"
_NOTHING: Final = Container()
_OF_RESTRICTED: Final = frozenset({"NET_BIND_SERVICE"})
"""Capabilities that `restricted` lets a pod add."""


def image_and_terminal(container: Container) -> Manifest:
    return {
        **({"imagePullPolicy": container.pull_policy} if container.pull_policy else {}),
        **({"stdin": True} if container.stdin else {}),
        **({"tty": True} if container.tty else {}),
    }


def pull_secrets(container: Container, needs: Needs) -> Manifest:
    named = [*({"name": name} for name in container.pull_secrets), *pull_secret(needs)]
    return {"imagePullSecrets": named} if named else {}


def folders(
    run: RunPod, cluster_id: str, *, code_maps: int, needs: Needs, level: Security
) -> tuple[list[Manifest], list[Manifest]]:
    """(mounts of the run's own container, volumes of its pod). Those that nobody asked for by path are empty at first
    but that of the code, and gone with the pod. Memory that is written to /dev/shm counts for the container's limit.
    """
    mounts: list[Manifest] = []
    volumes: list[Manifest] = []
    if run.code:
        mounts.append(code_mount())
        volumes += code_volumes(cluster_id, run.code, code_maps)
    if run.container.home:
        mounts.append({"name": _HOME_VOLUME, "mountPath": HOME_FOLDER})
        volumes.append({"name": _HOME_VOLUME, "emptyDir": {}})
    if run.container.large_shm:
        mounts.append({"name": _SHM_VOLUME, "mountPath": "/dev/shm"})  # noqa: S108 (of the container)
        volumes.append({"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory"}})
    more_mounts, more_volumes = volume_manifests(run)
    mounts += [*mpi_mounts(run, needs), *more_mounts]
    return mounts, [*volumes, *mpi_volumes(run, needs, level), *more_volumes]


def hooks(run: RunPod) -> Manifest:
    """What the node does with the container while it runs, and before it ends."""
    return {**readiness_probe(run), **before_end(run)}


def before_end(run: RunPod) -> Manifest:
    """What runs in the container when the pod is told to end, before SIGTERM. The node gives it the grace period, and
    no more: that has begun when it starts.
    """
    by = run.stop_by
    if by is None or run.grace_seconds <= 0:
        return {}
    # A signal has no field of its own that every API server keeps (KEP-4960 is alpha), so a shell of the image's sends
    # it. It goes on until the program has ended, since SIGTERM follows when it does.
    wait = "while kill -0 1 2>/dev/null; do sleep 1 || exit 0; done"
    send = ["/bin/sh", "-c", f"kill -s {by.signal.removeprefix('SIG')} 1 && {wait}"]
    return {"lifecycle": {"preStop": {"exec": {"command": send if by.signal else list(by.arguments)}}}}


def readiness_probe(run: RunPod) -> Manifest:
    probe = run.readiness
    if probe is None:
        return {}
    return {
        "readinessProbe": {
            "httpGet": {
                "path": probe.path,
                "port": probe.port,
                "scheme": "HTTPS" if probe.https else "HTTP",
                **({"host": probe.host} if probe.host else {}),
            },
            # None is 0 to the API server, which says so by leaving it out.
            **({"initialDelaySeconds": probe.delay_seconds} if probe.delay_seconds else {}),
            "periodSeconds": probe.period_seconds,
            "timeoutSeconds": probe.timeout_seconds,
            "successThreshold": probe.successes,
            "failureThreshold": probe.failures,
        }
    }


def of_the_host(container: Container) -> Manifest:
    """What a pod shares with its node. It finds Services by name all the same."""
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if container.host_network else {}
    return {**network, **({"hostIPC": True} if container.host_ipc else {})}


def pod_security(level: Security, container: Container = _NOTHING) -> Manifest:
    seccomp = {"seccompProfile": {"type": container.seccomp or "RuntimeDefault"}}
    groups = {"supplementalGroups": list(container.groups)} if container.groups else {}
    return {"runAsNonRoot": True, **seccomp, **groups} if level == "restricted" else {**seccomp, **groups}


def within_restricted(container: Container) -> Container:
    """Without what Pod Security `restricted` forbids: of a run whose project became strict after it was submitted,
    where its namespace, and so the API server, is not.
    """
    return replace(
        container,
        capabilities=tuple(one for one in container.capabilities if one in _OF_RESTRICTED),
        escalation=False if container.escalation else container.escalation,
        seccomp="" if container.seccomp == "Unconfined" else container.seccomp,
        host_network=False,
        host_ipc=False,
    )


def container_security(level: Security, container: Container = _NOTHING) -> Manifest:
    """What was asked for; of the rest, the strictest that the level's own pods can be expected to bear: root's usual
    rights where root is allowed. What the namespace does not let through, its API server refuses by name.
    """
    asked: Manifest = {}
    match level:
        case "restricted":
            asked = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        case "baseline":
            asked = {"allowPrivilegeEscalation": False}
        case "privileged":
            pass
        case _:
            assert_never(level)
    if container.escalation is not None:
        asked["allowPrivilegeEscalation"] = container.escalation
    if container.capabilities:
        asked["capabilities"] = {**asked.get("capabilities", {}), "add": list(container.capabilities)}
    asked |= {
        **({} if container.user is None else {"runAsUser": container.user}),
        **({} if container.group is None else {"runAsGroup": container.group}),
        **({"runAsNonRoot": True} if container.non_root else {}),
        **({"readOnlyRootFilesystem": True} if container.read_only else {}),
    }
    return {"securityContext": asked} if asked else {}
