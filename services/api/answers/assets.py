"""Environments, compute resources, data sources and templates. Pure."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from events.asset import AssetScope
from events.asset_specs import CredentialKind
from services.api.answers.forms import Form, Uuid
from services.api.answers.workloads import spec_schema
from services.api.shown_events import Moment


class AssetMeta(Form, frozen=True, kw_only=True):
    """Which asset it is, and who can use it."""

    id: Uuid
    """Id of the asset. A later one of the same name has another id."""
    name: str
    """Unique among the assets of its kind and scope."""
    scope: AssetScope
    """Who can use it: every workload, or those of one cluster, department or project."""
    project_id: Uuid | None
    """Id of the project, where the scope is a project."""
    cluster_id: Uuid | None
    """Id of the cluster, where the scope is a cluster."""
    department_id: Uuid | None
    """Id of the department, where the scope is a department."""
    created_by: str
    """Subject of who created it."""
    created_at: Moment
    """When it was created."""
    changed_at: Moment | None
    """When it got its present spec. Null if that is its first."""


class TemplateMeta(AssetMeta, frozen=True, kw_only=True):
    """Which template it is, and who can use it."""

    workload_type: str
    """Kind of workload that it is for, such as Training."""


class Environment(Form, frozen=True, kw_only=True):
    """An environment: what workloads run, and as whom."""

    meta: AssetMeta
    """Which it is, and who can use it."""
    spec: Annotated[object, spec_schema("EnvironmentSpec")]
    """The fields that it sets, as they were given."""


class Environments(Form, frozen=True, kw_only=True):
    """A page of environments."""

    environments: list[Environment]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""


class ComputeResource(Form, frozen=True, kw_only=True):
    """A compute resource: what a pod asks for, and on which nodes."""

    meta: AssetMeta
    """Which it is, and who can use it."""
    spec: Annotated[object, spec_schema("ComputeResourceSpec")]
    """The fields that it sets, as they were given."""


class ComputeResources(Form, frozen=True, kw_only=True):
    """A page of compute resources."""

    compute_resources: list[ComputeResource]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""


class DataSourceIssue(Form, frozen=True, kw_only=True):
    """Why a data source cannot be used on a cluster."""

    cluster_id: Uuid
    """Id of the cluster, whose agent found it."""
    issue: str
    """In words. Workloads of this cluster cannot use the data source until its agent finds nothing against it."""
    since: Moment
    """When it was found."""


class DataSource(Form, frozen=True, kw_only=True):
    """A data source: a volume of workloads."""

    meta: AssetMeta
    """Which it is, and who can use it."""
    spec: Annotated[
        object,
        Meta(extra_json_schema={"type": "object", "additionalProperties": {"$ref": "#/components/schemas/JsonValue"}}),
    ]
    """Where the data is and where pods find it, as it was given, in the fields of its kind."""
    status: Literal["ready", "issuesFound"]
    """issuesFound: the agent of a cluster found that it cannot be used there. Where no agent looks, it is ready."""
    issues: list[DataSourceIssue]
    """By cluster. At most 100."""
    owner_project: str | UnsetType = UNSET
    """Of a data volume: the name of the project whose claim it is. Names of data volumes are unique for each such
    project.
    """


class DataSources(Form, frozen=True, kw_only=True):
    """A page of data sources of one kind."""

    data_sources: list[DataSource]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""


class CredentialShown(Form, frozen=True, kw_only=True):
    """What is shown of a credential."""

    kind: CredentialKind
    """What it is for."""
    keys: list[str]
    """Names of what it holds. Nobody can read the values."""


class Credential(Form, frozen=True, kw_only=True):
    """A credential, without its values."""

    meta: AssetMeta
    """Which it is, and where its owner uses it. Its owner is who created it."""
    spec: CredentialShown
    """What it is."""


class Credentials(Form, frozen=True, kw_only=True):
    """A page of credentials."""

    credentials: list[Credential]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""


class Template(Form, frozen=True, kw_only=True):
    """A template: any fields of a kind of workload."""

    meta: TemplateMeta
    """Which it is, and who can use it."""
    spec: Annotated[object, spec_schema("TemplateSpec")]
    """The fields that it sets, as they were given."""


class Templates(Form, frozen=True, kw_only=True):
    """A page of templates."""

    templates: list[Template]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""
