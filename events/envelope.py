"""What travels between api, gate and commands: requests, admitted commands, and the answer."""

from datetime import datetime

import msgspec

from events.commands import UserCommand
from events.commit import Actor
from events.refusal import Refusal


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From the api to the gate, on `cmd.request.<command>`."""

    command_id: str
    token: str
    """The caller's own: the gate verifies it itself."""
    command: UserCommand
    body_hash: str = ""
    """SHA-256 of the request, in hex, where it came with an Idempotency-Key: what else comes with the same key is
    compared with it. Empty without a key: then the command id never comes again."""
    expected_version: int | None = None
    """From If-Match."""
    correlation_id: str = ""
    min_seq: int = 0
    """What the api and the caller know to be in the log, of the target or of all: nothing older is to be decided on."""
    min_roles: int = 0
    """Sequence of the newest change of roles, projects and clusters that the api knows of."""


class AdmittedCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From the gate to commands on `cmd.admitted.<command>`; from a service on `cmd.system.<service>.<command>`."""

    command_id: str
    actor: Actor
    command: UserCommand
    body_hash: str = ""
    expected_version: int | None = None
    correlation_id: str = ""
    protected: bool = False
    override: bool = False
    min_seq: int = 0
    """As in the request."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Durable, or already so."""

    seq: int
    """Version of the aggregate that holds the answer: what a reader may wait for (`min_seq`)."""
    id: str = ""
    """Of what was made."""
    changed: bool = True
    """False where it already was so."""
    at: datetime | None = None
    """When the commit was decided, where this command made one: the api answers a creation without reading it back."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    refusal: Refusal


class OutcomeUnknown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It may or may not have been stored; repeat with the same key to learn which."""


CommandReply = Accepted | Refused | OutcomeUnknown
