"""The tenant aggregate: roles that hold everywhere."""

from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from events.actors import STRANGER, is_account
from events.decision import Context, Decision
from events.refusal import Refusal
from events.roles import not_held, with_role, without_role

TenantRole = Literal["administrator", "researcher", "viewer"]

# -- events ----------------------------------------------------------------------------------------------------------


class TenantRoleGranted(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody was given this role in all projects."""

    actor: str
    """Id of the person."""
    role: TenantRole
    """What they may do."""


class TenantRoleRevoked(msgspec.Struct, frozen=True, kw_only=True):
    """This role in all projects was revoked."""

    actor: str
    """Id of the person."""
    role: TenantRole
    """The revoked role."""


TenantEvent = TenantRoleGranted | TenantRoleRevoked

# -- state -----------------------------------------------------------------------------------------------------------


class Tenant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    roles: dict[str, tuple[TenantRole, ...]] = msgspec.field(default_factory=dict[str, tuple[TenantRole, ...]])
    """Roles by actor id."""


def evolve(state: Tenant, event: TenantEvent) -> Tenant:
    match event:
        case TenantRoleGranted():
            return replace(state, roles=with_role(state.roles, event.actor, event.role))
        case TenantRoleRevoked():
            return replace(state, roles=without_role(state.roles, event.actor, event.role))
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class GrantTenantRole(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    subject: str
    """Of their tokens, as whoever asks names them."""
    role: TenantRole
    """What they may do."""
    actor: str = STRANGER
    """The id of that subject: the gate fills it in."""


class RevokeTenantRole(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    subject: str
    """Of their tokens, as whoever asks names them."""
    role: TenantRole
    """What they shall no longer do."""
    actor: str = STRANGER
    """The id of that subject: the gate fills it in."""


TenantCommand = GrantTenantRole | RevokeTenantRole


def decide(command: TenantCommand, state: Tenant, _: Context) -> Decision[TenantEvent]:
    held = command.role in state.roles.get(command.actor, ())
    match command:
        case GrantTenantRole():
            if is_account(command.actor):
                return Refusal(
                    code="not_for_accounts",
                    field="subjectId",
                    message=f"{command.subject!r} is a service account, which can have a role only in its project",
                )
            return () if held else (TenantRoleGranted(actor=command.actor, role=command.role),)
        case RevokeTenantRole():
            holders = [actor for actor, roles in state.roles.items() if command.role in roles]
            if command.role == "administrator" and holders == [command.actor]:
                return Refusal(
                    code="last_administrator",
                    message=f"{command.subject!r} is the only administrator; give somebody else that role first",
                )
            if not held:
                return not_held(state.roles.get(command.actor, ()), command.subject, command.role, "everywhere")
            return (TenantRoleRevoked(actor=command.actor, role=command.role),)
        case _:
            assert_never(command)
