"""What a run asks for that only a privileged project's may have: a project may have lost that since. Pure."""

from typing import Final

from events.cluster_protocol import RunPod
from events.workload.pod_sets import BASELINE_CAPABILITIES
from events.workload.volumes import NodeFolder

NOT_PRIVILEGED: Final = "not_privileged"


def beyond_baseline(pod: RunPod) -> str:
    """Why the run may not be started, in words; empty where it may. What it asked for was checked when it was
    submitted; it may have stood suspended, or failed, since.
    """
    if pod.privileged:
        return ""
    asked, probe = pod.container, pod.readiness
    told = [
        *(f"path {volume.path} of the node" for volume in pod.volumes if isinstance(volume, NodeFolder)),
        *(["the network of the node"] if asked.host_network else []),
        *(["memory and semaphores of the node"] if asked.host_ipc else []),
        *(["seccomp Unconfined"] if asked.seccomp == "Unconfined" else []),
        *(f"capability {one}" for one in asked.capabilities if one not in BASELINE_CAPABILITIES),
        *(["a host that nodes ask"] if probe is not None and probe.host else []),
    ]
    if not told:
        return ""
    return f"{told[0]} is for projects with the setting privileged, which project {pod.project_name} has not any more"
