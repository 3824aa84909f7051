"""The department aggregate: a group of projects, and the settings that hold for all of them.

Every project stands in one department. The department `default` is always there: it has no creation in the log until
somebody changes its settings, and it is never deleted.
"""

from datetime import datetime
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.ids import incarnation_id, key_of_id, name_key
from events.quotas import PoolQuota
from events.refusal import Refusal

DEFAULT_DEPARTMENT: Final = "default"
"""Name of the department of projects that name none; those from before there were departments are in it, too."""


def department_key(name: str) -> str:
    return name_key("department", name)


DEFAULT_DEPARTMENT_ID: Final = incarnation_id(department_key(DEFAULT_DEPARTMENT), DEFAULT_DEPARTMENT)
"""The same in every log: it is known before anything was ever written."""

# -- events ----------------------------------------------------------------------------------------------------------


class DepartmentCreated(Event, frozen=True, kw_only=True):
    """An administrator created a department, or changed the settings of the department `default` for the first time."""

    department_id: str
    """UUID."""
    name: str
    """Unique in the tenant."""
    at: datetime
    """When it was decided."""
    node_pools: tuple[str, ...] = ()
    """The order in which node pools are tried if neither a workload nor its project names one. Empty: all pools, by
    name."""
    node_types: tuple[str, ...] = ()
    """Node types of which a new workload must name one. Empty: it may name any, or none."""
    gpu_quota_milli: int | None = None
    """Limit on non-preemptible workloads of its projects together, in thousandths of a GPU. None: no limit."""
    gpu_limit_milli: int | None = None
    """Limit on all workloads of its projects together, in thousandths of a GPU. None: no limit."""
    pool_quotas: tuple[PoolQuota, ...] = ()
    """Bounds in single node pools, beside those."""
    minimum_runtime_seconds: int | None = None
    """So long a workload of its projects runs before its place may be taken for another one. None: no minimum."""
    cluster_lost_seconds: int | None = None
    """So long a cluster must have been lost before a workload of its projects leaves it for another one. None, or 0:
    never."""
    over_quota_weight: float | None = None
    """Weight by which its projects together share what is left of node pools beyond the quotas. None: 1."""


class DepartmentChanged(Event, frozen=True, kw_only=True):
    """The settings after a change."""

    node_pools: tuple[str, ...] = ()
    """As in DepartmentCreated."""
    node_types: tuple[str, ...] = ()
    """As in DepartmentCreated."""
    gpu_quota_milli: int | None = None
    """As in DepartmentCreated."""
    gpu_limit_milli: int | None = None
    """As in DepartmentCreated."""
    pool_quotas: tuple[PoolQuota, ...] = ()
    """As in DepartmentCreated."""
    minimum_runtime_seconds: int | None = None
    """As in DepartmentCreated."""
    cluster_lost_seconds: int | None = None
    """As in DepartmentCreated."""
    over_quota_weight: float | None = None
    """As in DepartmentCreated."""


class DepartmentDeleted(Event, frozen=True, kw_only=True):
    """The department was deleted, in which no project stood any more. Its history stays, and its name is free."""

    at: datetime
    """When it was decided."""


DepartmentEvent = DepartmentCreated | DepartmentChanged | DepartmentDeleted

# -- state -----------------------------------------------------------------------------------------------------------


