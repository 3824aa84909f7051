"""Which data sources the agent of a cluster should look at, and what its words of them mean. Pure.

An agent speaks of its own cluster alone, and only of data sources that workloads there can use.
"""

import heapq
from collections.abc import Iterator

import msgspec

from events.asset import Asset, MarkDataSource, is_data_source
from events.asset_specs import volume_of
from events.cluster_protocol import MOST_SOURCES, Looked, Sources, SourceToLookAt
from events.ids import key_of_id
from services.cluster_sync.fold import DesiredState


def next_sources(fold: DesiredState, cluster_id: str, after: str) -> Sources:
    """Those that come behind this asset id."""
    behind = (
        chain.state
        for chain in fold.sources.values()
        if chain.state.cluster_id in {"", cluster_id} and chain.state.asset_id > after
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
        if key is None or chain is None or (cluster_id in chain.state.issues) == bool(one.issue):
            continue
        issue = "".join(sign if sign.isprintable() else "?" for sign in one.issue)
        yield key, MarkDataSource(asset_id=one.asset_id, cluster_id=cluster_id, spec_at=one.spec_at, issue=issue)


def _told(fold: DesiredState, asset: Asset) -> SourceToLookAt | None:
    """None where there is nothing to look at."""
    project = fold.project(asset.project_id) if asset.project_id else None
    spec_at = asset.spec_at
    if spec_at is None or not is_data_source(asset.kind) or (project is not None and not project.exists):
        return None
    try:
        volume = volume_of(asset.kind, asset.spec)
    except (msgspec.ValidationError, ValueError, LookupError):
        return None
    return SourceToLookAt(
        asset_id=asset.asset_id,
        spec_at=spec_at,
        volume=volume,
        project_id=asset.project_id,
        project_name="" if project is None else project.name,
    )
