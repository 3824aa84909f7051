"""Service accounts: programs that act in one project, each with a token that lives as long as its account.

A part of the project aggregate. An account is bound to one role of its project, and ends with that: when it is deleted,
when its role is taken away, when the project is deleted. The log holds the SHA-256 of 256 bits of chance: nobody finds
the token from it, so it is of no use to who reads it (docs/adr/0060).
"""

import hashlib
import re
from datetime import date, datetime
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from events.actors import ACCOUNT_PREFIX
from events.decision import Context, Decision
from events.event import Event
from events.ids import DNS_LABEL
from events.refusal import Refusal

AccountRole = Literal["researcher", "viewer"]
"""None that lets its holder give roles or make accounts: a program that is broken into makes no way for people."""
ACCOUNT_ISSUER: Final = "muster"
TOKEN_PREFIX: Final = "muster_sa_"  # noqa: S105 - how each begins, so that a leaked one is recognized
TOKEN_BYTES: Final = 32
"""Of chance in a token: it cannot be guessed, so that a plain hash keeps it."""
MAX_ACCOUNTS: Final = 100
"""Of one project: each stands in the project's state, which every service holds in memory."""
_HASH: Final = re.compile(r"^[0-9a-f]{64}\Z")


def account_actor(project_name: str, name: str) -> str:
    """The id of an account, and what it is called where people are called by their subject. A name that is used again
    is the same actor again, as in Kubernetes.
    """
    return f"{ACCOUNT_PREFIX}{project_name}/{name}"


def is_account_token(token: str) -> bool:
    return token.startswith(TOKEN_PREFIX)


def token_hash(token: str) -> str:
    """What the log keeps of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


# -- events ----------------------------------------------------------------------------------------------------------


class ServiceAccountCreated(Event, frozen=True, kw_only=True):
    """A program may act in the project, with a token."""

    name: str
    """Unique in the project."""
    actor: str
    """Id under which it acts."""
    role: AccountRole
    """What it may do in the project."""
    token_hash: str
    """SHA-256 of its token, in hex: 256 bits of chance, so nobody finds the token from it."""
    created_by: str
    """Actor id of who made it."""
    at: datetime
    """When it was decided."""


class ServiceAccountRotated(Event, frozen=True, kw_only=True):
    """It has a new token; the one before is nobody's any more."""

    name: str
    """Of the account."""
    token_hash: str
    """As in ServiceAccountCreated."""
    at: datetime
    """When it was decided."""


class ServiceAccountUsed(Event, frozen=True, kw_only=True):
    """Its token was used for the first time on a day: told once a day at most."""

    name: str
    """Of the account."""
    on: date
    """The day, UTC."""


class ServiceAccountDeleted(Event, frozen=True, kw_only=True):
    """It may do nothing any more."""

    name: str
    """Of the account."""


ServiceAccountEvent = ServiceAccountCreated | ServiceAccountRotated | ServiceAccountUsed | ServiceAccountDeleted

# -- state -----------------------------------------------------------------------------------------------------------


class ServiceAccount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    actor: str
    role: AccountRole
    token_hash: str
    created_by: str
    created_at: datetime
    rotated_at: datetime | None = None
    last_used: date | None = None


type Accounts = dict[str, ServiceAccount]
"""By name."""


def evolve_accounts(accounts: Accounts, event: ServiceAccountEvent) -> Accounts:
    """The accounts after one event; the very same where it does not fit them."""
    if isinstance(event, ServiceAccountCreated):
        if event.name in accounts:
            return accounts
        made = ServiceAccount(
            name=event.name,
            actor=event.actor,
            role=event.role,
            token_hash=event.token_hash,
            created_by=event.created_by,
            created_at=event.at,
        )
        return accounts | {event.name: made}
    known = accounts.get(event.name)
    if known is None:
        return accounts
    match event:
        case ServiceAccountRotated():
            return accounts | {event.name: replace(known, token_hash=event.token_hash, rotated_at=event.at)}
        case ServiceAccountUsed():
            return accounts | {event.name: replace(known, last_used=event.on)}
        case ServiceAccountDeleted():
            return {name: account for name, account in accounts.items() if name != event.name}
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    project_id: str
    name: str
    """Of the account."""

    def __post_init__(self) -> None:
        """Raises ValueError where no account can be called so: nobody but the api has looked at the name before."""
        if not DNS_LABEL.match(self.name):
            raise ValueError("no name of a service account")


class CreateServiceAccount(_Command, frozen=True, kw_only=True):
    role: AccountRole
    token_hash: str

    def __post_init__(self) -> None:
        """Raises ValueError where this is no hash of a token, and as above."""
        _Command.__post_init__(self)
        _check_hash(self.token_hash)


class RotateServiceAccount(_Command, frozen=True, kw_only=True):
    """Give it a new token; the one before ends at once."""

    token_hash: str

    def __post_init__(self) -> None:
        """Raises ValueError as CreateServiceAccount."""
        _Command.__post_init__(self)
        _check_hash(self.token_hash)


class DeleteServiceAccount(_Command, frozen=True, kw_only=True):
    pass


class NoteServiceAccountUse(_Command, frozen=True, kw_only=True):
    """From the account itself, at its first request of a day."""

    on: date


ServiceAccountCommand = CreateServiceAccount | RotateServiceAccount | DeleteServiceAccount | NoteServiceAccountUse


def _check_hash(given: str) -> None:
    if not _HASH.match(given):
        raise ValueError("no SHA-256 in hex")


def decide_on_account(
    command: ServiceAccountCommand, accounts: Accounts, project_name: str, context: Context
) -> Decision[ServiceAccountEvent]:
    if isinstance(command, CreateServiceAccount):
        return _create(command, accounts, project_name, context)
    known = accounts.get(command.name)
    if known is None:
        message = f"project {project_name!r} has no service account {command.name!r}"
        return Refusal(code="not_found", message=message)
    match command:
        case RotateServiceAccount():
            if command.token_hash == known.token_hash:
                return ()
            return (ServiceAccountRotated(name=known.name, token_hash=command.token_hash, at=context.now),)
        case DeleteServiceAccount():
            return (ServiceAccountDeleted(name=known.name),)
        case NoteServiceAccountUse():
            if context.actor.id != known.actor:
                return Refusal(code="not_permitted", message="only the account itself can report its use")
            # By the decider's clock too: whoever asks cannot be seen in the future.
            day = min(command.on, context.now.date())
            used = known.last_used is not None and known.last_used >= day
            return () if used else (ServiceAccountUsed(name=known.name, on=day),)
        case _:
            assert_never(command)


def _create(
    command: CreateServiceAccount, accounts: Accounts, project_name: str, context: Context
) -> Decision[ServiceAccountEvent]:
    known = accounts.get(command.name)
    if known is not None:
        if known.token_hash == command.token_hash:
            return ()
        message = f"project {project_name!r} already has a service account {command.name!r}; rotate it for a new token"
        return Refusal(code="name_taken", field="name", message=message)
    if len(accounts) >= MAX_ACCOUNTS:
        message = f"project {project_name!r} has {len(accounts)} service accounts, which is the limit; delete one"
        return Refusal(code="too_many_accounts", message=message)
    return (
        ServiceAccountCreated(
            name=command.name,
            actor=account_actor(project_name, command.name),
            role=command.role,
            token_hash=command.token_hash,
            created_by=context.actor.id,
            at=context.now,
        ),
    )
