"""A node takes new pods: it is ready, not cordoned in its cluster, and its cluster is connected."""

from typing import Final

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def refuses(view: View) -> Booleans:
    return ~view.room.nodes.usable[view.rows]


def words(_: View) -> str:
    return "not ready, or cordoned by its cluster"


FILTER: Final = Filter(name="takes_pods", asks=lambda _: True, closed=Check(refuses=refuses, words=words))
