"""What to do about pods, from what is wanted and what is there. Pure: done, it says nothing more.

Fences make a slow message harmless: a run whose token is below its pod's fence is never started (again).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, assert_never

import msgspec

from events.cluster_protocol import ObservedPod, SettledPod, StartPod, StopPod, WantedPod
from events.workload.pod import PodRef
from services.agent.backends.interface import LIVE_KINDS

SUPERSEDED_GRACE_SECONDS = 30
"""Grace of a run that a newer one replaces, where no word about itself is left: Kubernetes' default."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    pod: StartPod


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """End the runs of this pod up to this token, and never start one of them."""

    pod_key: str
    token: int
    grace_seconds: int


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of the runs up to this token stand in the log."""

    pod_key: str
    token: int


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """Say that this run is not here and never will be: otherwise somebody would wait for its end for ever."""

    pod_key: str
    token: int
    workload_id: str
    pod: PodRef
    reason: Literal["stopped", "fenced"]


Action = Start | Stop | Forget | Absent


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent knows of one pod key."""

    runs: tuple[ObservedPod, ...] = ()
    """Runs that were not forgotten, live or ended."""
    started_token: int = -1
    """Highest token that this agent has had started; the cluster may not show it yet."""
    asked: Mapping[int, int] = {}
    """Grace seconds with which a live run was already asked to go, by token."""


NOTHING_KNOWN = Known()


def reconcile(
    wanted: Mapping[str, WantedPod], known: Mapping[str, Known], fences: Mapping[str, int], pod_keys: Iterable[str]
) -> dict[str, tuple[Action, ...]]:
    """Actions for these pods. A pod that nothing mentions gets none: it is an orphan, shown and left alone.

    `fences` holds the smallest token of each pod that may be started.
    """
    actions: dict[str, tuple[Action, ...]] = {}
    for key in pod_keys:
        want = wanted.get(key)
        if want is not None and (needed := for_pod(want, known.get(key, NOTHING_KNOWN), fences.get(key, 0))):
            actions[key] = needed
    return actions


def for_pod(want: WantedPod, known: Known, fence: int) -> tuple[Action, ...]:
    match want:
        case StartPod():
            return _for_run(want, known, fence)
        case StopPod():
            return _for_stop(want, known, fence)
        case SettledPod():
            return _for_settled(want, known, fence)
        case _:
            assert_never(want)


def orphans(wanted: Mapping[str, WantedPod], runs: Iterable[ObservedPod]) -> tuple[str, ...]:
    """Live runs that nothing mentions, by pod key and token."""
    return tuple(f"{run.pod_key}/{run.token}" for run in runs if run.kind in LIVE_KINDS and run.pod_key not in wanted)


def _for_run(want: StartPod, known: Known, fence: int) -> tuple[Action, ...]:
    if any(run.token >= want.token for run in known.runs) or known.started_token >= want.token:
        return ()
    if live := _live(known.runs, up_to=want.token - 1):
        # Never two live runs of one pod: the older one goes first, and its end brings us here again.
        return _stop(live, want.pod_key, want.token - 1, SUPERSEDED_GRACE_SECONDS, known)
    if want.token < fence:
        return (_absent(want, "fenced"),)
    return (Start(pod=want),)


def _for_stop(want: StopPod, known: Known, fence: int) -> tuple[Action, ...]:
    live = _live(known.runs, up_to=want.token)
    if live or fence <= want.token:
        return _stop(live, want.pod_key, want.token, want.grace_seconds, known)
    if all(run.token < want.token for run in known.runs) and known.started_token < want.token:
        return (_absent(want, "stopped"),)
    return ()


def _for_settled(want: SettledPod, known: Known, fence: int) -> tuple[Action, ...]:
    ended = any(run.token <= want.token and run.kind not in LIVE_KINDS for run in known.runs)
    if live := _live(known.runs, up_to=want.token):
        # The log has it ended, and yet it lives: a run that was taken for lost and came back.
        return _stop(live, want.pod_key, want.token, SUPERSEDED_GRACE_SECONDS, known)
    if ended or (fence <= want.token and fence > 0):
        return (Forget(pod_key=want.pod_key, token=want.token),)
    return ()


def _stop(
    live: Sequence[ObservedPod], pod_key: str, token: int, grace_seconds: int, known: Known
) -> tuple[Action, ...]:
    """Nothing where every run was already asked to go at least as soon."""
    if live and all(known.asked.get(run.token, grace_seconds + 1) <= grace_seconds for run in live):
        return ()
    return (Stop(pod_key=pod_key, token=token, grace_seconds=grace_seconds),)


def _live(runs: Sequence[ObservedPod], *, up_to: int) -> list[ObservedPod]:
    return [run for run in runs if run.token <= up_to and run.kind in LIVE_KINDS]


def _absent(want: StartPod | StopPod, reason: Literal["stopped", "fenced"]) -> Absent:
    return Absent(pod_key=want.pod_key, token=want.token, workload_id=want.workload_id, pod=want.pod, reason=reason)
