"""A node takes new pods: it is ready, not cordoned in its cluster, without a taint that refuses the pod, and its
cluster is connected.
"""

from typing import Final

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def refuses(view: View) -> Booleans:
    nodes = view.room.nodes
    return ~(nodes.gpu_usable if view.request.gpu_devices else nodes.usable)[view.rows]


def words(_: View) -> str:
    return "not ready, or cordoned or tainted by its cluster"


FILTER: Final = Filter(name="takes_pods", asks=lambda _: True, closed=Check(refuses=refuses, words=words))
