"""Pods whose place is taken: why, which of them can be, and which have to end together."""

from collections.abc import Iterable
from typing import Final, Literal

from msgspec.structs import replace

from events.event import Event
from events.phases import Phase, PodPhase
from events.workload.edit import Edit
from events.workload.gangs import goes_on_without
from events.workload.pod import Pod, PodRef, pod_id
from events.workload.state import Workload
from events.workload.status import derive, say

EvictionReason = Literal[
    "preempted", "reclaimed", "backfilled", "shrunk", "moved", "tainted", "drained", "window_closed", "reserved"
]

LEAVES_NODE: Final[frozenset[EvictionReason]] = frozenset({"tainted", "drained"})
"""Reasons that lie in the node: they hold for non-preemptible workloads, too, and nobody gets the place."""


class PodsEvicted(Event, frozen=True, kw_only=True):
    """The scheduler took the place of some pods for another workload, or their node is to be without them. They are
    told to end, and then wait again.
    """

    pods: tuple[PodRef, ...]
    """The runs that are told to end."""
    attempt: int
    """The workload's from now on: another one where no pod of it goes on."""
    reason: EvictionReason
    """`preempted`: for a higher priority in its project; `reclaimed`: for a project below its quota; `backfilled`: for
    one of its project that has waited for longer, and was passed; `shrunk`: it goes on with fewer, since somebody waits
    for what it had grown by; `moved`: to make room in one piece, while another place is kept for them; `tainted`: their
    node has a taint that they do not tolerate, or no longer; `drained`: an administrator drains their node;
    `window_closed`: no window of their project is open, which ends what gives way; `reserved`: their node is kept for
    another project now.
    """
    message: str
    """For whom, and by which rule, in a sentence."""
    beneficiary: str
    """Id of the workload that gets the place; empty if none does."""
    gpu_seconds_at_risk: int = 0
    """What these runs have done since the newest file of the checkpoint folder, or since they began: GPUs times
    seconds. It is lost unless they save it before they end.
    """


MOST_GAVE_WAY_TO: Final = 50
"""That are remembered: some 2 kB of a workload that others keep from running."""


def evictable(pod: Pod) -> bool:
    """Whether its place can be taken: what nobody sees, or ends anyway, gives none back by being told to end."""
    return pod.phase in {PodPhase.BOUND, PodPhase.STARTING, PodPhase.RUNNING}


def leaving_with(state: Workload, refs: Iterable[PodRef]) -> tuple[PodRef, ...]:
    """The runs that are told to end where these have to: of a gang of which too few would be left, all. None where that
    is not possible now, since nobody sees some of them.
    """
    going = tuple(sorted(set(refs)))
    if goes_on_without(state, going):
        return going
    staying = [(id_, pod) for id_, pod in state.pods.live.items() if pod.phase is not PodPhase.STOPPING]
    if not all(evictable(pod) for _, pod in staying):
        return ()
    return tuple(
        sorted(PodRef(pod_set=name, index=index, attempt=p.attempt, try_=p.try_) for (name, index), p in staying)
    )


def evict(edit: Edit, event: PodsEvicted) -> None:
    """The named runs are told to end. Where no other goes on, what comes next is another attempt."""
    for ref in event.pods:
        id_ = pod_id(ref)
        pod = edit.pods.live.get(id_)
        if pod is not None and pod.is_run(ref):
            edit.pods.put(id_, replace(pod, phase=PodPhase.STOPPING))
    if event.attempt != edit.state.attempt:
        for id_ in edit.pods.waiting.ids():
            if (waiting := edit.pods.waiting.get(id_)) is not None:
                edit.pods.put(id_, replace(waiting, attempt=event.attempt, try_=0))
        edit.state = replace(edit.state, attempt=event.attempt)
    # What it had grown by was never its own to be taken back.
    if event.reason != "shrunk":
        others = tuple(id_ for id_ in edit.state.gave_way_to if id_ != event.beneficiary)
        edit.state = replace(edit.state, gave_way_to=(*others, event.beneficiary)[-MOST_GAVE_WAY_TO:])
    derive(edit)
    if edit.state.phase is Phase.PENDING:
        say(edit, Phase.PENDING, reason=event.reason, message=event.message)
