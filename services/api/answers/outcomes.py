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


class BatchItemOutcome(Form, frozen=True, kw_only=True):
    """What became of one creation of a batch."""

    index: int
    """Of the item in the request, from 0."""
    code: Code
    """202 where it was created, now or when the same request came before; else the status that it would have alone."""
    name: str
    """Name of the workload."""
    id: Uuid | UnsetType = UNSET
    """Id of the workload that was created."""
    message: str | UnsetType = UNSET
    """Why it was not created."""
    details: str | UnsetType = UNSET
    """The refusal's code, where there is one."""
    compliance_issues: list[ComplianceIssue] | UnsetType = UNSET
    """What is wrong with the item, field by field, where that is why."""


class BatchOutcome(Form, frozen=True, kw_only=True):
    """What became of a batch of creations."""

    created: int
    """Number of items that were created."""
    refused: int
    """Number of items that were not."""
    items: list[BatchItemOutcome]
    """One for each item, in the order of the request."""


class WorkloadActOutcome(Form, frozen=True, kw_only=True):
    """What became of an act on one workload of several."""

    id: Uuid
    """Id of the workload."""
    code: Code
    """202 where it is done, or was so already; else the status that it would have alone."""
    message: str
    """A sentence for people."""
    changed: bool = False
    """False where it already was so, or was refused."""
    details: str | UnsetType = UNSET
    """The refusal's code, where there is one."""


class WorkloadActOutcomes(Form, frozen=True, kw_only=True):
    """What became of an act on several workloads."""

    dry_run: bool
    """Whether nothing was done, and this is what would be."""
    changed: int
    """Number of workloads that changed."""
    refused: int
    """Number of workloads on which it was refused."""
    items: list[WorkloadActOutcome]
    """One for each id, in the order of the request."""
