"""The asset aggregate: an environment, a compute resource, a data source or a template, from which workloads are made.

One kind of aggregate for all of them: they live alike, and what may stand in the spec of each, the field registry says
(events/asset_specs.py). A spec is kept as it was given, since absent, null and a value are three things in it. A
workload stores what came of it, so that no later change and no deletion of an asset changes a workload.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeGuard, assert_never, get_args

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.ids import incarnation_id, name_key
from events.refusal import Refusal

DataSourceKind = Literal["pvc", "git", "nfs", "s3", "host-path", "config-map", "secret", "data-volume"]
AssetKind = Literal[
    "environment",
    "compute",
    "template",
    "pvc",
    "git",
    "nfs",
    "s3",
    "host-path",
    "config-map",
    "secret",
    "data-volume",
    "credentials",
]
AssetScope = Literal["tenant", "cluster", "department", "project"]
SCOPES: Final[tuple[AssetScope, ...]] = get_args(AssetScope)
DATA_SOURCES: Final[tuple[DataSourceKind, ...]] = get_args(DataSourceKind)
CALLED: Final[dict[AssetKind, str]] = {
    "environment": "environment",
    "compute": "compute resource",
    "template": "template",
    "pvc": "PVC data source",
    "git": "Git data source",
    "nfs": "NFS data source",
    "s3": "S3 data source",
    "host-path": "host path data source",
    "config-map": "ConfigMap data source",
    "secret": "Secret data source",
    "data-volume": "data volume",
    "credentials": "credential",
}
"""In sentences."""
MAX_MARKS: Final = 100
"""Clusters of which a data source says that it cannot be used there."""
DATA_VOLUME: Final = "data-volume"
OFFERED: Final = "offeredClaim"
"""Of the spec of a data volume: the claim behind it."""
OWNERS: Final = "only who created a credential may change it; create one of your own"
MAX_SPEC_BYTES: Final = 64 * 1024
"""Of a spec as JSON: a page of a list holds a hundred, and a workload made from three of them still fits a message."""

AssetFields = Annotated[
    dict[str, Any], msgspec.Meta(extra_json_schema={"allOf": [{"$ref": "#/components/schemas/AssetSpec"}]})
]
"""A spec as it was given: fields by their names on the wire, and only those that were given."""

# -- events ----------------------------------------------------------------------------------------------------------


class AssetCreated(Event, frozen=True, kw_only=True):
    """Somebody created an environment, a compute resource, a data source or a template."""

    asset_id: str
    """UUID of this incarnation of the name."""
    kind: AssetKind
    """What it is."""
    name: str
    """Unique among the assets of its kind and scope; of data volumes, among those of the project whose claim it is."""
    scope: AssetScope
    """Who can use it: everybody, or workloads of one cluster, one department or one project."""
    project_id: str = ""
    """UUID, where the scope is a project."""
    cluster_id: str = ""
    """UUID, where the scope is a cluster."""
    department_id: str = ""
    """UUID, where the scope is a department."""
    workload_type: str = ""
    """Kind of workload that a template is for; empty for the others."""
    created_by: str
    """Actor id of who created it."""
    at: datetime
    """When it was decided."""
    spec: AssetFields
    """Its fields as they were given, by their names on the wire. A null clears what stands below it."""


class AssetChanged(Event, frozen=True, kw_only=True):
    """Somebody gave it another spec. Workloads that were made from it stay as they are."""

    at: datetime
    """When it was decided."""
    spec: AssetFields
    """The whole spec from now on."""


class AssetDeleted(Event, frozen=True, kw_only=True):
    """It was deleted. Workloads that were made from it stay as they are, and its name is free."""

    at: datetime
    """When it was decided."""


class DataSourceMarked(Event, frozen=True, kw_only=True):
    """The agent of a cluster found that pods there cannot use a data source, or that nothing is known against it any
    more.
    """

    cluster_id: str
    """UUID of the cluster."""
    issue: str = ""
    """Why it cannot be used there; empty: it can, as far as the agent sees."""
    at: datetime
    """When it was decided."""


AssetEvent = AssetCreated | AssetChanged | AssetDeleted | DataSourceMarked

# -- state -----------------------------------------------------------------------------------------------------------


class SourceIssue(msgspec.Struct, frozen=True, kw_only=True):
    """Why a data source cannot be used on a cluster."""

    issue: str
    """In words."""
    at: datetime
    """Since when."""


class Asset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest incarnation of a name; `asset_id` is empty where there never was one."""

    asset_id: str = ""
    kind: AssetKind = "environment"
    name: str = ""
    scope: AssetScope = "tenant"
    project_id: str = ""
    cluster_id: str = ""
    department_id: str = ""
    workload_type: str = ""
    created_by: str = ""
    created_at: datetime | None = None
    changed_at: datetime | None = None
    deleted_at: datetime | None = None
    spec: AssetFields = msgspec.field(default_factory=dict[str, Any])
    issues: dict[str, SourceIssue] = {}
    """By cluster id: where a data source cannot be used. Of its present spec."""

    @property
    def offered(self) -> dict[str, str]:
        """Of a data volume, the claim behind it: `projectId`, `clusterId` and `claimName`; of others nothing."""
        return self.spec.get(OFFERED) or {} if self.kind == DATA_VOLUME else {}

    @property
    def manager(self) -> str:
        """Id of the project whose administrators may change it; empty: of those of the tenant alone. A data volume is
        of the project whose claim it is, whoever can use it.
        """
        return self.offered.get("projectId", self.project_id)

    @property
    def only_on(self) -> str:
        """Id of the only cluster that can use it; empty: any."""
        return self.offered.get("clusterId", self.cluster_id)

    @property
    def spec_at(self) -> datetime | None:
        """Since when it has its present spec."""
        return self.changed_at or self.created_at

    @property
    def exists(self) -> bool:
        return bool(self.asset_id) and self.deleted_at is None


