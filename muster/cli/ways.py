"""`exec`, `bash`, `attach` and `port-forward`: ways into the pods of a workload.

What is typed and written goes through as bytes. The terminal is set back however a session ends.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.command import Session, command
from muster.cli.complete import pod_names
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.log_options import ContainerOption, check_container
from muster.cli.names import workload_id
from muster.cli.options import ProjectOption, WorkloadArgument

if TYPE_CHECKING:
    from muster.cli.way import Ended

PodOption = Annotated[
    str | None,
    typer.Option("--pod", help="Pod, such as main-0. Default: the first one that runs.", autocompletion=pod_names),
]
StdinOption = Annotated[bool, typer.Option("--stdin", "-i", help="Pass on what is typed, or piped in.")]
TtyOption = Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal. Needs -i, and a terminal here.")]
AddressOption = Annotated[
    str,
    typer.Option("--address", metavar="ADDRESS", help="Listen at this address of this machine. Others may reach it."),
]
PortsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="[LOCAL:]REMOTE...", help="Port here, and port of the container; `:REMOTE` takes any free one here."
    ),
]
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_AS_A_SHELL: Final = {"command_not_found": _NOT_FOUND, "not_executable": _NOT_EXECUTABLE}
"""Exit codes of what cannot be run, by the API's refusal; Kubernetes finds out only once the session is open."""
_EXITS: Final = {
    "not_permitted": ExitCode.DENIED,
    "not_in_project": ExitCode.DENIED,
    "not_authenticated": ExitCode.DENIED,
    "agent_away": ExitCode.UNREACHABLE,
    "agent_stopped": ExitCode.UNREACHABLE,
    "api_stopped": ExitCode.UNREACHABLE,
    "lost": ExitCode.UNREACHABLE,
    "idle": ExitCode.TIMED_OUT,
    "time": ExitCode.TIMED_OUT,
}
"""Of a session that ended otherwise than its command."""


def add_ways(app: typer.Typer, noun: str) -> None:
    """Declares all four. Args: noun, the words before them, such as `workload`; empty: they stand alone."""
    line = f"muster {noun}".rstrip()
    _add_exec(app, line)
    _add_bash(app, line)
    _add_attach(app, line)
    _add_port_forward(app, line)


def add_exec(root: typer.Typer) -> None:
    _add_exec(root, "muster")


def add_bash(root: typer.Typer) -> None:
    _add_bash(root, "muster")


def add_attach(root: typer.Typer) -> None:
    _add_attach(root, "muster")


def add_port_forward(root: typer.Typer) -> None:
    _add_port_forward(root, "muster")


def _add_exec(app: typer.Typer, line: str) -> None:
    @command(
        app,
        "exec",
        output=False,
        takes_words=True,
        examples=f"""
        {line} exec notebook -- nvidia-smi
        {line} exec notebook -it -- python
        {line} exec notebook -i -- tar xf - < data.tar
        """,
    )
    def exec_(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        pod: PodOption = None,
        container: ContainerOption = None,
        stdin: StdinOption = False,
        tty: TtyOption = False,
        **given: list[str],
    ) -> int:
        """Run a command in a pod of a workload.

        It runs beside the own process of the pod: in its folder, as its user, with its devices. The exit code is that
        of the command. It ends, with all that it started, once you leave.
        """
        words = given["words"]
        if not words:
            raise usage("which command?", todo=f"`{line} exec {workload} -- COMMAND`")
        check_container(container)
        return _typed(session, workload, project, "exec", pod, [("command", word) for word in words], stdin, tty)


def _add_bash(app: typer.Typer, line: str) -> None:
    @command(
        app,
        "bash",
        output=False,
        examples=f"""
        {line} bash notebook
        {line} bash big --pod worker-3
        echo 'ls' | {line} bash notebook
        """,
    )
    def bash(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        pod: PodOption = None,
        container: ContainerOption = None,
    ) -> int:
        """Open a shell in a pod of a workload. It has a terminal where there is one here.

        Where the pod has no bash, `exec -it WORKLOAD -- sh` may do.
        """
        from muster.cli.way import has_terminal

        check_container(container)
        return _typed(session, workload, project, "exec", pod, [("command", "bash")], stdin=True, tty=has_terminal())


