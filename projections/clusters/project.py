"""What the events of a cluster make of its row. Pure."""

from typing import Any, assert_never

import msgspec
from msgspec.structs import replace

from events.aggregate import BrokenChainError
from events.cluster import (
    ClusterAdded,
    ClusterConnected,
    ClusterDisconnected,
    ClusterEvent,
    ClusterRemoved,
    ClusterReportsRefused,
    NodePoolRemoved,
    NodePoolSet,
    OwnershipProtectionSet,
    OwnershipProtectionUnset,
)
from events.commit import Commit
from projections.rows import ClusterRow
from projections.values import clean, to_json


class ClusterEntry(msgspec.Struct, frozen=True):
    row: ClusterRow | None = None


def key_of(commit: Commit) -> str:
    """The cluster's id; a name that is used again is another cluster."""
    first = commit.events[0] if commit.events else None
    return first.cluster_id if isinstance(first, ClusterAdded) else commit.record.about.id or ""


def begins(commit: Commit) -> bool:
    return bool(commit.events) and isinstance(commit.events[0], ClusterAdded)


def begin_commit(entry: ClusterEntry, commit: Commit) -> ClusterEntry:
    """The entry at the commit's version. Raises BrokenChainError where it does not follow the one before."""
    if entry.row is None:
        if begins(commit) or not commit.events:
            return entry
        raise BrokenChainError(f"commit {commit.seq} is about cluster {key_of(commit)}, which has no row")
    if entry.row.version != commit.record.parent_seq:
        raise BrokenChainError(
            f"cluster {entry.row.id}: commit {commit.seq} follows {commit.record.parent_seq}, "
            f"but its row is at {entry.row.version}"
        )
    return ClusterEntry(replace(entry.row, version=commit.seq))


def evolve(entry: ClusterEntry, event: ClusterEvent, commit: Commit) -> ClusterEntry:
    """The entry after one more event."""
    if isinstance(event, ClusterAdded):
        return ClusterEntry(
            ClusterRow(
                id=event.cluster_id,
                version=commit.seq,
                name=clean(event.name),
                kind=event.kind,
                created_at=event.at,
            )
        )
    if entry.row is None:
        return entry
    return ClusterEntry(_evolved(entry.row, event))


def _evolved(row: ClusterRow, event: ClusterEvent) -> ClusterRow:
    match event:
        case ClusterAdded():
            raise AssertionError("a cluster begins only once")
        case ClusterConnected():
            version = clean(event.agent_version)
            return replace(row, connected=True, connection_changed_at=event.at, problem="", agent_version=version)
        case ClusterDisconnected():
            return replace(row, connected=False, connection_changed_at=event.at, problem=clean(event.reason))
        case ClusterReportsRefused():
            return row  # shown from the log itself, as all of a cluster is
        case OwnershipProtectionSet():
            if event.source == "cluster":
                return replace(row, protection_reported=event.enabled)
            return replace(row, protection_set=event.enabled)
        case OwnershipProtectionUnset():
            return replace(row, protection_reported=None)
        case NodePoolSet():
            pools = _pools(row)
            pools[event.pool.name] = msgspec.to_builtins(event.pool)
            return replace(row, node_pools=to_json(pools))
        case NodePoolRemoved():
            pools = _pools(row)
            pools.pop(event.name, None)
            return replace(row, node_pools=to_json(pools))
        case ClusterRemoved():
            return replace(row, removed=True, connected=False)
        case _:
            assert_never(event)


def _pools(row: ClusterRow) -> dict[str, Any]:
    return msgspec.json.decode(row.node_pools)
