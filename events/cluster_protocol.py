"""What cluster_sync and a cluster's agent tell each other (streams WANTED and OBSERVED). Both may be lost.

WANTED holds, per pod key, the newest word about that pod; OBSERVED the newest fact. A pod key is fixed by the
workload's name, its pod set and index; `token` orders the runs of a key through all attempts, tries and incarnations.

WANTED holds nothing that a person can make large. What a run is made of is asked for when it is about to start: its
recipe (`RecipeRequest`, answered with `RunPod`), which no stream keeps.
"""

from datetime import datetime
from typing import Final, Literal

import msgspec

from events.cluster import ClusterKind, StorageClass
from events.node import NodeFacts
from events.project import PodSecurity
from events.workload.commands import PodFactKind, PodWarning
from events.workload.fields.scheduling import NodeSelectorTerm, PodAffinity, Toleration
from events.workload.mpi import Mpi
from events.workload.needs import ExtendedAmount
from events.workload.pod import DeviceShare, PodAddress, PodRef
from events.workload.pod_sets import Container, ContainerPort, StopBy
from events.workload.readiness import Readiness
from events.workload.sessions import SessionKind
from events.workload.volumes import Volume

SHARED_CLAIMS: Final = "muster-shared-"
"""How names of claims and volumes begin that agents make of data volumes. No workload may name one: who may use it, its
data volume says.
"""
CREDENTIAL_SECRETS: Final = "muster-credentials-"
"""How names of Secrets begin that agents make of credentials. Each is one pod's, and no workload may name one: it would
get what is somebody else's.
"""


def pod_key(workload_key: str, pod_set: str, index: int) -> str:
    return f"{workload_key}-{pod_set}-{index}"


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class EnvironmentSource(_Message, frozen=True, kw_only=True):
    """An environment variable whose value only the cluster knows."""

    name: str
    """Of the variable."""
    kind: Literal["secret", "config_map", "field"]
    object_name: str = ""
    """Of the Secret or ConfigMap, in the project's namespace; empty with `field`."""
    key: str = ""
    """Key within it; with `field` the path of the pod's field, such as `status.podIP`."""


class StartPod(_Message, frozen=True, kw_only=True, tag=True):
    """This pod should run; its recipe says what it is made of."""

    pod_key: str
    token: int
    workload_id: str
    """This and `pod`: so that an agent that may not start the run can still say that it is not there."""
    pod: PodRef
    node_name: str
    devices: tuple[DeviceShare, ...] = ()


class RecipeRequest(_Message, frozen=True, kw_only=True):
    """Asked by an agent on `recipes.<cluster>`: what is this run made of? A run that is no longer wanted has no answer:
    WANTED says so.
    """

    pod_key: str
    token: int
    public_key: bytes = b""
    """Of the agent, X25519; it has another one after each start. What a run needs of credentials is sealed to it."""
    ssh_keys: bool = False
    """Whether pods of its cluster reach each other by ssh: then those of an MPI training have keys."""


class Login(_Message, frozen=True, kw_only=True):
    """How a server is signed in to."""

    user: str
    password: str


class Registry(Login, frozen=True, kw_only=True):
    """From which the image may be pulled."""

    url: str
    email: str = ""


class RepositoryKey(_Message, frozen=True, kw_only=True):
    """With what a repository is cloned over ssh. Each text ends with a line's end."""

    private: str
    known_hosts: str
    """Keys of servers, as OpenSSH has them. Others are not believed."""


class SealedValues(_Message, frozen=True, kw_only=True):
    """What `RunPod.sealed` holds: of credentials what the run needs, and nothing else."""

    environment: dict[str, str] = {}
    """Values by variable."""
    registries: tuple[Registry, ...] = ()
    logins: dict[str, Login] = {}
    """For repositories that are cloned, by the path at which the pod finds each."""
    keys: dict[str, RepositoryKey] = {}
    """For those that are cloned over ssh, likewise."""
    ssh: dict[str, str] = {}
    """Files of the folder with its keys for ssh, by name. They are of no credential: all pods of an attempt have the
    same pair.
    """


