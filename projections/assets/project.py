"""The row of an asset. Pure."""

from collections.abc import Iterator

from events.asset import Asset
from projections.assets.rows import AssetRow
from projections.changes import Change, Put
from projections.columns import Folded, row_maker

_asset = row_maker(AssetRow, Folded[Asset])


def project(_: Folded[Asset], after: Folded[Asset]) -> Iterator[Change]:
    """What changes in the tables."""
    if after.state.asset_id:
        yield Put("assets", _asset(after))
