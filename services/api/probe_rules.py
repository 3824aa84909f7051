"""Rules of probes (R21). Pure."""

import re
from collections.abc import Iterator
from typing import Final

from events.cluster import ClusterKind
from events.workload.spec import TrainingSpec
from services.api.issues import Issue, fault, shown

MOST_SECONDS: Final = 24 * 3600
"""Of delays, periods and timeouts: a longer one cannot be a wish."""
MOST_TRIES: Final = 1_000
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1"})
_PATH: Final = re.compile(r"/[a-zA-Z0-9\-_./]*\Z")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?\Z")
_READINESS: Final = "spec.probes.readiness"


def check_probes(spec: TrainingSpec) -> Iterator[Issue]:
    """R21."""
    probe = spec.probes.readiness
    if probe is None:
        return
    bounds = (
        ("initialDelaySeconds", probe.initial_delay_seconds, MOST_SECONDS),
        ("periodSeconds", probe.period_seconds, MOST_SECONDS),
        ("timeoutSeconds", probe.timeout_seconds, MOST_SECONDS),
        ("successThreshold", probe.success_threshold, MOST_TRIES),
        ("failureThreshold", probe.failure_threshold, MOST_TRIES),
    )
    for name, value, most in bounds:
        if value is not None and value > most:
            yield fault(f"{_READINESS}.{name}", f"must be at most {most}, got {value}", "max")
    handler = f"{_READINESS}.handler"
    asked = None if probe.handler is None else probe.handler.http_get
    if probe.handler is None:
        yield fault(handler, "is required where a probe is given; or leave the probe out", "required")
    elif asked is None:
        yield fault(f"{handler}.httpGet", "is required: the request that says whether the pod is ready", "required")
    elif asked.port is None:
        yield fault(f"{handler}.httpGet.port", "is required: the port on which the pod listens", "required")
    if asked is not None and asked.path and not _PATH.match(asked.path):
        details = f"{shown(asked.path)} is not possible: letters, digits, `-`, `_`, `.` and `/` behind a first `/`"
        yield fault(f"{handler}.httpGet.path", details)
    if asked is not None and asked.host is not None and not _HOST.match(asked.host):
        yield fault(f"{handler}.httpGet.host", f"{shown(asked.host)} is no host name; write it as db.example.com")


def check_probe_kind(spec: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """This machine asks its own pods, and nobody else for them."""
    probe = spec.probes.readiness
    asked = None if probe is None or probe.handler is None else probe.handler.http_get
    if kind == "local" and asked is not None and asked.host is not None and asked.host not in LOOPBACK:
        details = (
            f"{shown(asked.host)} is not possible on a cluster of kind local, which asks on loopback; leave it out"
        )
        yield fault(f"{_READINESS}.handler.httpGet.host", details, "options", "clusterId")
