"""Public events of clusters: told to the projects with unfinished workloads there. Pure."""

from collections.abc import Iterator
from typing import Final

from events.cluster import Cluster, evolve
from events.public.shape import MOST_NAME_CHARACTERS, Happening, PublicEvent, Told, cut


class ClusterEvent(PublicEvent, frozen=True, kw_only=True, rename="camel"):
    """About a cluster on which the project has workloads."""

    cluster_id: str
    """UUID."""
    cluster: str
    """Name of the cluster."""


class ClusterConnected(ClusterEvent, frozen=True, kw_only=True, rename="camel"):
    """Its agent reports again."""


class ClusterDisconnected(ClusterEvent, frozen=True, kw_only=True, rename="camel"):
    """Its agent does not report, or cannot work with the cluster. Nothing new is placed there; pods that run go on."""

    reason: str
    """The problem, as the agent reports it; empty where nothing is heard of the agent."""


class ClusterRemoved(ClusterEvent, frozen=True, kw_only=True, rename="camel"):
    """An administrator removed the cluster. Workloads stay with it, so they will not run any more."""


EVENTS: Final[tuple[type[PublicEvent], ...]] = (ClusterConnected, ClusterDisconnected, ClusterRemoved)


def tell(happening: Happening[Cluster]) -> Iterator[Told]:
    """The public events of a commit of a cluster."""
    state = happening.before
    for index, event in enumerate(happening.commit.events):
        was, state = state, evolve(state, event)
        told = _told(happening, was, state)
        if told is not None:
            yield from happening.for_all(index, told, happening.around.projects_on(state.cluster_id))


def _told(happening: Happening[Cluster], was: Cluster, now: Cluster) -> PublicEvent | None:
    if not was.exists:
        return None  # nobody has anything there yet
    actor, id_, name = happening.actor, cut(now.cluster_id), cut(now.name, MOST_NAME_CHARACTERS)
    if now.removed:
        return ClusterRemoved(actor=actor, cluster_id=id_, cluster=name)
    if now.connected is was.connected:
        return None
    if now.connected:
        return ClusterConnected(actor=actor, cluster_id=id_, cluster=name)
    return ClusterDisconnected(actor=actor, cluster_id=id_, cluster=name, reason=cut(now.problem))
