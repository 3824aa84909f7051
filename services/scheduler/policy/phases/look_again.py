"""What found no room in its turn is looked at again in the end: it may wait for another reason by then, or for none."""

from typing import Final

from events.phases import WaitingReason
from services.scheduler.planning import Phase, Planning
from services.scheduler.policy.phases import place


def run(planning: Planning) -> None:
    queues = planning.snapshot.queues
    for i in sorted(planning.short, key=lambda i: queues[i].entries[planning.short_at[i].entry].order):
        waiting = planning.short[i].waiting
        kept_back = waiting is not None and waiting.reason is WaitingReason.SHARE_RESERVED
        # What is kept for it as it comes free, nobody counts as free; and who waits behind another one waits on.
        if not planning.cut_short and i not in planning.put_off and i not in planning.aside.reserved and not kept_back:
            place.again(planning, i)


PHASE: Final = Phase(name="look_again", run=run)