def is_data_source(kind: AssetKind) -> TypeGuard[DataSourceKind]:
    return kind in DATA_SOURCES


def asset_key(kind: str, scope: str, place: str, name: str) -> str:
    """Args: place, the id of the project, department or cluster; empty for the tenant."""
    return name_key("asset", kind, scope, place, name)


def data_volume_key(owner: str, scope: str, place: str, name: str) -> str:
    """Names are the owning project's alone: whoever offers learns nothing of what others offer there, and nobody takes
    a name from others.

    Args:
        owner: id of the project whose claim it is.
        place: as of asset_key.
    """
    return name_key("asset", DATA_VOLUME, scope, place, name, owner)


def credential_keys(name: str, *, project_id: str, cluster_id: str) -> tuple[str, str, str]:
    """Where a workload's credential of this name may be; the first that is its owner's counts."""
    places: tuple[tuple[AssetScope, str], ...] = (("project", project_id), ("cluster", cluster_id), ("tenant", ""))
    first, second, third = (asset_key("credentials", scope, place, name) for scope, place in places)
    return first, second, third


def evolve(state: Asset, event: AssetEvent) -> Asset:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    match event:
        case AssetCreated():
            if event.asset_id in ("", state.asset_id):
                return state
            return Asset(
                asset_id=event.asset_id,
                kind=event.kind,
                name=event.name,
                scope=event.scope,
                project_id=event.project_id,
                cluster_id=event.cluster_id,
                department_id=event.department_id,
                workload_type=event.workload_type,
                created_by=event.created_by,
                created_at=event.at,
                spec=event.spec,
            )
        case AssetChanged():
            return replace(state, spec=event.spec, changed_at=event.at, issues={}) if state.exists else state
        case AssetDeleted():
            return replace(state, deleted_at=event.at) if state.exists else state
        case DataSourceMarked():
            if not state.exists:
                return state
            issues = {id_: issue for id_, issue in state.issues.items() if id_ != event.cluster_id}
            if event.issue:
                issues[event.cluster_id] = SourceIssue(issue=event.issue, at=event.at)
            return replace(state, issues=issues)
        case _:
            assert_never(event)


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    project_id: str | None = None
    """The gate goes by it, and it must be the asset's own: of one whose scope is a project, or of a data volume. Who
    deletes a data volume may name the project that it is for instead.
    """


