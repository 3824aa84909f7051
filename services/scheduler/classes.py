"""What of a workload waits for a place, as the planner is given it: classes of pods, with an entry of each. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from events.phases import WaitingReason
from events.time_limits import TimeLimit
from events.very_same import for_the_very_same
from events.workload.fields.scheduling import PodAffinity
from events.workload.gangs import needed_of, placed_of
from events.workload.pod import PodRef
from events.workload.pod_sets import PodSet
from events.workload.spec import MAX_GRACE_SECONDS
from events.workload.state import Workload
from services.scheduler.snapshot import GangPart, Growth, Labelled, Pending, PodClass, Together, grace_of
from services.scheduler.waits import Stint, gives_way

ENDS_LATE_SECONDS: Final = 600
"""How much later than a limit on running time says a workload may have ended: its pods start first, which is no running
time, and a limit acts some seconds late.
"""


class Rights(NamedTuple):
    """What the calendar asks of a workload; each as of PodClass."""

    lasts_seconds: int | None
    entitled: tuple[str, ...] = ()


def rights_of(limits: Sequence[TimeLimit], labelled: Labelled, state: Workload) -> Rights:
    """Args: limits, its project's; labelled, as of Snapshot."""
    return Rights(lasts(limits, state), entitled(labelled, state))


def entitled(labelled: Labelled, state: Workload) -> tuple[str, ...]:
    """As of PodClass."""
    if not labelled:
        return ()
    has = labels_of(state)
    return tuple(id_ for id_, labels in labelled if labels.items() <= has.items())


def labels_of(state: Workload) -> dict[str, str]:
    return {each.name: each.value for each in state.spec.labels}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a workload stands among those that wait."""

    order: tuple[float, ...]
    """What the policy's orders say of it."""
    stint: Stint
    rights: Rights


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What of a workload may be bound now."""

    waiting: tuple[tuple[PodClass, Pending], ...]
    """Of each class those pods that it needs."""
    growth: Growth | None
    """Of an elastic one: what it may have beside them."""


NOTHING = Ready(waiting=(), growth=None)


def ready(key: str, state: Workload, place: Place, pods: Sequence[PodRef]) -> Ready:
    """Args: key, under which the workload stands; pods, those that are `bindable`."""
    refs: dict[str, list[PodRef]] = {}
    for pod in pods:
        refs.setdefault(pod.pod_set, []).append(pod)
    if not refs:
        return NOTHING
    classes = _classes(key, state, refs, place.rights)
    return Ready(
        waiting=tuple(
            (pod_class, _entry(key, state, place, (pod_class, pods), number))
            for number, (pod_class, pods) in enumerate(classes)
        ),
        growth=_growth(key, state, refs, place, starts=bool(classes)) if state.elastic else None,
    )


def lasts(limits: Sequence[TimeLimit], state: Workload) -> int | None:
    """As of PodClass. `limits`: its project's."""
    seconds = next((each.runtime_seconds for each in limits if each.kind == state.kind), None)
    if seconds is None:
        return None
    return seconds + min(state.spec.termination_grace_period_seconds, MAX_GRACE_SECONDS) + ENDS_LATE_SECONDS


def _entry(key: str, state: Workload, place: Place, of: tuple[PodClass, tuple[PodRef, ...]], number: int) -> Pending:
    pod_class, pods = of
    return Pending(
        order=(place.order, key, number),
        rank=state.priority_rank,
        key=key,
        workload_id=state.workload_id,
        name=state.name,
        pods=pods,
        queued=state.queued,
        idle=not state.pods.live.size,
        reported="" if state.reason == WaitingReason.BACKOFF else state.reason,
        told=state.message,
        since=place.stint.since,
        waits_from=place.stint.at,
        gave_way_to=state.gave_way_to,
        gives_way=gives_way(state),
        # All of them stand where the first stands.
        beside=_a_node(state) if pod_class.together is not None else "",
        workload=state,
    )


