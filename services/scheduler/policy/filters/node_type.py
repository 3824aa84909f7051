"""A node is of the type that the workload names (S040)."""

from typing import Final

from events.workload.needs import NODE_TYPE_LABEL
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def refuses(view: View) -> Booleans:
    column = view.room.nodes.labels.column(NODE_TYPE_LABEL)
    return column.numbers[view.rows] != column.number_of.get(view.request.node_type, len(column.values))


def words(view: View) -> str:
    return f"not of node type {view.request.node_type} (label {NODE_TYPE_LABEL})"


FILTER: Final = Filter(
    name="node_type", asks=lambda request: bool(request.node_type), barred=Check(refuses=refuses, words=words)
)
