"""The history of a workload: one row per event, with its sentence. Pure."""

from events.codec import encode_event
from events.commit import Commit
from events.workload.state import WorkloadEvent
from projections.values import clean
from projections.workloads.project import WorkloadEntry
from projections.workloads.rows import HistoryRow
from projections.workloads.sentences import sentence


def history_row(
    before: WorkloadEntry, event: WorkloadEvent, after: WorkloadEntry, commit: Commit, index: int
) -> HistoryRow:
    """The row of the commit's event number `index`."""
    row = after.row
    assert row is not None, "an event left no row"
    actor = commit.record.actor
    stored = encode_event(event)
    reason: str = getattr(event, "reason", "")
    return HistoryRow(
        workload_id=row.id,
        seq=commit.seq,
        index=index,
        at=commit.record.occurred_at,
        type=stored.type,
        phase=row.phase,
        reason=clean(reason),
        message=clean(sentence(before, event, after, actor)),
        actor_id=clean(actor.id),
        actor_kind=actor.kind,
        details=bytes(stored.data).decode(),
    )
