"""A workload that leaves its cluster, since that is lost, and what it leaves behind there."""

from datetime import datetime
from typing import Final, Literal

from msgspec.structs import replace

from events.event import Event
from events.phases import CLUSTER_LOST, Phase, PodPhase
from events.workload.at_risk import MOST_MILLI_SECONDS, milli_seconds_at_risk
from events.workload.edit import Edit
from events.workload.pod import Pod, PodRef, pod_id
from events.workload.pods import MapEdit, PodMap
from events.workload.sizes import leave_if_surplus
from events.workload.state import Workload, schedulable
from events.workload.status import derive, say


class ClusterLeft(Event, frozen=True, kw_only=True):
    """The cluster that was chosen for it has been lost for longer than its project waits. All its pods there are told
    to end, as soon as that cluster can be told, and it waits for a cluster again. What they hold stays reserved until
    they are known to be gone.
    """

    cluster_id: str
    """UUID of the cluster that it leaves."""
    name: str
    """Of the cluster."""
    at: datetime
    """When it was decided."""
    lost_since: datetime
    """When the cluster was found to be disconnected."""
    seconds: int
    """For how long its project waits."""
    pods: int
    """How many of its pods held a node there."""
    attempt: int
    """The new attempt. Pods of earlier attempts must not start any more."""
    among: tuple[str, ...]
    """UUIDs of the clusters among which its next one is chosen: those that run programs, or simulate them, as the one
    did that it leaves. That one is among them, for the time when nothing of the workload is left there.
    """
    problem: str = ""
    """What kept its agent from working with the cluster, as the agent had said; empty where that was not heard."""

    @property
    def reason(self) -> str:
        """The code of it."""
        return CLUSTER_LOST

    @property
    def message(self) -> str:
        """Why, in a sentence."""
        return cluster_lost(self.name, self.lost_since, self.seconds, self.problem)


def cluster_lost(name: str, since: datetime, seconds: int, problem: str) -> str:
    """Why a workload leaves its cluster."""
    lost = "has been lost" if problem else "has not reported"
    told = f"cluster {name} {lost} since {since:%Y-%m-%d %H:%M:%S} UTC"
    longer = f"{told}, which is longer than its project waits ({seconds} s)"
    return f"{longer}: its agent reports {problem}" if problem else longer


PodEnd = Literal["succeeded", "failed", "interrupted", "refused", "stopped"]
"""How a run can end, as its agent says it."""


class LeftPodEnded(Event, frozen=True, kw_only=True):
    """A run that was left behind on a lost cluster is known to be over. That changes nothing of the attempts after it,
    whatever came of the run; what it holds can be released.
    """

    pod: PodRef
    """The run."""
    cluster_id: str
    """UUID of the cluster that its workload left."""
    at: datetime
    """When it ended, or was given up."""
    how: PodEnd
    """`succeeded`, `failed`, `interrupted`, `refused` or `stopped`."""
    exit_code: int | None = None
    """Exit code of the process, if it is known."""


def fits_left(state: Workload, event: ClusterLeft | LeftPodEnded) -> bool:
    if isinstance(event, ClusterLeft):
        return schedulable(state) and bool(state.cluster_id) and state.cluster_id == event.cluster_id
    run = state.left.get(event.cluster_id, _NO_PODS).get(pod_id(event.pod))
    return run is not None and run.is_run(event.pod)


_NO_PODS: Final = PodMap[Pod]()


def leave(edit: Edit, event: ClusterLeft) -> None:
    """Its runs stay behind, and each pod begins anew. What it saved is there, too: all that they have done is lost."""
    state, there, lost = replace(edit.state, checkpoint_at=None), MapEdit(_NO_PODS), 0
    for id_ in edit.pods.waiting.ids():
        if (waiting := edit.pods.waiting.get(id_)) is not None:
            edit.pods.put(id_, replace(waiting, attempt=event.attempt, try_=0))
    # The newest first: of those that are more than are wanted, these go.
    behind = sorted(edit.pods.live.items(), key=lambda each: each[0], reverse=True)
    for id_, pod in behind:
        lost += milli_seconds_at_risk(state, pod, event.at)
        there.put(id_, replace(pod, phase=PodPhase.STOPPING))
        edit.pods.put(id_, Pod(attempt=event.attempt, try_=0, phase=PodPhase.PENDING))
    edit.state = replace(
        state,
        cluster_id="",
        among=event.among,
        attempt=event.attempt,
        left=_with_left(state.left, event.cluster_id, there.value()),
        gpu_milli_seconds_lost=min(state.gpu_milli_seconds_lost + lost, MOST_MILLI_SECONDS),
    )
    for id_, _ in behind:
        leave_if_surplus(edit, id_)
    derive(edit)
    if edit.state.phase is Phase.PENDING:
        say(edit, Phase.PENDING, reason=event.reason, message=event.message)


def without_left(state: Workload, event: LeftPodEnded) -> Workload:
    there = MapEdit(state.left[event.cluster_id])
    there.take(pod_id(event.pod))
    return replace(state, left=_with_left(state.left, event.cluster_id, there.value()))


def _with_left(left: dict[str, PodMap[Pod]], cluster_id: str, there: PodMap[Pod]) -> dict[str, PodMap[Pod]]:
    others = {id_: pods for id_, pods in left.items() if id_ != cluster_id}
    return others | {cluster_id: there} if there.size else others
