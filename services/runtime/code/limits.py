"""How large code may be. Pure."""

from typing import Final

from events.cluster import ClusterKind

PART_BYTES: Final = 256 * 1024
"""Of every part but the last: in base64 it fits a request's body, and as it is, a message."""
KUBERNETES_MAX_BYTES: Final = 4 * 1024 * 1024
"""Of one archive for a cluster of kind kubernetes: it lies in the cluster's own store, beside everything else there."""


def most_bytes(kind: ClusterKind, setting: int) -> int:
    """Of one archive for a cluster of this kind. `setting`: what is taken for any cluster."""
    return min(setting, KUBERNETES_MAX_BYTES) if kind == "kubernetes" else setting
