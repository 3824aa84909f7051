"""Which data sources the agent of a cluster should look at, what its words of them mean, and what is behind the data
volumes of a run. Pure.

An agent speaks of its own cluster alone, and only of data sources that workloads there can use.
"""

import heapq
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from events.asset import Asset, MarkDataSource, is_data_source
from events.asset_specs import volume_of
from events.cluster_protocol import MOST_SOURCES, Looked, RunPod, Sources, SourceToLookAt
from events.ids import key_of_id
from events.project import Project
from events.workload.volumes import SharedFolder, Volume
from services.cluster_sync.fold import DesiredState


def next_sources(fold: DesiredState, cluster_id: str, after: str) -> Sources:
    """Those that come behind this asset id."""
    behind = (
        chain.state
        for chain in fold.sources.values()
        if chain.state.exists and chain.state.only_on in {"", cluster_id} and chain.state.asset_id > after
    )
    found = heapq.nsmallest(MOST_SOURCES, behind, key=lambda asset: asset.asset_id)
    return Sources(
        after=after,
        last=found[-1].asset_id if found else "",
        sources=tuple(source for asset in found if (source := _told(fold, asset)) is not None),
    )


def marks(fold: DesiredState, cluster_id: str, looked: tuple[Looked, ...]) -> Iterator[tuple[str, MarkDataSource]]:
    """Keys of the data sources of which something else is found than is known, each with what is to be decided."""
    for one in looked[:MOST_SOURCES]:
        key = key_of_id(one.asset_id)
        chain = None if key is None else fold.sources.get(key)
        if (
            key is None
            or chain is None
            or not chain.state.exists
            or (cluster_id in chain.state.issues) == bool(one.issue)
        ):
            continue
        issue = "".join(sign if sign.isprintable() else "?" for sign in one.issue)
        yield key, MarkDataSource(asset_id=one.asset_id, cluster_id=cluster_id, spec_at=one.spec_at, issue=issue)


def with_data_volumes(fold: DesiredState, recipe: RunPod, cluster_id: str) -> RunPod:
    """The recipe of a run with the claims behind its data volumes as they are now, or with why it cannot have one."""
    if not any(isinstance(volume, SharedFolder) for volume in recipe.volumes):
        return recipe
    volumes: list[Volume] = []
    for volume in recipe.volumes:
        if not isinstance(volume, SharedFolder):
            volumes.append(volume)
            continue
        key = key_of_id(volume.data_volume)
        chain = None if key is None else fold.sources.get(key)
        asset = None if chain is None or chain.state.asset_id != volume.data_volume else chain.state
        problem = "" if asset is None else _withheld(fold, asset, recipe.project_id, cluster_id)
        if asset is None or problem:
            # Another one that has its key now has its name, too.
            named = volume.data_volume if chain is None else repr(chain.state.name)
            problem = problem or f"data volume {named} is not shared any more"
            return replace(recipe, no_volume=f"{problem}: ask who shared it, or submit without it")
        volumes.append(_filled(volume, asset, fold.project(asset.manager)))
    return replace(recipe, volumes=tuple(volumes))


def _withheld(fold: DesiredState, asset: Asset, project_id: str, cluster_id: str) -> str:
    """Why a run of this project cannot have a data volume; empty where it can. The log may say otherwise by now than
    when its workload was submitted.
    """
    name, project, owner = asset.name, fold.project(project_id), fold.project(asset.manager)
    if not asset.exists:
        return f"data volume {name!r}{f' of project {owner.name}' if owner.name else ''} is not shared any more"
    if not asset.offered or asset.only_on != cluster_id:
        return f"{name!r} is no data volume of this cluster"
    if not owner.exists:
        return f"the project of data volume {name!r} was deleted"
    if asset.project_id not in {"", project_id} or asset.department_id not in {"", project.department_id}:
        return f"data volume {name!r} is not shared with project {project.name}"
    return ""


def _filled(volume: SharedFolder, asset: Asset, project: Project | None) -> SharedFolder:
    return replace(
        volume,
        data_volume=asset.asset_id,
        claim=asset.offered.get("claimName", ""),
        project_id=asset.manager,
        project_name="" if project is None else project.name,
    )


def _told(fold: DesiredState, asset: Asset) -> SourceToLookAt | None:
    """None where there is nothing to look at."""
    project = fold.project(asset.manager) if asset.manager else None
    spec_at = asset.spec_at
    if spec_at is None or not is_data_source(asset.kind) or (project is not None and not project.exists):
        return None
    try:
        volume = volume_of(asset.kind, asset.spec)
    except (msgspec.ValidationError, ValueError, LookupError):
        return None
    if isinstance(volume, SharedFolder):
        volume = _filled(volume, asset, project)
    return SourceToLookAt(
        asset_id=asset.asset_id,
        spec_at=spec_at,
        volume=volume,
        project_id=asset.manager,
        project_name="" if project is None else project.name,
    )
