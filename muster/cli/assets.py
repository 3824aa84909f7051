"""`muster environment`, `muster compute`, `muster datasource` and `muster template`: what workloads are made from. All
are alike; data sources have one group of verbs for each kind.
"""

import inspect
import time
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from events.article import with_article
from events.nearest import did_you_mean
from muster.cli.command import MusterGroup, Session, command, group
from muster.cli.complete import (
    cluster_names,
    compute_names,
    credential_names,
    data_source_names,
    department_names,
    environment_names,
    project_names,
    template_names,
)
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import LAG_SECONDS, UUID, cluster_id, find_cluster, find_department, find_project, project_id
from muster.cli.options import IdempotencyOption, YesOption, confirm
from muster.cli.output import Column, plain_text
from muster.cli.values import Row, row_of, rows_of, text_of, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PAGE: Final = 100
"""Rows that are asked for at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetNoun:
    """One kind of asset on the command line."""

    noun: str
    called: str
    path: str
    rows: str
    """The field of a list that holds them."""
    example: str
    """Name in examples."""
    names: "Callable[[Any, str], list[str]]"
    """What a shell completes."""
    after: str = "Workloads made from it stay as they are."
    """What its deletion leaves."""
    kept: str = "Workloads made from it stay as they are."
    """What its change leaves."""
    default_scope: str = "tenant"
    """Where neither the file nor a flag says one."""


ENVIRONMENT: Final = AssetNoun(
    noun="environment",
    called="environment",
    path="/asset/environment",
    rows="environments",
    example="pytorch",
    names=environment_names,
)
COMPUTE: Final = AssetNoun(
    noun="compute",
    called="compute resource",
    path="/asset/compute",
    rows="computeResources",
    example="half-gpu",
    names=compute_names,
)
TEMPLATE: Final = AssetNoun(
    noun="template",
    called="template",
    path="/workload-templates",
    rows="templates",
    example="nightly",
    names=template_names,
)


def _source(kind: str, called: str, example: str) -> AssetNoun:
    return AssetNoun(
        noun=f"datasource {kind}",
        called=f"{called} data source",
        path=f"/asset/datasource/{kind}",
        rows="dataSources",
        example=example,
        names=data_source_names,
        after="Its data, and workloads made from it, stay as they are.",
    )


CREDENTIALS: Final = AssetNoun(
    noun="credentials",
    called="credential",
    path="/asset/credentials",
    rows="credentials",
    example="wandb",
    names=credential_names,
    after="Its values are gone, and no pod that needs it starts any more.",
    kept="Pods that start from now on find it.",
    default_scope="project",
)
DATA_VOLUME: Final = AssetNoun(
    noun="datasource data-volume",
    called="data volume",
    path="/asset/datasource/data-volume",
    rows="dataSources",
    example="imagenet",
    names=data_source_names,
    after="Its data stays. Pods that have it keep it, and no pod that starts later finds it.",
)
SOURCES: Final = (
    _source("pvc", "PVC", "imagenet"),
    _source("git", "Git", "code"),
    _source("nfs", "NFS", "archive"),
    _source("s3", "S3", "sets"),
    _source("host-path", "host path", "scratch"),
    _source("config-map", "ConfigMap", "settings"),
    _source("secret", "Secret", "certificates"),
    DATA_VOLUME,
)


def _what(row: Row) -> str:
    """What it is most of all asked for; where it is none of that, the fields that it has."""
    spec, compute = row_of(row, "spec"), row_of(row_of(row, "spec"), "compute")
    names = ("gpuDevicesRequest", "gpuPortionRequest", "gpuMemoryRequest", "cpuCoreRequest", "cpuMemoryRequest")
    if text_of(spec, "kind"):
        return f"{text_of(spec, 'kind')}: {', '.join(texts_of(spec, 'keys'))}"
    place = ("claimName", "repository", "server", "bucket", "path", "configMap", "secret", "mountPath")
    of_source = [text_of(spec, name) for name in place if text_of(spec, name)]
    told = [
        text_of(spec, "image"),
        *of_source,
        *(f"{name} {plain_text(compute[name])}" for name in names if compute.get(name)),
    ]
    return ", ".join(part for part in told if part) or ", ".join(spec)


def _status(row: Row) -> str:
    """Of a data source: on how many clusters it cannot be used."""
    issues = rows_of(row, "issues")
    where = f" on {len(issues)} clusters" if len(issues) > 1 else ""
    return f"issues found{where}" if issues else text_of(row, "status")


ASSET_COLUMNS: Final = (
    Column("NAME", "meta.name"),
    Column("SCOPE", "meta.scope"),
    Column("TYPE", "meta.workloadType"),
    Column("SETS", "spec", show=_what, rest=True),
    Column("CREATED", "meta.createdAt", time=True),
    Column("BY", "meta.createdBy", wide=True),
    Column("PROJECT", "meta.projectId", wide=True),
    Column("CLUSTER", "meta.clusterId", wide=True),
    Column("DEPARTMENT", "meta.departmentId", wide=True),
    Column("ID", "meta.id", wide=True),
)
_STATUS: Final = Column("STATUS", "status", show=_status)
_OF_ONE_KIND: Final = (*ASSET_COLUMNS[:2], _STATUS, *ASSET_COLUMNS[3:])
"""Of data sources: whether they can be used, and no TYPE, which is that of workloads."""
_OWNER: Final = Column("OWNER", "ownerProject")
"""Of data volumes: the project whose claim it is, and which gave the name. Others may have given the same."""

_OF_DATA_VOLUMES: Final = (
    ASSET_COLUMNS[0],
    _OWNER,
    *(
        # Of the cluster that has its claim; `meta` names one only where that is the scope.
        Column("CLUSTER", "spec.clusterId", wide=True) if column.header == "CLUSTER" else column
        for column in _OF_ONE_KIND[1:]
    ),
)
_SOURCE_COLUMNS: Final = (ASSET_COLUMNS[0], Column("KIND", "kind"), _OWNER, *_OF_ONE_KIND[1:])
_SearchOption = Annotated[str | None, typer.Option("--search", help="Only those with this in their name.")]
_FileOption = Annotated[
    str, typer.Option("--file", "-f", metavar="FILE|-", help="Read meta and spec from this YAML or JSON file.")
]


def _scope_option(of: AssetNoun) -> Any:
    scopes = "tenant|department|project" if of is DATA_VOLUME else "tenant|cluster|department|project"
    nobody = "everybody" if of.default_scope == "tenant" else "workloads of your default project"
    told = f"Who can use it. Default: whom a flag names, else what the file says, else {nobody}."
    return Annotated[str | None, typer.Option("--scope", metavar=scopes, help=told)]


_ForProject = Annotated[
    str | None,
    typer.Option(
        "--project", "-p", help="Only for workloads of this project (name or id).", autocompletion=project_names
    ),
]
_ForCluster = Annotated[
    str | None,
    typer.Option("--cluster", help="Only for workloads of this cluster (name or id).", autocompletion=cluster_names),
]
_ForDepartment = Annotated[
    str | None,
    typer.Option(
        "--department", help="Only for workloads of this department (name or id).", autocompletion=department_names
    ),
]
_OfProject = Annotated[
    str | None,
    typer.Option(
        "--project",
        "-p",
        help="Only those that workloads of this project (name or id) can use.",
        autocompletion=project_names,
    ),
]
_OfCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Only those that workloads of this cluster (name or id) can use.",
        autocompletion=cluster_names,
    ),
]
_OfDepartment = Annotated[
    str | None,
    typer.Option(
        "--department",
        help="Only those that workloads of this department (name or id) can use.",
        autocompletion=department_names,
    ),
]


def find_asset(
    session: Session, of: AssetNoun, given: str, *, project: str | None = None, cluster: str | None = None
) -> Row:
    """One by its name or id, among those that workloads of this project and cluster (ids) can use; a data volume also
    by its owner and its name, OWNER/NAME. Raises Problem.
    """
    if UUID.match(given.lower()):
        return session.api.get(f"{of.path}/{given.lower()}")
    scope = [(name, value) for name, value in (("projectId", project), ("clusterId", cluster)) if value]
    found = _named(session, of, given, scope)
    if not found and not session.as_of:
        time.sleep(LAG_SECONDS)
        found = _named(session, of, given, scope)
    if len(found) == 1:
        return found[0]
    if found:
        raise Problem(
            f"{given!r} names several {of.called}s",
            why=tuple(f"{text_of(row_of(row, 'meta'), 'id')}  {_where(row)}" for row in found),
            todo=_TODO_OWNER if of is DATA_VOLUME else "give the project (-p) or the cluster (--cluster), or the id",
            code=ExitCode.USAGE,
        )
    if cluster:
        anywhere = _named(session, of, given, [("projectId", project)] if project else [])
        _refuse_elsewhere(session, of.called, given, [(of, row) for row in anywhere])
    known = [_known_as(row) for row in rows_of(session.api.get(of.path, scope), of.rows)]
    raise Problem(
        f"there is no {of.called} {given!r} that you can use here",
        why=(f"there are: {', '.join(known[:20])}" if known else "there are none",),
        todo=did_you_mean(given, known) or f"`muster {of.noun} list` shows what there is",
        code=ExitCode.NOT_FOUND,
    )


def _named(session: Session, of: AssetNoun, given: str, scope: list[tuple[str, str]]) -> list[Row]:
    """Those of this name; where it is OWNER/NAME, those of this owner (name or id) alone."""
    if of is not DATA_VOLUME or "/" not in given:
        return rows_of(session.api.get(of.path, [("name", given), *scope]), of.rows)
    owner, _, name = given.rpartition("/")
    asked: list[tuple[str, str | int]] = [("name", name), *scope]
    found, _ = session.api.pages(of.path, of.rows, asked, at_once=PAGE)
    return [row for row in found if owner in {text_of(row, "ownerProject"), text_of(row_of(row, "spec"), "projectId")}]


def _known_as(row: Row) -> str:
    """By which name it is found: OWNER/NAME of a data volume."""
    owner, name = text_of(row, "ownerProject"), text_of(row_of(row, "meta"), "name")
    return f"{owner}/{name}" if owner else name


_TODO_OWNER: Final = (
    "give the project whose claim it is, as OWNER/NAME (with --datasource: data-volume/OWNER/NAME), or the id"
)


def _refuse_elsewhere(session: Session, called: str, name: str, found: "Sequence[tuple[AssetNoun, Row]]") -> None:
    """Raises Problem where what was looked for on one cluster, or on any, is only on clusters that have to be named."""
    if not found:
        return
    ids = {text_of(row_of(row, "meta"), "clusterId") or text_of(row_of(row, "spec"), "clusterId") for _, row in found}
    known = {text_of(row, "id"): text_of(row, "name") for row in rows_of(session.api.get("/clusters"), "clusters")}
    names = sorted(known.get(id_, id_) for id_ in ids if id_)
    if names:
        raise Problem(
            f"{called} {name!r} is on cluster {' and on cluster '.join(names)} alone",
            todo=f"name {'that cluster' if len(names) == 1 else 'one of them'}: --cluster {names[0]}",
            code=ExitCode.NOT_FOUND,
        )


def _where(row: Row) -> str:
    meta = row_of(row, "meta")
    place = text_of(meta, "projectId") or text_of(meta, "clusterId") or text_of(meta, "departmentId")
    owner = text_of(row, "ownerProject")
    of_owner = f", of project {owner}" if owner else ""
    return f"{text_of(meta, 'scope')} {place}".strip() + of_owner


_PLACES: Final = {"projectId": "/org-unit/projects", "clusterId": "/clusters", "departmentId": "/org-unit/departments"}


def _where_by_name(session: Session, row: Row) -> str:
    """For people. What has no name any more, or is not theirs to see, is told by its id."""
    meta = row_of(row, "meta")
    for field, path in _PLACES.items():
        if place := text_of(meta, field):
            try:
                return f"{text_of(meta, 'scope')} {text_of(session.api.get(f'{path}/{place}'), 'name')}"
            except Problem:
                return _where(row)
    return _where(row)


def add_environment(root: typer.Typer) -> None:
    _add(root, ENVIRONMENT)


def add_compute(root: typer.Typer) -> None:
    _add(root, COMPUTE)


def add_template(root: typer.Typer) -> None:
    _add(root, TEMPLATE)


def add_credentials(root: typer.Typer) -> None:
    from muster.cli.rotate import add_rotate_key

    app = group(CREDENTIALS.noun)
    _add_verbs(app, CREDENTIALS)
    add_rotate_key(app)
    root.add_typer(app, name=CREDENTIALS.noun)


def add_data_sources(root: typer.Typer) -> None:
    app = group("datasource")

    @command(
        app,
        "list",
        examples="muster datasource list\nmuster datasource list --search imagenet -p vision",
        columns=_SOURCE_COLUMNS,
        past=True,
    )
    def list_(
        session: Session,
        *,
        search: _SearchOption = None,
        project: _OfProject = None,
        cluster: _OfCluster = None,
        department: _OfDepartment = None,
    ) -> None:
        """List the data sources of every kind that you can use."""
        scope = _scope(session, search, project, cluster, department)
        rows: list[Row] = []
        for of in SOURCES:
            found, _ = session.api.pages(of.path, of.rows, scope, at_once=PAGE)
            rows += [{**row, "kind": of.noun.removeprefix("datasource ")} for row in found]
        session.out.rows(rows, _SOURCE_COLUMNS, name="meta.name", empty="no data sources that you can use")

    for of in SOURCES:
        below = typer.Typer(
            cls=MusterGroup,
            help=f"{of.called}s: list, inspect, create, update, delete.",
            no_args_is_help=True,
            rich_markup_mode=None,
        )
        _add_verbs(below, of)
        app.add_typer(below, name=of.noun.removeprefix("datasource "))
    root.add_typer(app, name="datasource")


def _add(root: typer.Typer, of: AssetNoun) -> None:
    app = group(of.noun)
    _add_verbs(app, of)
    root.add_typer(app, name=of.noun)


def _add_verbs(app: typer.Typer, of: AssetNoun) -> None:
    _add_reads(app, of)
    _add_create(app, of)
    _add_changes(app, of)


def find_data_source(session: Session, given: str, *, project: str, cluster: str) -> str:
    """The id of one, given by its name, by KIND/NAME, by data-volume/OWNER/NAME or by its id. Raises Problem."""
    if UUID.match(given.lower()):
        return given.lower()
    kind, slash, name = given.partition("/")
    if slash:
        of = next((of for of in SOURCES if of.noun == f"datasource {kind}"), None)
        if of is None:
            kinds = ", ".join(of.noun.removeprefix("datasource ") for of in SOURCES)
            raise usage(f"--datasource: {kind!r} is no kind of data source", todo=f"the kinds are {kinds}")
        return text_of(row_of(find_asset(session, of, name, project=project, cluster=cluster), "meta"), "id")
    scope = [(key, value) for key, value in (("name", given), ("projectId", project), ("clusterId", cluster)) if value]
    found = [(of, row) for of in SOURCES for row in rows_of(session.api.get(of.path, scope), of.rows)]
    # Any project can offer a data volume by any name: it is no reason to refuse a name of something else.
    others = [one for one in found if one[0] is not DATA_VOLUME]
    if others and len(others) < len(found):
        session.out.talk(f"data source {given!r} is not the data volume of that name: that is data-volume/{given}")
        found = others
    if len(found) == 1:
        return text_of(row_of(found[0][1], "meta"), "id")
    if found:
        raise Problem(
            f"{given!r} names several data sources",
            why=tuple(f"{of.called} {text_of(row_of(row, 'meta'), 'id')}  {_where(row)}" for of, row in found),
            todo="give its kind, as git/NAME (of a data volume also its owner, data-volume/OWNER/NAME), or its id",
            code=ExitCode.USAGE,
        )
    if cluster:
        scope = [("projectId", project)] if project else []
        elsewhere = [(of, row) for of in SOURCES for row in _named(session, of, given, scope)]
        _refuse_elsewhere(session, "data source", given, elsewhere)
    raise Problem(
        f"there is no data source {given!r} that you can use here",
        todo="`muster datasource list` shows what there is",
        code=ExitCode.NOT_FOUND,
    )


def _columns(of: AssetNoun) -> tuple[Column, ...]:
    if of is DATA_VOLUME:
        return _OF_DATA_VOLUMES
    return _OF_ONE_KIND if of in SOURCES else ASSET_COLUMNS


def _takes_one(function: "Callable[..., None]", of: AssetNoun) -> None:
    """Says of the parameter `asset` what it names, by which it is completed."""
    names = "Name, OWNER/NAME or id" if of is DATA_VOLUME else "Name or id"
    told = typer.Argument(metavar="ASSET", help=f"{names} of the {of.called}.", autocompletion=of.names)
    function.__annotations__["asset"] = Annotated[str, told]


def _add_reads(app: typer.Typer, of: AssetNoun) -> None:
    def list_(
        session: Session,
        *,
        search: _SearchOption = None,
        project: _OfProject = None,
        cluster: _OfCluster = None,
        department: _OfDepartment = None,
        limit: Annotated[
            int, typer.Option("--limit", metavar="N", min=0, help="Maximum number of rows; 0 shows all.")
        ] = PAGE,
    ) -> None:
        scope = _scope(session, search, project, cluster, department)
        rows, more = session.api.pages(of.path, of.rows, scope, most=limit, at_once=PAGE)
        session.out.rows(rows, _columns(of), name="meta.name", empty=f"no {of.called}s that you can use")
        if more:
            session.out.talk(f"there are more than {limit}; --limit 0 shows all")

    def describe(session: Session, asset: str, *, project: _OfProject = None, cluster: _OfCluster = None) -> None:
        row = find_asset(session, of, asset, **_place(session, project, cluster))
        session.out.one(row, lambda: _describe(session, row), name="meta.name", columns=_columns(of))

    _takes_one(describe, of)
    list_.__doc__ = f"List the {of.called}s that you can use."
    describe.__doc__ = f"Show {with_article(of.called)}."
    listing = f"muster {of.noun} list\nmuster {of.noun} list --search {of.example} -p vision"
    command(app, "list", examples=listing, columns=_columns(of), past=True)(list_)
    command(app, "describe", examples=f"muster {of.noun} describe {of.example}", columns=_columns(of), past=True)(
        describe
    )


def _scope(
    session: Session, search: str | None, project: str | None, cluster: str | None, department: str | None
) -> list[tuple[str, str | int]]:
    """Query parameters of a list. Raises Problem."""
    scope: list[tuple[str, str | int]] = [("search", search)] if search else []
    if project:
        scope.append(("projectId", project_id(session.api, project)))
    if cluster:
        scope.append(("clusterId", text_of(find_cluster(session.api, cluster), "id")))
    if department:
        scope.append(("departmentId", text_of(find_department(session.api, department), "id")))
    return scope


def _place(session: Session, project: str | None, cluster: str | None) -> dict[str, str | None]:
    return {
        "project": text_of(find_project(session.api, project), "id") if project else None,
        "cluster": cluster_id(session, cluster) if cluster else None,
    }


def _describe(session: Session, row: Row) -> None:
    import yaml

    meta = row_of(row, "meta")
    session.out.pairs(
        [
            ("Name", text_of(meta, "name")),
            ("Id", text_of(meta, "id")),
            ("For", text_of(meta, "workloadType")),
            ("Owner", text_of(row, "ownerProject")),
            ("Scope", _where_by_name(session, row)),
            ("Created", f"{session.out.time(meta.get('createdAt'))} by {text_of(meta, 'createdBy')}"),
            ("Changed", session.out.time(meta.get("changedAt")) if meta.get("changedAt") else ""),
        ]
    )
    if issues := rows_of(row, "issues"):
        session.out.heading("Issues")
        clusters = rows_of(session.api.get("/clusters"), "clusters")
        names = {text_of(cluster, "id"): text_of(cluster, "name") for cluster in clusters}
        for one in issues:
            cluster, found = text_of(one, "clusterId"), session.out.time(one.get("since"))
            told = f"cluster {names.get(cluster, cluster)}: {text_of(one, 'issue')} (found {found})"
            session.out.write(f"{told}\n")
    session.out.heading("Spec")
    session.out.write(yaml.safe_dump(row.get("spec"), sort_keys=False, allow_unicode=True))


def _add_create(app: typer.Typer, of: AssetNoun) -> None:
    def create(
        session: Session,
        name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name. Default: the file's.")] = None,
        *,
        file: _FileOption,
        scope: str | None = None,
        project: _ForProject = None,
        cluster: _ForCluster = None,
        department: _ForDepartment = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        body = _read(file)
        meta: Row = {**row_of(body, "meta")}
        if name is not None:
            meta["name"] = name
        if not text_of(meta, "name"):
            raise usage(f"the {of.called} needs a name", todo=f"muster {of.noun} create NAME -f {quote(file)}")
        _set_place(session, of, meta, scope, {"project": project, "cluster": cluster, "department": department})
        _find_named(session, of, body, meta)
        made = session.api.mutate("POST", of.path, {**body, "meta": meta}, idempotency_key=idempotency_key).body
        _made(session, of, made)
        session.out.talk(f"{of.called} {text_of(row_of(made, 'meta'), 'name')} created")

    create.__doc__ = f"Create {with_article(of.called)} from a file."
    create.__annotations__["scope"] = _scope_option(of)
    examples = f"muster {of.noun} create {of.example} -f {of.example}.yaml"
    if of is DATA_VOLUME:
        create.__doc__ = _CREATE_DATA_VOLUME
        _leave_out(create, "cluster")  # the file says of which it is
        examples = f"{examples}  # for everybody\n{examples} -p speech  # for this project alone"
    else:
        examples = f"{examples}\n{examples} -p vision"
    command(app, "create", examples=examples, columns=_columns(of))(create)


_CREATE_DATA_VOLUME: Final = """Create a data volume from a file: share a claim with others.

