"""The entry point of `muster`: the commands put together, and how each of them ends."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.audit import add_audit
from muster.cli.cluster import add_cluster, add_nodes
from muster.cli.command import (
    Connection,
    ContextOption,
    DebugOption,
    MusterGroup,
    NoColorOption,
    QuietOption,
    Session,
    TokenOption,
    UrlOption,
    command,
)
from muster.cli.completion import COMPLETE_VARIABLE, add_completion
from muster.cli.context_commands import add_context
from muster.cli.doctor import add_doctor, add_version
from muster.cli.events import add_events
from muster.cli.exits import EXIT_CODE_MEANING, ExitCode, Problem
from muster.cli.operate import add_log, add_projections
from muster.cli.project import add_project
from muster.cli.report import report
from muster.cli.roles import add_role, add_user
from muster.cli.tokens import add_token
from muster.cli.training import add_training
from muster.cli.workload import add_workload

if TYPE_CHECKING:
    from typer.core import TyperGroup

EXAMPLES: Final = """
muster up                                             # everything on this machine; Ctrl-C stops it
muster training submit hello -i python:3.13 -- python -c 'print(6 * 7)'
muster training logs hello -f
muster workload history hello
muster workload list -w
"""
EPILOG: Final = "\b\nExit codes:\n" + "\n".join(
    f"  {int(code):<4} {meaning}" for code, meaning in EXIT_CODE_MEANING.items()
)
_TERMINAL_COLUMNS: Final = 100
"""Widest help: longer lines are hard to read."""


def main() -> None:
    """Runs the command line of this process."""
    arguments = sys.argv[1:]
    sys.exit(run(command_line(arguments[0] if arguments else ""), arguments))


def command_line(first: str = "") -> "TyperGroup":
    """All commands, as click groups; or only those behind the first word, where that names some: to declare all takes
    as long as most commands.
    """
    app = typer.Typer(
        cls=MusterGroup,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _TERMINAL_COLUMNS},
    )
    _add_root(app)
    commands = _commands()
    for add in [commands[first]] if first in commands else dict.fromkeys(commands.values()):
        add(app)
    built = typer.main.get_command(app)
    assert isinstance(built, MusterGroup)
    return built


def _commands() -> dict[str, Callable[[typer.Typer], None]]:
    """By the word that they are called by, in the order of the help."""
    return {
        "up": add_up,
        "training": add_training,
        "workload": add_workload,
        "project": add_project,
        "cluster": add_cluster,
        "node": add_nodes,
        "nodepool": add_nodes,
        "role": add_role,
        "user": add_user,
        "token": add_token,
        "context": add_context,
        "events": add_events,
        "audit": add_audit,
        "projections": add_projections,
        "log": add_log,
        "doctor": add_doctor,
        "version": add_version,
        "completion": add_completion,
    }


def run(commands: "TyperGroup", arguments: list[str]) -> int:
    """Runs one command and answers its exit code; every way to end passes here."""
    debug = "--debug" in arguments
    if COMPLETE_VARIABLE in os.environ:
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
    try:
        commands.main(args=arguments, prog_name="muster", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Problem as problem:
        report(problem, sys.stderr, debug=debug)
        return problem.code
    except Exception as error:
        if debug:
            raise
        sys.stderr.write(f"muster: internal error: {type(error).__name__}: {error}\n")
        sys.stderr.write("  → run it again with --debug for the stack trace, and report it\n")
        return ExitCode.FAILURE
    return ExitCode.OK


def _add_root(app: typer.Typer) -> None:
    def root(
        ctx: typer.Context,
        *,
        context: ContextOption = None,
        url: UrlOption = None,
        token: TokenOption = None,
        debug: DebugOption = False,
        quiet: QuietOption = False,
        no_color: NoColorOption = False,
    ) -> None:
        """Muster: an event-sourced control plane for GPU workloads."""
        ctx.obj = Connection(context=context, url=url, token=token, debug=debug, quiet=quiet, no_color=no_color)

    root.examples = EXAMPLES  # pyright: ignore[reportFunctionMemberAccess]
    app.callback()(root)


def add_up(app: typer.Typer) -> None:
    """Declares `muster up`: the supervisor takes this process's place, so that it does not carry the command line."""

    @command(
        app,
        "up",
        output=False,
        examples="""
        muster up
        muster up --gpus 2 --port 9000
        muster up --demo --data-dir /tmp/muster
        muster up --kubernetes 4
        """,
    )
    def up(
        session: Session,
        *,
        data_dir: Annotated[
            Path | None,
            typer.Option("--data-dir", metavar="DIR", help="Where it keeps its data. [env MUSTER_DATA_DIR]"),
        ] = None,
        port: Annotated[
            int | None, typer.Option("--port", help="Of the API; 0 takes a free one. Default: 8080.")
        ] = None,
        gpus: Annotated[
            int | None, typer.Option("--gpus", help="Stand-in GPUs that the cluster `local` declares.")
        ] = None,
        demo: Annotated[
            bool, typer.Option("--demo", help="Add a simulated cluster of 32 nodes × 8 GPUs, and some life.")
        ] = False,
        kubernetes: Annotated[
            int | None,
            typer.Option(
                "--kubernetes",
                metavar="NODES",
                help="Add a Kubernetes cluster of simulated nodes with 8 GPUs; `make kube-tools` builds what it needs.",
            ),
        ] = None,
        accept_shared_pods: Annotated[
            bool,
            typer.Option(
                "--accept-shared-pods",
                help="Where this machine cannot shut pods off from Muster's keys, let other people have roles all "
                "the same.",
            ),
        ] = False,
        log_level: Annotated[
            str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
        ] = None,
    ) -> None:
        """Run everything on this machine, for development, until Ctrl-C."""
        given = {
            "--data-dir": data_dir,
            "--port": port,
            "--gpus": gpus,
            "--kubernetes": kubernetes,
            "--log-level": log_level,
        }
        options = [f"{flag}={value}" for flag, value in given.items() if value is not None]
        options += ["--demo"] if demo else []
        options += ["--accept-shared-pods"] if accept_shared_pods else []
        session.out.stdout.flush()
        # Our own interpreter, with arguments that were checked; no shell is wanted.
        os.execv(sys.executable, [sys.executable, "-m", "muster.embedded.up", *options])  # noqa: S606


if __name__ == "__main__":
    main()
