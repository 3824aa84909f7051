"""Which aggregates have public events, and which: the one list that feed, documents and checks go by. Pure."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from events.aggregate import (
    ASSET,
    CLUSTER,
    DEPARTMENT,
    HOURS,
    LOG,
    NODE,
    POLICY,
    PRICES,
    PROJECT,
    TENANT,
    VOID,
    WORKLOAD,
)
from events.public import cluster, lost, node, project, workload
from events.public.shape import Happening, PublicEvent, Told


class Public(NamedTuple):
    """The public side of one kind of aggregate."""

    events: tuple[type[PublicEvent], ...]
    """All that there are."""
    tell: Callable[[Happening[Any]], Iterable[Told]]
    """Those of one commit, in order: of nothing but what it is given, and never raising."""


def _nothing(_: Happening[Any]) -> Iterable[Told]:
    return ()


PUBLIC: Final[dict[str, Public]] = {
    WORKLOAD.name: Public(workload.EVENTS, workload.tell),
    NODE.name: Public(node.EVENTS, node.tell),
    CLUSTER.name: Public(cluster.EVENTS, cluster.tell),
    PROJECT.name: Public(project.EVENTS, project.tell),
    # Belongs to no project, and which projects stand in it, those tell themselves.
    DEPARTMENT.name: Public((), _nothing),
    VOID.name: Public(lost.EVENTS, lost.tell),
    # Who has which role everywhere is no project's business; nor are prices, until they exhaust a budget.
    TENANT.name: Public((), _nothing),
    PRICES.name: Public((), _nothing),
    # Sums that people ask for, and nothing that happens.
    HOURS.name: Public((), _nothing),
    # Most belong to no project, and what is made from them is told with the workload.
    ASSET.name: Public((), _nothing),
    # That of the tenant belongs to no project, and what came of one is told with the workload.
    POLICY.name: Public((), _nothing),
    LOG.name: Public((), lost.tell_restored),
}
"""By aggregate: one line for each. What is not here has no public events."""

PUBLIC_EVENTS: Final[dict[str, type[PublicEvent]]] = {
    event.__name__: event for public in PUBLIC.values() for event in public.events
}
"""Every public event, by its name: the last token of its subject, too."""
