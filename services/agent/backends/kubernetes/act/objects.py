"""The parts that we read of Kubernetes' objects. Pure.

Everything else is dropped while an object is decoded, and so never takes memory: thousands of pods of others, with all
their labels, are held to count what they request. Times that Kubernetes writes as null where it knows none are None.
"""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from services.agent.backends.kubernetes import names

EPOCH: Final = datetime.fromtimestamp(0, UTC)

PodPhase = str
"""`Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`; text, so that a new one breaks no list."""
TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})
MAIN: Final = "main"
"""Name of the container that runs the workload; others were put beside it by the cluster's own admission."""
CLONE_CONTAINER: Final = "clone-"
"""How names of init containers begin that clone a repository."""
BUCKET_CONTAINER: Final = "bucket-"
"""How names of init containers begin that fetch a bucket."""
CODE_CONTAINER: Final = "code"
"""Name of the init container that unpacks a run's code."""


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False, repr_omit_defaults=True
):
    """gc=False: these are trees that are replaced whole, so there is never a cycle to find."""


class OurLabels(_Part, frozen=True, kw_only=True):
    """The labels of a pod by which we know ours; empty where it has none."""

    cluster: str = msgspec.field(name=names.CLUSTER, default="")
    pod_key: str = msgspec.field(name=names.POD_KEY, default="")
    token: str = msgspec.field(name=names.TOKEN, default="")
    workload: str = msgspec.field(name=names.WORKLOAD, default="")
    project: str = msgspec.field(name=names.PROJECT, default="")
    pod_set: str = msgspec.field(name=names.POD_SET, default="")
    index: str = msgspec.field(name=names.INDEX, default="")
    attempt: str = msgspec.field(name=names.ATTEMPT, default="")
    try_: str = msgspec.field(name=names.TRY, default="")
    gpu_reservation: str = msgspec.field(name=names.GPU_RESERVATION, default="")


class OurAnnotations(_Part, frozen=True, kw_only=True):
    workload_name: str = msgspec.field(name=names.WORKLOAD_NAME, default="")
    reservations: str = msgspec.field(name=names.RESERVATIONS, default="")
    visible_devices: str = msgspec.field(name=names.VISIBLE_DEVICES, default="")
    asked_to_end_at: str = msgspec.field(name=names.ASKED_TO_END_AT, default="")
    device_problem: str = msgspec.field(name=names.DEVICE_PROBLEM, default="")
    reserved_node: str = msgspec.field(name=names.RESERVED_NODE, default="")
    restricted_by: str = msgspec.field(name=names.RESTRICTED_BY, default="")
    project_name: str = msgspec.field(name=names.PROJECT_NAME, default="")
    code: str = msgspec.field(name=names.CODE, default="")
    credentials: str = msgspec.field(name=names.CREDENTIALS, default="")
    probed: str = msgspec.field(name=names.PROBED, default="")
    code_maps: str = msgspec.field(name=names.CODE_MAPS, default="")
    ports: str = msgspec.field(name=names.PORTS, default="")
    checkpoint_dir: str = msgspec.field(name=names.CHECKPOINT_DIR, default="")
    shared_claims: str = msgspec.field(name=names.SHARED_CLAIMS, default="")


NO_LABELS: Final = OurLabels()
NO_ANNOTATIONS: Final = OurAnnotations()


