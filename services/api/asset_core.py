"""What the five operations on every kind of asset share: listing them, making one, reading, changing and deleting one.

Anybody who may submit somewhere can use what is there for it; who may change it, the gate says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from events.aggregate import ASSET, Chain
from events.asset import (
    CALLED,
    DATA_SOURCES,
    DATA_VOLUME,
    SCOPES,
    Asset,
    AssetCommand,
    AssetKind,
    AssetScope,
    ChangeAsset,
    CreateAsset,
    DataSourceKind,
    DeleteAsset,
    OfferDataVolume,
    SourceIssue,
    is_data_source,
    next_name,
)
from events.asset import name_taken as taken
from events.asset_specs import OWN, SOURCES, WorkloadType, source_spec, spec_node, volume_spec
from events.authorize import Permission
from events.commands import target
from events.envelope import Accepted
from events.fields.declare import Body
from events.fields.node import tree
from events.fields.values import NonEmpty, Uuid
from events.ids import key_of_id
from events.workload.kinds import KINDS
from projections.asset_query import AssetQuery
from projections.filters import MAX_OFFSET
from projections.found import Page
from services.api import answers, data_volumes
from services.api.check import FaultyCreation, apart_from, check_creation, untouched, without_faults
from services.api.context import MAX_WAIT_SECONDS, MIN_SEQ, Call, Look, if_answered, sequence_headers
from services.api.data_volumes import lives, normal, offer, offer_issues, owner_name
from services.api.errors import ApiError, bad_request, not_found, refused
from services.api.event_filters import read_uuid
from services.api.issues import MAX_ISSUES, Issue, fault, shown
from services.api.made_from import CHOSEN, DATA_SOURCE_IDS
from services.api.moments import AS_OF, moment_headers, moment_of, reading
from services.api.operations import Answer, Query
from services.api.places import department_of, find_cluster, find_department, find_project, readable_departments
from services.api.rules import check_name
from services.api.suitable import find_asset, unsuitable
from services.runtime.log.floors import StaleLogError

MAX_PAGE: Final = 100
"""Assets in an answer: each has up to 64 KiB."""
MAX_ASSETS: Final[dict[AssetScope, int]] = {"tenant": 10_000, "cluster": 1_000, "department": 1_000, "project": 1_000}
"""Of one kind: for everybody, for one cluster, one department or one project. Data volumes count for their owner."""
MAX_OWN_CREDENTIALS: Final = 100
"""Of one person in one place: nobody takes the room of all others."""
ANY_ID: Final = "00000000-0000-4000-8000-000000000000"
"""Stands for the id of a data volume while rules look at it: it has none yet."""
MAX_PROPOSALS: Final = 20
"""Names that are tried before one is proposed."""
LIST: Final = (
    Query(name="search", help="Part of a name, in capitals or small letters."),
    Query(name="name", help="The whole name."),
    Query(name="scope", type="choice", options=SCOPES, help="Only of this scope."),
    Query(name="projectId", read=read_uuid, help="Only those that workloads of this project can use."),
    Query(name="departmentId", read=read_uuid, help="Only those that workloads of this department can use."),
    Query(name="clusterId", read=read_uuid, help="Only those that workloads of this cluster can use."),
    Query(name="workloadType", type="choice", options=tuple(KINDS), help="Only those for this kind of workload."),
    Query(name="offset", type="integer", default=0, most=MAX_OFFSET, help="Rows to skip."),
    Query(name="limit", type="integer", default=50, least=1, most=MAX_PAGE, help="Maximum number of rows, 1 to 100."),
    AS_OF,
    MIN_SEQ,
)


class AssetPlace(Body, frozen=True, kw_only=True):
    """Which asset it is to be, and who can use it."""

    name: NonEmpty
    """Unique among the assets of its kind and scope, of data volumes among those of the project whose claim it is; at
    most 253 characters. It cannot be changed.
    """
    scope: AssetScope
    """Who can use it: every workload, or those of one cluster, department or project. It cannot be changed."""
    project_id: Uuid | None = None
    """Id of the project, where the scope is a project."""
    department_id: Uuid | None = None
    """Id of the department, where the scope is a department."""
    cluster_id: Uuid | None = None
    """Id of the cluster, where the scope is a cluster."""


class TemplatePlace(AssetPlace, frozen=True, kw_only=True):
    """Which template it is to be, and who can use it."""

    workload_type: WorkloadType
    """Kind of workload that it is for, such as Training. It cannot be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAsset:
    """An asset as answers give it."""

    meta: answers.AssetMeta
    spec: Mapping[str, Any]
    issues: Mapping[str, SourceIssue]
    """Of a data source, by cluster id."""
    owner: str = ""
    """Of a data volume: the name of the project whose claim it is."""

    @property
    def fields(self) -> dict[str, Any]:
        return {"meta": self.meta, "spec": self.spec}

    @property
    def source_fields(self) -> dict[str, Any]:
        """Of a data source."""
        issues = [
            answers.DataSourceIssue(cluster_id=cluster_id, issue=one.issue, since=one.at)
            for cluster_id, one in sorted(self.issues.items())
        ]
        owner = {"owner_project": self.owner} if self.owner else {}
        return {**self.fields, "status": "issuesFound" if issues else "ready", "issues": issues, **owner}


