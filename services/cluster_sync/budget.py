"""How much of what clusters say becomes commits, and how often the same thing changes. Pure: times are arguments, in
monotonic seconds.

What has to wait is not lost: agents say what holds until it stands in the log, and newer news take the place of older.
"""

from typing import Final

from events.aggregate import Draft
from services.runtime.process.buckets import Buckets

BURST_MINUTES: Final = 20
"""What a quiet cluster may say at once: at the default rate 120,000 facts, 50,000 pods that start and end unseen."""
BYTES_PER_FACT: Final = 512
"""A usual fact has some 200 bytes; a larger one counts as several. A node's report counts by its labels."""
CHANGES_AT_ONCE: Final = 20
"""Of one node, cluster or run, after which its changes are told less often: each is a level, only the newest counts."""
SECONDS_PER_CHANGE: Final = 10.0
RECIPE_BYTES_AT_ONCE: Final = 1024**3
RECIPE_BYTES_PER_SECOND: Final = 16 * 1024**2
LEAST_RECIPE_BYTES: Final = 2048
"""What a request counts as at least: reading it costs as much as a small answer."""


def facts_budget(per_minute: int) -> Buckets:
    """By cluster."""
    return Buckets(size=per_minute * BURST_MINUTES, per_second=per_minute / 60)


def changes_budget() -> Buckets:
    """By what changes."""
    return Buckets(size=CHANGES_AT_ONCE, per_second=1 / SECONDS_PER_CHANGE)


def answers_budget() -> Buckets:
    """By cluster: words about runs that are over, each of which stays in WANTED for ten minutes. So one cluster's take
    some 50 MB of it at most; an agent that is not answered asks again.
    """
    return Buckets(size=60_000, per_second=100)


def recipes_budget() -> Buckets:
    """By cluster: bytes of what its agent is told of runs that it is about to start. At once 2,000 pods of the largest
    spec; an agent that asks again and again takes a tenth of a processor at most.
    """
    return Buckets(size=RECIPE_BYTES_AT_ONCE, per_second=RECIPE_BYTES_PER_SECOND)


def facts_in(draft: Draft) -> int:
    """What a commit counts as."""
    return sum(max(1, -(-memoryview(event.data).nbytes // BYTES_PER_FACT)) for event in draft.record.events)
