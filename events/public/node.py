"""Public events of nodes: told to the projects whose pods hold something of the node. Pure."""

from collections.abc import Iterator
from typing import Final

from events.node import Node, evolve
from events.public.shape import MOST_NAME_CHARACTERS, Happening, PublicEvent, Told, cut


class NodeEvent(PublicEvent, frozen=True, kw_only=True, rename="camel"):
    """About a node on which the project has pods."""

    node: str
    """Name of the node in its cluster."""
    cluster_id: str
    """UUID of the cluster."""


class NodeReady(NodeEvent, frozen=True, kw_only=True, rename="camel"):
    """The node is ready again."""


class NodeNotReady(NodeEvent, frozen=True, kw_only=True, rename="camel"):
    """The node does not answer, or its cluster says that it is not ready. Nothing new is placed there."""


class NodeCordoned(NodeEvent, frozen=True, kw_only=True, rename="camel"):
    """An administrator keeps new pods off the node. Pods that run there stay."""


class NodeUncordoned(NodeEvent, frozen=True, kw_only=True, rename="camel"):
    """The node takes new pods again, unless its cluster says otherwise."""


class NodeRemoved(NodeEvent, frozen=True, kw_only=True, rename="camel"):
    """The node is gone from its cluster, and the pods with it."""


EVENTS: Final[tuple[type[PublicEvent], ...]] = (NodeReady, NodeNotReady, NodeCordoned, NodeUncordoned, NodeRemoved)


def tell(happening: Happening[Node]) -> Iterator[Told]:
    """The public events of a commit of a node."""
    state = happening.before
    for index, event in enumerate(happening.commit.events):
        was, state = state, evolve(state, event)
        kinds = list(_changes(was, state))
        if not kinds:
            continue
        holders = {reservation.workload_key for reservation in state.reservations.values()}
        projects = sorted({project for key in holders if (project := happening.around.project_of(key))})
        name = cut(state.name, MOST_NAME_CHARACTERS)
        for kind in kinds:
            told = kind(actor=happening.actor, node=name, cluster_id=cut(state.cluster_id))
            yield from happening.for_all(index, told, projects)


def _changes(was: Node, now: Node) -> Iterator[type[NodeEvent]]:
    if was.present and not now.present:
        yield NodeRemoved
    if was.present and now.present and was.facts.ready is not now.facts.ready:
        yield NodeReady if now.facts.ready else NodeNotReady
    if was.cordoned is not now.cordoned:
        yield NodeCordoned if now.cordoned else NodeUncordoned
