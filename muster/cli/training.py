"""`muster training`: submit, and what it shares with `muster workload`."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from muster.cli.command import MusterGroup, Session, command
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.here import set_working_dir
from muster.cli.names import check_new_name, default_cluster, default_project, find_cluster
from muster.cli.nouns import NOUNS
from muster.cli.options import (
    ClusterOption,
    CodeOption,
    IdempotencyOption,
    ProjectOption,
    TimeoutOption,
    timeout_seconds,
)
from muster.cli.output import Format
from muster.cli.resubmit import add_resubmit
from muster.cli.submission import SUBMITTED_COLUMNS, send
from muster.cli.values import Row, set_field, text_of
from muster.cli.workload import add_describe, add_list, add_logs
from muster.cli.workload_acts import add_acts

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer.core import TyperOption


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
_FileOption = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", metavar="FILE|-", help="Read the request from this YAML or JSON file; flags override it."
    ),
]


class TrainingGroup(MusterGroup):
    """`muster training standard VERB` is `muster training VERB`: Run:ai has both, and standard is the one kind here."""

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        return self if cmd_name == "standard" else super().get_command(ctx, cmd_name)


def add_training(root: typer.Typer) -> None:
    """Declares `muster training` with its verbs."""
    app = typer.Typer(
        cls=TrainingGroup,
        help=f"{NOUNS['training'].summary} `training standard` is the same.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    _add_submit(app)
    add_resubmit(app)
    add_list(app, "training", kind="Training")
    add_describe(app, "training")
    add_logs(app, "training")
    add_acts(app, "training")
    root.add_typer(app, name="training")


def submit(
    session: Session,
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the workload; or give --name-prefix.")
    ] = None,
    project: ProjectOption = None,
    cluster: ClusterOption = None,
    name_prefix: Annotated[
        str | None,
        typer.Option(
            "--name-prefix", metavar="TEXT", help="Name it with this prefix and a suffix that makes it unique."
        ),
    ] = None,
    required_pod_topology_key: _RequiredKeyOption = None,
    preferred_pod_topology_key: _PreferredKeyOption = None,
    code: CodeOption = None,
    replace_command: Annotated[
        bool,
        typer.Option(
            "--command", "-c", help="The words after -- replace the image's entry point, and not its arguments."
        ),
    ] = False,
    file: _FileOption = None,
    dry_run: Annotated[
        str | None,
        typer.Option("--dry-run", metavar="client", help="Check and print the request, and send nothing."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it ends: exit 0 if it completed, 8 if it failed, 7 on timeout.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print each phase change until it ends; exits like --wait.")
    ] = False,
    timeout: TimeoutOption = None,
    idempotency_key: IdempotencyOption = None,
    **fields: Any,
) -> int | None:
    """Submit a training. The words after -- are what its pods run."""
    from muster.cli.training_flags import set_fields

    words = cast("list[str]", fields.pop("words"))
    request: Row = {}
    if file is not None:
        from muster.cli.request_file import read_request

        request = read_request(file)
    _name(request, name, name_prefix)
    set_fields(request, fields)
    _set_topology(request, required_pod_topology_key, preferred_pod_topology_key)
    _set_words(request, words, replace_command=replace_command)
    seconds = timeout_seconds(timeout, waits=wait or watch, flags="--wait or --watch")
    if project or "projectId" not in request:
        request["projectId"] = text_of(default_project(session, project), "id")
    chosen = None
    if cluster or "clusterId" not in request:
        chosen = default_cluster(session, cluster)
        request["clusterId"] = text_of(chosen, "id")
        set_working_dir(session.api, request, chosen, code=code)
    if code is not None:
        from muster.cli.code import send_code

        chosen = chosen or find_cluster(session.api, text_of(request, "clusterId"))
        set_field(request, "spec.code", send_code(session, request, chosen, code, dry_run=dry_run is not None))
    if dry_run is not None:
        return _dry_run(session, request, dry_run)
    return send(session, request, idempotency_key=idempotency_key, waits=wait or watch, timeout_seconds=seconds)


def _set_topology(request: Row, required: str | None, preferred: str | None) -> None:
    """Raises Problem (usage)."""
    if required is not None and preferred is not None:
        raise usage(
            "--required-pod-topology-key and --preferred-pod-topology-key exclude each other", todo="give one of them"
        )
    for kind, key in (("Required", required), ("Preferred", preferred)):
        if key is not None:
            set_field(request, "spec.podAffinity", {"type": kind, "key": key})


def _set_words(request: Row, words: list[str], *, replace_command: bool) -> None:
    """Raises Problem (usage)."""
    if words:
        # One word that holds spaces is a command line already; several are quoted so that they stay what they are.
        text = words[0] if len(words) == 1 else shlex.join(words)
        set_field(request, "spec.command" if replace_command else "spec.args", text)
    elif replace_command:
        raise usage(
            "--command needs the words of the command after --",
            todo="muster training submit NAME -i IMAGE --command -- WORDS...",
        )


def _field_options() -> "list[TyperOption]":
    from muster.cli.training_flags import field_options

    return field_options()


def _add_submit(app: typer.Typer) -> None:
    command(
        app,
        "submit",
        takes_words=True,
        columns=SUBMITTED_COLUMNS,
        more=_field_options,
        examples="""
        muster training submit hello -i python:3.13 -- python -c 'print(6 * 7)'
        muster training submit half -i pytorch -g 1 --gpu-request-type portion --gpu-portion-request 0.5 -- train.py
        muster training submit sweep -i python:3.13 --runs 5 --parallelism 2 -e LR=0.1 --command -- python sweep.py
        muster training submit mine -i python:3.13 --code . -- python train.py
        muster training submit --name-prefix nightly -f training.yaml --wait --timeout 2h
        muster training submit hello -f - --dry-run=client -o json < training.yaml
        """,
    )(submit)


def _name(request: Row, name: str | None, prefix: str | None) -> None:
    if name and prefix:
        raise usage("NAME and --name-prefix cannot be used together", todo="give one of them")
    if name:
        request["name"] = name
    elif prefix:
        request["name"] = prefix
        request["useGivenNameAsPrefix"] = True
    elif not text_of(request, "name"):
        raise usage("the training needs a name", todo="muster training submit NAME ..., or --name-prefix TEXT")
    if request.get("useGivenNameAsPrefix") is not True:
        check_new_name(text_of(request, "name"))


def _dry_run(session: Session, request: Row, where: str) -> ExitCode:
    """Prints the request as it would be sent, after the checks that need no server. Raises Problem (6)."""
    if where != "client":
        raise usage(f"--dry-run={where} does not exist", todo="--dry-run=client checks and prints the request")
    from muster.cli.training_flags import FLAG_OF_FIELD
    from services.api.check import FaultyTraining, check_training

    checked = check_training(request)
    if isinstance(checked, FaultyTraining):
        why = tuple(
            f"{issue.field} ({flag}): {issue.details}" if flag else f"{issue.field}: {issue.details}"
            for issue in checked.issues
            for flag in [FLAG_OF_FIELD.get(issue.field.split("[")[0])]
        )
        raise Problem("the request would be refused", why=why, code=ExitCode.REJECTED)

    def as_yaml() -> None:
        import yaml

        session.out.write(yaml.safe_dump(request, sort_keys=False, allow_unicode=True))

    if session.out.style.format in {Format.TABLE, Format.WIDE}:
        as_yaml()
    else:
        session.out.one(request, as_yaml)
    session.out.talk("dry run: nothing was sent")
    return ExitCode.OK
