"""Data volumes: claims that projects share. What is wrong with one that is offered, and with one that a workload names.

Who may administer assets of a project may share its claims with anybody; which is said by the command's own project.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from events.asset import DATA_VOLUME, OFFERED, Asset, AssetScope, OfferDataVolume
from events.authorize import Permission
from events.cluster_protocol import SHARED_CLAIMS
from events.ids import ANY_CLUSTER
from events.workload.fields.creation import Creation
from projections.asset_query import AssetQuery
from services.api.context import Call, Look, if_answered
from services.api.errors import ApiError
from services.api.imposed import marked
from services.api.issues import Issue, fault, shown
from services.api.master_volumes import storages
from services.api.places import find_cluster, find_department, find_project
from services.api.storage_rules import OBJECT_NAME, OBJECT_NAME_WORDS
from services.api.suitable import find_asset, unsuitable

MOST: Final = 100
"""Of one workload: each is read from the log when it is submitted."""


MAX_OFFERS: Final = 100
"""Of one project, whomever they are for. They are not counted where they are offered: nobody fills another's room."""


async def require_room(call: Call, owner: str) -> None:
    """Raises 403 where a project offers as many as it may. The tables count: requests at once may make a few more."""
    # Also those whose readers' project was deleted: they are there until their owner deletes them.
    mine = AssetQuery(kind=DATA_VOLUME, manager_id=owner, managed=frozenset({owner}), limit=1)
    count = await if_answered(call.queries.count_assets(mine))
    if count is not None and count >= MAX_OFFERS:
        raise ApiError(
            403,
            f"project {await owner_name(call, owner)!r} offers {count:,} data volumes already, and at most "
            f"{MAX_OFFERS:,} are possible: delete some of them that nobody uses",
            details="too_many_assets",
        )


async def owner_name(call: Look, owner: str) -> str:
    """The name of the project whose claim it is; its id, where there is none."""
    project = await find_project(call, owner)
    return owner if project is None else project.name


def speaks_for(call: Call, asset: Asset) -> str:
    """Id of the project for which the caller deletes one: that of the claim, or the one that it is for alone."""
    if asset.project_id and not _manages(call, asset.manager) and _manages(call, asset.project_id):
        return asset.project_id
    return asset.manager


def _manages(call: Call, project_id: str) -> bool:
    return call.grants.allows(Permission.MANAGE_ASSETS, project_id)


async def whose(call: Call, asset: Asset, error: ApiError) -> ApiError:
    """The refusal of an act on one that the caller sees: by whom it is possible, not that there is none."""
    if not asset.offered or error.status not in {403, 404} or _manages(call, asset.manager):
        return error
    name = await owner_name(call, asset.manager)
    told = (
        f"data volume {shown(asset.name)} is changed and deleted by who administers assets of project {name!r}, whose "
        "claim it is"
    )
    if asset.project_id and _manages(call, asset.project_id):
        told += "; your project, which it is for, can only delete it"
    elif not asset.project_id:
        told += "; a project that wants no data volumes blocks storage.dataVolume in its policies"
    return ApiError(403, told, details="not_permitted")


def normal(spec: dict[str, Any]) -> dict[str, Any]:
    """The stored spec of one with ids as the log has them."""
    offered = {name: value if name == "claimName" else str(value).lower() for name, value in spec[OFFERED].items()}
    return {**spec, OFFERED: offered}


def offer(name: str, scope: AssetScope, place: str, spec: Mapping[str, Any]) -> OfferDataVolume:
    """The command that shares a claim.

    Args:
        spec: as it is stored.
    """
    offered = spec[OFFERED]
    return OfferDataVolume(
        name=name,
        scope=scope,
        place=place,
        project_id=offered["projectId"],
        cluster_id=offered["clusterId"],
        claim_name=offered["claimName"],
        mount_path=spec["storage"]["dataVolume"][0]["mountPath"],
    )


