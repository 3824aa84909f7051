"""The simulation that `muster simulate` runs: given what came and how long it ran, then figures."""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from events.ids import cluster_key, node_key, project_key
from events.maintenance import PlanMaintenance
from events.node import NodeFacts
from events.project import ChangeProject
from events.workload.commands import DeleteWorkload, PodFact, ReportPods, ResumeWorkload, SuspendWorkload
from events.workload.pod import PodRef
from services.scheduler.simulation.change import Bounds, Change, NewNode, PolicyChange
from services.scheduler.simulation.engine import Simulation
from services.scheduler.simulation.figures import Figures, off, percentile, size_of
from services.scheduler.simulation.frames import decode_job, encode_job
from services.scheduler.simulation.past import EmptyError, Moment, Past, PastReader
from services.scheduler.simulation.script import Job, Settings
from services.scheduler.simulation.trace import EPOCH, TraceWorkload, cluster_id, facts_of, script_of
from tests.scheduler.world import GIB, World

HOUR = 3600.0


def nodes(*gpus: int) -> tuple[NewNode, ...]:
    return tuple(
        NewNode(name=f"n{n}", facts=facts_of(f"n{n}", cpu_milli=96_000, memory_bytes=512 * GIB, gpu_count=count))
        for n, count in enumerate(gpus)
    )


def job(name: str, arrival: float, runtime: float | None, gpus: int, **more: Any) -> TraceWorkload:
    return TraceWorkload(name=name, arrival=arrival, runtime=runtime, gpus=gpus, cpu=1.0, **more)


def played(
    workloads: Sequence[TraceWorkload],
    on: tuple[NewNode, ...],
    change: Change | None = None,
    *,
    end: timedelta | None = None,
    **settings: Any,
) -> Figures:
    script, _ = script_of(workloads, on, settings=Settings(**settings), end=end)
    return Simulation(Job(script=script, change=change or Change())).run()


def starts(figures: Figures) -> list[float | None]:
    return [wait.at for wait in figures.waits]


# -- a trace -----------------------------------------------------------------------------------------------------------


def test_what_finds_no_room_starts_when_another_one_has_ended() -> None:
    figures = played([job("a", 0, 100, 4), job("b", 10, 50, 4), job("c", 20, 10, 2)], nodes(6))
    assert starts(figures) == [0, 100, 20]
    assert figures.seconds == 150
    assert [wait.seconds for wait in figures.waits] == [0, 90, 0]
    assert figures.gpu_hours == pytest.approx((4 * 100 + 4 * 50 + 2 * 10) / HOUR)
    assert figures.gpu_use == pytest.approx(4 / 6), "measured until the last one came"


def test_a_gang_starts_whole_and_takes_as_many_gpus_as_all_its_pods() -> None:
    figures = played([job("a", 0, 100, 1), job("gang", 1, 10, 4, gang=2)], nodes(4, 4))
    assert starts(figures) == [0, 100]
    assert [wait.size for wait in figures.waits] == ["1 GPU", "5-8 GPUs"]


def test_a_project_within_its_quota_takes_back_and_what_was_evicted_begins_anew() -> None:
    on, quota = nodes(4), Change(projects={"mine": Bounds(gpu_quota_milli=4000), "greedy": Bounds(gpu_quota_milli=0)})
    work = [job("old", 0, 100, 4, project="greedy"), job("new", 40, 50, 4, project="mine")]
    figures = played(work, on, quota, stop_seconds=10)
    assert starts(figures) == [0, 50]
    assert (figures.evictions, figures.evicted_pods) == (1, 1)
    assert figures.lost_gpu_hours == pytest.approx(4 * 40 / HOUR)
    assert figures.seconds == 200, "all of its hundred seconds, again"
    gone_on = played(work, on, quota, stop_seconds=10, goes_on=True)
    assert gone_on.lost_gpu_hours == 0
    assert gone_on.seconds == 160, "the sixty that were left when it was told to end"
    saved = played(work, on, quota, stop_seconds=10, goes_on=True, saves_every_seconds=15)
    assert saved.lost_gpu_hours == pytest.approx(4 * 10 / HOUR), "since the second checkpoint"
    assert saved.seconds == 170


