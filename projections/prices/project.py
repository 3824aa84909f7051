"""The row of prices. Pure."""

from collections.abc import Iterator

from events.prices import Prices
from projections.changes import Change, Put
from projections.columns import Folded, row_maker
from projections.prices.rows import PricesRow

_prices = row_maker(PricesRow, Folded[Prices])


def project(_: Folded[Prices], after: Folded[Prices]) -> Iterator[Change]:
    """What changes in the tables."""
    if after.state.currency:
        yield Put("prices", _prices(after))
