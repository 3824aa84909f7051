"""What a simulation has otherwise than it was: quotas, limits and weights, nodes, and the scheduler's policy. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from events.department import (
    DEFAULT_DEPARTMENT,
    DEFAULT_DEPARTMENT_ID,
    Department,
    DepartmentChanged,
    DepartmentCreated,
)
from events.node import NodeFacts
from events.project import Project, ProjectChanged
from events.quotas import PoolQuota
from services.scheduler.planning import Policy

NEVER: Final = timedelta(days=365_000)
"""In place of a time after which nothing is done."""


class PoolBounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one node pool; unset: as it was. None: no bound, or the weight that holds everywhere."""

    gpu_quota_milli: int | UnsetType | None = UNSET
    gpu_limit_milli: int | UnsetType | None = UNSET
    over_quota_weight: float | UnsetType | None = UNSET


class Bounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a project or department; unset: as it was. None: no bound, a weight of 1, no minimum runtime of its own."""

    gpu_quota_milli: int | UnsetType | None = UNSET
    gpu_limit_milli: int | UnsetType | None = UNSET
    over_quota_weight: float | UnsetType | None = UNSET
    minimum_runtime_seconds: int | UnsetType | None = UNSET
    node_pools: tuple[str, ...] | UnsetType = UNSET
    pools: dict[str, PoolBounds] = {}
    """By name of the node pool."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unset: as the product has it."""

    reserve_after_seconds: float | UnsetType | None = UNSET
    """None: never."""
    kept_after_eviction_seconds: float | UnsetType = UNSET
    head_start_seconds: float | UnsetType | None = UNSET
    """What a rank of priority is worth in waiting. None: no waiting counts as much as a rank."""
    take_back: bool = True
    """Whether anybody's place is taken for another."""
    scores: tuple[str, ...] | UnsetType = UNSET
    """Names, the one that counts first before the others."""
    orders: tuple[str, ...] | UnsetType = UNSET


class NewNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    facts: NodeFacts


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    projects: dict[str, Bounds] = {}
    """By name."""
    departments: dict[str, Bounds] = {}
    nodes: dict[str, tuple[NewNode, ...]] = {}
    """By id of a cluster: all that it has, in place of those that it had."""
    policy: PolicyChange = PolicyChange()


NO_CHANGE: Final = Change()


def policy_of(usual: Policy, change: PolicyChange) -> Policy:
    """Raises KeyError for a score or an order that there is not."""
    scores = {each.name: each for each in usual.scores}
    orders = {each.name: each for each in usual.orders}
    reserve, kept = change.reserve_after_seconds, change.kept_after_eviction_seconds
    return replace(
        usual,
        scores=usual.scores if change.scores is UNSET else tuple(scores[name] for name in change.scores),
        orders=usual.orders if change.orders is UNSET else tuple(orders[name] for name in change.orders),
        phases=tuple(each for each in usual.phases if change.take_back or each.name != "take_back"),
        reserve_after=usual.reserve_after if reserve is UNSET else _after(reserve),
        kept_after_eviction=usual.kept_after_eviction if kept is UNSET else timedelta(seconds=kept),
    )


def head_start_of(usual: timedelta, change: PolicyChange) -> timedelta:
    return usual if change.head_start_seconds is UNSET else _after(change.head_start_seconds)


def _after(seconds: float | None) -> timedelta:
    return NEVER if seconds is None else timedelta(seconds=seconds)


def project_changed(state: Project, bounds: Bounds) -> ProjectChanged | None:
    """None where it is so already."""
    settings = {name: getattr(state, name) for name in ProjectChanged.__struct_fields__}
    changed = settings | _given(bounds, state.pool_quotas)
    return None if changed == settings else ProjectChanged(**changed)


def department_changed(
    state: Department, bounds: Bounds, now: datetime
) -> DepartmentChanged | DepartmentCreated | None:
    """None where it is so already. `state`: also that of the department `default`, which needs no creation."""
    settings = {name: getattr(state, name) for name in DepartmentChanged.__struct_fields__}
    changed = settings | _given(bounds, state.pool_quotas)
    if changed == settings:
        return None
    if state.exists:
        return DepartmentChanged(**changed)
    return DepartmentCreated(department_id=DEFAULT_DEPARTMENT_ID, name=DEFAULT_DEPARTMENT, at=now, **changed)


def _given(bounds: Bounds, quotas: Iterable[PoolQuota]) -> dict[str, Any]:
    pools = {each.node_pool: each for each in quotas}
    for pool, given in bounds.pools.items():
        pools[pool] = msgspec.structs.replace(pools.get(pool, PoolQuota(node_pool=pool)), **_set(given))
    return {name: value for name, value in _set(bounds).items() if name != "pools"} | {
        "pool_quotas": tuple(pools.values())
    }


def _set(of: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name in of.__struct_fields__ if (value := getattr(of, name)) is not UNSET}
