"""What the pods of each kind of workload are on Kubernetes, from the body of a request on: by rules, defaults, decider,
sets of pods and recipe. The bodies are the examples that people are shown, and one that needs what no machine has.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import yaml

from events.aggregate import WORKLOAD
from events.cluster_protocol import RunPod, SealedValues
from events.ids import workload_key
from events.phases import PodPhase
from events.project import Project
from events.workload.commands import CreateWorkload
from events.workload.fields.creation import (
    Creation,
    DistributedCreation,
    InferenceCreation,
    KindName,
    TrainingCreation,
    WorkspaceCreation,
)
from events.workload.mpi import ssh_files
from events.workload.pod import DeviceShare, Pod
from events.workload.spec import Distributed, Inference
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.manifests import Manifest, pod_manifest
from services.agent.backends.kubernetes.act.secret_manifests import needs_of
from services.api.check import FaultyCreation, check_creation
from services.cluster_sync.reconcile import Desired, run_pod
from tests.support.lives import World

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
APART: Final = Path(__file__).parent / "apart.yaml"
PROJECT: Final = "golden"
PAIR: Final = ("a private key\n", "ssh-ed25519 AAAA\n")
"""As OpenSSH writes them, but for their content."""
KINDS: Final[dict[str, tuple[KindName, type[Creation], tuple[str, ...]]]] = {
    "primes": ("Training", TrainingCreation, ("main",)),
    "workspace": ("Workspace", WorkspaceCreation, ("main",)),
    "inference": ("Inference", InferenceCreation, ("replica",)),
    "distributed": ("Distributed", DistributedCreation, ("master", "worker")),
    "tensorflow": ("Distributed", DistributedCreation, ("master", "worker")),
    "xgboost": ("Distributed", DistributedCreation, ("master", "worker")),
    "jax": ("Distributed", DistributedCreation, ("worker",)),
    "mpi": ("Distributed", DistributedCreation, ("master", "worker")),
    "apart": ("Distributed", DistributedCreation, ("master", "worker")),
}
"""By example: its kind, how its body is read, and its sets of pods."""


@cache
def recipe(example: str, pod_set: str) -> RunPod:
    """Of the set's first pod, as an agent is told it."""
    kind, body, _ = KINDS[example]
    world = World()
    project_id, cluster_id = world.project(PROJECT), world.cluster("golden")
    path = APART if example == APART.stem else EXAMPLES / f"{example}.yaml"
    given: dict[str, Any] = yaml.safe_load(path.read_text())
    assert given.pop("kind", kind) == kind
    told = check_creation(body, given | {"projectId": project_id, "clusterId": cluster_id})
    assert not isinstance(told, FaultyCreation), f"{example}.yaml is refused: {told}"
    spec, beside = told.order()
    key = workload_key(project_id, told.name)
    creation = CreateWorkload(
        kind=kind,
        name=told.name,
        requested_name=told.name,
        project_id=project_id,
        cluster_id=cluster_id,
        spec=spec,
        distributed=beside if isinstance(beside, Distributed) else None,
        inference=beside if isinstance(beside, Inference) else None,
    )
    assert world.do(WORKLOAD.name, key, creation) is None
    state = world.state(WORKLOAD.name, key)
    (found,) = [one for one in state.pod_sets if one.name == pod_set]
    devices = tuple(
        DeviceShare(device=device, milli=1000) for device in range(found.template.request.gpu_milli // 1000)
    )
    bound = Pod(phase=PodPhase.BOUND, attempt=1, try_=0, token=41, node_name="node-1", devices=devices)
    return run_pod(Desired(key, (pod_set, 0), state, bound, Project(name=PROJECT), held=False), ssh_keys=True)


def manifest(example: str, pod_set: str, *, cluster_id: str, namespace: str) -> Manifest:
    made = recipe(example, pod_set)
    secret = names.secret_name(cluster_id, made.pod_key, made.token)
    ssh = {} if made.mpi is None else ssh_files(made.mpi, *PAIR)
    return pod_manifest(
        made,
        cluster_id=cluster_id,
        namespace=namespace,
        service=names.service_name(made) if made.pods > 1 else "",
        needs=needs_of(SealedValues(ssh=ssh), secret),
    )


def cases(cluster_id: str, namespace: str) -> dict[str, Callable[[], Manifest]]:
    return {
        f"kind-{example}-{pod_set}": partial(manifest, example, pod_set, cluster_id=cluster_id, namespace=namespace)
        for example, (_, _, pod_sets) in KINDS.items()
        for pod_set in pod_sets
    }
