"""A node has the label by whose value the pods of the workload must stay together (S042)."""

from typing import Final

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def refuses(view: View) -> Booleans:
    return view.room.nodes.labels.column(view.request.topology_key).numbers[view.rows] < 0


def words(view: View) -> str:
    return f"without the label {view.request.topology_key}, which podAffinity requires"


FILTER: Final = Filter(
    name="topology", asks=lambda request: bool(request.topology_key), barred=Check(refuses=refuses, words=words)
)
