"""The rows of a node: the node itself, and the reservations on it. Pure."""

from collections.abc import Iterator

from events.node import Node
from projections.changes import Change, Put, Removed
from projections.columns import Folded, row_maker
from projections.nodes.rows import Held, NodeRow, ReservationRow

_node = row_maker(NodeRow, Folded[Node])
_reservation = row_maker(ReservationRow, Held)


def project(before: Folded[Node], after: Folded[Node]) -> Iterator[Change]:
    """What changes in the tables. Nobody lists a node that was never registered."""
    if not after.state.cluster_id:
        return
    yield Put("nodes", _node(after))
    were, are = before.state.reservations, after.state.reservations
    if were is are:
        return
    for id_, held in were.items():
        if id_ not in are:
            yield Removed("reservations", _reservation(Held(after.key, held)))
    for id_, held in are.items():
        if were.get(id_) is not held:
            yield Put("reservations", _reservation(Held(after.key, held)))
