"""How many examples the property tests draw."""

import os
from typing import Final

ONE_IN: Final = 5
FEWEST: Final = 5
ALL: Final = "EXPLORE_DRAWS"
"""A variable: `all` draws as many as a test says. `make explore` sets it."""


def draws_all() -> bool:
    return os.environ.get(ALL) == "all"


def draws(many: int) -> int:
    """As many in `make explore`, over and over. Elsewhere a fifth is enough: in CI, the same each time."""
    return many if draws_all() else max(FEWEST, many // ONE_IN)
