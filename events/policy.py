"""The policy aggregate: what administrators set and forbid for one kind of workload, everywhere, in one
department or in one project.

There is one for each kind and place. It is kept as it was given, since absent, null and a value are three things in its
defaults. A workload stores what came of it, so that no later policy changes a workload.
"""

from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, assert_never, get_args

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.ids import incarnation_id, name_key
from events.refusal import Refusal

PolicyScope = Literal["tenant", "department", "project"]
POLICY_SCOPES: Final[tuple[PolicyScope, ...]] = get_args(PolicyScope)
"""The widest first: each holds beside those before it."""
MAX_POLICY_BYTES: Final = 64 * 1024
"""Of defaults and rules as JSON: what a workload takes from two of them, and says itself, fits a message."""

MOST_IMPOSED: Final = 10
"""Data sources of one policy: each is read with every submission."""

PolicyDefaults = Annotated[
    dict[str, Any], msgspec.Meta(extra_json_schema={"allOf": [{"$ref": "#/components/schemas/AssetSpec"}]})
]
"""Fields of a spec as they were given, by their names on the wire."""
PolicyRules = Annotated[
    dict[str, Any], msgspec.Meta(extra_json_schema={"allOf": [{"$ref": "#/components/schemas/WorkloadSpecFieldRules"}]})
]
"""Rules as they were given, in the tree of the spec's fields."""

# -- events ----------------------------------------------------------------------------------------------------------


class _Event(Event, frozen=True, kw_only=True):
    workload_type: str
    """Kind of workload that it is for, such as Training."""
    project_id: str = ""
    """UUID of the project that it is for, where it is for one."""
    department_id: str = ""
    """UUID of the department that it is for, where it is for one. Without either it holds everywhere."""
    at: datetime
    """When it was decided."""


class PolicySet(_Event, frozen=True, kw_only=True):
    """Somebody set the policy for a kind of workload. Workloads that there are stay as they are."""

    policy_id: str
    """UUID. A later policy, after this one was deleted, has another one."""
    set_by: str
    """Actor id of who set it."""
    defaults: PolicyDefaults
    """Fields that a workload gets where nothing else sets them."""
    rules: PolicyRules
    """What may be given, in the tree of the fields."""
    imposed_assets: tuple[str, ...] = ()
    """UUIDs of data sources that every workload has."""


class PolicyDeleted(_Event, frozen=True, kw_only=True):
    """The policy was deleted. Workloads that there are stay as they are."""


PolicyEvent = PolicySet | PolicyDeleted

# -- state -----------------------------------------------------------------------------------------------------------


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest policy of one kind and place; `policy_id` is empty where there never was one."""

    policy_id: str = ""
    workload_type: str = ""
    project_id: str = ""
    department_id: str = ""
    set_by: str = ""
    set_at: datetime | None = None
    deleted_at: datetime | None = None
    defaults: PolicyDefaults = msgspec.field(default_factory=dict[str, Any])
    rules: PolicyRules = msgspec.field(default_factory=dict[str, Any])
    imposed_assets: tuple[str, ...] = ()
    """Ids of data sources."""

    @property
    def exists(self) -> bool:
        return bool(self.policy_id) and self.deleted_at is None

    @property
    def scope(self) -> PolicyScope:
        if self.project_id:
            return "project"
        return "department" if self.department_id else "tenant"


@lru_cache(512)
def policy_key(workload_type: str, place: str) -> str:
    """Args: place, the id of the project or department; empty for the policy that holds everywhere."""
    return name_key("policy", workload_type, place)


def evolve(state: Policy, event: PolicyEvent) -> Policy:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    match event:
        case PolicySet():
            if not event.policy_id:
                return state
            return Policy(
                policy_id=event.policy_id,
                workload_type=event.workload_type,
                project_id=event.project_id,
                department_id=event.department_id,
                set_by=event.set_by,
                set_at=event.at,
                defaults=event.defaults,
                rules=event.rules,
                imposed_assets=event.imposed_assets,
            )
        case PolicyDeleted():
            return replace(state, deleted_at=event.at) if state.exists else state
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    workload_type: str
    project_id: str | None = None
    """Of a policy that holds in one project: the gate goes by it."""
    department_id: str | None = None
    """Of a policy that holds in one department."""

    def __post_init__(self) -> None:
        """Raises ValueError where it names a project and a department: whoever may write in a project only must not
        write for a department.
        """
        if self.project_id is not None and self.department_id is not None:
            raise ValueError("a policy is for a project or for a department, and not for both")

    @property
    def place(self) -> str:
        return self.project_id or self.department_id or ""

    @property
    def key(self) -> str:
        return policy_key(self.workload_type, self.place)


class SetPolicy(_Command, frozen=True, kw_only=True):
    """Set the policy to exactly this."""

    defaults: PolicyDefaults
    rules: PolicyRules
    imposed_assets: tuple[str, ...] = ()


class DeletePolicy(_Command, frozen=True, kw_only=True):
    pass


PolicyCommand = SetPolicy | DeletePolicy


def decide(command: PolicyCommand, state: Policy, context: Context) -> Decision[PolicyEvent]:
    places = {"project_id": command.project_id or "", "department_id": command.department_id or ""}
    match command:
        case SetPolicy():
            if refusal := _too_large(command):
                return refusal
            asked = (command.defaults, command.rules, command.imposed_assets)
            if state.exists and asked == (state.defaults, state.rules, state.imposed_assets):
                return ()
            return (
                PolicySet(
                    policy_id=state.policy_id if state.exists else incarnation_id(command.key, context.command_id),
                    workload_type=command.workload_type,
                    **places,
                    set_by=context.actor.id,
                    at=context.now,
                    defaults=command.defaults,
                    rules=command.rules,
                    imposed_assets=command.imposed_assets,
                ),
            )
        case DeletePolicy():
            if not state.exists:
                what = f"there is no policy for {command.workload_type} of this scope"
                return Refusal(code="not_found", message=what)
            return (PolicyDeleted(workload_type=state.workload_type, **places, at=context.now),)
        case _:
            assert_never(command)


def _too_large(command: SetPolicy) -> Refusal | None:
    if len(command.imposed_assets) > MOST_IMPOSED:
        message = f"{len(command.imposed_assets)} data sources are imposed; at most {MOST_IMPOSED} are possible"
        return Refusal(code="invalid", field="imposedAssets", message=message)
    size = len(msgspec.json.encode((command.defaults, command.rules)))
    if size <= MAX_POLICY_BYTES:
        return None
    message = f"defaults and rules have {size:,} bytes as JSON; at most {MAX_POLICY_BYTES:,} are possible in a policy"
    return Refusal(code="invalid", field="body", message=message)