async def listed(
    call: Look, kind: AssetKind, *, created_by: str | None = None
) -> tuple[list[ShownAsset], int | None, int, dict[str, str]]:
    """(a page, the offset of the next one, up to which sequence it speaks, headers). Raises 403 where the caller may
    read nothing at all.

    Args:
        created_by: only those of this actor.
    """
    require_reader(call)
    read, values = await reading(call), call.values
    department, readable = await _department_asked_for(call), call.grants.readable_projects
    page = await read.queries.assets(
        AssetQuery(
            kind=kind,
            search=values["search"],
            name=values["name"],
            scope=values["scope"],
            project_id=values["projectId"],
            department_id=department,
            departments=None if readable is None else readable_departments(call),
            managed=readable or frozenset(),
            cluster_id=values["clusterId"],
            workload_type=values["workloadType"],
            created_by=created_by,
            offset=values["offset"],
            limit=values["limit"],
        )
    )
    gone = frozenset[str]() if read.moment is not None else await _gone(call, page)
    subjects = await call.api.actors.subjects_of({row["created_by"] for row in page.rows})
    found = [
        ShownAsset(
            meta=_meta(
                kind,
                asset_id=row["id"],
                name=row["name"],
                scope=row["scope"],
                project_id=row["project_id"],
                cluster_id=row["cluster_id"] if row["scope"] == "cluster" else "",
                department_id=row["department_id"],
                created_by=subjects[row["created_by"]],
                created_at=row["created_at"],
                changed_at=row["changed_at"],
                workload_type="".join(row["workload_types"][:1]),
            ),
            spec=_said(kind, row["spec"]),
            issues=_of_living(call, msgspec.convert(row["issues"], dict[str, SourceIssue])),
            owner=await owner_name(call, row["manager_id"]) if kind == DATA_VOLUME else "",
        )
        for row in page.rows
        if row["manager_id"] not in gone
    ]
    return found, page.next, page.seq, read.headers


async def _gone(call: Look, page: Page) -> frozenset[str]:
    """Projects that share data volumes on this page, and were deleted: the tables tell that who may read them alone."""
    others = {row["manager_id"] for row in page.rows if row["manager_id"] != row["project_id"]}
    return frozenset([id_ for id_ in others if await find_project(call, id_) is None])


async def _department_asked_for(call: Look) -> str | None:
    """The department whose workloads the assets are for; that of the project, where one is asked for."""
    wanted: str | None = call.values["departmentId"]
    project_id: str | None = call.values["projectId"]
    if wanted is not None or project_id is None:
        return wanted
    moment = await moment_of(call)
    found = await department_of(call, project_id, at=None if moment is None else moment.seq)
    return "" if found is UNSET else found


def require_reader(call: Look) -> None:
    """Raises 403 where the caller has no role that lets them read anything."""
    if call.grants.readable_projects == frozenset():
        call.require(Permission.READ, None)