def _classes(
    key: str, state: Workload, ready: Mapping[str, Sequence[PodRef]], rights: Rights
) -> list[tuple[PodClass, tuple[PodRef, ...]]]:
    """The classes of a workload's pods that may be bound now: one for each pod set, or one for a whole gang. What an
    elastic one may grow by is not among them.
    """
    sets = [pod_set for pod_set in state.pod_sets if pod_set.name in ready]
    if state.elastic:
        needed = {pod_set.name: needed_of(state, pod_set) for pod_set in sets}
        ready = {name: refs[: needed[name]] for name, refs in ready.items() if needed[name]}
        sets = [pod_set for pod_set in sets if pod_set.name in ready]
    classes = [class_of(key, state, pod_set, rights) for pod_set in sets]
    if not classes:
        return []
    if not any(pod_set.minimum for pod_set in sets):
        return [(each, tuple(ready[pod_set.name])) for each, pod_set in zip(classes, sets, strict=True)]
    parts = tuple(
        GangPart(
            pools=pod_set.node_pools,
            request=pod_set.template.request,
            pods=len(ready[pod_set.name]),
            needed=min(len(ready[pod_set.name]), needed_of(state, pod_set)),
        )
        for pod_set in sets
    )
    return [(replace(classes[0], gang=parts), tuple(pod for pod_set in sets for pod in ready[pod_set.name]))]


@for_the_very_same
def _known_classes(_: PodSet) -> dict[tuple[str, str, bool, Rights, int, tuple[str, ...]], PodClass]:
    """Those of its pods that were asked for: by project, cluster, whether others may take their place, their
    rights, their grace, and the clusters among which one is chosen.
    """
    return {}


def class_of(key: str, state: Workload, pod_set: PodSet, rights: Rights) -> PodClass:
    """Workloads of a sweep have the very same pod sets."""
    among = () if state.cluster_id else state.among
    if state.left and among:
        among = tuple(id_ for id_ in among if id_ not in state.left)
    known = _known_classes(pod_set)
    alike = state.project_id, state.cluster_id, state.preemptible, rights, grace_of(state), among
    found = known.get(alike)
    if found is None or pod_set.pod_affinity is not None:
        found = known[alike] = _new_class_of(key, state, pod_set, rights, among)
    return found


def _new_class_of(key: str, state: Workload, pod_set: PodSet, rights: Rights, among: tuple[str, ...]) -> PodClass:
    return PodClass(
        project_id=state.project_id,
        cluster_id=state.cluster_id,
        pools=pod_set.node_pools,
        request=pod_set.template.request,
        preemptible=state.preemptible,
        lasts_seconds=rights.lasts_seconds,
        entitled=rights.entitled,
        grace_seconds=grace_of(state),
        among=among,
        together=_together(key, pod_set.pod_affinity),
    )


def _growth(
    key: str, state: Workload, ready: Mapping[str, Sequence[PodRef]], place: Place, *, starts: bool
) -> Growth | None:
    """What an elastic workload may grow by; one of its pod sets grows. `starts`: as of Growth."""
    for number, pod_set in enumerate(state.pod_sets):
        needed = needed_of(state, pod_set)
        refs = tuple(ready.get(pod_set.name, ()))[needed:]
        if pod_set.elastic and refs:
            pod_class = class_of(key, state, pod_set, place.rights)
            return Growth(
                pod_class=pod_class,
                entry=_entry(key, state, place, (pod_class, refs), number),
                pods=placed_of(state, pod_set) + needed,
                wanted=pod_set.wanted,
                most=pod_set.most,
                starts=starts,
                rests_until=None,
            )
    return None


def _together(workload_key: str, affinity: PodAffinity | None) -> Together | None:
    if affinity is None:
        return None
    return Together(workload_key=workload_key, label=affinity.key, required=affinity.type == "Required")


def _a_node(state: Workload) -> str:
    """Key of one that holds a pod of the workload; empty where none does."""
    return next((pod.node_key for pod in state.pods.live.values()), "")


def stands_alike(before: Workload, after: Workload) -> bool:
    """Whether the same is to be placed of both, and was told, where no pod waits to be run again."""
    same = (
        before.progress is after.progress
        and before.spec is after.spec
        and before.beside is after.beside
        and before.pods.waiting is after.pods.waiting
        and before.queued == after.queued
        and before.left is after.left
        and bool(before.pods.live) == bool(after.pods.live)
        and before.gave_way_to == after.gave_way_to
        and (not after.elastic or _staying(before) == _staying(after))
    )
    whose = before.workload_id, before.cluster_id
    fields = (*whose, before.desired, before.phase, before.reason, before.message, before.attempt, before.failures)
    return same and fields == (
        after.workload_id,
        after.cluster_id,
        after.desired,
        after.phase,
        after.reason,
        after.message,
        after.attempt,
        after.failures,
    )


def _staying(of: Workload) -> list[int]:
    """By pod set: by that it is known how many more an elastic workload may have."""
    return [placed_of(of, pod_set) for pod_set in of.pod_sets]
