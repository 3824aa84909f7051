"""The history of a workload: one row per event, with its sentence. Pure."""

from events.codec import encode_event
from events.commit import Commit
from events.workload.life import WorkloadEvent
from projections.values import clean
from projections.workloads.rows import HistoryRow
from projections.workloads.sentences import Happened, sentence


def history_row(happened: Happened, event: WorkloadEvent, commit: Commit, index: int) -> HistoryRow:
    """The row of the commit's event number `index`."""
    actor = commit.record.actor
    stored = encode_event(event)
    reason: str = getattr(event, "reason", "")
    return HistoryRow(
        workload_id=happened.state.workload_id,
        seq=commit.seq,
        index=index,
        at=commit.record.occurred_at,
        type=stored.type,
        phase=happened.state.phase.value,
        reason=clean(reason),
        message=clean(sentence(happened, event, actor)),
        actor_id=clean(actor.id),
        actor_kind=actor.kind,
        details=bytes(stored.data).decode(),
    )