def sealed_about(cluster_id: str, pod_key: str, token: int) -> str:
    """What sealed values are for: they open for nothing else."""
    return f"run {cluster_id} {pod_key} {token}"


class RunPod(_Message, frozen=True, kw_only=True):
    """A run's recipe, said on `agent.<cluster>.recipes`: everything an agent must know to start it."""

    pod_key: str
    token: int
    workload_id: str
    workload_name: str
    project_id: str
    project_name: str = ""
    pod_security: PodSecurity | None = None
    """What the project's pods keep to at least; None: what the cluster says."""
    privileged: bool = True
    """Whether its pods may have now what Pod Security `baseline` forbids."""
    pod: PodRef
    endless: bool = False
    """Whether it runs until it is told to end."""
    pods: int = 1
    """How many pods that find each other may be alive at once: those of this pod set, or of the whole workload where
    they are told of each other. With several, they find each other by name.
    """
    node_name: str
    devices: tuple[DeviceShare, ...] = ()
    gpu_memory_bytes: int = 0
    """Memory share of each device, where it was asked for by memory."""
    gpu_limit_milli: int = 0
    """What it may grow to of each device, where that was given by portion; 0: what it holds."""
    gpu_memory_limit_bytes: int = 0
    """As `gpu_limit_milli`, where it was given by memory."""
    image: str = ""
    arguments: tuple[str, ...] = ()
    """Command and args, split; empty: what the image says."""
    keeps_entry_point: bool = False
    """Whether the arguments are for the image's own entry point, where images are run: no command was given."""
    working_dir: str = ""
    code: str = ""
    """Digest of the code that the run's folder begins with; empty: none."""
    environment: dict[str, str] = {}
    environment_from: tuple[EnvironmentSource, ...] = ()
    sealed: bytes = b""
    """`SealedValues`, sealed to the key of the request; empty where the run needs no credential."""
    no_credentials: str = ""
    """Why a credential that it needs cannot be had, in words: then it cannot run."""
    no_volume: str = ""
    """Why a data volume cannot be had, likewise."""
    rendezvous: dict[str, str] = {}
    """Variables by which the pods of a workload find each other; addresses are for the agent to fill in
    (`events.workload.rendezvous`)."""
    mpi: Mpi | None = None
    """Of a pod of an MPI training: the agent makes its host files, and says in variables where they are."""
    cpu_milli: int = 0
    memory_bytes: int = 0
    cpu_limit_milli: int = 0
    """0: no limit; likewise memory."""
    memory_limit_bytes: int = 0
    container: Container = Container()
    volumes: tuple[Volume, ...] = ()
    readiness: Readiness | None = None
    extended: tuple[ExtendedAmount, ...] = ()
    node_type: str = ""
    """Of its node, empty: any. This and the next three: what the pod says of its node, where pods say that."""
    node_terms: tuple[NodeSelectorTerm, ...] | None = None
    """None: any node."""
    tolerations: tuple[Toleration, ...] = ()
    pod_affinity: PodAffinity | None = None
    grace_seconds: int = 30
    stop_by: StopBy | None = None
    """How it is told to end; None: by SIGTERM."""
    ports: tuple[ContainerPort, ...] = ()
    """Those that lead to this pod, each container port once."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


MOST_FATES: Final = 200
"""Workloads that one request asks about."""
Fate = Literal["kept", "ended", "gone"]
"""ended: it has stopped, or is finished, and may still run again. gone: it was deleted."""


class FatesRequest(_Message, frozen=True, kw_only=True, tag=True):
    """Asked by an agent on `recipes.<cluster>`, too: what became of these workloads, whose claims it holds?"""

    workloads: tuple[str, ...] = ()
    """Ids, MOST_FATES at most."""


class Fates(_Message, frozen=True, kw_only=True, tag=True):
    """Said on `agent.<cluster>.recipes`, too. Without workloads that the log does not know, or of another cluster."""

    fates: dict[str, Fate] = {}
    """By workload id."""


MOST_SOURCES: Final = 50
"""Data sources in one message."""
MAX_ISSUE: Final = 300
"""Characters of what is wrong with one."""


class SourceToLookAt(_Message, frozen=True, kw_only=True):
    """A data source that workloads of a cluster may use."""

    asset_id: str
    spec_at: datetime
    """Since when it is so."""
    volume: Volume
    project_id: str = ""
    """Whose workloads it is for, with the next; empty: everybody's."""
    project_name: str = ""


