"""What `logs` may be asked for, and the query that it makes of that."""

from typing import Annotated, Final

import typer

from muster.cli.complete import pod_names
from muster.cli.exits import usage
from muster.cli.options import duration_option
from muster.cli.values import parse_time

CONTAINER: Final = "main"
"""The one container of every pod, as Kubernetes knows it."""

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until the workload ends.")]
TailOption = Annotated[
    int, typer.Option("--tail", metavar="N", help="Only the last N lines of each pod; -1 prints all.", min=-1)
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
]
SinceTimeOption = Annotated[
    str | None, typer.Option("--since-time", metavar="TIME", help="Only from this time on, in RFC 3339.")
]
TimestampsOption = Annotated[bool, typer.Option("--timestamps", help="Print the time before each line.")]
PodOption = Annotated[str | None, typer.Option("--pod", help="Only lines of this pod.", autocompletion=pod_names)]
PreviousOption = Annotated[bool, typer.Option("--previous", help="Print the run before the newest one of each pod.")]
AttemptOption = Annotated[
    int | None, typer.Option("--attempt", metavar="N", help="Print the newest run of this attempt.", min=1)
]
RunOption = Annotated[
    int | None,
    typer.Option("--run", metavar="N", help="With --attempt: print this run of it. The first is 1.", min=1),
]
ContainerOption = Annotated[
    str | None,
    typer.Option("--container", metavar="NAME", help=f"Container of the pods. They have one: {CONTAINER}."),
]
LimitBytesOption = Annotated[
    int | None, typer.Option("--limit-bytes", metavar="N", help="Print at most so many bytes, and say so.", min=1)
]
WaitTimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--wait-timeout",
        metavar="DURATION",
        help="Wait until the pods have started; exit 7 after this time, 8 if they never will.",
    ),
]


def check_container(given: str | None) -> None:
    """Raises Problem (usage) for one that no pod has."""
    if given not in {None, CONTAINER}:
        raise usage(f"--container: pods have no container {given!r}", todo=f"they have one: {CONTAINER}")


def log_parameters(
    *,
    follow: bool,
    tail: int,
    since: str | None,
    since_time: str | None,
    timestamps: bool,
    pod: str | None,
    previous: bool,
    attempt: int | None,
    run: int | None,
) -> list[tuple[str, str | int]]:
    """The query of the API. Raises Problem (usage)."""
    _check_run(previous=previous, attempt=attempt, run=run, follow=follow)
    parameters: list[tuple[str, str | int]] = [("follow", "true")] if follow else []
    parameters += [("tail", tail)] if tail >= 0 else []
    parameters += _since(since, since_time)
    parameters += [("timestamps", "true")] if timestamps else []
    parameters += [("pod", pod)] if pod else []
    parameters += [("previous", "true")] if previous else []
    parameters += [("attempt", attempt)] if attempt is not None else []
    return [*parameters, *([("run", run)] if run is not None else [])]


def _check_run(*, previous: bool, attempt: int | None, run: int | None, follow: bool) -> None:
    """Raises Problem (usage) where the flags that choose a run do not go together."""
    given = {"--previous": previous, "--attempt": attempt is not None, "--run": run is not None}
    chosen = [flag for flag, is_given in given.items() if is_given]
    if run is not None and attempt is None:
        raise usage(
            "--run needs --attempt: each attempt counts its runs from 1", todo="`muster workload pods` lists both"
        )
    if previous and attempt is not None:
        raise usage("--previous and --attempt cannot be used together", todo="leave one of them out")
    if follow and chosen:
        raise usage(f"{chosen[0]} cannot be used with --follow, which prints every run")


def _since(since: str | None, since_time: str | None) -> list[tuple[str, str | int]]:
    if since and since_time:
        raise usage("--since and --since-time cannot be used together", todo="give one of them")
    if since:
        return [("since", f"{duration_option('--since', since)}s")]
    if since_time:
        if parse_time(since_time) is None:
            raise usage(f"--since-time: {since_time!r} is not a time", todo="write it as 2030-01-31T12:00:00Z")
        return [("since", since_time)]
    return []
