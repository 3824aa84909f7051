"""`muster department`."""

from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.complete import department_names
from muster.cli.exits import usage
from muster.cli.names import every, find_department
from muster.cli.options import IdempotencyOption, YesOption, confirm
from muster.cli.output import Column, plain_text
from muster.cli.project import (
    LimitOption,
    LostOption,
    PoolQuotaOption,
    PoolsOption,
    QuotaOption,
    RuntimeOption,
    TypesOption,
    WeightOption,
    bound_of,
    bounds_of,
    change_settings,
    lists_of,
    lost_of,
    pool_quotas_of,
    runtime_of,
    told_lost,
    told_runtime,
    weight_of,
)
from muster.cli.values import Row, row_of, text_of

_SETTINGS: Final = (
    "nodePools",
    "nodeTypes",
    "gpuQuota",
    "gpuLimit",
    "overQuotaWeight",
    "minimumRuntimeSeconds",
    "clusterLostSeconds",
    "nodePoolQuotas",
)
DEPARTMENT_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("PROJECTS", "projects"),
    Column("GPU-QUOTA", "gpuQuota", show=lambda row: bound_of(row, "gpuQuota")),
    Column("GPU-LIMIT", "gpuLimit", show=lambda row: bound_of(row, "gpuLimit")),
    Column("GPU", "use.gpuAllocated"),
    Column("PODS", "use.pods"),
    Column("CREATED", "createdAt", time=True),
    Column("NODE-POOLS", "nodePools", wide=True),
    Column("NODE-TYPES", "nodeTypes", wide=True),
    Column("WEIGHT", "overQuotaWeight", show=weight_of, wide=True),
    Column("POOL-QUOTAS", "nodePoolQuotas", show=pool_quotas_of, wide=True),
    Column("NON-PREEMPTIBLE", "use.gpuAllocatedNonPreemptible", wide=True),
    Column("CPU", "use.cpuAllocatedCores", wide=True),
    Column("ID", "id", wide=True),
)
DepartmentArgument = Annotated[
    str,
    typer.Argument(
        metavar="DEPARTMENT", help="Name, id, or unique beginning of an id.", autocompletion=department_names
    ),
]


def add_department(root: typer.Typer) -> None:
    app = group("department")
    _add_reads(app)
    _add_changes(app)
    _add_set(app)
    root.add_typer(app, name="department")


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster department list\nmuster department list --search res",
        columns=DEPARTMENT_COLUMNS,
        past=True,
    )
    def list_(
        session: Session,
        *,
        search: Annotated[
            str | None, typer.Option("--search", metavar="TEXT", help="Only with this text in the name.")
        ] = None,
    ) -> None:
        """List departments, and the GPUs, pods and CPU cores that are allocated to their projects."""
        rows = every(session.api, "/org-unit/departments", "departments", [("search", search)] if search else [])
        session.out.rows(rows, DEPARTMENT_COLUMNS, empty="no such department" if search else "no departments")

    @command(app, "describe", examples="muster department describe default", past=True)
    def describe(session: Session, department: DepartmentArgument) -> None:
        """Show a department: its settings, and what is allocated to its projects."""
        row = find_department(session.api, department)
        session.out.one(row, lambda: _describe(session, row), columns=DEPARTMENT_COLUMNS)


def _describe(session: Session, row: Row) -> None:
    use = row_of(row, "use")
    phases = ", ".join(f"{plain_text(count)} {phase}" for phase, count in row_of(use, "workloads").items())
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Id", text_of(row, "id")),
            ("Created", session.out.time(row.get("createdAt"))),
            ("GPU quota", bound_of(row, "gpuQuota")),
            ("GPU limit", bound_of(row, "gpuLimit")),
            ("Over-quota weight", weight_of(row)),
            ("Minimum runtime", told_runtime(row) or "none"),
            ("Leaves a lost cluster", told_lost(row) or "never"),
            ("By node pool", pool_quotas_of(row)),
            ("Node pools", plain_text(row.get("nodePools")) or "all"),
            ("Node types", plain_text(row.get("nodeTypes")) or "any"),
            ("Projects", plain_text(row.get("projects"))),
            ("Workloads", phases),
            ("Pods", plain_text(use.get("pods"))),
            ("GPUs", plain_text(use.get("gpuAllocated"))),
            ("  non-preemptible", plain_text(use.get("gpuAllocatedNonPreemptible"))),
            ("CPU cores", plain_text(use.get("cpuAllocatedCores"))),
        ]
    )


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        output=False,
        examples="muster department create research\nmuster department create research --node-pools h100,default",
    )
    def create(
        session: Session,
        name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new department.")],
        *,
        node_pools: PoolsOption = None,
        node_types: TypesOption = None,
        gpu_quota: QuotaOption = None,
        gpu_limit: LimitOption = None,
        over_quota_weight: WeightOption = None,
        minimum_runtime: RuntimeOption = None,
        cluster_lost_after: LostOption = None,
        pool_quota: PoolQuotaOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Create a department."""
        bounds = (
            bounds_of(gpu_quota, gpu_limit, pool_quota, weight=over_quota_weight)
            | runtime_of(minimum_runtime)
            | lost_of(cluster_lost_after)
        )
        body: Row = {"name": name, **lists_of(node_pools, node_types), **bounds}
        session.api.mutate("POST", "/org-unit/departments", body, idempotency_key=idempotency_key)
        session.out.talk(f"department {name} created; move projects into it: muster project set P --department {name}")


def _add_set(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster department set research --node-pools h100,default
        muster department set research --node-types dgx,hgx
        muster department set research --gpu-quota 32 --gpu-limit 64 --pool-quota h100=8/16
        muster department set research --node-types ''        # any node type again
        """,
    )
    def set_(
        session: Session,
        department: DepartmentArgument,
        *,
        node_pools: PoolsOption = None,
        node_types: TypesOption = None,
        gpu_quota: QuotaOption = None,
        gpu_limit: LimitOption = None,
        over_quota_weight: WeightOption = None,
        minimum_runtime: RuntimeOption = None,
        cluster_lost_after: LostOption = None,
        pool_quota: PoolQuotaOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change a department's settings."""
        bounds = bounds_of(gpu_quota, gpu_limit, pool_quota, weight=over_quota_weight)
        changes = lists_of(node_pools, node_types) | bounds | runtime_of(minimum_runtime) | lost_of(cluster_lost_after)
        if not changes:
            raise usage("there is nothing to change", todo="give a setting, such as --node-pools or --gpu-limit")
        row = find_department(session.api, department)
        path = f"/org-unit/departments/{text_of(row, 'id')}"
        change_settings(session.api, path, _SETTINGS, changes, idempotency_key)
        session.out.talk(f"department {text_of(row, 'name')} changed")

    @command(
        app, "delete", output=False, examples="muster department delete research\nmuster department delete research -y"
    )
    def delete(
        session: Session,
        department: DepartmentArgument,
        *,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Delete a department in which no project stands. Its history stays."""
        row = find_department(session.api, department)
        confirm(f"delete department {text_of(row, 'name')}?", yes=yes)
        path = f"/org-unit/departments/{text_of(row, 'id')}"
        session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(f"department {text_of(row, 'name')} deleted")
