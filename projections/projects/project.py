"""The row of a project, and what changes of workloads make of the project's use. Pure."""

from collections.abc import Iterable, Iterator

from events.project import Project
from projections.changes import Change, Put
from projections.columns import Folded, row_maker
from projections.projects.rows import ProjectRow, UseRow
from projections.values import fit
from projections.workloads.rows import WorkloadRow

_project = row_maker(ProjectRow, Folded[Project])


def project(_: Folded[Project], after: Folded[Project]) -> Iterator[Change]:
    """What changes in the tables."""
    if after.state.project_id:
        yield Put("projects", _project(after))


def use_changes(changes: Iterable[tuple[WorkloadRow | None, WorkloadRow]]) -> dict[tuple[str, str], UseRow]:
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
