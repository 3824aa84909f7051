"""Changes of what somebody else may change at the same time: what is read is decided anew where it has moved."""

import random
import time
from collections.abc import Callable
from typing import Final

from muster.cli.exits import Problem

TRIES: Final = 10
"""Of one change, where others change the same: each time at least one of them got through."""
PAUSE_SECONDS: Final = 0.1
"""At most, between two of them."""


def again_where_moved(change: Callable[[], None]) -> None:
    """Args: change, reads and writes with the version that it read. Raises Problem."""
    for tries_left in reversed(range(TRIES)):
        try:
            change()
        except Problem as problem:
            if problem.refusal != "version_moved" or not tries_left:
                raise
            time.sleep(PAUSE_SECONDS * random.random())  # noqa: S311 - so that two do not chase each other
        else:
            return
