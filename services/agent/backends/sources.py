"""Variables whose values a Kubernetes cluster knows, on clusters that are none. Pure."""

from typing import Final

from events.cluster_protocol import RunPod

NO_SUCH_SOURCE: Final = "no_such_source"


def missing_sources(pod: RunPod, kind: str) -> str:
    """Why the run cannot have its variables here, in words; empty where it can."""
    if not pod.environment_from:
        return ""
    names = ", ".join(source.name for source in pod.environment_from)
    return f"a {kind} cluster has no Secrets, ConfigMaps and pod fields to take {names} from; give values"
