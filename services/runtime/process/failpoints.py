"""Points between two effects at which a test ends the process as a crash would, to show that nothing is lost there.

Off unless the setting `failpoint` names one. Production code says `reached("…")`, which then does nothing.
"""

import os
import signal
from typing import Final

FAILPOINTS: Final = frozenset(
    {
        # The agent on Kubernetes.
        "fence_raised",
        "pod_created",
        "code_map_made",
        "secret_made",
        "pod_deleted",
        "finalizer_removed",
        "reservation_made",
        # cluster_sync.
        "facts_committed",
        "wanted_published",
        # The feed.
        "feed_batch_open",
        "feed_written",
        # subscriptions.
        "subscription_consumer_made",
        "subscription_consumer_deleted",
        # What fills tables beside those in use.
        "shadow_begun",
        "shadow_filled",
        "rebuild_filled",
        "rebuild_swapping",
        "rebuild_swapped",
        "replay_prepared",
        # webhooks.
        "webhook_taken_in",
        "webhook_posted",
    }
)


class _Armed:
    name = ""
    left = 0


def arm(text: str) -> None:
    """`NAME` or `NAME:N`: end the process with SIGKILL when NAME is reached for the Nth time (default: the first).
    Empty: none. Raises ValueError on a name that is no failpoint.
    """
    name, _, count = text.partition(":")
    if name and name not in FAILPOINTS:
        raise ValueError(f"there is no failpoint {name!r}; there are {', '.join(sorted(FAILPOINTS))}")
    _Armed.name, _Armed.left = name, int(count or 1)


def reached(name: str) -> None:
    if name != _Armed.name:
        return
    _Armed.left -= 1
    if _Armed.left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
