"""The row of a cluster. Pure."""

from collections.abc import Iterator

from events.cluster import Cluster
from projections.changes import Change, Put
from projections.clusters.rows import ClusterRow
from projections.columns import Folded, row_maker

_cluster = row_maker(ClusterRow, Folded[Cluster])


def project(_: Folded[Cluster], after: Folded[Cluster]) -> Iterator[Change]:
    """What changes in the tables."""
    if after.state.cluster_id:
        yield Put("clusters", _cluster(after))
