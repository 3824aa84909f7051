"""What the workloads of a project, or of all projects of a department, may hold of GPUs: in all, and by node pool."""

from typing import Final

import msgspec

MAX_MINIMUM_RUNTIME: Final = 7 * 24 * 3600
"""Seconds: whoever is to run for longer undisturbed is not preemptible."""
MAX_CLUSTER_LOST: Final = 7 * 24 * 3600
"""Seconds for which a cluster is lost before workloads leave it."""


class PoolQuota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds in one node pool, beside those that hold everywhere."""

    node_pool: str
    """Name of the node pool, in every cluster that has one of this name."""
    gpu_quota_milli: int | None = None
    """Limit on non-preemptible workloads there, in thousandths of a GPU. None: no limit."""
    gpu_limit_milli: int | None = None
    """Limit on all workloads there, in thousandths of a GPU. None: no limit."""
    over_quota_weight: float | None = None
    """Weight by which it shares what is left there beyond the quotas. None: the one that holds everywhere."""
