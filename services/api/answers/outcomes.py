"""How a request ended: what was done, or why it was not. Pure."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, get_args

from msgspec import UNSET, Meta, UnsetType

from services.api.answers.forms import Form, Uuid
from services.api.issues import PolicyRule

Code = Annotated[int, Meta(ge=100, le=599)]


class Error(Form, frozen=True, kw_only=True):
    """Why a request was not carried out."""

    code: Code
    """The HTTP status."""
    message: str
    """A sentence for people."""
    details: str | UnsetType = UNSET
    """The refusal's code, where there is one."""


if TYPE_CHECKING:
    type Rule = PolicyRule
else:
    Rule = StrEnum("Rule", {word.upper(): word for word in get_args(PolicyRule)})


class ComplianceIssue(Form, frozen=True, kw_only=True):
    """One thing that is wrong with a request."""

    field: str
    """Path, such as `spec.labels[0].name`."""
    details: str
    """What is wrong, what was given, what would do."""
    rule: Rule | UnsetType | None = UNSET
    """The kind of rule that is broken."""


class SubmissionErrorV2(Error, frozen=True, kw_only=True):
    """Everything that is wrong with a request."""

    SCHEMA: ClassVar = {"nullable": True}
    compliance_issues: list[ComplianceIssue] | UnsetType = UNSET
    """Field by field."""


class HttpResponse(Form, frozen=True, kw_only=True):
    """A command was carried out."""

    code: Code
    """The HTTP status."""
    message: str
    """A sentence for people."""


class CodeLimits(Form, frozen=True, kw_only=True):
    """Size limits of code."""

    max_bytes: int
    """Size limit of an archive for this cluster. A cluster of kind kubernetes takes less than others."""
    part_bytes: int
    """Size of each part but the last."""
    kept: bool
    """Whether the archive with this digest is stored already."""


class Created(Form, frozen=True, kw_only=True):
    """What was made."""

    id: Uuid
    """Id of what was created."""
    name: str
    """Name of what was created."""
