"""Policies. Pure."""

from typing import Annotated

from events.policy import PolicyScope
from services.api.answers.forms import Form, Uuid
from services.api.answers.outcomes import ComplianceIssue
from services.api.answers.workloads import spec_schema
from services.api.shown_events import Moment


class PolicyMeta(Form, frozen=True, kw_only=True):
    """For what a policy holds, and who set it."""

    workload_type: str
    """Kind of workload, such as Training."""
    scope: PolicyScope
    """Everywhere, in one department, or in one project."""
    project_id: Uuid | None
    """Id of the project, where the scope is a project."""
    department_id: Uuid | None
    """Id of the department, where the scope is a department."""
    set_by: str
    """Subject of who set it."""
    set_at: Moment
    """When it was set."""


class TrainingPolicy(Form, frozen=True, kw_only=True):
    """A policy for trainings."""

    meta: PolicyMeta
    """For what it holds, and who set it."""
    defaults: Annotated[object, spec_schema("TrainingDefaults")]
    """Fields that a training gets where nothing else sets them, as they were given."""
    rules: Annotated[object, spec_schema("TrainingSpecFieldRules")]
    """What may be given, in the tree of the fields, as it was given."""
    imposed_assets: tuple[Uuid, ...]
    """Ids of data sources that every workload has."""


class WorkspacePolicy(Form, frozen=True, kw_only=True):
    """A policy for workspaces."""

    meta: PolicyMeta
    """For what it holds, and who set it."""
    defaults: Annotated[object, spec_schema("WorkspaceDefaults")]
    """Fields that a workspace gets where nothing else sets them, as they were given."""
    rules: Annotated[object, spec_schema("WorkspaceSpecFieldRules")]
    """What may be given, in the tree of the fields, as it was given."""
    imposed_assets: tuple[Uuid, ...]
    """Ids of data sources that every workload has."""


class InferencePolicy(Form, frozen=True, kw_only=True):
    """A policy for inferences."""

    meta: PolicyMeta
    """For what it holds, and who set it."""
    defaults: Annotated[object, spec_schema("InferenceDefaults")]
    """Fields that an inference gets where nothing else sets them, as they were given."""
    rules: Annotated[object, spec_schema("InferenceSpecFieldRules")]
    """What may be given, in the tree of the fields, as it was given."""
    imposed_assets: tuple[Uuid, ...]
    """Ids of data sources that every workload has."""


class DistributedPolicy(Form, frozen=True, kw_only=True):
    """A policy for distributed trainings."""

    meta: PolicyMeta
    """For what it holds, and who set it."""
    defaults: Annotated[object, spec_schema("DistributedDefaults")]
    """Fields that workers and masters get where nothing else sets them, as they were given."""
    rules: Annotated[object, spec_schema("DistributedSpecFieldRules")]
    """What may be given, in the tree of the fields, as it was given."""
    imposed_assets: tuple[Uuid, ...]
    """Ids of data sources that every workload has."""


class RehearsedWorkload(Form, frozen=True, kw_only=True):
    """What a policy would have made of a workload."""

    workload_id: Uuid
    """Id of the workload."""
    name: str
    """Its name."""
    project_id: Uuid
    """Id of its project."""
    created_at: Moment
    """When it was submitted."""
    issues: list[ComplianceIssue]
    """Why its submission would have been refused; none where it would have been accepted."""
    changed: list[str]
    """Fields that would have got another value, such as `spec.category`."""


class Rehearsal(Form, frozen=True, kw_only=True):
    """What a policy would have made of past submissions."""

    looked_at: int
    """How many workloads were looked at, the newest first."""
    refused: int
    """How many of them would have been refused."""
    changed: int
    """How many of them would have got other values."""
    workloads: list[RehearsedWorkload]
    """Those that would have been refused or changed."""
    gaps: list[str]
    """What was not looked at, in sentences."""
