"""What a workload asks to be run, whatever its kind: sets of pods that are alike, each with all that a pod is made of.

The scheduler and cluster_sync see pod sets and nothing else of a spec.
"""

import shlex
from typing import Final

import msgspec

from events.workload.fields.connections import ServiceType
from events.workload.fields.process import EnvironmentVariable
from events.workload.fields.scheduling import PodAffinity, Toleration
from events.workload.fields.sweep import SweepSpec
from events.workload.readiness import Readiness
from events.workload.rendezvous import Peers
from events.workload.spec import PodRequest
from events.workload.sweeps import values_of
from events.workload.volumes import Volume

NO_LIMIT: Final = 0


class PodLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod may not go beyond, in whole units; 0 where there is no limit."""

    cpu_milli: int = NO_LIMIT
    memory_bytes: int = NO_LIMIT
    gpu_milli: int = NO_LIMIT
    """Share of each device, in thousandths."""
    gpu_memory_bytes: int = NO_LIMIT
    """Of each device."""


BASELINE_CAPABILITIES: Final = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
"""Those that Kubernetes' Pod Security Standard `baseline` lets a pod add."""


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run's container is made, where images are run. Its defaults ask for nothing."""

    pull_policy: str = ""
    """As Kubernetes names it; empty: by the image's tag."""
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in the project's namespace."""
    pull_credentials: tuple[str, ...] = ()
    """Names of credentials of the workload's owner."""
    stdin: bool = False
    tty: bool = False
    home: bool = False
    """Whether it has an empty home folder of its own."""
    large_shm: bool = False
    user: int | None = None
    group: int | None = None
    groups: tuple[int, ...] = ()
    non_root: bool = False
    escalation: bool | None = None
    """Whether a process may gain rights; None: as the namespace's level has it."""
    capabilities: tuple[str, ...] = ()
    """To be added."""
    read_only: bool = False
    """The image's files."""
    seccomp: str = ""
    """Filter of system calls, as Kubernetes names it; empty: the runtime's own."""
    host_network: bool = False
    host_ipc: bool = False


class ContainerPort(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A port on which the pods of a set listen, and are reached from outside the workload."""

    container: int
    service: ServiceType | None = None
    """How it is reached without the proxy; None: by the proxy alone."""
    external: int = 0
    """At which port then; 0: any."""
    variable: str = ""
    """Variable in which its pods find the port that they are to listen on, beside that of every port; empty: none."""


class StopBy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run is told that it has to end, where that is not by SIGTERM alone: one of the two."""

    signal: str = ""
    """In the place of SIGTERM, such as SIGUSR1."""
    arguments: tuple[str, ...] = ()
    """Of a command that runs before SIGTERM."""


class PodTemplate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each pod of a set is made of."""

    image: str = ""
    command: str = ""
    """As it was written; empty: the image's own entry point."""
    args: str = ""
    working_dir: str = ""
    code: str = ""
    """Digest of the archive that its working folder begins with; empty: none."""
    environment: tuple[EnvironmentVariable, ...] = ()
    request: PodRequest = PodRequest()
    limits: PodLimits = PodLimits()
    container: Container = Container()
    volumes: tuple[Volume, ...] = ()
    readiness: Readiness | None = None
    """None: it is ready as soon as its process runs."""
    tolerations: tuple[Toleration, ...] = ()
    """As they were written; the scheduler reads what the request has of them."""
    grace_seconds: int = 0
    """Between being told to go and being killed."""
    stop_by: StopBy | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the pod runs: command and args split as a shell would (S019). Empty: the image's own entry point.

        Raises ValueError where quotes do not close; the edge refuses such a spec before it is stored.
        """
        return (*shlex.split(self.command), *shlex.split(self.args))


class PodSet(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one workload that are alike: `count` of them must succeed, at most `parallelism` live at once."""

    name: str
    """`^[a-z]{1,20}$`: part of pod keys."""
    count: int
    parallelism: int
    minimum: int = 0
    """Pods of it that must have a place before any pod of the workload may start; 0 where each may start for itself."""
    wanted: int = 0
    """Where it grows: before others grow beyond theirs, it has so many, as far as there is room."""
    most: int = 0
    """Pods that it may grow to, by what is left over; 0 where it does not grow. One that is added has a new index, and
    what it grew by is given up before the workload is.
    """
    endless: bool = False
    """Whether none of its pods ever succeeds, and `count` rises and falls while it lives: a pod that is added has a new
    index, and the newest are removed.
    """
    template: PodTemplate
    peers: Peers | None = None
    """How its pods find the others of the workload; None where they need not."""
    sweep: SweepSpec | None = None
    """Values by which its pods differ; None where they are all alike."""
    starts_after: str = ""
    """Name of a pod set whose pods must all run, or be over, before a pod of this one starts. It has its node before;
    empty: it starts as soon as it has one.
    """
    outlives: bool = False
    """Whether pods of it that live when the workload completes or fails are left to end by themselves."""
    node_pools: tuple[str, ...] = ()
    """Its pods may be placed in these alone, in this order; empty: in those of the project."""
    pod_affinity: PodAffinity | None = None
    """How its pods, and all others of the workload, stay together."""
    ports: tuple[ContainerPort, ...] = ()
    """Those that lead to its pods, each container port once: all of the workload lead to one set."""

    @property
    def at_once(self) -> int:
        """The most pods that live at the same time."""
        return min(self.count, self.parallelism)

    @property
    def elastic(self) -> bool:
        """Whether it may have more pods than those that start together."""
        return self.most > self.count

    def values(self, index: int) -> dict[str, str]:
        """What the environment of the pod of this index has beside the template's."""
        return values_of(self.sweep, index) if self.sweep is not None else {}
