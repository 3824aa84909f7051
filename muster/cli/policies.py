"""`muster policy`: what administrators set and forbid, for each kind of workload, everywhere, in a department or in a
project.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from events.nearest import did_you_mean
from muster.cli.command import Session, command, group
from muster.cli.complete import department_names, policy_kinds
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import find_department, find_project
from muster.cli.options import IdempotencyOption, ProjectOption, YesOption, confirm
from muster.cli.output import Column
from muster.cli.values import Row, row_of, rows_of, text_of, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS: Final = ("trainings", "distributed", "workspaces", "inferences")
type Query = list[tuple[str, str]]


def _fields(of: str) -> Any:
    def told(row: Row) -> str:
        return ", ".join(_paths(row_of(row, of), "", rules=of == "rules")) or "-"

    return told


def _paths(tree: Row, path: str, *, rules: bool) -> "Iterator[str]":
    """The fields that are set, or that have a rule, by their paths."""
    for name, value in tree.items():
        here = f"{path}.{name}" if path else name
        if not isinstance(value, dict):
            yield here
        elif rules and not any(isinstance(inner, dict) for inner in value.values()):
            if value:
                yield f"{here} ({', '.join(value)})"
        else:
            yield from _paths(value, here, rules=rules)


POLICY_COLUMNS: Final = (
    Column("KIND", "kind"),
    Column("SCOPE", "meta.scope"),
    Column("DEFAULTS", "defaults", show=_fields("defaults")),
    Column("RULES", "rules", show=_fields("rules"), rest=True, wraps=True),
    Column("SET", "meta.setAt", time=True),
    Column("BY", "meta.setBy", wide=True),
    Column("PROJECT", "meta.projectId", wide=True),
    Column("DEPARTMENT", "meta.departmentId", wide=True),
)
_KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help=f"Kind of workload: {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
        autocompletion=policy_kinds,
    ),
]


_DepartmentOption = Annotated[
    str | None,
    typer.Option("--department", help="The policy of this department (name or id).", autocompletion=department_names),
]
_FileOption = Annotated[
    str, typer.Option("--file", "-f", metavar="FILE|-", help="Read defaults and rules from this YAML or JSON file.")
]


def _why(row: Row) -> str:
    issues = [f"{text_of(issue, 'field')}: {text_of(issue, 'details')}" for issue in rows_of(row, "issues")]
    return "; ".join(issues or texts_of(row, "changed"))


REHEARSAL_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("WOULD BE", "issues", show=lambda row: "refused" if row.get("issues") else "changed"),
    Column("WHY", "changed", show=_why, rest=True, wraps=True),
    Column("SUBMITTED", "createdAt", time=True),
    Column("PROJECT", "projectId", wide=True),
    Column("ID", "workloadId", wide=True),
)


def _read(file: str) -> Row:
    """Defaults, rules and imposed data sources. What `describe -o yaml` shows can be set again. Raises Problem."""
    from muster.cli.request_file import read_document

    document = read_document(file, ("defaults", "rules", "imposedAssets", "meta", "kind"), what="a policy")
    return {name: document[name] for name in ("defaults", "rules", "imposedAssets") if name in document}


def add_policies(root: typer.Typer) -> None:
    app = group("policy")
    _add_reads(app)
    _add_changes(app)
    _add_rehearse(app)
    root.add_typer(app, name="policy")


def _path(kind: str) -> str:
    """Raises Problem (usage)."""
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise usage(f"there are no policies for {kind!r}: there are {', '.join(KINDS)}", todo=hint or None)
    return f"/policies/{kind}"


def _where(session: Session, project: str | None, department: str | None) -> tuple[Query, str]:
    """(query, what to call it) of the policy of this project or department; of the one that holds everywhere, where
    neither is given. Raises Problem (usage) where both are.
    """
    if project is not None and department is not None:
        raise usage("--project and --department do not go together", todo="give one of them, or none")
    if department is not None:
        found = find_department(session.api, department)
        query = [("scope", "department"), ("departmentId", text_of(found, "id"))]
        return query, f"of department {text_of(found, 'name')}"
    if project is None:
        return [("scope", "tenant")], "that holds everywhere"
    found = find_project(session.api, project)
    return [("scope", "project"), ("projectId", text_of(found, "id"))], f"of project {text_of(found, 'name')}"


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster policy list\nmuster policy list -p vision\nmuster policy list --department research",
        columns=POLICY_COLUMNS,
        past=True,
    )
    def list_(session: Session, *, project: ProjectOption = None, department: _DepartmentOption = None) -> None:
        """List the policies that hold everywhere, and also those of a project (-p) or a department."""
        places = [_where(session, None, None)[0]]
        if project is not None or department is not None:
            places.append(_where(session, project, department)[0])
        rows: list[Row] = []
        for kind in KINDS:
            for query in places:
                found = _policy(session, kind, query)
                if found is not None:
                    rows.append({"kind": kind, **found})
        session.out.rows(rows, POLICY_COLUMNS, name="kind", empty="no policies")

    @command(
        app,
        "describe",
        examples="muster policy describe trainings\nmuster policy describe workspaces -p vision -o yaml",
        columns=POLICY_COLUMNS,
        past=True,
    )
    def describe(
        session: Session, kind: _KindArgument, *, project: ProjectOption = None, department: _DepartmentOption = None
    ) -> None:
        """Show a policy: its defaults and its rules."""
        query, called = _where(session, project, department)
        found = _policy(session, kind, query)
        if found is None:
            raise Problem(
                f"there is no policy for {kind} {called}",
                todo=f"muster policy set {kind} -f FILE",
                code=ExitCode.NOT_FOUND,
            )
        row: Row = {"kind": kind, **found}
        session.out.one(row, lambda: _describe(session, row), name="kind", columns=POLICY_COLUMNS)


def _policy(session: Session, kind: str, query: Query) -> Row | None:
    """None where there is none. Raises Problem."""
    try:
        return session.api.get(_path(kind), query)
    except Problem as problem:
        if problem.code == ExitCode.NOT_FOUND:
            return None
        raise


def _describe(session: Session, row: Row) -> None:
    import yaml

    meta = row_of(row, "meta")
    session.out.pairs(
        [
            ("For", text_of(meta, "workloadType")),
            (
                "Scope",
                f"{text_of(meta, 'scope')} {text_of(meta, 'projectId') or text_of(meta, 'departmentId')}".strip(),
            ),
            ("Set", f"{session.out.time(meta.get('setAt'))} by {text_of(meta, 'setBy')}"),
        ]
    )
    imposed = [("Imposed data sources", "imposedAssets")] if row.get("imposedAssets") else []
    for heading, name in (("Defaults", "defaults"), ("Rules", "rules"), *imposed):
        session.out.heading(heading)
        session.out.write(yaml.safe_dump(row.get(name), sort_keys=False, allow_unicode=True))


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="muster policy set trainings -f policy.yaml\n"
        "muster policy set workspaces -f policy.yaml -p vision\n"
        "muster policy set trainings -f policy.yaml --department research",
    )
    def set_(
        session: Session,
        kind: _KindArgument,
        *,
        file: _FileOption,
        project: ProjectOption = None,
        department: _DepartmentOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Set the policy for a kind of workload, everywhere, in a department or in a project.

        Workloads that there are stay as they are.
        """
        path, (query, called) = _path(kind), _where(session, project, department)
        body = _read(file)
        session.api.mutate("PUT", path, body, parameters=query, idempotency_key=idempotency_key)
        session.out.talk(f"the policy for {kind} {called} is as the file says")

    @command(app, "delete", output=False, examples="muster policy delete trainings -y")
    def delete(
        session: Session,
        kind: _KindArgument,
        *,
        project: ProjectOption = None,
        department: _DepartmentOption = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Delete the policy for a kind of workload. Workloads that there are stay as they are."""
        path, (query, called) = _path(kind), _where(session, project, department)
        confirm(f"delete the policy for {kind} {called}? Nothing that it forbids is forbidden any more.", yes=yes)
        session.api.mutate("DELETE", path, parameters=query, idempotency_key=idempotency_key)
        session.out.talk(f"the policy for {kind} {called} is deleted")


def _add_rehearse(app: typer.Typer) -> None:
    @command(
        app,
        "rehearse",
        examples="muster policy rehearse trainings -f policy.yaml\n"
        "muster policy rehearse workspaces -f policy.yaml -p vision --limit 500",
        columns=REHEARSAL_COLUMNS,
    )
    def rehearse(
        session: Session,
        kind: _KindArgument,
        *,
        file: _FileOption,
        project: ProjectOption = None,
        department: _DepartmentOption = None,
        limit: Annotated[
            int,
            typer.Option("--limit", metavar="N", min=1, max=500, help="Workloads to look at, the newest first."),
        ] = 100,
    ) -> None:
        """Show what a policy would have made of past submissions. Nothing is stored."""
        path, (query, _) = _path(kind), _where(session, project, department)
        found = session.api.examine(f"{path}:rehearse", _read(file), [*query, ("limit", limit)])
        session.out.rows(rows_of(found, "workloads"), REHEARSAL_COLUMNS, name="name", empty="no workload would differ")
        looked, refused, changed = (found.get(name) for name in ("lookedAt", "refused", "changed"))
        session.out.talk(f"of {looked} workloads {refused} would be refused, {changed} changed")
        for gap in texts_of(found, "gaps"):
            session.out.talk(gap)
