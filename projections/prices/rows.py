"""The row of prices: one declaration per column (projections/columns.py). Pure."""

from typing import Annotated

import msgspec

from events.prices import Prices
from projections.columns import Column, Folded
from projections.values import clean, to_json

_Column = Column[Folded[Prices]]


class PricesRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All prices of the installation, past and future: one row."""

    key: Annotated[str, _Column(lambda prices: prices.key, key=True)]
    version: Annotated[int, _Column(lambda prices: prices.version, often=True)]
    currency: Annotated[str, _Column(lambda prices: clean(prices.state.currency))]
    models: Annotated[str, _Column(lambda prices: to_json(prices.state.models), type="json")]
    """JSON object: model to [price]."""
