"""Which cluster submissions name, and where they name none."""

from functools import cached_property
from typing import TYPE_CHECKING, Final

from muster.cli.names import default_cluster, find_cluster
from muster.cli.values import Row, number_of, row_of, rows_of, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.cli.command import Session

ANYWHERE: Final = "any"
"""In place of a cluster's name: the scheduler chooses. A cluster that is called so goes first."""


def any_cluster() -> str:
    """What a request has as the id of its cluster where the scheduler chooses."""
    from events.ids import ANY_CLUSTER

    return ANY_CLUSTER


class Placing:
    """Says in requests which cluster they are for; what it asks the API for that, it asks once.

    Args:
        given: a cluster by name or id; else it is that of the context, else the only one, else the scheduler chooses.
        named: it must be one, because something is sent there beforehand.
    """

    def __init__(self, session: "Session", given: str | None, *, named: bool = False) -> None:
        self._session, self._given, self._named = session, given, named

    def place(self, request: Row) -> Row:
        """The cluster by whose kind the working folder is found. Raises Problem."""
        chosen = self._fixed or self._this_machine(request)
        if chosen is not None:
            request["clusterId"] = text_of(chosen, "id")
            return chosen
        request["clusterId"] = any_cluster()
        return next((found for kind in ("kubernetes", "local") for found in self._of_kind(kind)), self._clusters[0])

    @cached_property
    def _clusters(self) -> "Sequence[Row]":
        return rows_of(self._session.api.get("/clusters"), "clusters")

    def _of_kind(self, kind: str) -> list[Row]:
        return [each for each in self._clusters if text_of(each, "kind") == kind]

    @cached_property
    def _fixed(self) -> Row | None:
        """The one of all requests; None where the scheduler chooses, or it depends on the request."""
        session, given = self._session, self._given
        if given == ANYWHERE and not self._named and all(text_of(each, "name") != ANYWHERE for each in self._clusters):
            return None if self._clusters else default_cluster(session, None)
        if given:
            return find_cluster(session.api, given)
        if session.target.cluster or self._named or len(self._clusters) < 2:  # noqa: PLR2004 (one leaves no choice)
            return default_cluster(session, None)
        return None

    def _this_machine(self, request: Row) -> Row | None:
        """What runs in a folder of this machine does not run in an image elsewhere, and the other way round. Where
        there are clusters for both, it runs here, unless no node here has as many GPUs.
        """
        local = next(iter(self._of_kind("local")), None)
        if self._given or local is None or not self._of_kind("kubernetes"):
            return None
        compute = row_of(row_of(request, "spec"), "compute")
        shares = any(compute.get(name) for name in ("gpuPortionRequest", "gpuMemoryRequest"))
        asked = number_of(compute, "gpuDevicesRequest") or (1 if shares else 0)
        return local if asked <= self._gpus_here else None

    @cached_property
    def _gpus_here(self) -> float:
        """The most that a node of this machine's cluster has."""
        scope = [("clusterId", text_of(self._of_kind("local")[0], "id"))]
        nodes = rows_of(self._session.api.get("/nodes", scope), "nodes")
        return max((number_of(row_of(node, "capacity"), "gpus") for node in nodes), default=0)
