"""From what a person types (a name, an id, the beginning of one, @latest) to the API's object. Reads only.

A list lags the log by some milliseconds, so a name that is not found is looked for once more.
"""

import contextlib
import os
import re
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from events.nearest import did_you_mean
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.values import Json, Row, row_of, rows_of, text_of

if TYPE_CHECKING:
    from muster.cli.client import Api
    from muster.cli.command import Session

LATEST: Final = "@latest"
UUID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_ID_PREFIX = re.compile(r"^[0-9a-f]{4,8}(-[0-9a-f-]{0,27})?$")
"""At least four digits: shorter ones are more likely a name's typing error."""
LAG_SECONDS: Final = 0.3
"""More than the p99 from event to row."""
_MOST_NAMED: Final = 20
"""Names in one sentence."""
_MOST_ROWS: Final = 100_000
"""Of a list that is read whole: an end, whatever the answers say."""
_SHOWN: Final = 5
"""Candidates that an ambiguity names."""


def workload_id(session: "Session", given: str, project: str | None, *, deleted: bool = False) -> str:
    """The id of the workload that `given` names; `deleted` looks among what is gone, too. Raises Problem."""
    return workload_told(session, given, project, deleted=deleted)[0]


def workload_for_change(session: "Session", given: str, project: str | None, key: str | None) -> tuple[str, str]:
    """As `workload_told`, of one that a request is about. With an Idempotency-Key it may come again after the workload
    is gone: then the last one of that name is meant. Raises Problem.
    """
    if key is not None and given == LATEST:
        raise usage(
            f"--idempotency-key does not go with {LATEST}, which may be another workload when it is given again",
            todo="give a name or an id",
        )
    return workload_told(session, given, project, deleted=key is not None)


def workload_told(session: "Session", given: str, project: str | None, *, deleted: bool = False) -> tuple[str, str]:
    """Its id, and what to call it to whoever said `given`: so that `@latest` hides nothing. Raises Problem."""
    if UUID.match(given.lower()):
        if project:
            find_project(session.api, project)
        return given.lower(), given
    found = _find_workloads(session.api, given, session.project(project), deleted=deleted)
    if not found:
        time.sleep(LAG_SECONDS)
        found = _find_workloads(session.api, given, session.project(project), deleted=deleted)
    if len(found) == 1:
        identifier, name = text_of(found[0], "id"), text_of(found[0], "name")
        return identifier, given if given == name else f"{name} ({identifier})"
    if found:
        listed = [f"{text_of(row, 'id')}  {text_of(row, 'name')} in {text_of(row, 'projectName')}" for row in found]
        raise Problem(
            f"{given!r} names several workloads",
            why=tuple(listed[:_SHOWN]),
            todo="give the project (-p), or the id",
            code=ExitCode.USAGE,
        )
    # In a project that is not there, there is none, either.
    if project:
        find_project(session.api, project)
    elif session.target.project:
        find_default_project(session, session.api)
    if session.as_of:
        raise Problem(
            f"{_then(session.as_of)} there was no workload {given!r}" + _in_project(session.project(project)),
            todo=f"`muster workload list -A --as-of {session.as_of}` shows what there was",
            code=ExitCode.NOT_FOUND,
        )
    raise Problem(
        f"there is no workload {given!r}" + _in_project(session.project(project)),
        todo="`muster workload list -A` shows what you may see; with --deleted what is gone",
        code=ExitCode.NOT_FOUND,
    )


def check_new_name(name: str) -> None:
    """Raises Problem (usage) for a name by which a workload could never be asked for."""
    taken = f"{LATEST} is the newest workload" if name == LATEST else "it looks like an id"
    if name == LATEST or UUID.match(name.lower()):
        raise usage(f"a workload cannot be named {name!r}: {taken}", todo="give it another name")


def workload_filters(project: str | None) -> list[tuple[str, str | int]]:
    """Query parameters that keep a list to one project, by its name or id."""
    if not project:
        return []
    if UUID.match(project.lower()):
        return [("filterBy", f"projectId=={project.lower()}")]
    return [("filterBy", f"projectName=={project}")]


def project_id(api: "Api", given: str) -> str:
    """A project's id by its name or id. Raises Problem."""
    return text_of(find_project(api, given), "id")


def project_names(api: "Api") -> dict[str, str]:
    """Names of the projects that the caller may see, by id."""
    return {text_of(row, "id"): text_of(row, "name") for row in every(api, "/org-unit/projects", "projects")}


