"""What the events of a project make of its row, and what changes of workloads make of the project's use. Pure."""

from collections.abc import Iterable
from typing import assert_never

import msgspec
from msgspec.structs import replace

from events.aggregate import BrokenChainError
from events.commit import Commit
from events.project import ProjectChanged, ProjectCreated, ProjectEvent, ProjectRoleGranted, ProjectRoleRevoked
from projections.rows import ProjectRow, UseRow, WorkloadRow
from projections.values import clean, fit, to_json


class ProjectEntry(msgspec.Struct, frozen=True):
    row: ProjectRow | None = None


def key_of(commit: Commit) -> str:
    first = commit.events[0] if commit.events else None
    return first.project_id if isinstance(first, ProjectCreated) else commit.record.about.id or ""


def begins(commit: Commit) -> bool:
    return bool(commit.events) and isinstance(commit.events[0], ProjectCreated)


def begin_commit(entry: ProjectEntry, commit: Commit) -> ProjectEntry:
    """The entry at the commit's version. Raises BrokenChainError where it does not follow the one before."""
    if entry.row is None:
        if begins(commit) or not commit.events:
            return entry
        raise BrokenChainError(f"commit {commit.seq} is about project {key_of(commit)}, which has no row")
    at = entry.row.version
    if at != commit.record.parent_seq:
        raise BrokenChainError(
            f"project {commit.key}: commit {commit.seq} follows {commit.record.parent_seq}, but its row is at {at}"
        )
    return ProjectEntry(replace(entry.row, version=commit.seq))


def evolve(entry: ProjectEntry, event: ProjectEvent, commit: Commit) -> ProjectEntry:
    """The entry after one more event."""
    row = entry.row
    if isinstance(event, ProjectCreated):
        row = ProjectRow(id=event.project_id, version=commit.seq, name=clean(event.name), created_at=event.at)
        return ProjectEntry(_with_settings(row, event.gpu_quota_milli, event.node_pools))
    if row is None:
        return entry  # nobody lists a project that was never created
    match event:
        case ProjectChanged():
            return ProjectEntry(_with_settings(row, event.gpu_quota_milli, event.node_pools))
        case ProjectRoleGranted():
            roles = _roles(row)
            roles.setdefault(event.subject, []).append(event.role)
            return ProjectEntry(replace(row, roles=to_json(roles)))
        case ProjectRoleRevoked():
            roles = _roles(row)
            kept = [role for role in roles.pop(event.subject, []) if role != event.role]
            if kept:
                roles[event.subject] = kept
            return ProjectEntry(replace(row, roles=to_json(roles)))
        case _:
            assert_never(event)


def use_changes(changes: Iterable[tuple[WorkloadRow | None, WorkloadRow | None]]) -> dict[tuple[str, str], UseRow]:
    """What to add to the use of each (project, phase) for workloads that went from one row to the next."""
    totals: dict[tuple[str, str], list[int]] = {}
    for before, after in changes:
        for row, sign in ((before, -1), (after, +1)):
            if row is None or row.deleted_at is not None:
                continue
            total = totals.setdefault((row.project_id, row.phase), [0, 0, 0, 0, 0, 0])
            firm = row.gpu_allocated_milli if row.preemptibility == "non-preemptible" else 0
            held = (
                1,
                row.live_pods,
                row.gpu_allocated_milli,
                firm,
                row.cpu_allocated_milli,
                row.memory_allocated_bytes,
            )
            for place, value in enumerate(held):
                total[place] += sign * value
    return {
        (project_id, phase): UseRow(
            project_id=project_id,
            phase=phase,
            workloads=total[0],
            pods=total[1],
            gpu_milli=fit(total[2]),
            non_preemptible_gpu_milli=fit(total[3]),
            cpu_milli=fit(total[4]),
            memory_bytes=fit(total[5]),
        )
        for (project_id, phase), total in totals.items()
        if any(total)
    }


def _with_settings(row: ProjectRow, quota: int | None, pools: tuple[str, ...]) -> ProjectRow:
    return replace(
        row,
        gpu_quota_milli=None if quota is None else fit(quota),
        node_pools=tuple(clean(pool) for pool in pools),
    )


def _roles(row: ProjectRow) -> dict[str, list[str]]:
    return msgspec.json.decode(row.roles)
