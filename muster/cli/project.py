"""`muster project`."""

from collections.abc import Sequence
from enum import StrEnum
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.complete import department_names, node_pools
from muster.cli.exits import Problem, usage
from muster.cli.names import every, find_department, find_project
from muster.cli.options import (
    IdempotencyOption,
    ProjectArgument,
    YesOption,
    confirm,
    duration_option,
    switch_option,
)
from muster.cli.output import Column, plain_text
from muster.cli.unmoved import again_where_moved
from muster.cli.values import (
    Row,
    ValueProblem,
    exact_span,
    format_number,
    number_of,
    parse_number,
    row_of,
    rows_of,
    text_of,
)

if TYPE_CHECKING:
    from muster.cli.client import Api


_SETTINGS: Final = (
    "gpuQuota",
    "gpuLimit",
    "overQuotaWeight",
    "minimumRuntimeSeconds",
    "clusterLostSeconds",
    "nodePoolQuotas",
    "nodePools",
    "podSecurity",
    "privileged",
    "nodeTypes",
)


_OF_POOL: Final = ("gpuQuota", "gpuLimit", "overQuotaWeight")
"""What a quota of a pool gives, in this order."""


def _quota(row: Row) -> str:
    return bound_of(row, "gpuQuota")


def bound_of(row: Row, name: str) -> str:
    return "none" if row.get(name) is None else format_number(number_of(row, name))


def weight_of(row: Row) -> str:
    """By which it shares what is left beyond the quotas."""
    return "1" if row.get("overQuotaWeight") is None else bound_of(row, "overQuotaWeight")


def pool_quotas_of(row: Row) -> str:
    """Such as `h100=8/16, a100=none/4/2`: quota, limit and weight of each pool; empty where there are none."""
    return ", ".join(_pool_quota_of(each) for each in rows_of(row, "nodePoolQuotas"))


def _pool_quota_of(row: Row) -> str:
    weight = "" if row.get("overQuotaWeight") is None else f"/{bound_of(row, 'overQuotaWeight')}"
    return f"{text_of(row, 'nodePool')}={bound_of(row, 'gpuQuota')}/{bound_of(row, 'gpuLimit')}{weight}"


PROJECT_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("DEPARTMENT", "departmentName"),
    Column("GPU-QUOTA", "gpuQuota", show=_quota),
    Column("GPU-LIMIT", "gpuLimit", show=lambda row: bound_of(row, "gpuLimit"), wide=True),
    Column("WEIGHT", "overQuotaWeight", show=weight_of, wide=True),
    Column("POOL-QUOTAS", "nodePoolQuotas", show=pool_quotas_of, wide=True),
    Column("GPU", "use.gpuAllocated"),
    Column("PODS", "use.pods"),
    Column("CREATED", "createdAt", time=True),
    Column("NODE-POOLS", "nodePools", wide=True),
    Column("NODE-TYPES", "nodeTypes", wide=True),
    Column("POD-SECURITY", "podSecurity", wide=True),
    Column("PRIVILEGED", "privileged", wide=True),
    Column("NON-PREEMPTIBLE", "use.gpuAllocatedNonPreemptible", wide=True),
    Column("CPU", "use.cpuAllocatedCores", wide=True),
    Column("ID", "id", wide=True),
)


class SecurityLevel(StrEnum):
    BASELINE = "baseline"
    RESTRICTED = "restricted"
    NONE = "none"


QuotaOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-quota", metavar="N|none", help="GPUs that its non-preemptible workloads may hold. none: no limit."
    ),
]
LimitOption = Annotated[
    str | None,
    typer.Option("--gpu-limit", metavar="N|none", help="GPUs that all its workloads may hold. none: no limit."),
]
WeightOption = Annotated[
    str | None,
    typer.Option(
        "--over-quota-weight",
        metavar="N|none",
        help="Weight by which it shares what is left of node pools beyond the quotas. 0: no share; none: 1.",
    ),
]
RuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--minimum-runtime",
        metavar="TIME|none",
        help="How long a workload runs before its place may be taken for another, such as 10m.",
    ),
]
LostOption = Annotated[
    str | None,
    typer.Option(
        "--cluster-lost-after",
        metavar="TIME|none",
        help="How long a cluster is lost before preemptible workloads that named none leave it, such as 10m. 0: never.",
    ),
]
PoolQuotaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pool-quota",
        metavar="POOL=QUOTA[/LIMIT[/WEIGHT]]",
        help="GPUs of one node pool: for non-preemptible and for all workloads, and the weight there. Repeatable; sets "
        "all, and '' clears all. none: no limit.",
    ),
]
PoolsOption = Annotated[
    str | None,
    typer.Option(
        "--node-pools",
        metavar="A,B",
        help="Node pools, in the order in which they are tried. Empty: all pools, by name.",
        autocompletion=node_pools,
    ),
]

TypesOption = Annotated[
    str | None,
    typer.Option(
        "--node-types",
        metavar="A,B",
        help="Node types of which new workloads must name one. Empty: any, or none.",
    ),
]
DepartmentOption = Annotated[
    str | None,
    typer.Option(
        "--department",
        help="Department that it stands in (name or id).",
        autocompletion=department_names,
    ),
]

SecurityOption = Annotated[
    SecurityLevel | None,
    typer.Option(
        "--pod-security",
        help="Minimum Pod Security Standard for its pods on Kubernetes. none: the cluster decides.",
    ),
]

PrivilegedOption = Annotated[
    str | None,
    typer.Option(
        "--privileged",
        metavar="on|off",
        help="on: its workloads may have what Pod Security baseline forbids, such as host paths and host network.",
    ),
]


def add_project(root: typer.Typer) -> None:
    app = group("project")
    _add_reads(app)
    _add_lives(app)
    _add_set(app)
    root.add_typer(app, name="project")


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster project list\nmuster project list --search vis\nmuster project list --department research",
        columns=PROJECT_COLUMNS,
        past=True,
    )
    def list_(
        session: Session,
        *,
        search: Annotated[
            str | None, typer.Option("--search", metavar="TEXT", help="Only with this text in the name.")
        ] = None,
        department: Annotated[
            str | None,
            typer.Option(
                "--department", help="Only those in this department (name or id).", autocompletion=department_names
            ),
        ] = None,
    ) -> None:
        """List the projects that you may see, and the GPUs, pods and CPU cores that are allocated to them."""
        wanted: list[tuple[str, str | int]] = [("search", search)] if search else []
        if department is not None:
            wanted.append(("departmentId", text_of(find_department(session.api, department), "id")))
        rows = every(session.api, "/org-unit/projects", "projects", wanted)
        session.out.rows(rows, PROJECT_COLUMNS, empty="no such project" if wanted else "no projects that you may see")

    @command(app, "describe", examples="muster project describe default", past=True)
    def describe(session: Session, project: ProjectArgument) -> None:
        """Show a project: its settings, its workloads, and what is allocated to them."""
        row = find_project(session.api, project)
        session.out.one(row, lambda: _describe(session, row), columns=PROJECT_COLUMNS)


def _describe(session: Session, row: Row) -> None:
    use = row_of(row, "use")
    phases = ", ".join(f"{plain_text(count)} {phase}" for phase, count in row_of(use, "workloads").items())
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Id", text_of(row, "id")),
            ("Created", session.out.time(row.get("createdAt"))),
            ("Department", text_of(row, "departmentName")),
            ("GPU quota", _quota(row)),
            ("GPU limit", bound_of(row, "gpuLimit")),
            ("Over-quota weight", weight_of(row)),
            ("Minimum runtime", told_runtime(row) or "as its department says"),
            ("Leaves a lost cluster", told_lost(row) or "as its department says"),
            ("By node pool", pool_quotas_of(row)),
            ("Node pools", plain_text(row.get("nodePools")) or "all"),
            ("Node types", plain_text(row.get("nodeTypes")) or "any"),
            ("Pod security", plain_text(row.get("podSecurity")) or "as the cluster says"),
            ("Privileged", "yes" if row.get("privileged") else "no"),
            ("Workloads", phases),
            ("Pods", plain_text(use.get("pods"))),
            ("GPUs", plain_text(use.get("gpuAllocated"))),
            ("  non-preemptible", plain_text(use.get("gpuAllocatedNonPreemptible"))),
            ("CPU cores", plain_text(use.get("cpuAllocatedCores"))),
        ]
    )


