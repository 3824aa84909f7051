"""Levels of Pod Security: which one a pod keeps to, who says so, and what to change where it is in the way. Pure."""

import re
from collections.abc import Mapping
from typing import Final, Literal

from events.project import PodSecurity
from services.agent.backends.kubernetes import names

Security = Literal["restricted", "baseline", "privileged"]
"""As the namespace's label `pod-security.kubernetes.io/enforce` names them."""

_LOOSEST_FIRST: Final[tuple[Security, ...]] = ("privileged", "baseline", "restricted")
_VIOLATED: Final = re.compile(r'violates PodSecurity "(?P<level>[a-z]+)')
"""How the API server names the level that a pod does not keep to."""


def security_of(namespace_labels: Mapping[str, str]) -> Security:
    """The level that a namespace enforces; without one, or with one that we do not know, pods keep the strictest."""
    match namespace_labels.get(names.ENFORCE):
        case "baseline":
            return "baseline"
        case "privileged":
            return "privileged"
        case _:
            return "restricted"


def with_project(level: Security, project: PodSecurity | None) -> Security:
    """The level, or what a project asks for where that is stricter: a project never loosens what a cluster says."""
    if project is None or _LOOSEST_FIRST.index(project) < _LOOSEST_FIRST.index(level):
        return level
    return project


def restricted_by(namespace: Security, project: PodSecurity | None) -> str:
    """Who wants the strictest level of a pod, for `advice`: empty where nobody does."""
    return ",".join(who for who, level in (("namespace", namespace), ("project", project)) if level == "restricted")


def violates(message: str) -> bool:
    """Whether the API server refused a pod for its namespace's level."""
    return bool(_VIOLATED.search(message))


def advice_on_refusal(message: str, namespace: str) -> str:
    """Which setting lets a pod through that was refused in these words."""
    found = _VIOLATED.search(message)
    looser = "privileged" if found is not None and found["level"] == "baseline" else "baseline"
    return f"an administrator of the cluster may allow it: {_label(namespace, looser)}"


def advice_on_root(who: str, *, namespace: str, project: str) -> str:
    """What lets an image run as root. `who`: as `restricted_by` said it when the pod was made."""
    ways = {
        "project": f"an administrator of Muster may lift it: muster project set {project} --pod-security none",
        "namespace": f"an administrator of the cluster may lift it: {_label(namespace, 'baseline')}",
    }
    said = [ways[one] for one in ("project", "namespace") if one in who.split(",")] or [ways["namespace"]]
    return "use an image that names another user by number, or " + ", and ".join(said)


def _label(namespace: str, level: str) -> str:
    return f"kubectl label --overwrite namespace {namespace} {names.ENFORCE}={level}"
