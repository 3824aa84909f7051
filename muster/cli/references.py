"""Names where a request says ids: a person writes `projectId: vision` into a file, and the API takes ids alone."""

from collections.abc import Callable
from functools import partial

from muster.cli.anywhere import Placing
from muster.cli.assets import COMPUTE, ENVIRONMENT, TEMPLATE, AssetNoun, find_asset, find_data_source
from muster.cli.command import Session
from muster.cli.exits import Problem
from muster.cli.names import UUID, find_project
from muster.cli.values import Json, Row, row_of, text_of


class References:
    """Looks names up, each once: a folder of a thousand workloads names the same project a thousand times."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[str, ...], str] = {}

    def resolve(self, request: Row, where: str = "") -> None:
        """Puts ids in place of the names of project, cluster, template and assets. Raises Problem, which says where."""
        self._set(request, "projectId", where, lambda name: text_of(find_project(self._session.api, name), "id"))
        self._set(request, "clusterId", where, self._cluster)
        place = {"project": text_of(request, "projectId"), "cluster": text_of(request, "clusterId")}

        self._set(request, "templateId", where, self._asset(TEMPLATE, place), place)
        self.resolve_assets(request, place, where)

    def _cluster(self, name: str) -> str:
        placed: Row = {}
        Placing(self._session, name).place(placed)
        return text_of(placed, "clusterId")

    def resolve_assets(self, holder: Row, place: dict[str, str], where: str = "") -> None:
        """Of the environment, compute resource and data sources in `assets`, as a project and cluster (ids; empty: none
        is known) find them. Raises Problem.
        """
        assets = holder.get("assets")
        if not isinstance(assets, dict):
            return
        self._set(assets, "environmentId", where, self._asset(ENVIRONMENT, place), place)
        self._set(assets, "computeId", where, self._asset(COMPUTE, place), place)
        sources = assets.get("datasourceIds")
        if isinstance(sources, list):
            assets["datasourceIds"] = [self._source(one, where, place) for one in sources]

    def _asset(self, of: AssetNoun, place: dict[str, str]) -> Callable[[str], str]:
        return lambda name: text_of(row_of(find_asset(self._session, of, name, **place), "meta"), "id")

    def _source(self, given: Json, where: str, place: dict[str, str]) -> Json:
        if not isinstance(given, str) or UUID.match(given.lower()):
            return given
        return self._id("datasourceId", given, where, partial(find_data_source, self._session, **place), place)

    def _set(
        self, fields: Row, field: str, where: str, find: Callable[[str], str], place: dict[str, str] | None = None
    ) -> None:
        given = fields.get(field)
        # Null takes away what is below, and what is no text the API refuses by name.
        if isinstance(given, str) and given and not UUID.match(given.lower()):
            fields[field] = self._id(field, given, where, find, place or {})

    def _id(self, field: str, given: str, where: str, find: Callable[[str], str], place: dict[str, str]) -> str:
        key = (field, given, *place.values())
        if key not in self._known:
            try:
                self._known[key] = find(given)
            except Problem as problem:
                what = f"--file: {where}: {problem.what}" if where else problem.what
                raise Problem(what, why=problem.why, todo=problem.todo, code=problem.code) from problem
        return self._known[key]