def _add_lives(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        output=False,
        examples="""
        muster project create vision --gpu-quota 16
        muster project create nlp --node-pools a100,default --department research
        """,
    )
    def create(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new project.")],
        *,
        gpu_quota: QuotaOption = None,
        gpu_limit: LimitOption = None,
        over_quota_weight: WeightOption = None,
        minimum_runtime: RuntimeOption = None,
        cluster_lost_after: LostOption = None,
        pool_quota: PoolQuotaOption = None,
        node_pools: PoolsOption = None,
        pod_security: SecurityOption = None,
        privileged: PrivilegedOption = None,
        node_types: TypesOption = None,
        department: DepartmentOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Create a project."""
        settings = (
            bounds_of(gpu_quota, gpu_limit, pool_quota, weight=over_quota_weight)
            | runtime_of(minimum_runtime)
            | lost_of(cluster_lost_after)
            | _settings(pod_security, privileged)
            | lists_of(node_pools, node_types)
        )
        body: Row = {"name": name, **settings, **_department(session.api, department)}
        session.api.mutate("POST", "/org-unit/projects", body, idempotency_key=idempotency_key)
        session.out.talk(f"project {name} created; let people in: muster role grant USER researcher -p {quote(name)}")

    @command(app, "delete", output=False, examples="muster project delete vision\nmuster project delete vision -y")
    def delete(
        session: Session,
        project: ProjectArgument,
        *,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Delete a project that has no living workloads, with its roles and service accounts. Its history stays."""
        row = find_project(session.api, project)
        name = text_of(row, "name")
        confirm(f"delete project {name}, with its roles and service accounts?", yes=yes)
        path = f"/org-unit/projects/{text_of(row, 'id')}"
        done = session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(text_of(done.body, "message").replace(text_of(row, "id"), name))


def _add_set(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster project set vision --gpu-quota 32
        muster project set vision --gpu-limit 64 --pool-quota h100=8/16 --pool-quota a100=none/32
        muster project set vision --gpu-quota none --node-pools a100,default
        muster project set vision --over-quota-weight 3
        muster project set vision --pod-security restricted
        muster project set vision --privileged on
        muster project set vision --department research
        muster project set vision                             # from now on the default of this context
        """,
    )
    def set_(
        session: Session,
        project: ProjectArgument,
        *,
        gpu_quota: QuotaOption = None,
        gpu_limit: LimitOption = None,
        over_quota_weight: WeightOption = None,
        minimum_runtime: RuntimeOption = None,
        cluster_lost_after: LostOption = None,
        pool_quota: PoolQuotaOption = None,
        node_pools: PoolsOption = None,
        pod_security: SecurityOption = None,
        privileged: PrivilegedOption = None,
        node_types: TypesOption = None,
        department: DepartmentOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change a project's settings, or its department. With no option, make it this context's default."""
        row = find_project(session.api, project)
        changes = (
            bounds_of(gpu_quota, gpu_limit, pool_quota, weight=over_quota_weight)
            | runtime_of(minimum_runtime)
            | lost_of(cluster_lost_after)
            | _settings(pod_security, privileged)
            | lists_of(node_pools, node_types)
        )
        changes |= _department(session.api, department)
        if not changes:
            from muster.cli.context_commands import set_default

            set_default(session, project=text_of(row, "name"))
            return
        change_settings(session.api, f"/org-unit/projects/{text_of(row, 'id')}", _SETTINGS, changes, idempotency_key)
        session.out.talk(f"project {text_of(row, 'name')} changed")


def change_settings(api: "Api", path: str, names: Sequence[str], changes: Row, idempotency_key: str | None) -> None:
    """The API takes all settings together: what is not given stays as it is, also where somebody else changes it at
    the same time.
    """

    def change() -> None:
        now = api.read(path)
        settings = {key: now.body[key] for key in names if key in now.body} | changes
        api.mutate("PUT", path, settings, idempotency_key=idempotency_key, if_match=now.version)

    again_where_moved(change)


def lists_of(node_pools: str | None, node_types: str | None) -> Row:
    """The settings that are lists, of those that were given."""
    given = {"nodePools": node_pools, "nodeTypes": node_types}
    return {
        name: [word.strip() for word in words.split(",") if word.strip()]
        for name, words in given.items()
        if words is not None
    }


def _department(api: "Api", given: str | None) -> Row:
    return {} if given is None else {"departmentId": text_of(find_department(api, given), "id")}


def bounds_of(
    gpu_quota: str | None, gpu_limit: str | None, pool_quotas: list[str] | None, *, weight: str | None
) -> Row:
    """The bounds that were given, and the weight beyond them. Raises Problem (usage)."""
    bounds: Row = {}
    if gpu_quota is not None:
        bounds["gpuQuota"] = _devices("--gpu-quota", gpu_quota)
    if gpu_limit is not None:
        bounds["gpuLimit"] = _devices("--gpu-limit", gpu_limit)
    if weight is not None:
        bounds["overQuotaWeight"] = _devices("--over-quota-weight", weight, "give a number, or none")
    if pool_quotas is not None:
        bounds["nodePoolQuotas"] = [_pool_quota(given) for given in pool_quotas if given]
    return bounds


def runtime_of(given: str | None) -> Row:
    """The minimum runtime that was given. Raises Problem (usage)."""
    if given is None:
        return {}
    seconds = None if given.lower() == "none" else duration_option("--minimum-runtime", given)
    return {"minimumRuntimeSeconds": seconds}


_MAX_LOST: Final = 7 * 24 * 3600


def lost_of(given: str | None) -> Row:
    """After which time workloads leave a lost cluster, where that was given. Raises Problem (usage)."""
    if given is None:
        return {}
    if given.lower() == "none":
        return {"clusterLostSeconds": None}
    todo = "give a time of at most 7d, such as 30m; 0: never; none: as the department says, and for one, never"
    try:
        seconds = duration_option("--cluster-lost-after", given)
    except Problem as problem:
        raise usage(problem.what, todo=todo) from problem
    if seconds > _MAX_LOST:
        raise usage(f"--cluster-lost-after: must be at most 7d, got {given}", todo=todo)
    return {"clusterLostSeconds": seconds}


def told_runtime(row: Row) -> str:
    """Empty where there is none."""
    return "" if row.get("minimumRuntimeSeconds") is None else exact_span(int(number_of(row, "minimumRuntimeSeconds")))


def told_lost(row: Row) -> str:
    """When workloads leave a lost cluster; empty where nobody says it."""
    if row.get("clusterLostSeconds") is None:
        return ""
    seconds = int(number_of(row, "clusterLostSeconds"))
    return f"after {exact_span(seconds)}" if seconds else "never"


def _pool_quota(given: str) -> Row:
    pool, separator, bounds = given.partition("=")
    words = bounds.split("/")
    if not (pool and separator and all(words)) or len(words) > len(_OF_POOL):
        todo = "give POOL=QUOTA, POOL=QUOTA/LIMIT or POOL=QUOTA/LIMIT/WEIGHT, such as h100=8/16"
        raise usage(f"--pool-quota: {given!r} is no quota of a node pool", todo=todo)
    row: Row = {"nodePool": pool, "gpuLimit": None}
    for name, word in zip(_OF_POOL, words, strict=False):
        row[name] = _devices("--pool-quota", word)
    return row


def _settings(pod_security: SecurityLevel | None, privileged: str | None) -> Row:
    settings: Row = {}
    if pod_security is not None:
        settings["podSecurity"] = None if pod_security is SecurityLevel.NONE else pod_security.value
    if privileged is not None:
        settings["privileged"] = switch_option("--privileged", privileged)
    return settings


def _devices(flag: str, text: str, todo: str = "give a number of devices, or none") -> float | None:
    if text.lower() == "none":
        return None
    try:
        return parse_number(text)
    except ValueProblem as error:
        raise usage(f"{flag}: {error}", todo=todo) from error