def test_without_taking_back_nobody_is_evicted() -> None:
    change = Change(
        projects={"mine": Bounds(gpu_quota_milli=4000), "greedy": Bounds(gpu_quota_milli=0)},
        policy=PolicyChange(take_back=False),
    )
    work = [job("old", 0, 100, 4, project="greedy"), job("new", 40, 50, 4, project="mine")]
    figures = played(work, nodes(4), change)
    assert (starts(figures), figures.evictions) == ([0, 100], 0)


def test_room_is_kept_for_what_is_wide_after_the_time_that_the_policy_says() -> None:
    """Narrow ones come all the time, each before the one before it has ended."""
    narrow = [job(f"n{n}", 60 * n, 200, 1) for n in range(60)]
    work = [*narrow, job("wide", 30, 60, 4)]
    never = played(work, nodes(4), Change(policy=PolicyChange(reserve_after_seconds=None)))
    soon = played(work, nodes(4), Change(policy=PolicyChange(reserve_after_seconds=120.0)))
    wide = [next(wait for wait in figures.waits if wait.size == "2-4 GPUs") for figures in (never, soon)]
    assert wide[0].seconds > 3000
    assert wide[1].seconds < 700


@pytest.mark.parametrize(
    ("seconds", "first"), [(UNSET, "high"), (None, "high"), (600.0, "high"), (60.0, "low"), (0.0, "low")]
)
def test_who_waits_for_longer_than_the_head_start_of_its_priority_goes_first(seconds: Any, first: str) -> None:
    """One of a low priority has waited for two minutes when one of a rank more comes."""
    work = [
        job("holder", 0, 1000, 4),
        job("low", 10, 5000, 4, priority="very-low"),
        job("high", 130, 5000, 4, priority="low"),
    ]
    figures = played(work, nodes(4), Change(policy=PolicyChange(head_start_seconds=seconds, take_back=False)))
    order = {"high": [0, 5990, 870], "low": [0, 990, 5870]}
    assert [round(wait.seconds) for wait in figures.waits] == order[first]


def test_more_nodes_shorten_the_wait_and_fewer_lengthen_it() -> None:
    work = [job(f"w{n}", n, 100, 2) for n in range(8)]
    waits = [played(work, nodes(4), Change(nodes={cluster_id(): nodes(*on)})).waits_of() for on in ((2,), (4,), (8, 8))]
    assert [percentile(each, 99) for each in waits] == [693, 294, 0]


def test_what_can_never_start_still_waits_at_the_end() -> None:
    figures = played([job("a", 0, 10, 1), job("b", 5, 10, 9)], nodes(8))
    assert [wait.how for wait in figures.waits] == ["started", "waits"]
    assert figures.count("waits") == 1


def test_a_trace_ends_where_it_is_told_to() -> None:
    figures = played([job("a", 0, 1000, 4), job("b", 10, 10, 4)], nodes(4), end=timedelta(seconds=500))
    assert figures.seconds == 500
    assert [wait.seconds for wait in figures.waits] == [0, 490]


def test_a_run_of_which_nothing_is_known_lasts_as_long_as_the_others_do_in_the_middle() -> None:
    script, assumed = script_of(
        [job("a", 0, 10, 1), job("b", 0, 30, 1), job("c", 0, 90, 1), job("d", 0, None, 1)],
        nodes(8),
        settings=Settings(),
    )
    assert assumed == 1
    assert sorted(each.usual.lasts or 0 for each in script.runs.values()) == [10, 30, 30, 90]


def test_shares_that_follow_the_ideal_have_no_error_and_others_have() -> None:
    """Two projects want all of eight GPUs: each has a right to half."""
    work = [*(job(f"a{n}", 0, 1000, 1, project="a") for n in range(8))]
    work += [*(job(f"b{n}", 100, 1000, 1, project="b") for n in range(8)), job("last", 1000, 1, 0, project="b")]
    fair = played(work, nodes(8), stop_seconds=1)
    unfair = played(work, nodes(8), Change(policy=PolicyChange(take_back=False)))
    assert fair.share_error is not None
    assert fair.share_error < 0.01
    assert unfair.share_error == pytest.approx(0.45, abs=0.01)


