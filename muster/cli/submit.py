"""`submit`, of every kind of workload that has it."""

import shlex
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from muster.cli.anywhere import Placing
from muster.cli.command import Session, command
from muster.cli.complete import compute_names, data_source_names, template_names
from muster.cli.conditions import WaitForOption, awaited
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.here import set_working_dir
from muster.cli.names import check_new_name, default_project, find_cluster
from muster.cli.options import (
    CodeOption,
    IdempotencyOption,
    ProjectOption,
    RunsOnOption,
    TimeoutOption,
    timeout_seconds,
)
from muster.cli.output import Format
from muster.cli.submission import SUBMITTED_COLUMNS, send
from muster.cli.typed import Flags, taken_over
from muster.cli.units import check_units
from muster.cli.values import Json, Row, row_of, set_field, text_of

if TYPE_CHECKING:
    from typer.core import TyperOption

    from events.workload.fields.creation import Creation
    from muster.cli.conditions import Condition


_NameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name of the workload; or give --name-prefix.")
]
_PrefixOption = Annotated[
    str | None,
    typer.Option("--name-prefix", metavar="TEXT", help="Name it with this prefix and a suffix that makes it unique."),
]
_CommandOption = Annotated[
    bool,
    typer.Option("--command", "-c", help="The words after -- replace the image's entry point, and not its arguments."),
]
_FileOption = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", metavar="FILE|-", help="Read the request from this YAML or JSON file; flags override it."
    ),
]
_SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field over what the file and other flags say, such as spec.backoffLimit=2; FIELD= takes it out. "
        "Repeatable.",
    ),
]
_DryRunOption = Annotated[
    str | None,
    typer.Option(
        "--dry-run",
        metavar="client|server",
        help="Submit nothing. client: check and print the request. server: show what it would be, field by field.",
    ),
]
_WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait until it ends; an inference, until it runs. Exit 0 if so, 8 if it failed, 7 on timeout."
    ),
]
_WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Print each phase change; ends as --wait does.")]
_AttachOption = Annotated[
    bool,
    typer.Option(
        "--attach",
        help="Wait until it runs, then show all that it writes, to its end: the exit code is 0 where it completes, "
        "else 8. With --stdin it reads what you type, as with `attach`.",
    ),
]