def every(api: "Api", path: str, key: str, parameters: Sequence[tuple[str, str | int]] = ()) -> list[Row]:
    """The rows of all pages of a list."""
    rows: list[Row] = []
    offset: Json = 0
    while isinstance(offset, int) and len(rows) < _MOST_ROWS:
        page = api.get(path, [*parameters, ("offset", offset)] if offset else list(parameters))
        rows += rows_of(page, key)
        offset = row_of({"page": page}, "page").get("next")
    return rows


def find_project(api: "Api", given: str) -> Row:
    return _find_in_pages(api, given, path="/org-unit/projects", key="projects", what="project")


def find_department(api: "Api", given: str) -> Row:
    return _find_in_pages(api, given, path="/org-unit/departments", key="departments", what="department")


def _find_in_pages(api: "Api", given: str, *, path: str, key: str, what: str) -> Row:
    """Of a list with pages: by its name first, which takes one page however many there are."""
    if (found := _named(rows_of(api.get(path, [("name", given)]), key), given)) is not None:
        return found
    things = every(api, path, key)
    return _named(things, given) or refuse_name(things, given, what=what, as_of=api.as_of)


def find_default_project(session: "Session", api: "Api") -> Row:
    """The project of the context, or of MUSTER_PROJECT. Raises Problem, which says where its name comes from."""
    with _told_as_default(session, "project"):
        return find_project(api, session.target.project)


@contextlib.contextmanager
def _told_as_default(session: "Session", what: str) -> Generator[None]:
    """Nobody typed the name that is looked for: where there is no such thing, say who did."""
    try:
        yield
    except Problem as problem:
        if problem.code is not ExitCode.NOT_FOUND or session.as_of:
            raise
        variable = f"MUSTER_{what.upper()}"
        ours = what == "project" and os.environ.get(variable)
        source = variable if ours else f"the context {session.target.name!r}, as its default {what}"
        raise Problem(
            problem.what,
            why=(*problem.why, f"the name comes from {source}"),
            todo=f"set {variable} to another" if ours else f"choose another: muster {what} set NAME",
            code=problem.code,
        ) from problem


def find_node_pool(api: "Api", given: str, cluster: str) -> Row:
    """The node pool of a cluster, by its name; `cluster` is an id. Raises Problem."""
    scope = (("clusterId", cluster),)
    return _find_named(api, given, path="/node-pools", key="nodePools", what="node pool", parameters=scope)


def find_cluster(api: "Api", given: str, *, removed: bool = False) -> Row:
    """A cluster by its name or id; `removed`: else the last that was removed. Raises Problem."""
    living = rows_of(api.get("/clusters"), "clusters")
    found = _named(living, given)
    if found is None and removed:
        found = _named(rows_of(api.get("/clusters", [("removed", "true")]), "clusters"), given)
    return found or refuse_name(living, given, what="cluster", as_of=api.as_of)


def cluster_id(session: "Session", given: str | None) -> str:
    """The id of `default_cluster`. Raises Problem."""
    return text_of(default_cluster(session, given), "id")


def default_cluster(session: "Session", given: str | None) -> Row:
    """The cluster of the flag, else the context's, else the only one, else the one of this machine. Raises Problem."""
    if given:
        return find_cluster(session.api, given)
    if session.target.cluster:
        with _told_as_default(session, "cluster"):
            return find_cluster(session.api, session.target.cluster)
    clusters = rows_of(session.api.get("/clusters"), "clusters")
    local = [cluster for cluster in clusters if text_of(cluster, "kind") == "local"]
    for candidates in (clusters, local):
        if len(candidates) == 1:
            return candidates[0]
    if not clusters:
        raise Problem(
            "there is no cluster yet", todo="`muster cluster add demo --simulated 4x8`", code=ExitCode.NOT_FOUND
        )
    names = ", ".join(text_of(cluster, "name") for cluster in clusters)
    raise usage(f"there are several clusters: {names}", todo="choose with --cluster, or once with `muster cluster set`")


def default_project(session: "Session", given: str | None) -> Row:
    """The project of the flag, else the default one, else the only one that the caller sees. Raises Problem."""
    if given:
        return find_project(session.api, given)
    if session.target.project:
        return find_default_project(session, session.api)
    projects = every(session.api, "/org-unit/projects", "projects")
    if len(projects) == 1:
        return projects[0]
    if not projects:
        raise Problem(
            "you have no role in any project",
            todo="ask an administrator: `muster role grant YOU researcher -p PROJECT`",
            code=ExitCode.DENIED,
        )
    names = ", ".join(text_of(project, "name") for project in projects)
    raise usage(f"there are several projects: {names}", todo="choose with -p, or once with `muster project set NAME`")