class Looked(_Message, frozen=True, kw_only=True):
    """What an agent found of a data source."""

    asset_id: str
    spec_at: datetime
    """As it was told."""
    issue: str = ""
    """Why pods of its cluster cannot use it; empty: nothing is known against it."""


class SourcesRequest(_Message, frozen=True, kw_only=True, tag=True):
    """Said by an agent on `recipes.<cluster>`, too: what it found, and which data sources come next?"""

    after: str = ""
    """Asset id; empty: the first ones."""
    looked: tuple[Looked, ...] = ()
    """MOST_SOURCES at most."""


class Sources(_Message, frozen=True, kw_only=True, tag=True):
    """Said on `agent.<cluster>.recipes`, too: the next data sources, by asset id."""

    after: str = ""
    """As it was asked."""
    last: str = ""
    """After which the next ones come; empty: there are none."""
    sources: tuple[SourceToLookAt, ...] = ()


class MessageType(_Message, frozen=True, kw_only=True):
    """Of a message on a subject on which recipes are said or asked for: those have none."""

    type: str = ""


class StopPod(_Message, frozen=True, kw_only=True, tag=True):
    """This run should go: ask it to end, and end it after the grace period. Runs with a smaller token go, too."""

    pod_key: str
    token: int
    workload_id: str
    """This and `pod`: so that an agent that never saw the run can still say that it is not there."""
    pod: PodRef
    grace_seconds: int
    reason: str
    """`suspended`, `deleted`, `failed` or `superseded`."""


class SettledPod(_Message, frozen=True, kw_only=True, tag=True):
    """The run's end stands in the log: stop reporting it; keep its logs as the settings say."""

    pod_key: str
    token: int


WantedPod = StartPod | StopPod | SettledPod


class WantedCluster(_Message, frozen=True, kw_only=True):
    """What an agent host must know to serve a cluster."""

    cluster_id: str
    name: str
    kind: ClusterKind
    removed: bool = False
    packed_nodes: bytes = b""
    """`SimulatedNodes` of a simulated cluster (`events.simulated.packed`); empty for others."""
    cut_off: bool = False
    """Whether a simulated cluster goes on without its agent: what that would hear and say is lost."""


class ObservedPod(_Message, frozen=True, kw_only=True):
    """The newest state of a run; said again until WANTED moves on."""

    pod_key: str
    token: int
    workload_id: str
    pod: PodRef
    kind: PodFactKind
    at: datetime
    ready: bool = True
    """With `running`: whether it does what it is for, as far as it is asked."""
    node_name: str = ""
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    note: str = ""
    """What the run is made of there, where that is not what was asked for; the same in every word about the run."""
    started_at: datetime | None = None
    """When the process began; with `kind` a terminal one, so that a start that was never reported is not lost."""
    warnings: tuple[PodWarning, ...] = ()
    """What its cluster warned of during this run, oldest first."""
    address: PodAddress | None = None
    """Where it answers, as soon as that is known; None where it has no ports."""
    checkpoint_at: datetime | None = None
    """When the newest file of its workload's checkpoint folder was changed, as it was found last; None where it has no
    such folder, no file is in it, or nobody could look.
    """


class ObservedNode(_Message, frozen=True, kw_only=True):
    """A node as it is; `pool` in the facts is filled in by cluster_sync, from the labels."""

    name: str
    facts: NodeFacts
    gone: bool = False