_TemplateOption = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="NAME|ID",
        help="Template to take fields from; assets and what is given here go before it.",
        autocompletion=template_names,
    ),
]
_ComputeOption = Annotated[
    str | None,
    typer.Option(
        "--compute",
        metavar="NAME|ID",
        help="Compute resource to take fields from; what is given here goes before it.",
        autocompletion=compute_names,
    ),
]
_DataSourceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--datasource",
        metavar="NAME|KIND/NAME|ID",
        help="Data source whose volume each pod finds; of a data volume also data-volume/OWNER/NAME; repeatable.",
        autocompletion=data_source_names,
    ),
]
_RequiredKeyOption = Annotated[
    str | None,
    typer.Option(
        "--required-pod-topology-key",
        metavar="KEY",
        help="Place its pods only on nodes with the same value of this label; one that has no room there waits.",
        rich_help_panel="Scheduling",
    ),
]
_PreferredKeyOption = Annotated[
    str | None,
    typer.Option(
        "--preferred-pod-topology-key",
        metavar="KEY",
        help="Place its pods on nodes with the same value of this label where there is room, else elsewhere.",
        rich_help_panel="Scheduling",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What one `submit` submits."""

    noun: str
    """The words before `submit`."""
    kind: str
    """A kind of workload, such as Training."""
    summary: str
    examples: str
    framework: str = ""
    """Of a distributed training."""

    @property
    def creation(self) -> "type[Creation]":
        from events.workload.kinds import KINDS

        return KINDS[self.kind].creation


def _submit(
    of: Submitted,
    session: Session,
    *,
    name: _NameArgument = None,
    project: ProjectOption = None,
    cluster: RunsOnOption = None,
    name_prefix: _PrefixOption = None,
    template: _TemplateOption = None,
    compute: _ComputeOption = None,
    datasource: _DataSourceOption = None,
    required_pod_topology_key: _RequiredKeyOption = None,
    preferred_pod_topology_key: _PreferredKeyOption = None,
    code: CodeOption = None,
    replace_command: _CommandOption = False,
    file: _FileOption = None,
    changes: _SetOption = None,
    dry_run: _DryRunOption = None,
    wait: _WaitOption = False,
    wait_for: WaitForOption = None,
    watch: _WatchOption = False,
    attach: _AttachOption = False,
    timeout: TimeoutOption = None,
    idempotency_key: IdempotencyOption = None,
    **fields: Any,
) -> int | None:
    words = cast("list[str]", fields.pop("words"))
    request = _written(file, of)
    _name(request, name, name_prefix, of.noun)
    environment = _environment(fields)
    flags = _set_fields(session, request, fields, changes, of)
    _set_topology(request, required_pod_topology_key, preferred_pod_topology_key, flags)
    _set_words(request, words, of.noun, replace_command=replace_command)
    if of.framework:
        from muster.cli.distributed import set_distributed

        set_distributed(request, of.framework, fields, brings_volumes=bool(template or datasource))
        taken_over(flags)
    check_units(request)
    condition = _condition(wait_for, wait=wait or watch, attach=attach)
    seconds = timeout_seconds(timeout, waits=condition is not None, flags="--wait, --watch or --attach")
    if project or "projectId" not in request:
        request["projectId"] = text_of(default_project(session, project), "id")
    chosen = None
    if cluster or "clusterId" not in request:
        chosen = Placing(session, cluster, named=code is not None).place(request)
        set_working_dir(session.api, request, chosen, code=code)
    if file is not None:
        _find_named(session, request)
    _set_assets(session, request, (template, environment, compute), datasource or [])
    if code is not None:
        from muster.cli.code import send_code

        chosen = chosen or find_cluster(session.api, text_of(request, "clusterId"))
        set_field(request, "spec.code", send_code(session, request, chosen, code, dry_run=dry_run is not None))
    flags |= {"name": "--name-prefix"} if name_prefix else {}
    if dry_run is not None:
        return _dry_run(session, request, dry_run, of, flags)
    session.api.flags = flags
    return send(
        session,
        request,
        of.kind,
        idempotency_key=idempotency_key,
        condition=condition,
        timeout_seconds=seconds,
        then=partial(_attach, session, row_of(request, "spec")) if attach else None,
    )


def _set_fields(
    session: Session, request: Row, fields: dict[str, Any], changes: list[str] | None, of: Submitted
) -> Flags:
    """By field, the flag that was given. Raises Problem (usage)."""
    from muster.cli.training_flags import set_fields

    flags = set_fields(request, fields, of.creation, session.typed)
    _set_sweep(request, fields)
    if changes:
        from muster.cli.resubmit import set_changes

        set_changes(request, changes, of.kind)
    return flags


def _written(file: str | None, of: Submitted) -> Row:
    """The request that a file holds; an empty one where none is given. Raises Problem."""
    if file is None:
        return {}
    from muster.cli.request_file import line_that_submits, read_request

    request = read_request(file, of.kind)
    said = row_of(request, "spec").get("distributedFramework")
    if of.framework and isinstance(said, str) and said != of.framework:
        raise usage(
            f"--file: {file} is of the framework {said!r}, and this submits a training with {of.framework}",
            todo=line_that_submits(request, of.kind, file),
        )
    return request


def _condition(wait_for: str | None, *, wait: bool, attach: bool) -> "Condition | None":
    """What is waited for. Raises Problem (usage)."""
    if attach and (wait or wait_for is not None):
        raise usage(
            "--attach waits until it runs, and goes with no other flag that waits", todo="leave one of them out"
        )
    return awaited("started" if attach else wait_for, wait=wait)


def _attach(session: Session, spec: Row, workload_id: str) -> int:
    """All that it writes, to its end, which the exit code tells. Where it reads what is typed: from now on, to the end
    of its process, whose exit code it is.
    """
    from muster.cli.way import has_terminal
    from muster.cli.ways import attached

    if spec.get("stdin") is True:
        try:
            return attached(session, workload_id, stdin=True, tty=spec.get("tty") is True and has_terminal())
        except Problem as problem:
            if problem.refusal != "pod_not_running":
                raise
            # It has ended meanwhile: nothing can be typed any more, but what it wrote is kept.
    from muster.cli.conditions import USUAL, wait_for
    from muster.cli.log_stream import follow_logs

    path = f"/workloads/{workload_id}/logs"
    follow_logs(session, session.patience(flags="--attach"), path, [("follow", "true")], session.out.write)
    return wait_for(session.api, workload_id, session.out, USUAL, timeout_seconds=None)


def add_submit(app: typer.Typer, of: Submitted) -> None:
    """Declares `submit`."""
    submit = partial(_submit, of)
    submit.__name__ = "submit"  # pyright: ignore[reportAttributeAccessIssue]
    submit.__doc__ = f"{of.summary} The words after -- are what its pods run."
    command(
        app,
        "submit",
        takes_words=True,
        columns=SUBMITTED_COLUMNS,
        more=partial(_field_options, of),
        examples=of.examples,
    )(submit)


def _set_sweep(request: Row, fields: dict[str, Any]) -> None:
    """Raises Problem (usage)."""
    if (table := fields.get("sweep_csv")) is not None:
        from muster.cli.sweep_csv import set_sweep

        set_sweep(request, table, given=bool(fields.get("sweep") or fields.get("sweep_combine")))


def _environment(fields: dict[str, Any]) -> str | None:
    """The name or id of an environment among the variables, which is taken out. Raises Problem (usage)."""
    given = cast("list[str]", fields.get("environment") or [])
    names = [text for text in given if "=" not in text]
    if len(names) > 1:
        raise usage(
            f"--environment: {names[0]!r} and {names[1]!r} have no '='",
            todo="a variable is NAME=VALUE; a workload takes one environment",
        )
    if names:
        fields["environment"] = [text for text in given if "=" in text]
    return names[0] if names else None


def _find_named(session: Session, request: Row) -> None:
    """Ids in place of what a file names. Raises Problem where there is none of a name."""
    from muster.cli.references import References

    References(session).resolve(request)


_CHOSEN: Final = ("templateId", "assets.environmentId", "assets.computeId")
"""Fields that name a template, an environment and a compute resource."""


def _set_assets(session: Session, request: Row, chosen: tuple[str | None, ...], sources: list[str]) -> None:
    """Raises Problem where there is none of a name. Args: chosen, of _CHOSEN; sources, of data."""
    if not (sources or any(chosen)):
        return
    from muster.cli.assets import COMPUTE, ENVIRONMENT, TEMPLATE, find_asset, find_data_source

    project, cluster = text_of(request, "projectId"), text_of(request, "clusterId")
    for of, field, given in zip((TEMPLATE, ENVIRONMENT, COMPUTE), _CHOSEN, chosen, strict=True):
        if given:
            try:
                found = find_asset(session, of, given, project=project, cluster=cluster)
            except Problem as problem:
                if of is not ENVIRONMENT or problem.code is not ExitCode.NOT_FOUND:
                    raise
                why = (*problem.why, "a variable is NAME=VALUE")
                raise Problem(problem.what, why=why, todo=problem.todo, code=problem.code) from problem
            set_field(request, field, text_of(row_of(found, "meta"), "id"))
    if sources:
        ids: list[Json] = [find_data_source(session, one, project=project, cluster=cluster) for one in sources]
        set_field(request, "assets.datasourceIds", ids)


def _set_topology(request: Row, required: str | None, preferred: str | None, flags: Flags) -> None:
    """Raises Problem (usage). Args: flags, by field, to which the one that is given is added."""
    if required is not None and preferred is not None:
        raise usage(
            "--required-pod-topology-key and --preferred-pod-topology-key exclude each other", todo="give one of them"
        )
    for kind, key in (("Required", required), ("Preferred", preferred)):
        if key is not None:
            set_field(request, "spec.podAffinity", {"type": kind, "key": key})
            flags["spec.podAffinity"] = f"--{kind.lower()}-pod-topology-key"


def _set_words(request: Row, words: list[str], noun: str, *, replace_command: bool) -> None:
    """Raises Problem (usage)."""
    if words:
        # One word that holds spaces is a command line already; several are quoted so that they stay what they are.
        text = words[0] if len(words) == 1 else shlex.join(words)
        set_field(request, "spec.command" if replace_command else "spec.args", text)
    elif replace_command:
        raise usage(
            "--command needs the words of the command after --",
            todo=f"muster {noun} submit NAME -i IMAGE --command -- WORDS...",
        )


def _field_options(of: Submitted) -> "list[TyperOption]":
    from muster.cli.training_flags import field_options

    return field_options(of.creation, framework=of.framework)


def _name(request: Row, name: str | None, prefix: str | None, noun: str) -> None:
    if name and prefix:
        raise usage("NAME and --name-prefix cannot be used together", todo="give one of them")
    if name:
        request["name"] = name
    elif prefix:
        request["name"] = prefix
        request["useGivenNameAsPrefix"] = True
    elif not text_of(request, "name"):
        called = noun if noun in {"inference", "workspace"} else "training"
        raise usage(f"the {called} needs a name", todo=f"muster {noun} submit NAME ..., or --name-prefix TEXT")
    if request.get("useGivenNameAsPrefix") is not True:
        check_new_name(text_of(request, "name"))


def _dry_run(session: Session, request: Row, where: str, of: Submitted, flags: Flags) -> ExitCode:
    """Prints the request as it would be sent, after the checks that need no server; or has the server say what it would
    be. Raises Problem (6). Args: flags, that gave fields, by field.
    """
    if where == "server":
        from muster.cli.evaluation import show_evaluation

        session.api.flags = flags
        return show_evaluation(session, request, of.kind)
    if where != "client":
        todo = "--dry-run=client checks and prints the request, --dry-run=server shows what it would be"
        raise usage(f"--dry-run={where} does not exist", todo=todo)
    from muster.cli.client import told_issue
    from services.api.check import FaultyCreation, check_creation

    checked = check_creation(of.creation, request)
    made_of_assets = bool(request.get("templateId") or request.get("assets"))
    # What is missing here, a template or an asset may set.
    faults = [
        issue
        for issue in (checked.issues if isinstance(checked, FaultyCreation) else ())
        if not (made_of_assets and issue.rule == "required" and issue.field.startswith("spec."))
    ]
    if faults:
        why = tuple(told_issue({"field": issue.field, "details": issue.details}, flags=flags) for issue in faults)
        raise Problem("the request would be refused", why=why, code=ExitCode.REJECTED)

    whole: Row = {"kind": of.kind, **request}

    def as_yaml() -> None:
        import yaml

        session.out.write(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))

    if session.out.style.format in {Format.TABLE, Format.WIDE}:
        as_yaml()
    else:
        session.out.one(whole, as_yaml)
    session.out.talk("dry run: nothing was sent")
    return ExitCode.OK
