"""How many replicas an inference is to have: from its load, the settings of its person, and what was so lately. Pure.

More are started as soon as the load asks for them; fewer are left only once the load has asked for fewer all the time
for a while, so that a load that comes and goes does not start and stop replicas again and again (docs/adr/0091).
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from events.workload.fields.inference import Autoscaling, ScaleReason

UP_SECONDS: Final = 5.0
"""Between two steps up: what was started just now takes some of the load first."""
DOWN_SECONDS: Final = 60.0
"""For so long the load must have asked for fewer replicas before one goes. As Knative's stable window."""
SLACK: Final = 0.9
"""Replicas go only where those that stay are loaded to this share of the threshold at most: a load just at it must not
have one come and go.
"""
STEADY_LATENCY: Final = (0.5, 1.1)
"""Shares of the threshold between which a latency changes nothing. It says little of how many replicas would do: more
are started in proportion, and one at a time goes.
"""
UNSEEN_SECONDS: Final = 10.0
"""After so long without a decision, nobody knows what was asked for meanwhile: it stood still."""
MOST_GROWTH: Final = 2
"""A step up doubles the replicas at most, and allows LEAST_GROWTH in any case: a moment's load, or one who lies about
it, does not start a thousand at once.
"""
LEAST_GROWTH: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of an inference now, by all who forward to it."""

    requests_per_second: float
    milliseconds: float | None
    """That a request takes; None where none was answered lately."""
    concurrency: float
    """Requests that replicas work on."""
    held: int = 0
    """Requests that wait since no replica is ready."""
    idle_seconds: float = 0.0
    """For how long it is known that nobody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is remembered of an inference from one decision to the next. Times are monotonic seconds."""

    replicas: int
    """How many there were to be."""
    changed_at: float
    """Since when, as far as is known."""
    peaks: tuple[tuple[float, int], ...]
    """(when, replicas that the load asked for), without those that a later one exceeds; the first is the highest."""
    seen_at: float
    """When it was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    replicas: int
    """How many there are to be."""
    reason: ScaleReason = "load"
    message: str = ""
    """Of a change: the load that it was decided by."""
    past: Past


def decide(
    load: Load | None,
    now: float,
    settings: Autoscaling,
    current: int,
    *,
    ready: int,
    past: Past | None = None,
    unseen_seconds: float = math.inf,
) -> Decision:
    """How many replicas there are to be, never beyond the bounds of the settings.

    Args:
        load: None where nobody has reported it lately: then nothing changes.
        settings: with all defaults.
        current: how many there are to be until now.
        ready: how many of them run.
        past: of the decision before; None: there was none that is known.
        unseen_seconds: since that decision at most; later, there was none that counts.
    """
    if past is not None and now - past.seen_at > unseen_seconds:
        past = None
    past = replace(_known(past, now, current), seen_at=now)
    least, most = settings.min_replicas or 0, settings.max_replicas or 1
    if load is None:
        # What nobody saw may have asked for all of them: the minute begins anew once something is known again.
        return Decision(replicas=current, past=replace(past, peaks=((now, current),)))
    retention = settings.scale_to_zero_retention_seconds
    if least == 0 and retention is not None and _idle(load, retention):
        if current == 0:
            return Decision(replicas=0, past=past)
        return Decision(replicas=0, reason="idle", message=f"no request for {_minutes(retention)}", past=past)
    if current == 0:
        # Whoever asks waits for the first replica: it does not wait for anything.
        asked = load.held or load.requests_per_second or load.concurrency
        message = f"{_count(load.held)} waiting while there was no replica"
        return Decision(replicas=min(1, most) if asked else 0, reason="request", message=message, past=past)
    wanted = min(max(_wanted(load, settings, current, ready), least, 1), most)
    past = _with(past, now, wanted)
    grown = min(wanted, max(MOST_GROWTH * current, current + LEAST_GROWTH))
    if grown > current and now - past.changed_at < UP_SECONDS:
        grown = current
    replicas = min(max(grown if wanted > current else min(current, past.peaks[0][1]), least), most)
    return Decision(replicas=replicas, message=_told(load, settings, current, ready), past=past)


def _known(past: Past | None, now: float, current: int) -> Past:
    """What is still true of it; anew where another has scaled meanwhile, or the clock was set back."""
    if past is None or past.replicas != current or past.changed_at > now or past.peaks[-1][0] > now:
        return Past(replicas=current, changed_at=now, peaks=((now, current),), seen_at=now)
    return past


def _with(past: Past, now: float, wanted: int) -> Past:
    kept = tuple((at, peak) for at, peak in past.peaks if now - at < DOWN_SECONDS and peak > wanted)
    return replace(past, peaks=(*kept, (now, wanted)))


def _idle(load: Load, retention: int) -> bool:
    return not (load.held or load.concurrency or load.requests_per_second) and load.idle_seconds >= retention


def _wanted(load: Load, settings: Autoscaling, current: int, ready: int) -> int:
    """What the load asks for, whatever was so before and whatever the bounds are."""
    threshold = settings.metric_threshold
    if settings.metric == "latency":
        return _by_latency(load, threshold, current, ready)
    value = load.requests_per_second if settings.metric == "throughput" else load.concurrency + load.held
    up, down = math.ceil(value / threshold), math.ceil(value / (SLACK * threshold))
    return up if up > current else min(down, current)


def _by_latency(load: Load, threshold: int, current: int, ready: int) -> int:
    if load.milliseconds is None:
        # Nothing was answered: nobody asks, or all wait for what is not ready.
        return current if load.held or load.concurrency else current - 1
    low, high = STEADY_LATENCY
    share = load.milliseconds / threshold
    if share > high:
        # Those that are not ready yet will take their part.
        return math.ceil(current * share) if ready >= current else current
    return current - 1 if share < low else current


def _told(load: Load, settings: Autoscaling, current: int, ready: int) -> str:
    over = f"over {_replicas(current)}" + (f", {ready} of them ready" if ready < current else "")
    threshold = settings.metric_threshold
    match settings.metric:
        case "throughput":
            return f"load {load.requests_per_second:.4g} requests/s {over}, target {threshold}"
        case "concurrency":
            return f"load {load.concurrency + load.held:.4g} requests at once {over}, target {threshold}"
        case "latency":
            took = "no request" if load.milliseconds is None else f"{load.milliseconds:.4g} ms per request"
            return f"load {took} {over}, target {threshold} ms"


def _replicas(number: int) -> str:
    return f"{number} replica{'' if number == 1 else 's'}"


def _count(held: int) -> str:
    return f"{held} request{'' if held == 1 else 's'}" if held else "a request"


def _minutes(seconds: int) -> str:
    return f"{seconds // 60} minute{'' if seconds == 60 else 's'}"  # noqa: PLR2004 (of a minute)
