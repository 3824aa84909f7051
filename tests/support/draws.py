"""How many examples the property tests draw."""

from typing import Final

from hypothesis import settings

ONE_IN: Final = 5
FEWEST: Final = 5


def draws(many: int) -> int:
    """As many, where each run draws others. In CI each draws the same again: there a fifth is enough, and
    `make explore` draws more.
    """
    return max(FEWEST, many // ONE_IN) if settings().derandomize else many
