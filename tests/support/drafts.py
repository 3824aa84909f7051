"""Small drafts for tests of the store: role bindings of a tenant, or of a project, under any key."""

import secrets
from datetime import UTC, datetime

import msgspec

from events.aggregate import PROJECT, TENANT, Chain, Draft, draft
from events.commit import About, Actor
from events.project import ProjectRoleGranted
from events.tenant import Tenant, TenantRoleGranted

ACTOR = Actor(id="tester")
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def grant(key: str, parent: int, *, command_id: str = "", subject: str = "") -> Draft:
    """A commit on tenant aggregate `key`: one role for one subject (the command's id, where none is given)."""
    command_id = command_id or secrets.token_hex(8)
    event = TenantRoleGranted(actor=subject or command_id, role="viewer")
    chain = Chain(state=TENANT.initial, version=parent)
    return draft(TENANT, key, chain, (event,), command_id=command_id, actor=ACTOR, now=NOW)


def project_grant(key: str, parent: int) -> Draft:
    """A commit on another kind of aggregate."""
    event = ProjectRoleGranted(actor="s", role="viewer")
    chain = Chain(state=PROJECT.initial, version=parent)
    return draft(PROJECT, key, chain, (event,), command_id=secrets.token_hex(8), actor=ACTOR, now=NOW)


def of_incarnation(made: Draft, identifier: str) -> Draft:
    """The same commit, marked as one of the incarnation `identifier`."""
    record = msgspec.structs.replace(made.record, about=About(id=identifier))
    return msgspec.structs.replace(made, record=record)


def subjects_of(chain: Chain[Tenant]) -> set[str]:
    """Whose grants a chain has seen."""
    return set(chain.state.roles)