def _add_attach(app: typer.Typer, line: str) -> None:
    @command(
        app,
        "attach",
        output=False,
        examples=f"""
        {line} attach hello
        {line} attach console -it          # where it was submitted with --stdin --tty
        """,
    )
    def attach(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        pod: PodOption = None,
        container: ContainerOption = None,
        stdin: StdinOption = False,
        tty: TtyOption = False,
    ) -> int:
        """Show what the process of a pod writes from now on. With -i it reads what you type.

        It can read only where it was submitted with --stdin, on clusters of kind kubernetes. The exit code is that of
        the process, where it ends.
        """
        check_container(container)
        return _typed(session, workload, project, "attach", pod, [], stdin, tty)


def attached(session: Session, workload_id: str, *, stdin: bool, tty: bool) -> int:
    """What `attach` does."""
    return _typed(session, workload_id, None, "attach", None, [], stdin, tty)


def _add_port_forward(app: typer.Typer, line: str) -> None:
    @command(
        app,
        "port-forward",
        output=False,
        examples=f"""
        {line} port-forward notebook 8888
        {line} port-forward notebook 9000:8888 6006
        """,
    )
    def port_forward(
        session: Session,
        workload: WorkloadArgument,
        ports: PortsArgument,
        *,
        project: ProjectOption = None,
        pod: PodOption = None,
        address: AddressOption = "127.0.0.1",
    ) -> int:
        """Listen on ports of this machine, and pass on what connects there to ports of a pod. Ctrl-C ends it."""
        import asyncio

        from muster.cli.way import forward

        pairs = [_pair(text) for text in ports]
        parameters = [("port", str(remote)) for remote in dict.fromkeys(remote for _, remote in pairs)]
        parameters += [("pod", pod)] if pod else []
        path = f"/workloads/{workload_id(session, workload, project)}/port-forward"
        return _exit(session, asyncio.run(forward(session, path, parameters, pairs, address)))


def _typed(  # noqa: PLR0917 (one place that all of them share)
    session: Session,
    workload: str,
    project: str | None,
    verb: str,
    pod: str | None,
    more: Sequence[tuple[str, str]],
    stdin: bool,  # noqa: FBT001
    tty: bool,  # noqa: FBT001
) -> int:
    """To the end of a session in which something is typed or read."""
    import asyncio

    from muster.cli.way import carry, has_terminal, window

    if tty and not stdin:
        raise usage("-t needs -i", todo="give both, as -it, or neither")
    if tty and not has_terminal():
        raise usage("-t needs a terminal, and here is none", todo="leave -t out: -i alone passes on what is piped in")
    parameters: list[tuple[str, Any]] = [*more, *([("pod", pod)] if pod else [])]
    parameters += [("stdin", "true")] if stdin else []
    if tty:
        columns, rows = window()
        parameters += [("tty", "true"), ("columns", columns), ("rows", rows)]
    path = f"/workloads/{workload_id(session, workload, project)}/{verb}"
    try:
        return _exit(session, asyncio.run(carry(session, path, parameters, stdin=stdin, tty=tty)))
    except Problem as problem:
        if problem.refusal in _AS_A_SHELL:
            session.out.talk(f"muster: {problem.what}")
            return _AS_A_SHELL[problem.refusal]
        raise


def _exit(session: Session, ended: "Ended") -> int:
    """The exit code of a session's end. Raises Problem where that is none of a command."""
    if ended.reason in {"ended", "pod_ended"} and ended.exit_code is not None:
        return ended.exit_code & 0xFF
    if ended.reason in _AS_A_SHELL:
        session.out.talk(f"muster: {ended.message}")
        return _AS_A_SHELL[ended.reason]
    if ended.reason in {"left", "interrupted"}:
        return ExitCode.INTERRUPTED
    if ended.reason == "ended":
        return ExitCode.OK
    told = ended.message or ended.reason.replace("_", " ")
    raise Problem(f"the session is over: {told}", code=_EXITS.get(ended.reason, ExitCode.FAILURE))


def _pair(text: str) -> tuple[int, int]:
    """(port here, port of the container); 0: any free one. Raises Problem (usage)."""
    local, colon, remote = text.rpartition(":")
    here = local if colon else remote
    if not _is_port(remote) or not (_is_port(here) or (colon and not here)):
        raise usage(f"{text!r} is no pair of ports", todo="write it as 8888, 9000:8888 or :8888")
    return int(here or 0), int(remote)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text[:6]) <= 65_535  # noqa: PLR2004 (all there are)