async def create(call: Call, kind: AssetKind, body: type[Body]) -> tuple[ShownAsset, dict[str, str]]:
    """(the new asset, headers). Raises ApiError."""
    data = call.json_object()
    _, place = await _checked(call, kind, body, data, None)
    meta = cast("dict[str, Any]", data["meta"])
    spec = _stored(kind, meta["name"], cast("dict[str, Any]", data["spec"]))
    if kind == DATA_VOLUME:
        offered = offer(meta["name"], meta["scope"], place, spec)
        return await _create(call, meta, offered.asset, offered)
    command = CreateAsset(
        kind=kind,
        name=meta["name"],
        scope=meta["scope"],
        project_id=place if meta["scope"] == "project" else None,
        cluster_id=place if meta["scope"] == "cluster" else None,
        department_id=place if meta["scope"] == "department" else None,
        workload_type=meta.get("workloadType") or "",
        spec=spec,
    )
    return await _create(call, meta, command, command)


async def _create(
    call: Call, meta: Mapping[str, Any], creation: CreateAsset, command: AssetCommand
) -> tuple[ShownAsset, dict[str, str]]:
    """Args: as of send_creation."""
    if isinstance(command, OfferDataVolume):
        await data_volumes.require_room(call, command.project_id)
    else:
        await require_room(call, creation.kind, meta)
    reply = await send_creation(call, creation, command)
    assert reply.at is not None, "a creation is answered with its time"
    made = Asset(
        asset_id=reply.id,
        kind=creation.kind,
        name=creation.name,
        scope=creation.scope,
        project_id=creation.project_id or "",
        cluster_id=creation.cluster_id or "",
        department_id=creation.department_id or "",
        workload_type=creation.workload_type,
        created_at=reply.at,
        spec=creation.spec,
    )
    return await _shown(call, made, call.identity.sub), sequence_headers(reply.seq)


