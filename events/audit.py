"""What the streams AUDIT and REFUSALS hold: who used which special right, and who was refused what. Never a token."""

from datetime import datetime
from typing import Literal

import msgspec

TENANT_SCOPE = "tenant"
"""The scope of what belongs to no project: the last token of the record's subject."""


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    """Who spoke, as their token said it: most of those who are refused have no id."""

    iss: str
    sub: str


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the audit. The log tells what happened; this tells what was tried, and by which right."""

    at: datetime
    """UTC, by the gate's clock."""
    outcome: Literal["refused", "admitted"]
    command: str
    """Name of the command, such as `DeleteWorkload`."""
    command_id: str
    actor: Speaker | None = None
    """None where the token was not trusted: then nobody knows who it was."""
    target: str = ""
    """Id, or the name of what was to be made."""
    project_id: str | None = None
    code: str = ""
    """Of the refusal (`REFUSALS`); for what was admitted the right that it took, such as `override_ownership`."""
    message: str = ""
    correlation_id: str = ""
