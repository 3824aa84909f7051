"""What a pod does before it is ended, and where it keeps what it has done (S049)."""

from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal, get_args

from events.fields.declare import About, Limits, Section
from events.fields.values import FilePath, Quantity, Words

DEFAULT_CHECKPOINT_PATH: Final = "/muster/checkpoint"
"""No image has anything there."""
DEFAULT_CHECKPOINT_SIZE: Final = "10Gi"
ClassName = Annotated[str, Limits(shortest=1, longest=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
StopSignal = Literal["SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"]
_NO_SIGNALS: Final = MappingProxyType(
    {
        **dict.fromkeys(("SIGTERM", "TERM"), "a pod gets SIGTERM anyway: leave it out"),
        **dict.fromkeys(("SIGKILL", "KILL"), "a pod is killed when its grace period is over: leave it out"),
        **{name.removeprefix("SIG"): f"write {name}" for name in get_args(StopSignal)},
    }
)
"""By what people write, in capitals."""


class PreStop(Section, frozen=True, kw_only=True):
    """How a pod is told that it has to end: by a signal or by a command."""

    signal: Annotated[StopSignal | None, About(rows="S049", flag="--pre-stop-signal", instead=_NO_SIGNALS)] = None
    """Signal that the pod's first process gets in the place of SIGTERM when the pod is told to end, whatever the cause.
    The pod is killed when its grace period is over. Not together with a command.
    """
    command: Annotated[Words | None, About(rows="S049", flag="--pre-stop-command")] = None
    """Command that runs in the pod when it is told to end, with the pod's environment. The pod gets SIGTERM once the
    command has ended, and is killed when its grace period is over. It is split as a shell would; it is not run by one.
    """


class CheckpointSpec(Section, frozen=True, kw_only=True):
    """The folder that outlives the pods of a workload."""

    path: Annotated[FilePath, About(rows="S049", flag="--checkpoint-path")] = DEFAULT_CHECKPOINT_PATH
    """Absolute path at which each pod finds it, which MUSTER_CHECKPOINT_DIR says. Default: /muster/checkpoint."""
    size: Annotated[Quantity, About(rows="S049", unit="bytes", flag="--checkpoint-size")] = DEFAULT_CHECKPOINT_SIZE
    """Size that is asked for, such as 50Gi. The cluster local holds nobody to it. Default: 10Gi."""
    storage_class: Annotated[ClassName | None, About(rows="S049", flag="--checkpoint-storage-class")] = None
    """Storage class of its claim. Where several pods run at once, it must allow ReadWriteMany. Default: that of the
    cluster.
    """


class Stopping(Section, frozen=True, kw_only=True):
    """What happens before a pod is ended."""

    TITLE: ClassVar[str] = "Before the end"

    pre_stop: Annotated[PreStop | None, About(rows="S049")] = None
    """How a pod is told that it has to end. Default: by SIGTERM."""


class Checkpoint(Section, frozen=True, kw_only=True):
    """What outlives pods."""

    TITLE: ClassVar[str] = "Checkpoints"

    checkpoint: Annotated[CheckpointSpec | None, About(rows="S049")] = None
    """A folder that all pods of the workload share. It outlives them, suspensions and evictions, and is deleted with
    the workload. The age of its newest file says how much work an eviction would lose. Default: there is none.
    """
