"""A node's taints let the pod on it: it tolerates each one that refuses pods. `PreferNoSchedule` refuses none, and is
a score.

What a pod tolerates for a time only lets it stay: on a node that has the taint already it would be told to end again.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from events.node import Taint
from events.workload.needs import GPU, Tolerated
from events.workload.spec import PodRequest
from services.scheduler.columns import REFUSING_EFFECTS
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans

MOST_NAMED: Final = 3
"""Taints in one sentence."""


def tolerates(request: PodRequest, taint: Taint) -> bool:
    """Whether for ever."""
    return seconds_tolerated(request, taint) is None


def refusing_among(taints: Sequence[Taint], request: PodRequest) -> list[Taint]:
    """Those of a node that keep the pod away."""
    return [each for each in taints if each.effect in REFUSING_EFFECTS and not tolerates(request, each)]


def seconds_tolerated(request: PodRequest, taint: Taint) -> int | None:
    """For how long a pod may stay where this taint comes; None: for ever. Also the taint that keeps nodes for what the
    pod asks for, as Kubernetes' ExtendedResourceToleration has it.
    """
    if taint.key == GPU and request.gpu_devices:
        return None
    if any(each.resource == taint.key for each in request.extended):
        return None
    longest = 0
    for each in request.tolerated:
        if _matches(each, taint):
            if each.seconds is None:
                return None
            longest = max(longest, each.seconds)
    return longest


def _matches(tolerated: Tolerated, taint: Taint) -> bool:
    return (
        tolerated.key == taint.key and tolerated.effect in {"", taint.effect} and tolerated.value in {None, taint.value}
    )


def refuses(view: View) -> Booleans:
    """Only the sets of these nodes are looked at: those of another cluster are that one's own affair."""
    nodes = view.room.nodes
    numbers = nodes.taints[view.rows]
    refusing = np.zeros(len(nodes.taint_sets), dtype=np.bool_)
    seen = refusing.copy()
    seen[numbers] = True
    for number in np.flatnonzero(seen).tolist():
        refusing[number] = bool(refusing_among(nodes.taint_sets[number], view.request))
    return refusing[numbers]


def words(view: View) -> str:
    """How many nodes, and by which taints. Those of nodes that take no pods anyway follow from that."""
    nodes = view.room.nodes
    refused = refuses(view) & nodes.usable[view.rows]
    if not refused.any():
        return ""
    sets: set[int] = set(nodes.taints[view.rows[refused]].tolist())
    taints = {taint for number in sets for taint in refusing_among(nodes.taint_sets[number], view.request)}
    told = sorted(_named(view.request, taint) for taint in taints)
    more = len(told) - MOST_NAMED
    named = ", ".join(told[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{int(refused.sum())} with a taint that the workload does not tolerate: {named}"


def _named(request: PodRequest, taint: Taint) -> str:
    seconds = seconds_tolerated(request, taint)
    only = f" (tolerated for {seconds} s only)" if seconds else ""
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}{only}"


FILTER: Final = Filter(name="taints", asks=lambda _: True, closed=Check(refuses=refuses, words=words))
