"""How agents find out whether a pod is ready, made from a workload's probe. Pure."""

from typing import Any

import msgspec

from events.workload.fields.probes import HttpGet, Probe, ProbeHandler


class Readiness(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An HTTP request, with Kubernetes' defaults."""

    port: int
    path: str = "/"
    host: str = ""
    """Empty: the pod itself."""
    https: bool = False
    delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    successes: int = 1
    failures: int = 3


def readiness(probe: Probe | None) -> Readiness | None:
    """None where a pod is ready as soon as its process runs."""
    if probe is None:
        return None
    asked = (probe.handler or ProbeHandler()).http_get or HttpGet()
    given: dict[str, Any] = {
        "path": asked.path,
        "host": asked.host,
        "delay_seconds": probe.initial_delay_seconds,
        "period_seconds": probe.period_seconds,
        "timeout_seconds": probe.timeout_seconds,
        "successes": probe.success_threshold,
        "failures": probe.failure_threshold,
    }
    known = {name: value for name, value in given.items() if value}
    return Readiness(port=asked.port or 0, https=asked.scheme == "HTTPS", **known)
