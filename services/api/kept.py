"""Whose place may not be taken yet, as an answer says it. Pure."""

from typing import Final

from events.why import Kept, KeptBy
from services.api.answers.evaluation import PlaceKept

_TOLD: Final[dict[KeptBy, str]] = {
    "minimum_runtime": "what runs there may run for the minimum of its project or department",
    "gave_up_a_place": "it gave up a place before, and keeps the next one for ten minutes",
    "got_its_place": "it got the place of the workload that waits, which takes none from it",
}


def place_kept(kept: Kept) -> PlaceKept:
    return PlaceKept(
        workload_id=kept.workload_id or None,
        name=kept.name or None,
        workloads=kept.workloads,
        until=kept.until,
        rule=kept.rule,
        message=_TOLD[kept.rule],
    )