class ObservedCluster(_Message, frozen=True, kw_only=True):
    """Heartbeat, every few seconds."""

    at: datetime
    agent_version: str = ""
    ownership_protection: bool | None = None
    """What the cluster's own configuration says; None: nothing."""
    storage_classes: tuple[StorageClass, ...] | None = None
    """By name; None where the agent does not know them."""
    nodes: int = 0
    problem: str = ""
    """Why the cluster cannot be worked with now, in words; empty where it can."""
    orphans: tuple[str, ...] = ()
    """Pod names that carry our marks and that nothing mentions."""
    sessions: tuple[str, ...] = ()
    """Ids of the ways into its pods that are open here: any other that was open is lost."""


class UsageSample(_Message, frozen=True, kw_only=True):
    """What a pod used at a moment."""

    workload_id: str
    pod: PodRef
    at: datetime
    cpu_milli: int
    memory_bytes: int
    gpu_utilization_percent: float | None = None
    gpu_memory_bytes: int | None = None


class UsageReport(_Message, frozen=True, kw_only=True):
    """What an agent says on `usage.<cluster>`: samples of many pods in one message."""

    samples: tuple[UsageSample, ...] = ()


class LogsRequest(_Message, frozen=True, kw_only=True, tag=True):
    """Asked of an agent on `agent.<cluster>.logs`; answered by `LogsChunk`s on the reply subject, a few at a time: the
    asker says `LogsTaken` of each but the last.
    """

    workload_id: str
    pod_key: str
    pod: PodRef | None = None
    """None: the newest run that the next three fields leave."""
    attempt: int | None = None
    try_: int | None = msgspec.field(name="try", default=None)
    previous: bool = False
    """Not the newest run of all, but one before it."""
    follow: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    reader: str = ""
    """Who reads, as a digest: one reader may have so many answers at once."""


class LogsTaken(_Message, frozen=True, kw_only=True, tag=True):
    """Said on `agent.<cluster>.logs`: one more chunk of an answer was taken."""

    inbox: str
    """The reply subject of the request."""


class LogLine(_Message, frozen=True, kw_only=True):
    at: datetime
    stream: str
    """`stdout` or `stderr`."""
    text: str


class LogsChunk(_Message, frozen=True, kw_only=True):
    number: int = 0
    """Counts the chunks of one answer, from 0: so whoever misses one knows it."""
    lines: tuple[LogLine, ...] = ()
    end: bool = False
    """The last chunk of this answer."""
    error: str = ""
    """Where it ended early, why."""
    no_such_run: bool = False
    """With `error`: nothing is wrong but that the run asked for has no log."""


class SessionOpen(_Message, frozen=True, kw_only=True, tag=True):
    """Asked of an agent on `agent.<cluster>.exec`, in MessagePack as all that follows: open a way into a pod. It is
    answered on the reply subject by `SessionFrame`, of which the first one is empty, `SessionTaken`, and at last
    `SessionEnd`.
    """

    session_id: str
    kind: SessionKind
    workload_id: str
    pod_key: str
    token: int
    """Of the run."""
    command: tuple[str, ...] = ()
    stdin: bool = False
    tty: bool = False
    columns: int = 0
    rows: int = 0
    """Size of the terminal; 0: nobody said it."""
    ports: tuple[int, ...] = ()
    """Of the container."""


class SessionFrame(_Message, frozen=True, kw_only=True, tag=True):
    """What goes through it, in either direction. An empty one is no more than a sign of life."""

    number: int
    """Counts the frames of one direction, from 0: so whoever misses one knows it."""
    data: bytes = b""
    """The first byte says what it is (docs/concepts/sessions.md)."""
    inbox: str = ""
    """To an agent: the reply subject of `SessionOpen`."""


class SessionTaken(_Message, frozen=True, kw_only=True, tag=True):
    """One more frame of the other side was taken: it has a few of them on their way at a time."""

    inbox: str = ""


class SessionEnd(_Message, frozen=True, kw_only=True, tag=True):
    """It is over: nothing more comes, or nothing more is wanted."""

    number: int = 0
    """From an agent: as many frames as there were."""
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    """Of the command, where it ended."""
    inbox: str = ""
