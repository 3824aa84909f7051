"""When a pod counts as running (R21)."""

from typing import Annotated, ClassVar, Literal

from events.fields.declare import About, Limits, Section

PositiveInt32 = Annotated[int, Limits(format="int32", least=1)]
Seconds = Annotated[int, Limits(format="int32", least=0)]
UrlPath = Annotated[str, Limits(longest=2048, pattern=r"^(\x2F[a-zA-Z0-9\-_.\x2F]*)?$")]


class HttpGet(Section, frozen=True, kw_only=True):
    """A request that is answered with a status from 200 to 399 where the pod is ready."""

    path: Annotated[UrlPath | None, About(rows="R21")] = None
    """Path of the request. Default: /."""
    port: Annotated[Annotated[int, Limits(format="int32", least=1, most=65535)] | None, About(rows="R21")] = None
    """Port on which the pod listens. Mandatory within httpGet."""
    host: Annotated[Annotated[str, Limits(format="hostname", longest=253)] | None, About(rows="R21")] = None
    """Host to ask. Default: the pod. Another needs a privileged project. The cluster local asks on loopback alone."""
    scheme: Annotated[Literal["HTTP", "HTTPS"] | None, About(rows="R21")] = None
    """HTTPS: with TLS, whatever the certificate says. Default: HTTP."""


class ProbeHandler(Section, frozen=True, kw_only=True):
    """How to ask."""

    http_get: Annotated[Annotated[HttpGet, Limits(not_null=True, hides_default=True)] | None, About(rows="R21")] = None
    """Ask by an HTTP request. Mandatory within handler."""


class Probe(Section, frozen=True, kw_only=True):
    """How to find out whether a pod is ready."""

    initial_delay_seconds: Annotated[Seconds | None, About(rows="R21", unit="seconds")] = None
    """Time from the start of the process to the first try. Default: 0."""
    period_seconds: Annotated[PositiveInt32 | None, About(rows="R21", unit="seconds")] = None
    """Time between two tries. Default: 10."""
    timeout_seconds: Annotated[PositiveInt32 | None, About(rows="R21", unit="seconds")] = None
    """Time that an answer may take. Default: 1."""
    success_threshold: Annotated[PositiveInt32 | None, About(rows="R21")] = None
    """Number of tries in a row that must succeed. Default: 1."""
    failure_threshold: Annotated[PositiveInt32 | None, About(rows="R21")] = None
    """Number of tries in a row that must fail before the history warns that a pod is not ready any more. Default: 3."""
    handler: Annotated[ProbeHandler | None, About(rows="R21")] = None
    """How to ask. Mandatory within readiness."""


class ProbesSpec(Section, frozen=True, kw_only=True):
    """What each pod is asked."""

    readiness: Annotated[Probe | None, About(rows="R21")] = None
    """A pod counts as running once this succeeds. Default: as soon as its process runs."""


class Probes(Section, frozen=True, kw_only=True):
    """The object that holds the probes."""

    TITLE: ClassVar[str] = "Probes"

    probes: Annotated[ProbesSpec, About(rows="R21")] = ProbesSpec()
    """What each pod is asked."""


class MasterProbes(Section, frozen=True, kw_only=True):
    """The probes of a master that has its own."""

    TITLE: ClassVar[str] = "Probes"

    probes: Annotated[ProbesSpec | None, About(rows="R21 S066")] = None
    """What the master is asked; an empty object: nothing. Default: what the workers are asked."""
