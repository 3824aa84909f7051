"""What is said of the load of inferences: by those that forward requests to them, on `load.<reporter>`, and by the
annotation of one on a simulated cluster. Core NATS, kept nowhere. Pure.
"""

from typing import Annotated, Final

import msgspec

REPORT_SECONDS: Final = 1.0
"""How often a reporter speaks, of every inference that it forwards to, also where nobody asked."""
LEAST_SECONDS: Final = 0.001
"""Of a report: a load over less than that could be more than a number holds."""
LOAD_ANNOTATION: Final = "simulation.muster.dev/requests-per-second"
"""On a simulated cluster: the load, such as `340`, or from which second of its life on, such as `0=340,60=0`."""
MILLISECONDS_ANNOTATION: Final = "simulation.muster.dev/request-milliseconds"
"""On a simulated cluster: how long a replica works on a request."""
DEFAULT_MILLISECONDS: Final = 100
MOST_STATED: Final = 1_000_000_000
MOST_STEPS: Final = 1_000

_Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


class InferenceLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one reporter saw of one inference since it spoke last."""

    workload_id: Annotated[str, msgspec.Meta(max_length=64)]
    arrived: _Count = 0
    """Requests that came."""
    answered: _Count = 0
    """Requests that were answered by a replica."""
    milliseconds: _Count = 0
    """How long those took together, from when a replica had them."""
    in_flight: _Count = 0
    """Requests that are being worked on now."""
    held: _Count = 0
    """Requests that wait now since no replica is ready."""


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one reporter saw of all inferences since it spoke last."""

    seconds: Annotated[float, msgspec.Meta(ge=LEAST_SECONDS, le=3600)]
    """How long ago that was."""
    loads: Annotated[tuple[InferenceLoad, ...], msgspec.Meta(max_length=10_000)]


def steps(text: str) -> tuple[tuple[int, int], ...]:
    """(from which second on, requests per second) of an annotation's text, in order. Raises ValueError."""
    parts = text.split(",") if "=" in text else [f"0={text}"]
    if len(parts) > MOST_STEPS:
        raise ValueError(f"has {len(parts)} steps; {MOST_STEPS} are possible")
    found: list[tuple[int, int]] = []
    for part in parts:
        second, _, rate = part.partition("=")
        found.append((whole(second), whole(rate)))
    if found != sorted(dict(found).items()):
        raise ValueError("names its seconds once each, in order, such as 0=340,60=0")
    return tuple(found)


def whole(text: str) -> int:
    """A whole number of an annotation. Raises ValueError."""
    number = text.strip()
    if not (number.isascii() and number.isdecimal() and len(number) <= len(str(MOST_STATED))):
        raise ValueError(f"{number[:40]!r} is no whole number from 0 to {MOST_STATED}")
    if int(number) > MOST_STATED:
        raise ValueError(f"{number} is more than {MOST_STATED}")
    return int(number)


def stated_rate(of: tuple[tuple[int, int], ...], second: float) -> int:
    """Requests per second at this second of a life."""
    return next((rate for begin, rate in reversed(of) if begin <= second), 0)
