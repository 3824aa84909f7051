"""Tells agents which workloads are over whose claims they hold. What the fold has forgotten is read in the log."""

import asyncio
from typing import Final

import structlog

from events.aggregate import WORKLOAD
from events.cluster_protocol import MOST_FATES, Fate
from events.ids import key_of_id
from events.phases import FINISHED, Phase
from events.workload.state import Workload
from services.cluster_sync.fold import DesiredState
from services.runtime.log.jetstream import JetStreamEventStore

ANSWER_SECONDS: Final = 30.0
"""For all that one request asks about; what is not read by then is asked again."""

log = structlog.get_logger(__name__)


def fate_of(state: Workload) -> Fate:
    """What became of a workload, for its claims."""
    if not state.living:
        return "gone"
    over = state.phase in FINISHED or state.phase is Phase.STOPPED
    return "ended" if over and not state.pods.live else "kept"


async def fates_of(
    workload_ids: tuple[str, ...], cluster_id: str, fold: DesiredState, store: JetStreamEventStore
) -> dict[str, Fate]:
    """Of those workloads of this cluster that can be found. Nothing is said of what the log does not know: after a
    restore it may have been lost there, and its data is all that is left of it.
    """
    found: dict[str, Fate] = {}
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            for workload_id in workload_ids[:MOST_FATES]:
                state = await _state(workload_id, fold, store)
                if state is not None and state.cluster_id == cluster_id:
                    found[workload_id] = fate_of(state)
                elif state is not None and cluster_id in state.among:
                    # It left that cluster, which was lost, and may come back to it.
                    found[workload_id] = "kept" if state.living else "gone"
    except Exception as error:  # noqa: BLE001 (whatever it was: the agent asks again, and this is nobody's to end)
        log.warning("fates_not_found", cluster_id=cluster_id, error=str(error) or type(error).__name__)
    return found


async def _state(workload_id: str, fold: DesiredState, store: JetStreamEventStore) -> Workload | None:
    key = key_of_id(workload_id)
    if key is None:
        return None
    chain = fold.workloads.get(key)
    if chain is not None and chain.state.workload_id == workload_id:
        return chain.state
    newest = await store.load(WORKLOAD, key)
    if newest.version and newest.state.workload_id == workload_id:
        return newest.state
    earlier = await store.load_at(WORKLOAD, key, workload_id) if newest.version else None
    return None if earlier is None else earlier.state