class Department(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest incarnation of a name; `department_id` is empty where there never was one."""

    department_id: str = ""
    name: str = ""
    created_at: datetime | None = None
    node_pools: tuple[str, ...] = ()
    node_types: tuple[str, ...] = ()
    gpu_quota_milli: int | None = None
    gpu_limit_milli: int | None = None
    pool_quotas: tuple[PoolQuota, ...] = ()
    minimum_runtime_seconds: int | None = None
    cluster_lost_seconds: int | None = None
    over_quota_weight: float | None = None
    deleted_at: datetime | None = None

    @property
    def exists(self) -> bool:
        return bool(self.department_id) and self.deleted_at is None


NEVER_CHANGED: Final = Department(department_id=DEFAULT_DEPARTMENT_ID, name=DEFAULT_DEPARTMENT)
"""The department `default` while its own chain is empty."""


def _settings(of: Any) -> dict[str, Any]:
    """Of a command, an event or a state: all have them under the same names."""
    names = ("node_pools", "node_types", "gpu_quota_milli", "gpu_limit_milli", "pool_quotas")
    names = (*names, "minimum_runtime_seconds", "cluster_lost_seconds", "over_quota_weight")
    return {name: getattr(of, name) for name in names}


def evolve(state: Department, event: DepartmentEvent) -> Department:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    match event:
        case DepartmentCreated():
            if not event.department_id:
                return state
            return Department(
                department_id=event.department_id,
                name=event.name,
                created_at=event.at,
                **_settings(event),
            )
        case DepartmentChanged():
            return replace(state, **_settings(event)) if state.exists else state
        case DepartmentDeleted():
            return replace(state, deleted_at=event.at) if state.exists else state
        case _:
            assert_never(event)


def shown_as(state: Department, department_id: str) -> Department | None:
    """The department of this id, where `state` is that of its chain; None where there is none.

    Args:
        department_id: as somebody gave it.
    """
    wanted = department_id.lower()
    if state.exists and state.department_id == wanted:
        return state
    return NEVER_CHANGED if wanted == DEFAULT_DEPARTMENT_ID and not state.department_id else None


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    pass


class _Settings(_Command, frozen=True, kw_only=True):
    node_pools: tuple[str, ...] = ()
    node_types: tuple[str, ...] = ()
    gpu_quota_milli: int | None = None
    gpu_limit_milli: int | None = None
    pool_quotas: tuple[PoolQuota, ...] = ()
    minimum_runtime_seconds: int | None = None
    cluster_lost_seconds: int | None = None
    over_quota_weight: float | None = None


class CreateDepartment(_Settings, frozen=True, kw_only=True):
    name: str


class ChangeDepartment(_Settings, frozen=True, kw_only=True):
    """Set the settings to exactly these."""

    department_id: str


class DeleteDepartment(_Command, frozen=True, kw_only=True):
    """Whether projects still stand in it, the log of this aggregate does not say: `commands` looks before."""

    department_id: str


DepartmentCommand = CreateDepartment | ChangeDepartment | DeleteDepartment


def decide(command: DepartmentCommand, state: Department, context: Context) -> Decision[DepartmentEvent]:
    if isinstance(command, CreateDepartment):
        return _create(command, state, context)
    known = shown_as(state, command.department_id)
    if known is None:
        return Refusal(code="not_found", message=f"there is no department {command.department_id}")
    match command:
        case ChangeDepartment():
            if _settings(command) == _settings(known):
                return ()
            if known is not state:
                return (_created(DEFAULT_DEPARTMENT_ID, DEFAULT_DEPARTMENT, command, context),)
            return (DepartmentChanged(**_settings(command)),)
        case DeleteDepartment():
            if known.department_id == DEFAULT_DEPARTMENT_ID:
                message = f"the department {DEFAULT_DEPARTMENT!r} is always there, and cannot be deleted"
                return Refusal(code="default_department", message=message)
            return (DepartmentDeleted(at=context.now),)
        case _:
            assert_never(command)


def name_taken(name: str, instead: str) -> Refusal:
    """Args: instead, a name to propose."""
    return Refusal(
        code="name_taken",
        field="name",
        message=f"a department named {name!r} already exists; choose another name, such as {instead!r}",
    )


def fits(department_id: str, name: str) -> bool:
    """Whether a department of this name can have this id."""
    return key_of_id(department_id) == department_key(name)


def _create(command: CreateDepartment, state: Department, context: Context) -> Decision[DepartmentEvent]:
    if state.exists or command.name == DEFAULT_DEPARTMENT:
        return name_taken(command.name, f"{command.name}-2")
    return (_created(incarnation_id(department_key(command.name), context.command_id), command.name, command, context),)


def _created(
    department_id: str, name: str, settings: CreateDepartment | ChangeDepartment, context: Context
) -> DepartmentCreated:
    return DepartmentCreated(
        department_id=department_id,
        name=name,
        at=context.now,
        **_settings(settings),
    )