# -- the same again ----------------------------------------------------------------------------------------------------


def crowd(count: int, *, projects: int = 3) -> list[TraceWorkload]:
    """So many, of several sizes, more than there is room for at times."""
    return [
        job(
            f"w{n}",
            (n * 37) % (count * 9),
            60 + (n * 53) % 600,
            (0, 1, 1, 2, 4, 8)[n % 6],
            project=f"p{n % projects}",
            portion=0.5 if n % 6 == 1 else None,
            gang=2 if n % 17 == 3 else 1,
            priority=("low", "medium", "high")[n % 3] if n % 5 == 0 else "low",
        )
        for n in range(count)
    ]


def test_the_same_job_has_the_same_outcome_byte_for_byte_in_any_process() -> None:
    script, _ = script_of(crowd(30), nodes(8), settings=Settings())
    quotas = {f"p{n}": Bounds(gpu_quota_milli=2000) for n in range(3)}
    data = encode_job(Job(script=script, change=Change(projects=quotas)))
    program = (
        "import sys, msgspec; from services.scheduler.simulation.engine import Simulation; "
        "from services.scheduler.simulation.frames import decode_job; "
        "figures = Simulation(decode_job(sys.stdin.buffer.read())).run(); "
        "sys.stdout.buffer.write(msgspec.json.encode(figures))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=data,
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(Path.cwd())},
    ).stdout
    assert found == msgspec.json.encode(Simulation(decode_job(data)).run())
    figures = msgspec.json.decode(found, type=Figures)
    assert figures.evictions > 0
    assert figures.count("started") > 20


def test_where_nothing_waits_no_plan_is_made_again_and_the_outcome_is_the_same() -> None:
    class Thorough(Simulation):
        def _plan(self) -> None:
            self.ledger.settle(cycles=1000)

    script, _ = script_of(crowd(30), nodes(4, 2), settings=Settings())
    change = Change(projects={"p0": Bounds(gpu_quota_milli=3000), "p1": Bounds(gpu_quota_milli=1000)})
    quick, slow = (of(Job(script=script, change=change)).run() for of in (Simulation, Thorough))
    assert quick == slow