async def offer_issues(
    call: Call, meta: Mapping[str, Any], spec: Mapping[str, Any], before: Asset | None
) -> list[Issue]:
    """What is wrong with the claim that is offered, and with whom it is for.

    Args:
        before: the data volume that is to be changed; None: one is to be made.
    """
    if before is not None:
        return [*_of_same(spec, before)]
    issues = [*_of_claim(spec)]
    if meta.get("scope") == "cluster":
        details = (
            "'cluster' is no scope of a data volume, whose claim is of one cluster anyway (spec.clusterId); choose "
            "tenant, department or project"
        )
        issues.append(fault("meta.scope", details, "options"))
    project_id, cluster_id = spec.get("projectId"), spec.get("clusterId")
    if project_id and call.may_read(project_id) and await find_project(call, project_id) is None:
        issues.append(fault("spec.projectId", f"there is no project {shown(project_id)}"))
    cluster = await find_cluster(call, cluster_id) if cluster_id else None
    if cluster_id and cluster is None:
        issues.append(fault("spec.clusterId", f"there is no cluster {shown(cluster_id)}"))
    elif cluster is not None and cluster.kind == "local":
        details = "is a cluster of kind local, whose claims no other project can mount; name one of kind kubernetes"
        issues.append(fault("spec.clusterId", details, "options"))
    # Whoever shares it need not see what they share it with; an id cannot be guessed.
    if (id_ := meta.get("projectId")) and await find_project(call, id_) is None:
        issues.append(fault("meta.projectId", f"there is no project {shown(id_)}"))
    if (id_ := meta.get("departmentId")) and await find_department(call, id_) is None:
        issues.append(fault("meta.departmentId", f"there is no department {shown(id_)}"))
    return issues


def _of_claim(spec: Mapping[str, Any]) -> Iterator[Issue]:
    name = spec.get("claimName") or ""
    if name and not OBJECT_NAME.match(name):
        details = f"{shown(name)} is no name of a claim: {OBJECT_NAME_WORDS}"
        yield fault("spec.claimName", details)
    elif name.startswith(SHARED_CLAIMS):
        details = f"{shown(name)} is itself a claim of a data volume; its own project shares it further"
        yield fault("spec.claimName", details)


def _of_same(spec: Mapping[str, Any], before: Asset) -> Iterator[Issue]:
    for field, value in before.offered.items():
        given = spec.get(field)
        if given is not None and (given if field == "claimName" else given.lower()) != value:
            details = f"cannot be changed: it is {shown(value)}, got {shown(given)}; create another data volume"
            yield fault(f"spec.{field}", details, "canEdit")


async def lives(call: Look, asset: Asset) -> bool:
    """Whether the project and the cluster of its claim are still there; true of everything else."""
    if not asset.offered:
        return True
    return await find_project(call, asset.manager) is not None and await find_cluster(call, asset.only_on) is not None


async def misfits_of(call: Call, asked: Creation) -> list[Issue]:
    """Why a workload cannot have the data volumes that it names. Whoever may not submit there learns nothing."""
    named = [
        (f"{path}.storage.dataVolume[{index}].id", one.id.lower())
        for path, storage in storages(asked)
        for index, one in enumerate(storage.data_volume)
        if one.id and not one.exclude
    ]
    project = await find_project(call, asked.project_id) if named and asked.project_id else None
    if project is None or not call.may_submit(asked.project_id):
        return []
    if len({id_ for _, id_ in named}) > MOST:
        details = f"{len(named)} data volumes are named; at most {MOST} are possible in a workload"
        return [Issue(field="spec.storage.dataVolume", details=details, rule="max")]
    place = {
        "projectId": asked.project_id,
        "departmentId": project.department_id,
        "clusterId": asked.cluster_id or None,
    }
    wrong = {id_: await _wrong(call, id_, place) for id_ in dict.fromkeys(id_ for _, id_ in named)}
    about = frozenset({"projectId", "clusterId"})
    return [Issue(field=field, details=wrong[id_], involves=about) for field, id_ in named if wrong[id_]]


async def _wrong(call: Call, asset_id: str, place: Mapping[str, Any]) -> str:
    """Empty where a workload of this place can have it."""
    chain = await find_asset(call, DATA_VOLUME, asset_id)
    asset = None if chain is None else chain.state
    # Of one that is of no cluster alone, the field that names no cluster tells.
    told = {**place, "clusterId": None} if place["clusterId"] == ANY_CLUSTER else place
    if problem := unsuitable(DATA_VOLUME, asset_id, asset, "", told, call=call):
        return problem
    assert asset is not None, "one that there is not is unsuitable"
    if not await lives(call, asset):
        return f"data volume {shown(asset.name)} is gone: the project or the cluster of its claim was deleted"
    if found := marked(asset, place["clusterId"]):
        return f"{found}; choose another, or leave it out"
    return ""
