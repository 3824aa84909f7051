"""Options and arguments that several commands share, and how their texts are read."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from events.nearest import did_you_mean
from events.phases import DesiredPhase, Phase
from muster.cli.complete import (
    cluster_names,
    columns,
    department_names,
    labels,
    phases,
    project_names,
    several_columns,
    workload_names,
)
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.values import ValueProblem, format_utc, parse_ago, parse_duration, parse_switch, parse_time

ProjectOption = Annotated[
    str | None,
    typer.Option("--project", "-p", help="Project (name or id). [env MUSTER_PROJECT]", autocompletion=project_names),
]
WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD", help="Name, id, unique beginning of an id, or @latest.", autocompletion=workload_names
    ),
]
SomeWorkloadsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORKLOAD...",
        help="Names, ids, unique beginnings of ids, or @latest; or choose with --all and filters.",
        autocompletion=workload_names,
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Keep showing changes as they happen.")]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Wait until it is done: exit 7 on timeout, 8 if it can no longer happen. Goes with workloads that are "
        "named, not with those that filters choose, and not with -o or --dry-run.",
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="With --wait: exit 7 after this time, such as 5m. "
        "Default: no limit, but exit 9 if the server is away for 2m.",
    ),
]
WatchTimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="With --watch: exit 7 after this time, such as 10m. "
        "Default: no limit, but exit 9 if the server is away for 2m.",
    ),
]
FollowTimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Exit 7 after this time, such as 10m. Default: no limit, but exit 9 if the server is away for 2m.",
    ),
]


CodeOption = Annotated[
    str | None,
    typer.Option(
        "--code",
        metavar="FOLDER",
        help="Send this folder, without what .gitignore excludes. Each run starts in its own copy, on any cluster.",
    ),
]

IdempotencyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="Makes it safe to repeat: the same key is carried out once."),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Cluster (name or id).", autocompletion=cluster_names)
]
CreatedOnOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster (name or id). Default: the context's, else the only one, else that of this machine.",
        autocompletion=cluster_names,
    ),
]
RunsOnOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster (name or id); any: the scheduler chooses. Default: the context's, else the only one, else any.",
        autocompletion=cluster_names,
    ),
]
ClusterArgument = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="Name, id, or unique beginning of an id.", autocompletion=cluster_names)
]
DepartmentOption = Annotated[
    str | None,
    typer.Option("--department", help="Department (name or id).", autocompletion=department_names),
]
ProjectArgument = Annotated[
    str, typer.Argument(metavar="PROJECT", help="Name, id, or unique beginning of an id.", autocompletion=project_names)
]
StatusOption = Annotated[
    str | None,
    typer.Option(
        "--status", metavar="PHASE,…", help="Only workloads in this phase, or in one of these.", autocompletion=phases
    ),
]
FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD==VALUE",
        help="Condition with == != <= >= =@ !@ =^ =$. Repeatable; all must hold.",
        autocompletion=columns,
    ),
]
SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="LABELS",
        help="Only with these labels, in Kubernetes' syntax: team=vision,stage in (dev,test),!old.",
        autocompletion=labels,
    ),
]
SearchOption = Annotated[
    str | None,
    typer.Option(
        "--search", metavar="TEXT", help="Only with this text in a name, id, owner, project, cluster, phase or image."
    ),
]
OffsetOption = Annotated[
    int, typer.Option("--offset", metavar="N", help="Leave out the first N rows: the next page of a list.", min=0)
]
PageSizeOption = Annotated[
    int | None,
    typer.Option("--page-size", metavar="N", help="Rows of one request to the server. Default: 500.", min=1, max=500),
]
WorkloadSortOption = Annotated[
    str | None,
    typer.Option(
        "--sort",
        "--sort-by",
        metavar="A,-B",
        help="Columns to sort by, at most 5; - before one turns its direction. Default: the newest first.",
        autocompletion=several_columns,
    ),
]
RowsOption = Annotated[int, typer.Option("--limit", metavar="N", help="Maximum number of rows; 0 shows all.", min=0)]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="Every workload of the project of which it makes sense; filters choose among them."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would become of each, and do nothing.")]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation. Without a terminal it never asks.")
]


NOW: Final = "now"


def moment_option(flag: str, given: str) -> str:
    """A moment as the API takes it: of a time ago, the time, which does not move. Raises Problem (usage)."""
    if given == NOW:
        return format_utc(datetime.now(UTC))
    if (given.isascii() and given.isdigit()) or parse_time(given) is not None:
        return given
    try:
        return format_utc(datetime.now(UTC) - timedelta(seconds=parse_duration(given)))
    except ValueProblem:
        todo = "write a time as 2030-01-31T12:00:00Z, a time ago as 2h or 7d, now, or a sequence of the log as 4711"
        raise usage(f"{flag}: {given!r} is no moment", todo=todo) from None


_END: Final = ("to", NOW)
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="MOMENT", help="Begin here: a time, a time ago, or a sequence of the log."),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="MOMENT", help="End here. Default: now.")]


def span(begin: str | None, end: str | None) -> list[tuple[str, str]]:
    """The parameters of --from and --to. Raises Problem (usage)."""
    given = (("from", begin), ("to", end))
    # An end that is now is none: the server's clock may be behind this one.
    chosen = ((name, text) for name, text in given if text is not None and (name, text) != _END)
    return [(name, moment_option(f"--{name}", text)) for name, text in chosen]


def time_option(flag: str, given: str) -> str:
    """A time as the API takes it; of a time ago, the time. A bare number is none. Raises Problem (usage)."""
    if parse_time(given) is not None:
        return given
    try:
        return format_utc(datetime.now(UTC) - timedelta(seconds=parse_ago(given)))
    except ValueProblem:
        todo = "write a date as 2030-01-31, a time as 2030-01-31T12:00:00Z, or a time ago as 2h or 7d"
        raise usage(f"{flag}: {given!r} is no time", todo=todo) from None


def duration_option(flag: str, given: str) -> int:
    """Seconds of a duration. Raises Problem (usage)."""
    try:
        return parse_duration(given)
    except ValueProblem as error:
        raise usage(f"{flag}: {error}") from error


def switch_option(flag: str, given: str) -> bool:
    """On or off. Raises Problem (usage)."""
    try:
        return parse_switch(given)
    except ValueProblem as error:
        raise usage(f"{flag}: {error}") from error


def confirm(question: str, *, yes: bool) -> None:
    """Asks where somebody can answer: a script is never asked. Raises Problem where the answer is no."""
    import sys

    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(question, err=True):
        raise Problem("nothing was done", code=ExitCode.FAILURE)


def timeout_seconds(given: str | None, *, waits: bool, flags: str = "--wait") -> float | None:
    """Seconds of --timeout; None: as long as it takes. Raises Problem (usage), also where nothing is waited for."""
    if given is None:
        return None
    seconds = float(duration_option("--timeout", given))
    if not waits:
        raise usage(f"--timeout goes with {flags}: without, nothing is waited for", todo="give both, or none")
    return seconds


def phase_filters(given: str) -> list[tuple[str, str | int]]:
    """Of --status: conditions that all hold in one of these phases. Raises Problem (usage)."""
    phases = {phase_of(one.strip()) for one in given.split(",") if one.strip()}
    if len(phases) == 1:
        return [("filterBy", f"phase=={phase}") for phase in phases]
    if not phases:
        raise usage("--status: names no phase", todo=f"phases: {', '.join(Phase)}")
    return [("filterBy", f"phase!={phase}") for phase in Phase if phase not in phases]


def phase_of(given: str) -> str:
    """A phase, however its capitals were typed. Raises Problem (usage)."""
    for phase in Phase:
        if phase.lower() == given.lower():
            return phase
    if given.lower() == DesiredPhase.DELETED.lower():
        raise usage(f"--status: there is no phase {given!r}", todo="`--deleted` lists what was deleted")
    hint = did_you_mean(given, list(Phase))
    raise usage(f"--status: there is no phase {given!r}", todo=hint or f"phases: {', '.join(Phase)}")