class PodMeta(_Part, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime = EPOCH
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    labels: OurLabels = NO_LABELS
    annotations: OurAnnotations = NO_ANNOTATIONS


class ObjectMeta(_Part, frozen=True, kw_only=True):
    """Of everything that is no pod."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}


Quantities = dict[str, str]
"""Amounts by resource, as Kubernetes writes them."""


class Resources(_Part, frozen=True, kw_only=True):
    requests: Quantities = {}
    limits: Quantities = {}


NO_RESOURCES: Final = Resources()


class Container(_Part, frozen=True, kw_only=True):
    name: str
    image: str = ""
    resources: Resources = NO_RESOURCES
    restart_policy: str = ""
    """`Always` on an init container: a sidecar, which runs as long as the pod."""
    stdin: bool = False
    """Whether something can be typed to it; likewise `tty`, whether it has a terminal."""
    tty: bool = False


class PodLevelRequests(_Part, frozen=True, kw_only=True):
    """Requests of the pod as a whole; where given, they take the place of its containers' (cpu and memory)."""

    cpu: str = ""
    memory: str = ""


class PodLevelResources(_Part, frozen=True, kw_only=True):
    requests: PodLevelRequests = PodLevelRequests()


class PodSpec(_Part, frozen=True, kw_only=True):
    node_name: str = ""
    subdomain: str = ""
    """Name of the headless Service that it belongs to."""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Quantities = {}
    resources: PodLevelResources | None = None


class Waiting(_Part, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class Running(_Part, frozen=True, kw_only=True):
    started_at: datetime | None = None


class Terminated(_Part, frozen=True, kw_only=True):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(_Part, frozen=True, kw_only=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Part, frozen=True, kw_only=True):
    name: str
    state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0


class Condition(_Part, frozen=True, kw_only=True):
    type: str
    status: str = ""
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class PodStatus(_Part, frozen=True, kw_only=True):
    phase: PodPhase = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    host_ip: str = msgspec.field(name="hostIP", default="")
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(_Part, frozen=True, kw_only=True):
    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Whether none of its containers runs or will run again: the kubelet, or who fenced its node, says so."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def main(self) -> Container | None:
        """The container that runs the workload."""
        return next((one for one in self.spec.containers if one.name == MAIN), None)

    def ours(self, cluster_id: str) -> bool:
        """Whether it is a run of ours: the label of this cluster, and a key, token and place that can be read."""
        labels = self.metadata.labels
        return (
            labels.cluster == cluster_id
            and bool(labels.pod_key and labels.pod_set)
            and all(text.isdecimal() for text in (labels.token, labels.index, labels.attempt, labels.try_))
        )

    def holds_gpu(self, cluster_id: str) -> bool:
        """Whether it is a reservation pod of ours."""
        return self.metadata.labels.cluster == cluster_id and bool(self.metadata.labels.gpu_reservation)


class NodeTaint(_Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Part, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class NodeStatus(_Part, frozen=True, kw_only=True):
    allocatable: Quantities = {}
    conditions: tuple[Condition, ...] = ()


class Node(_Part, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class InvolvedObject(_Part, frozen=True, kw_only=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(_Part, frozen=True, kw_only=True):
    """Kubernetes' own kind of event (core/v1): what some part of it has to say of an object."""

    metadata: ObjectMeta
    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    """`Normal` or `Warning`."""
    reason: str = ""
    message: str = ""
    count: int | None = None
    event_time: datetime | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None


class ConfigMap(_Part, frozen=True, kw_only=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}


class ConfigMaps(_Part, frozen=True, kw_only=True):
    items: tuple[ConfigMap, ...] = ()


class AnnotatedMeta(_Part, frozen=True, kw_only=True):
    name: str
    annotations: dict[str, str] = {}


class StorageClassObject(_Part, frozen=True, kw_only=True):
    metadata: AnnotatedMeta


class StorageClasses(_Part, frozen=True, kw_only=True):
    items: tuple[StorageClassObject, ...] = ()


class ClaimLabels(_Part, frozen=True, kw_only=True):
    cluster: str = msgspec.field(name=names.CLUSTER, default="")
    workload: str = msgspec.field(name=names.WORKLOAD, default="")
    ephemeral: str = msgspec.field(name=names.EPHEMERAL, default="")
    data_volume: str = msgspec.field(name=names.DATA_VOLUME, default="")


class ClaimAnnotations(_Part, frozen=True, kw_only=True):
    selected_node: str = msgspec.field(name=names.SELECTED_NODE, default="")
    shared_from: str = msgspec.field(name=names.SHARED_FROM, default="")


NO_CLAIM_LABELS: Final = ClaimLabels()
NO_CLAIM_ANNOTATIONS: Final = ClaimAnnotations()


class VolumeAnnotations(_Part, frozen=True, kw_only=True):
    mount_options: str | None = msgspec.field(name=names.MOUNT_OPTIONS, default=None)


NO_VOLUME_ANNOTATIONS: Final = VolumeAnnotations()


class ClaimMeta(_Part, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: datetime | None = None
    labels: ClaimLabels = NO_CLAIM_LABELS
    annotations: ClaimAnnotations = NO_CLAIM_ANNOTATIONS


class ClaimSpec(_Part, frozen=True, kw_only=True):
    volume_name: str = ""
    """Of the volume that it is bound to; empty while it is not."""


class Claim(_Part, frozen=True, kw_only=True):
    """A PersistentVolumeClaim."""

    metadata: ClaimMeta
    spec: ClaimSpec = ClaimSpec()


class VolumeMeta(ObjectMeta, frozen=True, kw_only=True):
    annotations: VolumeAnnotations = NO_VOLUME_ANNOTATIONS


class PersistentVolume(_Part, frozen=True, kw_only=True):
    metadata: VolumeMeta
    spec: dict[str, Any] = {}
    """As it is: what it is made of has a field for each kind of volume that there ever was."""


class Service(_Part, frozen=True, kw_only=True):
    metadata: ObjectMeta


class NamespaceStatus(_Part, frozen=True, kw_only=True):
    phase: str = "Active"
    """`Active`, or `Terminating` while it and all in it is being deleted."""


class Namespace(_Part, frozen=True, kw_only=True):
    metadata: ObjectMeta
    status: NamespaceStatus = NamespaceStatus()