def find_in_project(session: "Session", wanted: str, project: str | None, *, path: str, rows: str, noun: str) -> Row:
    """One of the things that a project has, such as a webhook, by its name or id. Raises Problem.

    Args:
        path: of the list of them; `rows` is the field of its answer that holds them.
        noun: what one of them is called.
    """
    where = default_project(session, project)
    found = rows_of(session.api.get(path, [("projectId", text_of(where, "id"))]), rows)
    for row in found:
        if wanted in (text_of(row, "name"), text_of(row, "id")):
            return row
    names = [text_of(row, "name") for row in found]
    raise Problem(
        f"there is no {noun} {wanted!r} in project {text_of(where, 'name')!r}",
        why=(f"there are: {', '.join(names) or 'none'}",),
        todo=did_you_mean(wanted, names),
        code=ExitCode.NOT_FOUND,
    )


def _find_workloads(api: "Api", given: str, project: str | None, *, deleted: bool) -> list[Row]:
    scope = workload_filters(project)
    if given == LATEST:
        newest: list[tuple[str, str | int]] = [("sortBy", "createdAt"), ("sortOrder", "desc"), ("limit", 1)]
        return rows_of(api.get("/workloads", [*scope, *newest]), "workloads")
    found = _workloads_by(api, [*scope, ("filterBy", f"name=={given}")], deleted=deleted)
    if not found and _ID_PREFIX.match(given.lower()):
        found = _workloads_by(api, [("filterBy", f"id=^{given.lower()}")], deleted=deleted)
    return found


def _workloads_by(api: "Api", parameters: list[tuple[str, str | int]], *, deleted: bool) -> list[Row]:
    """The living ones; else, where asked, the one that was deleted last: a name may have had many."""
    living = rows_of(api.get("/workloads", [*parameters, ("limit", _SHOWN + 1)]), "workloads")
    if living or not deleted:
        return living
    last: list[tuple[str, str | int]] = [("deleted", "true"), ("sortBy", "createdAt"), ("sortOrder", "desc")]
    return rows_of(api.get("/workloads", [*parameters, *last, ("limit", 1)]), "workloads")


def _find_named(
    api: "Api", given: str, *, path: str, key: str, what: str, parameters: tuple[tuple[str, str | int], ...] = ()
) -> Row:
    things = rows_of(api.get(path, parameters), key)
    return _named(things, given) or refuse_name(things, given, what=what, as_of=api.as_of)


def _named(things: list[Row], given: str) -> Row | None:
    """The one with this name or id, else the only one whose id begins so."""
    for thing in things:
        if given in {text_of(thing, "name"), text_of(thing, "id")}:
            return thing
    by_prefix = [thing for thing in things if _ID_PREFIX.match(given) and text_of(thing, "id").startswith(given)]
    return by_prefix[0] if len(by_prefix) == 1 else None


def refuse_name(things: list[Row], given: str, *, what: str, as_of: str | None = None) -> NoReturn:
    """`things` are what the caller may see, as of the moment that was asked for, if any. Raises Problem."""
    names = [text_of(thing, "name") for thing in things]
    if as_of:
        # It may well be there now: a moment before it was made is a usual mistake with a young installation.
        raise Problem(
            f"{_then(as_of)} there was no {what} {given!r}, or you may not see it",
            why=(_listed(what, names, there="there was"),),
            todo=did_you_mean(given, names),
            code=ExitCode.NOT_FOUND,
        )
    raise Problem(
        f"there is no {what} {given!r}, or you may not see it",
        why=(_listed(what, names),),
        todo=did_you_mean(given, names),
        code=ExitCode.NOT_FOUND,
    )


def _then(as_of: str) -> str:
    return f"at that moment (--as-of {as_of})"


def _listed(what: str, names: list[str], *, there: str = "there is") -> str:
    if not names:
        return f"{there} no {what} that you may see"
    more = len(names) - _MOST_NAMED
    return f"{what}s that you may see: {', '.join(sorted(names)[:_MOST_NAMED])}" + (
        f" and {more} more" if more > 0 else ""
    )


def _in_project(project: str | None) -> str:
    return f" in project {project!r}" if project else ""
