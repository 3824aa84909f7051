"""What the agent asks of a cluster. Every backend implements it and passes tests/agent/test_backend_contract.py.

Made for the least reliable of them, a Kubernetes API server: a watch may break, lag and repeat, a call may fail or take
long. So nothing here says "this happened"; everything says "this is so", and may say it again.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from events.cluster import StorageClass
from events.cluster_protocol import (
    LogLine,
    LogsRequest,
    ObservedNode,
    ObservedPod,
    RunPod,
    SealedValues,
    SessionOpen,
    SourceToLookAt,
    UsageSample,
    WantedCluster,
)
from events.workload.commands import LIVE_FACTS

Observation = ObservedPod | ObservedNode
NO_VALUES: Final = SealedValues()

LIVE_KINDS: Final = LIVE_FACTS
"""Kinds of a run that has, or may yet have, processes. All others are ends, and an end is for ever."""


BAD_CODE: Final = "bad_code"
"""Reason of a run that failed because the code that it should start with cannot be used."""


NO_CREDENTIALS: Final = "no_credentials"
"""Reason of a run that failed because a credential that it needs is not there."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of ours that a cluster holds at a moment: runs that were not forgotten, and all nodes."""

    pods: tuple[ObservedPod, ...] = ()
    nodes: tuple[ObservedNode, ...] = ()


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster's own configuration says."""

    ownership_protection: bool | None = None
    """None: nothing."""
    storage_classes: tuple[StorageClass, ...] | None = None
    """By name; None where they are not known."""


class HeldClaims(msgspec.Struct, frozen=True, kw_only=True):
    """That a workload has persistent volume claims, and none of its pods is there."""

    workload_id: str
    ephemeral: bool = False
    """Whether some of them go when it stops or ends, and not only when it is deleted."""


class WatchBrokenError(Exception):
    """The watch can no longer promise to have told everything: list again, then watch again."""


class BackendError(Exception):
    """The cluster did not do it now; asked again later, it may."""

    def __init__(self, message: str, *, again_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.again_seconds = again_seconds
        """How long the cluster wants to be left alone at least."""


class LogsUnavailableError(Exception):
    """There are no logs to give; the message says why."""

    def __init__(self, message: str, *, no_such_run: bool = False) -> None:
        super().__init__(message)
        self.no_such_run = no_such_run
        """It is not that they cannot be read now: the run that was asked for has none."""


class NoWayError(Exception):
    """No way into this pod can be opened; the message says why, and the code is one of docs/concepts/sessions.md."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WayEnd(msgspec.Struct, frozen=True):
    """How a way into a pod ended."""

    reason: str = "ended"
    message: str = ""
    exit_code: int | None = None
    """Of the command, where it ended."""


class Way(Protocol):
    """A way into a pod that is open. Frames are those of events/channels.py."""

    def frames(self) -> AsyncIterator[bytes]:
        """What comes out of it, until it is over; asked for once."""
        ...

    async def take(self, frame: bytes) -> None:
        """What goes into it; returns once there is room for more. What is no frame of its kind is passed over."""
        ...

    def end(self) -> WayEnd:
        """How it ended, once its frames did."""
        ...

    async def close(self) -> None:
        """End it, with everything that it started."""
        ...


class Backend(Protocol):
    """One cluster. A run is named by pod key and token; the higher token is the newer run."""

    def follow(self, cluster: WantedCluster) -> bool:
        """Take over another configuration of the cluster while it is served; False: it must be opened anew for that."""
        ...

    async def list_all(self) -> Picture:
        """What is there now. Raises BackendError."""
        ...

    def watch(self) -> AsyncIterator[Sequence[Observation]]:
        """What changes from the last `list_all` on, in batches, for ever; may repeat. Raises WatchBrokenError."""
        ...

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:
        """Start this run, with these values of credentials, which stand nowhere but where the cluster keeps secrets;
        already there, it stays as it is. What is wrong with the run itself (no command, no such device) is no error but
        an observation of its end. Its token becomes the fence first. One below the fence is never started, whoever
        asks. Raises BackendError.
        """
        ...

    def lacking(self) -> Sequence[tuple[str, int]]:
        """Pod keys and tokens of runs that were started and wait for values of credentials: `apply` them again."""
        ...

    async def delete(self, pod_key: str, token: int, grace_seconds: int) -> None:
        """End the runs of this pod up to this token, with everything they started, after at most the grace period;
        a second call can only shorten it. None of them may be started any more. Raises BackendError.
        """
        ...

    async def forget(self, pod_key: str, token: int) -> None:
        """The ended runs of this pod up to this token need not be listed any more; their logs stay as the settings
        say. None of them may be started any more. Raises BackendError.
        """
        ...

    async def is_there(self, pod_key: str, token: int) -> bool:
        """Whether the cluster has this very run, asked of the cluster itself after the run's fence was raised: what was
        seen may be behind, and nobody may say of a run that it never was where another agent has just made it. Raises
        BackendError.
        """
        ...

    def fences(self) -> Mapping[str, int]:
        """Per pod key the smallest token that may still be started, as it is at any time; survives what the backend's
        pods survive.
        """
        ...

    def logs(self, request: LogsRequest) -> AsyncIterator[Sequence[LogLine]]:
        """Lines of one run, oldest first, in batches of bounded size. With `follow` until the run ends.
        Raises LogsUnavailableError.
        """
        ...

    async def open_way(self, request: SessionOpen) -> Way:
        """Into the pod of one run. Raises NoWayError."""
        ...

    async def usage(self) -> Sequence[UsageSample]:
        """What each running pod uses now; a pod of which nothing is known yet is left out."""
        ...

    async def settings(self) -> ClusterSettings: ...

    async def claims(self) -> Sequence[HeldClaims]:
        """Workloads whose claims are there though no pod of them is: they may be over."""
        ...

    async def remove_claims(self, workload_id: str, *, ephemeral_only: bool) -> None:
        """Delete a workload's claims, with what is in them, unless a pod of it is there by now. Raises BackendError."""
        ...

    async def look(self, source: SourceToLookAt) -> str:
        """Why pods here could not use this data source, in words; empty where nothing is known against it, also where
        it is not looked at. Raises BackendError.
        """
        ...

    def problem(self) -> str:
        """Why the cluster cannot be worked with now, in words; empty where it can. Nothing is started or ended then."""
        ...

    def standby(self) -> str:
        """Which other agent of this cluster acts in our place; empty where we do. Nothing is started, ended or said
        meanwhile.
        """
        ...

    def may_start(self) -> bool:
        """Whether runs can be started now; where not, that passes by itself, and `apply` refuses until then."""
        ...

    async def interrupt(self, seconds: float) -> int:
        """The machine under the pods goes: end them within this time. How many there were; 0 where pods live on."""
        ...

    async def close(self) -> None:
        """Let go of the cluster; pods stay as they are."""
        ...