@pytest.mark.timeout(400)
def test_two_thousand_workloads_are_played_and_what_has_ended_is_forgotten() -> None:
    """Alike, and twenty at a time, so that it takes seconds."""
    work = [job(f"w{n}", n // 20 * 100, 90, 0) for n in range(2_000)]
    script, _ = script_of(
        work, (NewNode(name="n", facts=NodeFacts(cpu_milli=30_000, memory_bytes=GIB)),), settings=Settings()
    )
    simulation = Simulation(Job(script=script))
    figures = simulation.run()
    assert figures.count("started") == 2_000
    simulation.ledger.fold.settle(simulation.ledger.now)
    assert len(simulation.ledger.fold.workloads) < 30
    assert figures.cpu_use == pytest.approx(0.9 * 20 / 30, rel=0.01)


# -- a log -------------------------------------------------------------------------------------------------------------


class Lives:
    """A world whose clock a test moves, and which is read again as a log."""

    def __init__(self, *gpus: int) -> None:
        self.world = World()
        self.world.cluster()
        for number, count in enumerate(gpus):
            self.world.node(f"n{number}", gpu_count=count, cpu_milli=96_000)
        self.world.project()
        self.world.now += timedelta(hours=1)

    def submit(self, name: str, **spec: Any) -> str:
        key = self.world.submit(name, **spec)
        self.world.settle()
        self.runs(key)
        return key

    def runs(self, *keys: str) -> None:
        """What is bound begins to run."""
        for key in keys:
            self._say(key, "running", {"Bound"})

    def ends(self, key: str, kind: str = "succeeded", **more: Any) -> None:
        self._say(key, kind, {"Running"}, **more)
        self.world.settle()
        self.runs(*(key for kind, key in [*self.world.chains] if kind == "workload"))

    def stopped(self, key: str) -> None:
        self._say(key, "stopped", {"Stopping"})
        self.world.settle()
        self.runs(*(key for kind, key in [*self.world.chains] if kind == "workload"))

    def _say(self, key: str, kind: Any, phases: set[str], **more: Any) -> None:
        state = self.world.workload(key)
        facts = tuple(
            PodFact(
                pod=PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_),
                kind=kind,
                at=self.world.now,
                **more,
            )
            for (name, index), pod in state.pods.live.items()
            if pod.phase in phases
        )
        if facts:
            self.world.do("workload", key, ReportPods(workload_id=state.workload_id, facts=facts))

    def later(self, seconds: float) -> None:
        self.world.now += timedelta(seconds=seconds)

    def read(self, begin: Moment | None = None, end: Moment | None = None, **how: Any) -> Past:
        reader = PastReader(begin, end, newest=self.world.commits[-1].record.occurred_at)
        for commit in self.world.commits:
            reader.take(commit)
        return reader.finish(**how)


def again(past: Past, change: Change | None = None) -> Figures:
    return Simulation(Job(script=past.script, change=change or Change())).run()


def a_day() -> Lives:
    """Cancelled, suspended, failed and completed ones, on four GPUs."""
    lives = Lives(4)
    a = lives.submit("a", gpu_devices_request=3)
    lives.later(20)
    b = lives.submit("b", gpu_devices_request=2)  # waits
    cancelled = lives.submit("cancelled", gpu_devices_request=4)  # waits, and never starts
    c = lives.submit("c", gpu_devices_request=1, backoff_limit=3)
    lives.later(30)
    lives.ends(c, "failed", exit_code=1)  # and runs again after a second
    lives.later(2)
    lives.world.settle()
    lives.runs(c)
    lives.later(8)
    lives.world.command(cancelled, DeleteWorkload)
    lives.world.settle()
    lives.later(10)
    lives.ends(a)  # b starts
    lives.later(15)
    lives.world.command(b, SuspendWorkload)
    lives.later(5)
    lives.stopped(b)
    lives.later(60)
    lives.world.command(b, ResumeWorkload)
    lives.world.settle()
    lives.runs(b)
    lives.later(40)
    lives.ends(c)
    lives.ends(b)
    lives.later(1)
    lives.submit("open", gpu_devices_request=2)  # still runs when the log ends
    lives.later(100)
    lives.submit("too-wide", gpu_devices_request=9)  # waits for ever
    lives.later(100)
    last = lives.submit("last")
    lives.later(1)
    lives.world.command(last, DeleteWorkload)
    return lives


def test_an_unchanged_log_is_played_as_it_was() -> None:
    past = a_day().read()
    figures = again(past)
    error = off(past.figures, figures)
    assert error is not None
    assert (error.median, error.only_one) == (0, 0)
    assert error.most <= 1.0, "a run that failed is run again when its wait is over, and not when somebody looked"
    assert [wait.how for wait in figures.waits] == [wait.how for wait in past.figures.waits]
    assert figures.gpu_hours == pytest.approx(past.figures.gpu_hours, rel=0.01)
    assert past.assumed == 2, "the one that was cancelled, and the one that is too wide"


def test_maintenance_is_played_again_by_its_times() -> None:
    """Nodes are out of service when they were, and what waited for them starts when it did; none is marked twice."""
    lives = Lives(4)
    world = lives.world
    starts = world.now + timedelta(hours=1)
    command = PlanMaintenance(
        cluster_id=world.cluster_id,
        name="fan",
        starts_at=starts,
        ends_at=starts + timedelta(hours=1),
        nodes=("n0",),
        new=True,
    )
    world.do("cluster", cluster_key("local"), command)
    soft = lives.submit("soft", gpu_devices_request=4)
    world.now = starts
    world.settle()
    lives.stopped(soft)
    lives.submit("firm", gpu_devices_request=1, preemptibility="non-preemptible")
    world.now = starts + timedelta(hours=1)
    world.settle()
    lives.runs(*(key for kind, key in [*world.chains] if kind == "workload"))
    lives.later(600)
    lives.ends(soft)
    lives.later(1)

    past = lives.read()
    simulation = Simulation(Job(script=past.script, change=Change()))
    figures = simulation.run()

    assert (past.figures.evictions, figures.evictions) == (1, 1)
    assert figures.starts == pytest.approx(past.figures.starts, abs=1)
    node = simulation.ledger.chain("node", node_key(world.cluster_id, "n0")).state
    assert (node.cordoned, len(node.maintained)) == (False, 1)


def test_a_lost_cluster_is_left_again_and_what_was_left_there_ends_when_it_is_back() -> None:
    """What waits for the node of the old pod starts once that has ended, and not before."""
    lives = Lives(4)
    world = lives.world
    other = world.cluster("b")
    world.node("b0", cluster_id=other, gpu_count=4, cpu_milli=96_000)
    setting = ChangeProject(project_id=world.project_id, cluster_lost_seconds=600)
    world.do("project", project_key("default"), setting)
    moves = lives.submit("moves", gpu_devices_request=4, among=(world.cluster_id, other))
    lives.later(5)
    world.connect(world.cluster_id, connected=False)
    lives.later(600)
    world.settle()
    lives.runs(moves)
    assert world.workload(moves).cluster_id == other
    waits = lives.submit("waits", gpu_devices_request=4)
    lives.later(60)
    world.connect(world.cluster_id)
    lives.later(10)
    (pods,) = world.workload(moves).left.values()
    (((_, index), pod),) = pods.items()
    old = PodFact(
        pod=PodRef(pod_set="main", index=index, attempt=pod.attempt, try_=pod.try_), kind="stopped", at=world.now
    )
    world.do("workload", moves, ReportPods(workload_id=world.workload(moves).workload_id, facts=(old,)))
    world.settle()
    lives.runs(waits)
    lives.later(100)
    lives.ends(moves)
    lives.ends(waits)

    past = lives.read()
    simulation = Simulation(Job(script=past.script, change=Change()))
    figures = simulation.run()

    assert figures.starts == pytest.approx(past.figures.starts, abs=30)
    assert [wait.how for wait in figures.waits] == [wait.how for wait in past.figures.waits] == ["started", "started"]
    assert figures.waits[1].seconds >= 60
    for name, where in (("n0", world.cluster_id), ("b0", other)):
        assert not simulation.ledger.chain("node", node_key(where, name)).state.reservations


def test_a_stretch_begins_with_what_ran_and_waited_then() -> None:
    lives = Lives(4)
    before = lives.submit("before", gpu_devices_request=4)
    lives.later(100)
    waits = lives.submit("waits", gpu_devices_request=4)
    lives.later(50)
    middle = lives.world.commits[-1].seq
    lives.later(50)
    lives.ends(before)
    lives.later(30)
    lives.ends(waits)
    lives.later(10)
    lives.submit("last")
    past = lives.read(Moment(seq=middle))
    figures = again(past)
    assert [wait.seconds for wait in figures.waits] == [pytest.approx(100, abs=1), 0]
    assert figures.gpu_hours == pytest.approx(past.figures.gpu_hours)
    error = off(past.figures, figures)
    assert error is not None
    assert (error.both, error.most) == (2, pytest.approx(0, abs=1e-6))


def test_a_stretch_ends_at_a_time_and_runs_that_go_on_are_known_from_behind_it() -> None:
    lives = Lives(4)
    first = lives.submit("first", gpu_devices_request=4)
    begin = lives.world.now
    lives.later(100)
    lives.ends(first)
    lives.later(100)
    lives.submit("second", gpu_devices_request=1)
    past = lives.read(None, Moment(at=begin + timedelta(seconds=50)))
    assert (past.script.end, len(past.figures.waits)) == (begin + timedelta(seconds=50), 1)
    (runs,) = past.script.runs.values()
    assert [run.lasts for run in runs.of["main-0"]] == [100]


def test_a_changed_quota_changes_the_outcome_and_the_log_does_not_set_it_back() -> None:
    lives = Lives(4)
    project = lives.world.project_id
    one = lives.submit("one", gpu_devices_request=2, preemptibility="non-preemptible")
    two = lives.submit("two", gpu_devices_request=2, preemptibility="non-preemptible")
    lives.world.do("project", lives.world.fold.projects.keys().__iter__().__next__(), ChangeProject(project_id=project))
    lives.later(50)
    lives.ends(one)
    lives.later(50)
    lives.ends(two)
    past = lives.read()
    assert [wait.seconds for wait in again(past).waits] == [0, 0]
    figures = again(past, Change(projects={"default": Bounds(gpu_quota_milli=2000)}))
    assert [wait.seconds for wait in figures.waits] == [0, pytest.approx(50, abs=1)]


def test_nodes_that_are_taken_away_interrupt_what_ran_there() -> None:
    lives = Lives(4, 4)
    runs = lives.submit("runs", gpu_devices_request=4)
    lives.later(10)
    middle = lives.world.commits[-1].seq
    lives.later(90)
    lives.ends(runs)
    lives.later(200)
    lives.submit("last")
    on = lives.world.workload(runs)
    assert on.phase == "Completed"
    past = lives.read(Moment(seq=middle))
    (name,) = {
        each.node_name
        for commit in lives.world.commits
        for event in commit.events
        for each in getattr(event, "placements", ())
    } & {"n0", "n1"}
    other = "n1" if name == "n0" else "n0"
    facts = lives.world.fold.nodes[
        next(k for k, c in lives.world.fold.nodes.items() if c.state.name == other)
    ].state.facts
    figures = again(past, Change(nodes={lives.world.cluster_id: (NewNode(name=other, facts=facts),)}))
    assert figures.gpu_hours == pytest.approx(4 * 100 / HOUR, rel=0.05), "all of its run, anew"


def test_nothing_behind_the_beginning_is_said() -> None:
    lives = a_day()
    with pytest.raises(EmptyError):
        lives.read(Moment(seq=lives.world.commits[-1].seq))


def test_evicted_runs_may_go_on_where_they_were() -> None:
    """What an evicted run had done, and what the next one did, are its work together."""
    lives = Lives(4)
    greedy = lives.world.project("greedy", quota=0)
    mine = lives.world.project("mine", quota=4000)
    old = lives.submit("old", gpu_devices_request=4, project_id=greedy)
    lives.later(100)
    new = lives.submit("new", gpu_devices_request=4, project_id=mine)
    lives.later(10)
    lives.stopped(old)
    lives.later(50)
    lives.ends(new)
    lives.later(80)
    lives.ends(old)
    past = lives.read()
    assert past.figures.evictions == 1
    assert past.figures.lost_gpu_hours == pytest.approx(4 * 101 / HOUR, rel=0.02)
    (run,) = next(runs.of["main-0"] for runs in past.script.runs.values() if runs.of["main-0"][0].before)
    assert (run.lasts, run.before) == (80, pytest.approx(101))
    assert past.script.settings.stop_seconds == 10
    assert again(past).gpu_hours == pytest.approx(past.figures.gpu_hours, rel=0.01)


# -- figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "expected"), [(1, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_a_percentile_is_one_of_the_numbers(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == expected


@pytest.mark.parametrize(
    ("milli", "devices", "size"),
    [
        (0, 0, "no GPU"),
        (500, 1, "part of a GPU"),
        (0, 1, "part of a GPU"),
        (1000, 1, "1 GPU"),
        (1500, 3, "2-4 GPUs"),
        (4000, 4, "2-4 GPUs"),
        (8000, 8, "5-8 GPUs"),
        (9000, 9, "more than 8 GPUs"),
    ],
)
def test_sizes_are_of_all_pods_that_run_at_once(milli: int, devices: int, size: str) -> None:
    assert size_of(milli, devices) == size


def test_a_trace_begins_with_its_first_arrival() -> None:
    script, _ = script_of([job("b", 90, 1, 1), job("a", 30, 1, 1)], nodes(1), settings=Settings())
    assert script.begin == EPOCH + timedelta(seconds=30)