def _stored(kind: AssetKind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """What of a spec the log keeps: fields of a workload's spec."""
    stored = volume_spec(kind, name, spec) if is_data_source(kind) else spec
    return normal(stored) if kind == DATA_VOLUME else stored


def _of_living(call: Look, issues: Mapping[str, SourceIssue]) -> dict[str, SourceIssue]:
    """Without those of clusters that were removed."""
    return {id_: one for id_, one in issues.items() if call.api.directory.cluster(id_) is not None}


def _said(kind: AssetKind, spec: dict[str, Any]) -> dict[str, Any]:
    """What people said, of a stored spec."""
    return source_spec(kind, spec) if is_data_source(kind) else spec


async def require_room(call: Call, kind: AssetKind, meta: Mapping[str, Any], *, own: bool = False) -> None:
    """Raises 403 where its place has as many as it may have. The tables count: requests at once may make a few more.

    Args:
        own: whether the caller's alone are counted.
    """
    most = MAX_OWN_CREDENTIALS if own else MAX_ASSETS[cast("AssetScope", meta["scope"])]
    place = AssetQuery(
        kind=kind,
        scope=meta["scope"],
        project_id=meta.get("projectId"),
        cluster_id=meta.get("clusterId"),
        department_id=meta.get("departmentId"),
        created_by=call.actor if own else None,
        limit=1,
    )
    count = await if_answered(call.queries.count_assets(place))
    if count is not None and count >= most:
        whose = "of yours there" if own else "of this scope there"
        raise ApiError(
            403,
            f"there are {count:,} {CALLED[kind]}s {whose} already, and at most {most:,} are possible: delete some that "
            "nobody uses, or choose another scope",
            details="too_many_assets",
        )


async def send_creation(
    call: Call, creation: CreateAsset, command: AssetCommand, *, command_id: str | None = None
) -> Accepted:
    """Have it made. Where its name is taken, the refusal proposes one that is free.

    Args:
        creation: what is made.
        command: that which makes it.
    """
    try:
        return await call.send(command, command_id=command_id, creation=True)
    except ApiError as error:
        if error.details != "name_taken":
            raise
        for number in range(2, MAX_PROPOSALS):
            instead = next_name(creation.name, number)
            found = target(replace(command, name=instead))
            assert found is not None, "a creation has a key"
            key = found[1]
            if not (await call.api.store.load(ASSET, key)).state.exists:
                raise refused(taken(creation.kind, creation.name, instead), creation=True) from None
        raise


async def read(call: Look, kind: AssetKind) -> tuple[ShownAsset, dict[str, str]]:
    """(an asset as it is, or was at a moment, headers). Raises 404."""
    moment = await moment_of(call)
    headers = {} if moment is None else moment_headers(moment)
    if moment is not None:
        chain = await find_asset(call, kind, call.id, at=moment.seq) if moment.seq else None
    else:
        chain, headers = await _newest(call, kind)
    if chain is None or not chain.state.exists:
        raise not_found(f"there is no {CALLED[kind]} {call.id}")
    return await shown_asset(call, chain.state), sequence_headers(chain.version) | headers


async def _newest(call: Look, kind: AssetKind) -> tuple[Chain[Asset] | None, dict[str, str]]:
    """With all up to `min_seq`, where it was asked for."""
    key, wanted = key_of_id(call.id), call.min_seq
    headers: dict[str, str] = {}
    if key is not None and wanted:
        try:
            await call.api.store.load(ASSET, key, min_seq=wanted, seconds=MAX_WAIT_SECONDS)
        except StaleLogError:
            headers = {"X-Log-Stale": "true"}
    chain = await find_asset(call, kind, call.id)
    return (chain if chain is not None and await _place_lives(call, chain.state) else None), headers


async def change(call: Call, kind: AssetKind, body: type[Body]) -> tuple[ShownAsset, dict[str, str]]:
    """(the asset with its new spec, headers). Raises ApiError."""
    chain = await found_asset(call, kind)
    data = call.json_object()
    await _checked(call, kind, body, data, chain.state)
    asset = chain.state
    spec = _stored(kind, asset.name, cast("dict[str, Any]", data["spec"]))
    command = ChangeAsset(asset_id=call.id, project_id=asset.manager or None, spec=spec)
    reply = await _send(call, asset, command)
    changed = replace(asset, spec=spec, changed_at=reply.at, issues={}) if reply.changed else asset
    return await shown_asset(call, changed), sequence_headers(reply.seq)


async def delete(call: Call, kind: AssetKind) -> Answer[answers.HttpResponse]:
    chain = await found_asset(call, kind)
    asset = chain.state
    of = data_volumes.speaks_for(call, asset) if asset.offered else asset.manager
    reply = await _send(call, asset, DeleteAsset(asset_id=call.id, project_id=of or None))
    return call.accepted(
        reply, f"{CALLED[kind]} {chain.state.name} is deleted; workloads made from it stay as they are"
    )


async def _send(call: Call, asset: Asset, command: ChangeAsset | DeleteAsset) -> Accepted:
    try:
        return await call.send(command)
    except ApiError as error:
        raise await data_volumes.whose(call, asset, error) from None


async def found_asset(call: Call, kind: AssetKind) -> Chain[Asset]:
    chain, _ = await _newest(call, kind)
    # A deleted one is for the decider: a repeated request is answered as the first time.
    if chain is None or not (chain.state.exists or call.keyed):
        raise not_found(f"there is no {CALLED[kind]} {call.id}")
    return chain


async def _place_lives(call: Look, asset: Asset) -> bool:
    """Whether its project, department or cluster is still there, and what a data volume is of."""
    if not await lives(call, asset):
        return False
    if asset.offered and call.may_read(asset.manager):
        return True  # whoever it was for: its owner deletes it
    if asset.project_id:
        return await find_project(call, asset.project_id) is not None
    if asset.department_id:
        return await find_department(call, asset.department_id) is not None
    return not asset.cluster_id or await find_cluster(call, asset.cluster_id) is not None


# -- what is wrong with one ------------------------------------------------------------------------------------------


async def _checked(
    call: Call, kind: AssetKind, body: type[Body], data: dict[str, Any], before: Asset | None
) -> tuple[dict[str, Any], str]:
    """(what was sent, id of the place that it is for). Raises 400 with everything that is wrong.

    Args:
        before: the asset that is to be changed; None: one is to be made.
    """
    sound, faults = without_faults(tree(body), data)
    meta: dict[str, Any] = sound.get("meta") or {}
    found = [*(_of_meta(meta) if before is None else _of_same(meta, before))]
    place = meta
    if before is not None:
        own = {"projectId": before.project_id, "clusterId": before.cluster_id, "departmentId": before.department_id}
        place = {name: id_ or None for name, id_ in own.items()}
    workload_type = (meta.get("workloadType") if before is None else before.workload_type) or ""
    spec: dict[str, Any] = sound.get("spec") or {}
    if is_data_source(kind):
        of_spec = [*_source_issues(kind, meta.get("name") if before is None else before.name, spec)]
    else:
        of_spec = [*spec_issues(kind, spec, workload_type)]
    if before is None:
        found += await _of_place(call, meta)
    if kind == DATA_VOLUME:
        found += await offer_issues(call, meta, spec, before)
    found += await _of_assets(call, spec, workload_type, place)
    if told := [*faults, *apart_from(of_spec, faults), *untouched(found, sound, faults)]:
        raise bad_request(told[:MAX_ISSUES])
    return data, place.get("projectId") or place.get("clusterId") or place.get("departmentId") or ""


async def place_issues(call: Call, meta: Mapping[str, Any], before: Asset | None = None) -> list[Issue]:
    """What is wrong with where it is to be, or with what a change says of it."""
    if before is not None:
        return [*_of_same(meta, before)]
    return [*_of_meta(meta), *await _of_place(call, meta)]


def _of_meta(meta: Mapping[str, Any]) -> Iterator[Issue]:
    for issue in check_name(meta.get("name") or "", as_prefix=False):
        yield fault(f"meta.{issue.field}", issue.details, issue.rule)
    for scope, field in (("project", "projectId"), ("cluster", "clusterId"), ("department", "departmentId")):
        given = meta.get(field) is not None
        if given != (meta.get("scope") == scope):
            rule = "canAdd" if given else "required"
            yield fault(f"meta.{field}", f"is given where scope is {scope}, and only there", rule, "meta.scope")


def _of_same(meta: Mapping[str, Any], asset: Asset) -> Iterator[Issue]:
    """What says where it is cannot be changed; a body may repeat it."""
    own = {
        "name": asset.name,
        "scope": asset.scope,
        "projectId": asset.project_id,
        "clusterId": asset.cluster_id,
        "departmentId": asset.department_id,
        "workloadType": asset.workload_type,
    }
    for field, value in meta.items():
        if value is not None and value != own.get(field):
            details = (
                f"cannot be changed: it is {shown(own.get(field) or None)}, got {shown(value)}; create another one"
            )
            yield fault(f"meta.{field}", details, "canEdit")


def spec_issues(kind: AssetKind, spec: Mapping[str, Any], workload_type: str) -> Iterator[Issue]:
    """What the rules of workloads say of the fields that are there. What depends on others, the merge shows."""
    fields = {name: value for name, value in spec.items() if name not in OWN and value is not None}
    known = workload_type if workload_type in KINDS else next(iter(KINDS))
    filled = {
        field.name: field.options[0] if field.options else "any" for field in spec_node(known).fields if field.mandatory
    }
    creation = {"name": "any", "projectId": "any", "clusterId": "any", "spec": filled | fields}
    checked = check_creation(KINDS[known].creation, creation)
    if isinstance(checked, FaultyCreation):
        for issue in checked.issues:
            if all(_is_given(fields, looked_at) for looked_at in issue.involves | {issue.field}):
                yield issue
    if kind == "environment" and spec.get("overrideUidGidInWorkspace"):
        security: Mapping[str, Any] = spec.get("security") or {}
        if security.get("uidGidSource") in (None, "fromTheImage"):
            details = "is not possible here: user and groups come from the image (security.uidGidSource)"
            yield fault("spec.overrideUidGidInWorkspace", details, "canAdd", "spec.security.uidGidSource")


def _source_issues(kind: DataSourceKind, name: str | None, spec: Mapping[str, Any]) -> Iterator[Issue]:
    """What is wrong with a data source, by its own paths: what rules say of the volume that it becomes."""
    if kind == "pvc" and spec.get("existingPvc") is not True:
        details = "is true of a data source: the claim is there; new claims are asked for by a workload (storage.pvc)"
        yield fault("spec.existingPvc", details, "required")
        spec = {**spec, "existingPvc": True}
    field, _ = SOURCES[kind]
    item = f"spec.storage.{field}[0]"
    volume = volume_spec(kind, name or "any", spec)
    if kind == DATA_VOLUME:
        volume["storage"][field][0]["id"] = ANY_ID
    for issue in spec_issues(kind, volume, ""):
        own = issue.field.removeprefix(item)
        told = "meta.name" if own == ".name" else f"spec{own}"
        involves = frozenset(one.replace(item, "spec") for one in issue.involves)
        yield Issue(field=told, details=issue.details, rule=issue.rule, involves=involves)


def _is_given(spec: Mapping[str, Any], path: str) -> bool:
    """Whether a field such as `spec.labels[0].name` is among those that are there; of an item, whether its list is."""
    here: Any = spec
    for step in path.partition("[")[0].split(".")[1:]:
        here = cast("Mapping[str, Any]", here).get(step) if isinstance(here, dict) else None
    return here is not None


async def _of_place(call: Call, meta: Mapping[str, Any]) -> list[Issue]:
    """Whoever may not read there learns nothing of it: the gate refuses."""
    issues: list[Issue] = []
    project_id, cluster_id = meta.get("projectId"), meta.get("clusterId")
    if project_id and call.may_read(project_id) and await find_project(call, project_id) is None:
        issues.append(fault("meta.projectId", f"there is no project {shown(project_id)}"))
    if cluster_id and await find_cluster(call, cluster_id) is None:
        issues.append(fault("meta.clusterId", f"there is no cluster {shown(cluster_id)}"))
    department_id = meta.get("departmentId") if call.grants.allows(Permission.READ, None) else None
    if department_id and await find_department(call, department_id) is None:
        issues.append(fault("meta.departmentId", f"there is no department {shown(department_id)}"))
    return issues


async def _of_assets(call: Call, spec: Mapping[str, Any], workload_type: str, place: Mapping[str, Any]) -> list[Issue]:
    """What is wrong with the assets that a template names."""
    chosen: Mapping[str, Any] = spec.get("assets") or {}
    issues: list[Issue] = []
    for kind, name in CHOSEN.items():
        asset_id = chosen.get(name)
        if not isinstance(asset_id, str):
            continue
        chain = await find_asset(call, kind, asset_id)
        asset = None if chain is None else chain.state
        if problem := unsuitable(kind, asset_id, asset, workload_type, place, call=call):
            issues.append(fault(f"spec.assets.{name}", problem))
    for index, asset_id in enumerate(cast("list[Any]", chosen.get(DATA_SOURCE_IDS) or [])):
        if isinstance(asset_id, str):
            chain = await find_asset(call, DATA_SOURCES, asset_id)
            asset = None if chain is None else chain.state
            if problem := unsuitable("data source", asset_id, asset, workload_type, place, call=call):
                issues.append(fault(f"spec.assets.{DATA_SOURCE_IDS}[{index}]", problem))
    return issues


# -- how one is shown ------------------------------------------------------------------------------------------------


async def shown_asset(call: Look, asset: Asset) -> ShownAsset:
    return await _shown(call, asset, (await call.api.actors.subjects_of((asset.created_by,)))[asset.created_by])


async def _shown(call: Look, asset: Asset, created_by: str) -> ShownAsset:
    assert asset.created_at is not None, "an asset that was loaded was created"
    meta = _meta(
        asset.kind,
        asset_id=asset.asset_id,
        name=asset.name,
        scope=asset.scope,
        project_id=asset.project_id,
        cluster_id=asset.cluster_id,
        department_id=asset.department_id,
        created_by=created_by,
        created_at=asset.created_at,
        changed_at=asset.changed_at,
        workload_type=asset.workload_type,
    )
    return ShownAsset(
        meta=meta,
        spec=_said(asset.kind, asset.spec),
        issues=_of_living(call, asset.issues),
        owner=await owner_name(call, asset.manager) if asset.offered else "",
    )


def _meta(
    kind: AssetKind,
    *,
    asset_id: str,
    name: str,
    scope: AssetScope,
    project_id: str,
    cluster_id: str,
    department_id: str,
    created_by: str,
    created_at: datetime,
    changed_at: datetime | None,
    workload_type: str,
) -> answers.AssetMeta:
    fields: dict[str, Any] = {
        "id": asset_id,
        "name": name,
        "scope": scope,
        "project_id": project_id or None,
        "cluster_id": cluster_id or None,
        "department_id": department_id or None,
        "created_by": created_by,
        "created_at": created_at,
        "changed_at": changed_at,
    }
    if kind == "template":
        return answers.TemplateMeta(workload_type=workload_type, **fields)
    return answers.AssetMeta(**fields)
