"""`muster simulate`: a stretch of the log, or a trace, played again under other settings, and both outcomes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.exits import usage
from muster.cli.options import duration_option, moment_option
from muster.cli.progress import progress_bar
from muster.cli.simulate_show import ALL_COLUMNS, Shown, columns_of, replay_error, rows_of, span
from muster.cli.values import counted, format_utc, parse_time

if TYPE_CHECKING:
    from muster.cli.simulate_change import Asked
    from services.scheduler.simulation.figures import Figures
    from services.scheduler.simulation.past import Moment, Past
    from services.scheduler.simulation.script import Script

_A_DAY: Final = 86_400.0
_TOLERATED: Final = 0.95
"""Part of the starts that must be within the tolerance: else the reader is warned."""

_FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MOMENT",
        help="Begin as things stood then: a time, a time ago (2h, 7d) or a sequence of the log. "
        "Default: the beginning.",
    ),
]
_ToOption = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="MOMENT",
        help="End there. Default: the end of the log. With --trace: a time from the first arrival on, such as 7d; "
        "default: when all have ended.",
    ),
]
_BackupOption = Annotated[
    str | None,
    typer.Option("--backup", metavar="DIR", help="Read the log from this backup, and ask no server."),
]
_TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Play this trace (CSV or YAML) in place of the log, and ask no server."
    ),
]
_TraceNodesOption = Annotated[
    Path | None,
    typer.Option("--trace-nodes", metavar="FILE", help="With --trace: its nodes (YAML or CSV)."),
]
_SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="WHAT.NAME=VALUE",
        help="Change quota, limit, weight, minimumRuntime or nodePools of a project (quota.vision=16; of one node "
        "pool: quota.vision/h100=8), or of the policy reserveAfter (a time, or never), keptAfterEviction (a time), "
        "headStart of priorities (a time, or never), takeBack (on, off), scores or orders (names, the "
        "first before the others). Repeatable.",
    ),
]
_ChangeOption = Annotated[
    Path | None,
    typer.Option(
        "--change", metavar="FILE", help="Change what this YAML file says: projects, departments, nodes, policy."
    ),
]
_NodesOption = Annotated[
    Path | None,
    typer.Option(
        "--nodes", metavar="FILE", help="Change the nodes of the cluster to those of this file (YAML or CSV)."
    ),
]
_ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Whose nodes --nodes changes. Default: the only one."),
]
_GoOnOption = Annotated[
    bool,
    typer.Option("--go-on", help="Evicted pods go on where they were, as with checkpoints. Otherwise they begin anew."),
]
_PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw both outcomes into this file, .png or .svg."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """What is to be played."""

    script: "Script"
    log: "Figures | None"
    """How it went, where it is of a log."""
    assumed: int
    projects: tuple[str, ...]
    departments: tuple[str, ...]
    clusters: dict[str, str]
    """Ids by name."""
    pools: tuple[str, ...]
    """Node pools of all of them."""


def add_simulate(root: typer.Typer) -> None:
    @command(
        root,
        "simulate",
        examples="""
        muster simulate --from 7d --set quota.vision=16
        muster simulate --from 7d --nodes more-nodes.yaml --plot outcome.svg
        muster simulate --backup /srv/backup --change plan.yaml -o csv
        muster simulate --trace trace.csv --trace-nodes nodes.yaml --set policy.takeBack=off
        """,
        columns=ALL_COLUMNS,
    )
    def simulate(
        session: Session,
        *,
        from_: _FromOption = None,
        to: _ToOption = None,
        backup: _BackupOption = None,
        trace: _TraceOption = None,
        trace_nodes: _TraceNodesOption = None,
        sets: _SetOption = None,
        change: _ChangeOption = None,
        nodes: _NodesOption = None,
        cluster: _ClusterOption = None,
        go_on: _GoOnOption = False,
        plot: _PlotOption = None,
    ) -> None:
        """Play a stretch of the log, or a trace, under other quotas, weights, nodes or policies, and compare.

        UNCHANGED is played as it was, CHANGED with what --set, --change and --nodes say; LOG is what really happened.
        The scheduler is the product's own; its clock jumps. Workloads come, and people act on them, when they really
        did, and runs last as long as they really did. Nothing is stored. Reading the log is for administrators.

        --plot needs matplotlib: pip install 'muster[charts]'.
        """
        from muster.cli.simulate_change import asked
        from muster.cli.simulate_picture import draw, form_of

        if plot is not None:
            form_of(plot)
        if trace is not None and (from_ is not None or backup is not None):
            raise usage("--trace is played in place of a log", todo="leave --from and --backup out")
        if trace_nodes is not None and trace is None:
            raise usage("--trace-nodes belongs to --trace", todo="--nodes changes the nodes of a stretch of the log")
        if cluster is not None and nodes is None and change is None:
            raise usage("--cluster says whose nodes are changed, and no nodes are given", todo="give --nodes FILE")
        wanted = asked(sets or (), change, nodes)
        if trace is not None:
            played = _from_trace(trace, trace_nodes, to, go_on=go_on)
        else:
            played = _from_log(session, backup, from_, to, go_on=go_on)
        shown = _outcomes(session, played, wanted, cluster)
        session.out.rows(rows_of(shown), columns_of(shown), name="measure")
        if plot is not None:
            what = str(trace.name) if trace is not None else "the log"
            span_ = f"{format_utc(played.script.begin)}, {span(shown[-1].figures.seconds)}"
            draw(plot, shown, f"{what}, {span_}")
            session.out.talk(f"drawn into {plot}")


# -- where it comes from -----------------------------------------------------------------------------------------------


def _from_trace(file: Path, nodes: Path | None, to: str | None, *, go_on: bool) -> _Played:
    from muster.cli.simulate_trace import read_trace
    from services.scheduler.simulation.script import Settings
    from services.scheduler.simulation.trace import CLUSTER, cluster_id, script_of

    trace = read_trace(file, nodes)
    end = None if to is None else timedelta(seconds=duration_option("--to", to))
    script, assumed = script_of(trace.workloads, trace.nodes, settings=Settings(goes_on=go_on), end=end)
    return _Played(
        script=script,
        log=None,
        assumed=assumed,
        projects=tuple(sorted({each.project for each in trace.workloads})),
        departments=(),
        clusters={CLUSTER: cluster_id()},
        pools=("default", *(each.facts.pool for each in trace.nodes)),
    )


def _from_log(session: Session, backup: str | None, from_: str | None, to: str | None, *, go_on: bool) -> _Played:
    from muster.cli.simulate_source import commits_of_backup, commits_of_log, newest_of_backup, newest_of_log
    from services.scheduler.simulation.past import EmptyError, PastReader

    begin, end = _moment("--from", from_), _moment("--to", to)
    last, newest = newest_of_log(session) if backup is None else newest_of_backup(backup)
    reader = PastReader(begin, end, newest=newest)
    with progress_bar(session.out, "read") as report:
        commits = commits_of_log(session, last, report) if backup is None else commits_of_backup(backup, report)
        for commit in commits:
            reader.take(commit)
    try:
        past = reader.finish(goes_on=go_on)
    except EmptyError:
        raise usage(f"--from: the log has nothing behind {from_ or 'its beginning'}; it ends at {last}") from None
    return _played(past, reader)


def _played(past: "Past", reader: object) -> _Played:
    from services.scheduler.simulation.past import PastReader

    assert isinstance(reader, PastReader)
    fold = reader.fold
    return _Played(
        script=past.script,
        log=past.figures,
        assumed=past.assumed,
        projects=tuple(chain.state.name for chain in fold.projects.values()),
        departments=tuple(chain.state.name for chain in fold.departments.values()),
        clusters={chain.state.name: chain.state.cluster_id for chain in fold.clusters.values() if chain.state.exists},
        pools=(
            *(pool for view in fold.snapshot(past.script.begin).clusters.values() for pool in view.pools),
            *(chain.state.facts.pool for chain in fold.nodes.values()),
        ),
    )


def _moment(flag: str, given: str | None) -> "Moment | None":
    """Raises Problem (usage)."""
    from services.scheduler.simulation.past import Moment

    if given is None:
        return None
    text = moment_option(flag, given)
    return Moment(seq=int(text)) if text.isdigit() else Moment(at=parse_time(text))


# -- playing -----------------------------------------------------------------------------------------------------------


def _outcomes(session: Session, played: _Played, wanted: "Asked", cluster: str | None) -> list[Shown]:
    from muster.cli.simulate_run import run_all
    from services.scheduler.simulation.script import Job

    change = wanted.change(played.projects, played.departments, lambda: _cluster(played, cluster), pools=played.pools)
    jobs = [Job(script=played.script)]
    if not wanted.empty:
        jobs.append(Job(script=played.script, change=change))
    with progress_bar(session.out, "simulate, in seconds of the clock") as report:
        outcomes = run_all(jobs, report)
    shown = [] if played.log is None else [Shown("log", played.log)]
    shown.append(Shown("unchanged", outcomes[0].figures))
    shown += [Shown("changed", each.figures) for each in outcomes[1:]]
    for told in _talk(played, shown, max(each.wall_seconds for each in outcomes)):
        session.out.talk(told)
    if wanted.empty:
        session.out.talk("nothing is changed: --set, --change or --nodes say what is to be otherwise")
    return shown


def _cluster(played: _Played, given: str | None) -> str:
    """Id of the one whose nodes are changed. Raises Problem (usage)."""
    names = ", ".join(sorted(played.clusters))
    if given is not None:
        if given not in played.clusters:
            raise usage(f"--cluster: there is no cluster {given!r}", todo=f"there are: {names}")
        return played.clusters[given]
    if len(played.clusters) != 1:
        raise usage(f"--cluster is missing: there are {names or 'no clusters'}", todo="say whose nodes are changed")
    return next(iter(played.clusters.values()))


def _talk(played: _Played, shown: list[Shown], wall_seconds: float) -> Iterable[str]:
    from services.scheduler.simulation.figures import TOLERANCE_SECONDS

    seconds = max(each.figures.seconds for each in shown)
    rate = seconds / _A_DAY / max(wall_seconds, 0.001) * 60
    fast = f"{rate:,.1f} days a minute" if rate >= 1 else f"{seconds / max(wall_seconds, 0.001):,.0f} times as fast"
    yield f"simulated {span(seconds)} in {span(wall_seconds)}: {fast}"
    if played.assumed:
        told = "it is taken to run" if played.assumed == 1 else "they are taken to run"
        yield f"{counted(played.assumed, 'workload')} had not ended: {told} as long as others like that"
    if shown[0].key != "log":
        return
    error = replay_error(shown)
    if error is None:
        yield "replay against the log: nothing started in both, so it cannot be said how close it is"
        return
    yield (
        f"UNCHANGED against the LOG: starts differ by {span(error.median)} in the median, {span(error.p95)} at p95, "
        f"{span(error.most)} at most; {error.within:.1%} of {error.both} by at most {TOLERANCE_SECONDS:g}s; "
        f"{error.only_one} started in one of the two only"
    )
    if error.within < _TOLERATED:
        yield "careful: that is not close; compare CHANGED with UNCHANGED, and not with LOG"
