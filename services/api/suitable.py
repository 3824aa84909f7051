"""Assets by their ids, and whether a workload can be made from one."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from events.aggregate import ASSET, Chain
from events.article import with_article
from events.asset import CALLED, DATA_SOURCES, Asset, AssetKind
from events.authorize import Permission
from events.ids import ANY_CLUSTER, key_of_id
from services.api.context import Look
from services.api.imposed import OF_INFERENCES
from services.api.issues import shown
from services.api.places import may_read_department


async def find_asset(
    call: Look, kinds: AssetKind | Collection[AssetKind], asset_id: str, *, at: int | None = None
) -> Chain[Asset] | None:
    """An asset of this kind, or of one of these, that the caller may read, as the log has it now or at a sequence,
    perhaps deleted; None where there is none.
    """
    key = key_of_id(asset_id)
    if key is None:
        return None
    chain: Chain[Asset] = await (call.api.store.load(ASSET, key) if at is None else call.api.store.load(ASSET, key, at))
    asset = chain.state
    of_kind = asset.kind == kinds if isinstance(kinds, str) else asset.kind in kinds
    ours = chain.version > 0 and asset.asset_id == asset_id.lower() and of_kind
    return chain if ours and may_read_asset(call, asset) else None


def may_read_asset(call: Look, asset: Asset) -> bool:
    """Those of the tenant and of clusters are everybody's who may read anything; a credential is its owner's, and of
    who may delete it.
    """
    if asset.kind == "credentials" and asset.created_by != call.actor:
        return call.grants.allows(Permission.MANAGE_ASSETS, asset.project_id or None)
    if asset.offered and call.may_read(asset.manager):
        return True  # who shares it
    if asset.project_id:
        return call.may_read(asset.project_id)
    if asset.department_id:
        return may_read_department(call, asset.department_id)
    return call.grants.readable_projects != frozenset()


def unsuitable(
    kind: AssetKind | Literal["data source"],
    asset_id: str,
    asset: Asset | None,
    workload_type: str,
    asked: Mapping[str, Any],
    *,
    call: Look,
) -> str:
    """Why a workload of this type, project and cluster cannot be made from an asset; empty where it can.

    Args:
        asked: with `projectId`, `departmentId` and `clusterId`; what is missing there fits.
    """
    called = kind if kind == "data source" else CALLED[kind]
    if asset is None:
        if kind == "data-volume" and key_of_id(asset_id) is None:
            listing = f"`muster datasource {kind} list -o wide`"
            return f"there is no {called} with the id {shown(asset_id)}; give its id, which {listing} shows"
        return f"there is no {called} {shown(asset_id)}, or you may not see it"
    known = call.api.directory
    name, project_id, cluster_id = shown(asset.name), asked.get("projectId"), asked.get("clusterId")
    if asset.deleted_at is not None:
        return f"{called} {name} was deleted; choose another, or leave it out"
    if asset.project_id and project_id is not None and asset.project_id != project_id:
        other = project.name if call.may_read(asset.project_id) and (project := known.project(asset.project_id)) else ""
        return (
            f"{called} {name} is of another project ({other or asset.project_id}); choose one of this project or of "
            "the tenant"
        )
    department_id = asked.get("departmentId") or asset.department_id
    if asset.department_id and asset.department_id != department_id:
        return (
            f"{called} {name} is of another department ({asset.department_id}); choose one of this department or of "
            "the tenant"
        )
    where = cluster.name if asset.only_on and (cluster := known.cluster(asset.only_on)) else asset.only_on
    if asset.only_on and cluster_id == ANY_CLUSTER:
        return f"{called} {name} is of one cluster alone ({where}); name that cluster (clusterId, --cluster)"
    if asset.only_on and cluster_id is not None and asset.only_on != str(cluster_id).lower():
        todo = "choose one of this cluster" if asset.offered else "choose one of this cluster or of the tenant"
        return f"{called} {name} is of another cluster ({where}); {todo}"
    if workload_type == "Inference" and asset.kind in DATA_SOURCES and asset.kind not in OF_INFERENCES:
        called = with_article(CALLED[asset.kind])
        return f"data source {name} is {called}; an inference takes those of PVC, Git and ConfigMap"
    types = [asset.workload_type] if asset.workload_type else asset.spec.get("workloadTypes") or []
    if workload_type and types and workload_type not in types:
        return f"{called} {name} is for {', '.join(types)}, and this is a {workload_type}; choose another"
    return ""
