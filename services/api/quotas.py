"""Quotas and limits on GPUs, of departments and projects: how they are asked for and shown. Pure."""

from collections.abc import Collection, Iterator
from typing import Annotated, Final, Protocol

from events.fields.declare import Body, Limits
from events.quantities import cores_to_milli
from events.quotas import MAX_CLUSTER_LOST, MAX_MINIMUM_RUNTIME, PoolQuota
from services.api import answers
from services.api.issues import Issue, fault, shown
from services.api.rules import listed_pools
from services.api.simulated_nodes import PoolName

MAX_GPU_QUOTA: Final = 10_000_000
"""Devices: more than there are, and in thousandths still far inside 64 bits."""
GpuQuota = Annotated[float, Limits(least=0, most=MAX_GPU_QUOTA)]
MinimumRuntime = Annotated[int, Limits(least=0, most=MAX_MINIMUM_RUNTIME)]
ClusterLost = Annotated[int, Limits(least=0, most=MAX_CLUSTER_LOST)]
MAX_WEIGHT: Final = 1_000
"""More than that times another weight, nobody tells apart."""
Weight = Annotated[float, Limits(least=0, most=MAX_WEIGHT)]


class PoolQuotaFields(Body, frozen=True, kw_only=True):
    """Bounds in one node pool, beside those that hold everywhere."""

    node_pool: PoolName
    """Name of the node pool."""
    gpu_quota: GpuQuota | None = None
    """GPUs of this pool that non-preemptible workloads may hold. Null: no limit."""
    gpu_limit: GpuQuota | None = None
    """GPUs of this pool that all workloads may hold. Null: no limit."""
    over_quota_weight: Weight | None = None
    """Weight by which it shares what is left of this pool beyond the quotas. Null: the one that holds everywhere."""


PoolQuotas = Annotated[tuple[PoolQuotaFields, ...], Limits(longest=100)]


class Asked(Protocol):
    """What departments and projects have of it in a request."""

    @property
    def gpu_quota(self) -> float | None: ...
    @property
    def gpu_limit(self) -> float | None: ...
    @property
    def node_pool_quotas(self) -> tuple[PoolQuotaFields, ...]: ...


def quota_issues(asked: Asked, known: Collection[str] | None) -> Iterator[Issue]:
    """What is wrong; where it is not `known` which node pools there are, only that in itself."""
    yield from _bounds("", asked)
    pools = [each.node_pool for each in asked.node_pool_quotas]
    for index, each in enumerate(asked.node_pool_quotas):
        path = f"nodePoolQuotas[{index}]"
        yield from _bounds(f"{path}.", each)
        if each.node_pool in pools[:index]:
            yield Issue(field=f"{path}.nodePool", details=f"{shown(each.node_pool)} is given twice; leave one out")
        elif known is not None and each.node_pool not in known:
            details = f"no cluster has a node pool {shown(each.node_pool)}; there are {listed_pools(sorted(known))}"
            yield fault(f"{path}.nodePool", details, "options")


def _bounds(path: str, asked: Asked | PoolQuotaFields) -> Iterator[Issue]:
    if asked.gpu_quota is not None and asked.gpu_limit is not None and asked.gpu_quota > asked.gpu_limit:
        details = f"is {asked.gpu_quota:g}, above the limit on all workloads of {asked.gpu_limit:g}; lower one of them"
        yield fault(f"{path}gpuQuota", details, "max", f"{path}gpuLimit")


def milli(devices: float | None) -> int | None:
    return None if devices is None else cores_to_milli(devices)


def stored(asked: tuple[PoolQuotaFields, ...]) -> tuple[PoolQuota, ...]:
    return tuple(
        PoolQuota(
            node_pool=each.node_pool,
            gpu_quota_milli=milli(each.gpu_quota),
            gpu_limit_milli=milli(each.gpu_limit),
            over_quota_weight=each.over_quota_weight,
        )
        for each in asked
    )


def told(quotas: tuple[PoolQuota, ...]) -> list[answers.NodePoolQuota]:
    return [
        answers.NodePoolQuota(
            node_pool=each.node_pool,
            gpu_quota=devices(each.gpu_quota_milli),
            gpu_limit=devices(each.gpu_limit_milli),
            over_quota_weight=each.over_quota_weight,
        )
        for each in quotas
    ]


def devices(gpu_milli: int | None) -> float | None:
    return None if gpu_milli is None else gpu_milli / 1000