class CreateAsset(_Command, frozen=True, kw_only=True):
    kind: AssetKind
    name: str
    scope: AssetScope
    cluster_id: str | None = None
    department_id: str | None = None
    workload_type: str = ""
    spec: AssetFields

    def __post_init__(self) -> None:
        """Raises ValueError where scope and place do not go together: whoever may write in a project only must name
        it, and nobody but the api has looked at them before.
        """
        if (self.project_id is not None) != (self.scope == "project"):
            raise ValueError("the scope is a project where a project is named, and only there")
        if (self.cluster_id is not None) != (self.scope == "cluster"):
            raise ValueError("the scope is a cluster where a cluster is named, and only there")
        if (self.department_id is not None) != (self.scope == "department"):
            raise ValueError("the scope is a department where a department is named, and only there")

    @property
    def place(self) -> str:
        return self.project_id or self.cluster_id or self.department_id or ""


class OfferDataVolume(_Command, frozen=True, kw_only=True):
    """As CreateAsset, by who may administer assets of the project whose claim it is, whoever is to use it."""

    project_id: str  # pyright: ignore[reportGeneralTypeIssues] - always there: that of the claim
    name: str
    scope: AssetScope
    place: str = ""
    """Id of the project or department that it is for; empty: everybody."""
    cluster_id: str
    claim_name: str
    mount_path: str

    @property
    def key(self) -> str:
        return data_volume_key(self.project_id, self.scope, self.place, self.name)

    @property
    def asset(self) -> CreateAsset:
        """Raises ValueError where scope and place do not go together."""
        offered = {"projectId": self.project_id, "clusterId": self.cluster_id, "claimName": self.claim_name}
        return CreateAsset(
            kind=DATA_VOLUME,
            name=self.name,
            scope=self.scope,
            project_id=self.place if self.scope == "project" else None,
            department_id=self.place if self.scope == "department" else None,
            spec={OFFERED: offered, "storage": {"dataVolume": [{"mountPath": self.mount_path}]}},
        )


class CreateCredential(_Command, frozen=True, kw_only=True):
    """As CreateAsset, by anybody who may submit in the project: a credential is used by its owner alone."""

    project_id: str  # pyright: ignore[reportGeneralTypeIssues] - always there
    name: str
    spec: AssetFields

    @property
    def asset(self) -> CreateAsset:
        return CreateAsset(
            kind="credentials", name=self.name, scope="project", project_id=self.project_id, spec=self.spec
        )


class ChangeCredential(_Command, frozen=True, kw_only=True):
    """As ChangeAsset, of a credential of one's own."""

    asset_id: str
    spec: AssetFields


class DeleteCredential(_Command, frozen=True, kw_only=True):
    """As DeleteAsset, of a credential of one's own."""

    asset_id: str


class ChangeAsset(_Command, frozen=True, kw_only=True):
    """Set the spec to exactly this."""

    asset_id: str
    spec: AssetFields


class DeleteAsset(_Command, frozen=True, kw_only=True):
    asset_id: str


class MarkDataSource(msgspec.Struct, frozen=True, kw_only=True):
    """From cluster_sync: what a cluster's agent found. The first words stay until nothing is known against it."""

    asset_id: str
    cluster_id: str
    spec_at: datetime
    """Of the spec that was looked at."""
    issue: str
    """Empty: nothing is known against it."""


AssetCommand = (
    CreateAsset | OfferDataVolume | ChangeAsset | DeleteAsset | CreateCredential | ChangeCredential | DeleteCredential
)


def decide(command: AssetCommand | MarkDataSource, state: Asset, context: Context) -> Decision[AssetEvent]:
    if isinstance(command, MarkDataSource):
        return _mark(command, state, context)
    if isinstance(command, CreateAsset):
        # The gate went by who is to use it, and not by whose claim it is.
        return OFFERS if command.kind == DATA_VOLUME else _create(command, state, context)
    if isinstance(command, OfferDataVolume):
        return _offer(command, state, context)
    if isinstance(command, CreateCredential):
        return _create(command.asset, state, context)
    deletes = isinstance(command, DeleteAsset)
    if (
        not state.exists
        or command.asset_id != state.asset_id
        or not _may_act(command.project_id or "", state, deletes=deletes)
    ):
        return Refusal(code="not_found", message=f"there is no asset {command.asset_id}")
    owned = isinstance(command, ChangeCredential | DeleteCredential)
    if owned and state.kind != "credentials":
        return Refusal(code="not_found", message=f"there is no credential {command.asset_id}")
    changes = isinstance(command, ChangeAsset | ChangeCredential)
    if state.kind == "credentials" and (owned or changes) and state.created_by != context.actor.id:
        # Who gave it another value would have workloads of its owner run with that.
        return Refusal(code="not_permitted", message=OWNERS)
    match command:
        case ChangeAsset() | ChangeCredential():
            if refusal := _too_large(command.spec) or _other_claim(command.spec, state):
                return refusal
            return () if command.spec == state.spec else (AssetChanged(at=context.now, spec=command.spec),)
        case DeleteAsset() | DeleteCredential():
            return (AssetDeleted(at=context.now),)
        case _:
            assert_never(command)


