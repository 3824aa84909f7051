"""How many pods a workload has, where that changes while it lives: replicas of an inference, elastic workloads."""

from msgspec.structs import replace

from events.event import Event
from events.phases import DesiredPhase, PodPhase
from events.workload.edit import Edit
from events.workload.fields.inference import ScaleReason
from events.workload.gangs import meets_at
from events.workload.pod import PodId, PodsBound
from events.workload.state import NOT_BEGUN, Workload


class WorkloadScaled(Event, frozen=True, kw_only=True):
    """The number of replicas of an inference changed, with its load."""

    replicas: int
    """How many there are to be from now on. Where there are more, the newest are told to end."""
    was: int
    """How many there were to be before."""
    reason: ScaleReason
    """`load`, `idle` or `request`."""
    message: str = ""
    """The load that it was decided by, in a sentence."""


def grows_by(before: Workload, event: PodsBound) -> int:
    """How many pods are added to an elastic workload that has had its first ones."""
    if not (before.progress and before.elastic):
        return 0
    first = {name: progress.next_index for name, progress in before.progress.items()}
    return sum(at.pod.index >= first.get(at.pod.pod_set, 0) for at in event.placements)


def scale(edit: Edit, replicas: int) -> None:
    """From here on so many replicas are wanted; those that are too many go."""
    state = edit.state
    if state.inference is not None:
        edit.state = replace(state, inference=replace(state.inference, replicas=replicas))
        _remove_surplus(edit)


def _remove_surplus(edit: Edit) -> None:
    """Have the pods go that are more than are wanted: those that hold no node at once, the newest first; then the
    newest of the others are told to end.
    """
    pods = edit.pods
    for pod_set in edit.state.pod_sets:
        name = pod_set.name
        staying = sorted(id_ for id_, pod in pods.live.items() if id_[0] == name and pod.phase is not PodPhase.STOPPING)
        waiting = sorted(id_ for id_ in pods.waiting.ids() if id_[0] == name)
        surplus = max(len(staying) + len(waiting) - pod_set.count, 0)
        gone = waiting[max(len(waiting) - surplus, 0) :]
        for id_ in gone:
            _remove(edit, id_)
        for id_ in staying[len(staying) - (surplus - len(gone)) :]:
            pod = pods.live.get(id_)
            assert pod is not None, "it was among them"
            pods.put(id_, replace(pod, phase=PodPhase.STOPPING))


def leave_if_surplus(edit: Edit, id_: PodId) -> None:
    """A pod that was told to end has. It is run again only where it is wanted after all, beside all others; of an
    elastic workload, where it is one of those that must start together.
    """
    state, pods = edit.state, edit.pods
    if state.desired is not DesiredPhase.RUNNING or pods.waiting.get(id_) is None or meets_at(state, id_):
        return
    for pod_set in state.pod_sets:
        if pod_set.name == id_[0] and (pod_set.endless or pod_set.elastic):
            succeeded = state.progress.get(id_[0], NOT_BEGUN).succeeded
            if pods.live.of_set(id_[0]) + pods.waiting.of_set(id_[0]) + succeeded > pod_set.count:
                _remove(edit, id_)


def _remove(edit: Edit, id_: PodId) -> None:
    edit.pods.put(id_, None)
    progress = edit.state.progress.get(id_[0], NOT_BEGUN)
    removed = replace(progress, removed=progress.removed + 1)
    edit.state = replace(edit.state, progress=edit.state.progress | {id_[0]: removed})