The file's spec says whose claim it is: projectId, clusterId and claimName. Flags say who reads it.
"""


def _leave_out(function: "Callable[..., None]", name: str) -> None:
    """One of its parameters is no flag: it has its default."""
    signature = inspect.signature(function)
    kept = [one for one in signature.parameters.values() if one.name != name]
    # A signature of its own hides later annotations: each is set before.
    function.__signature__ = signature.replace(parameters=kept)


def _find_named(session: Session, of: AssetNoun, body: Row, meta: Row) -> None:
    """Puts ids in place of the names of assets in a template, and of the project and the cluster of a data volume.
    Raises Problem.
    """
    if of is DATA_VOLUME:
        spec = row_of(body, "spec")
        if owner := text_of(spec, "projectId"):
            spec["projectId"] = project_id(session.api, owner)
        if where := text_of(spec, "clusterId"):
            spec["clusterId"] = text_of(find_cluster(session.api, where), "id")
    if of is TEMPLATE:
        from muster.cli.references import References

        place = {"project": text_of(meta, "projectId"), "cluster": text_of(meta, "clusterId")}
        References(session).resolve_assets(row_of(body, "spec"), place)


def _made(session: Session, of: AssetNoun, row: Row) -> None:
    columns = _columns(of)
    session.out.one(row, lambda: session.out.table([row], columns), name="meta.name", columns=columns)


def _set_place(
    session: Session, of: AssetNoun, meta: Row, scope: str | None, places: "Mapping[str, str | None]"
) -> None:
    """What flags say goes before the file. Raises Problem."""
    named = [place for place, given in places.items() if given]
    if len(named) > 1 and scope is None:
        flags = " and ".join(f"--{place}" for place in named)
        raise usage(f"{flags} exclude each other", todo=f"an asset is for one {', or one '.join(named)}")
    scope = scope or next(iter(named), None)
    if scope is None and (meta.get("scope") or of.default_scope == "tenant"):
        meta.setdefault("scope", "tenant")
        return
    scope = scope or of.default_scope
    meta["scope"] = scope
    for place in ("projectId", "clusterId", "departmentId"):
        meta.pop(place, None)
    if scope == "project" or places["project"]:
        from muster.cli.names import default_project

        meta["projectId"] = text_of(default_project(session, places["project"]), "id")
    if scope == "cluster" or places["cluster"]:
        meta["clusterId"] = cluster_id(session, places["cluster"])
    if department := places["department"]:
        meta["departmentId"] = text_of(find_department(session.api, department), "id")


def _read(file: str) -> Row:
    from muster.cli.request_file import read_document

    return read_document(file, ("meta", "spec"), what="an asset")


def _add_changes(app: typer.Typer, of: AssetNoun) -> None:
    def update(
        session: Session,
        asset: str,
        *,
        file: _FileOption,
        project: _OfProject = None,
        cluster: _OfCluster = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        row = find_asset(session, of, asset, **_place(session, project, cluster))
        path = f"{of.path}/{text_of(row_of(row, 'meta'), 'id')}"
        body: Row = {"spec": _read(file).get("spec")}
        _find_named(session, of, body, row_of(row, "meta"))
        made = session.api.mutate("PUT", path, body, idempotency_key=idempotency_key).body
        _made(session, of, made)
        session.out.talk(f"{of.called} {text_of(row_of(made, 'meta'), 'name')} is as the file says")

    def delete(
        session: Session,
        asset: str,
        *,
        project: _OfProject = None,
        cluster: _OfCluster = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        row = find_asset(session, of, asset, **_place(session, project, cluster))
        name = text_of(row_of(row, "meta"), "name")
        confirm(f"delete {of.called} {name}? {of.after}", yes=yes)
        path = f"{of.path}/{text_of(row_of(row, 'meta'), 'id')}"
        session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(f"{of.called} {name} deleted")

    _takes_one(update, of)
    _takes_one(delete, of)
    update.__doc__ = f"Set what {with_article(of.called)} sets, from a file. {of.kept}"
    delete.__doc__ = f"Delete {with_article(of.called)}. {of.after}"
    command(
        app,
        "update",
        examples=f"muster {of.noun} update {of.example} -f {of.example}.yaml",
        columns=_columns(of),
    )(update)
    command(app, "delete", output=False, examples=f"muster {of.noun} delete {of.example} -y")(delete)