def _may_act(project_id: str, asset: Asset, *, deletes: bool) -> bool:
    """Whether administrators of this project may. The project that a data volume is for alone may delete it."""
    declines = deletes and bool(asset.offered and asset.project_id) and project_id == asset.project_id
    return project_id == asset.manager or declines


def _mark(command: MarkDataSource, state: Asset, context: Context) -> Decision[AssetEvent]:
    """Nothing where it is about another spec, or another cluster's data source: the agent looks again."""
    fits = state.exists and is_data_source(state.kind) and state.only_on in {"", command.cluster_id}
    if not fits or (state.asset_id, state.spec_at) != (command.asset_id, command.spec_at):
        return ()
    marked = command.cluster_id in state.issues
    if marked == bool(command.issue) or (not marked and len(state.issues) >= MAX_MARKS):
        return ()
    return (DataSourceMarked(cluster_id=command.cluster_id, issue=command.issue, at=context.now),)


def name_taken(kind: AssetKind, name: str, instead: str) -> Refusal:
    """Args: instead, a name to propose."""
    return Refusal(
        code="name_taken",
        field="meta.name",
        message=f"there is already an asset of this scope and kind ({CALLED[kind]}) that is named {name!r}; choose "
        f"another name, such as {instead!r}",
    )


def next_name(name: str, number: int = 2) -> str:
    """Another name that says whose sister it is."""
    return f"{name}-{number}"


OFFERS: Final = Refusal(
    code="invalid",
    field="meta.scope",
    message="a data volume is offered by the project whose claim it is (OfferDataVolume)",
)
"""Of a command that asks in another way for one."""


def _offer(command: OfferDataVolume, state: Asset, context: Context) -> Decision[AssetEvent]:
    if command.scope == "cluster" or (command.scope == "tenant") != (not command.place):
        message = "is tenant, or department or project with its id: a claim is of one cluster anyway"
        return Refusal(code="invalid", field="meta.scope", message=message)
    return _create(command.asset, state, context, key=command.key)


def _other_claim(spec: dict[str, Any], state: Asset) -> Refusal | None:
    """Workloads name a data volume by its id, and look at the data that they were made for."""
    if spec.get(OFFERED) == (state.offered or None):
        return None
    message = "cannot be changed: a data volume stays the claim that it was made of; create another one"
    return Refusal(code="invalid", field="spec", message=message)


def _create(command: CreateAsset, state: Asset, context: Context, *, key: str = "") -> Decision[AssetEvent]:
    """Args: key, of a data volume; of others it comes of the command."""
    if state.exists:
        return name_taken(command.kind, command.name, next_name(command.name))
    if refusal := _too_large(command.spec):
        return refusal
    key = key or asset_key(command.kind, command.scope, command.place, command.name)
    return (
        AssetCreated(
            asset_id=incarnation_id(key, context.command_id),
            kind=command.kind,
            name=command.name,
            scope=command.scope,
            project_id=command.project_id or "",
            cluster_id=command.cluster_id or "",
            department_id=command.department_id or "",
            workload_type=command.workload_type,
            created_by=context.actor.id,
            at=context.now,
            spec=command.spec,
        ),
    )


def _too_large(spec: dict[str, Any]) -> Refusal | None:
    size = len(msgspec.json.encode(spec))
    if size <= MAX_SPEC_BYTES:
        return None
    message = f"has {size:,} bytes as JSON; at most {MAX_SPEC_BYTES:,} are possible in an asset"
    return Refusal(code="invalid", field="spec", message=message)
