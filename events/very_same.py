"""Results that are remembered for the very same object. Pure."""

from collections.abc import Callable
from functools import wraps


def for_the_very_same[A, R](function: Callable[[A], R]) -> Callable[[A], R]:
    """The function, which finds its result once while it is asked about one and the same object: whoever goes through a
    thousand workloads of one spec asks for the same a thousand times. Of what nobody can change only, and the last one
    alone is remembered.
    """
    last: tuple[A, R] | None = None

    @wraps(function)
    def remembering(asked: A) -> R:
        nonlocal last
        if last is None or last[0] is not asked:
            last = asked, function(asked)
        return last[1]

    return remembering
