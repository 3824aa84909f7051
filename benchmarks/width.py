"""Whether a wide workload costs more per pod than a narrow one: ten thousand pods beside a thousand.

On a simulated cluster, from submission until the tables say that all run, and from the first end until it is Completed.
And one fact of one pod, decided, folded and made into rows, beside the same fact of a workload of ten pods.
"""

import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report import Figure, Report
from development.stack import Api, Stack, until
from events.aggregate import WORKLOAD, Chain, draft
from events.commit import Actor, Commit
from events.decision import Context
from events.ids import incarnation_id, project_key, workload_key
from events.refusal import Refusal
from events.workload.commands import CreateWorkload, PlacePods, PodFact, ReportPods
from events.workload.pod import Placement, PodRef
from events.workload.spec import TrainingSpec
from projections.fold import fold

MOST_RATIO = 1.3
NODES = 128
"""Of 110 pods each."""
RUNS_SECONDS = {1_000: 30, 10_000: 120}
"""So long that all run at one time."""
PATIENCE_SECONDS = 600
FACTS = 300
PODS_OF_NARROW = 10


def _per_pod(api: Api, pods: int) -> tuple[float, float]:
    """Milliseconds per pod: from submission to all running, from the first end to Completed."""
    name = f"wide-{pods}"
    runs = [{"name": "simulation.muster.dev/runtime-seconds", "value": str(RUNS_SECONDS[pods])}]

    def told(column: str) -> object:
        """What the list says of it; None before it has a row."""
        rows = api.get("/workloads", filterBy=f"name=={name}")["workloads"]
        return rows[0][column] if rows else None

    began = time.perf_counter()
    api.submit(name, cluster="sim", completions=pods, parallelism=pods, annotations=runs)
    until(lambda: told("runningPods") == pods, PATIENCE_SECONDS)
    running = time.perf_counter()
    until(lambda: told("runningPods") != pods, PATIENCE_SECONDS)
    ending = time.perf_counter()
    until(lambda: told("phase") == "Completed", PATIENCE_SECONDS)
    return 1000 * (running - began) / pods, 1000 * (time.perf_counter() - ending) / pods


def _fact_micros(pods: int) -> float:
    """CPU of one fact of one pod among so many: decision, fold, rows."""
    project = incarnation_id(project_key("default"), "1")
    key, now, chain = workload_key(project, "wide"), datetime.now(UTC), Chain(state=WORKLOAD.initial)
    commits: list[Commit] = []

    def carry_out(command: object, chain: Chain, seq: int) -> tuple[Chain, Commit]:
        context = Context(now=now, actor=Actor(id="alice"), command_id=f"command-{seq}", version=chain.version)
        events = WORKLOAD.decide(command, chain.state, context)
        assert not isinstance(events, Refusal), events
        made = draft(WORKLOAD, key, chain, events, command_id=f"command-{seq}", actor=Actor(id="alice"), now=now)
        return Chain(state=WORKLOAD.after(chain.state, events), version=seq), made.committed(seq)

    create = CreateWorkload(
        kind="Training",
        name="wide",
        requested_name="wide",
        project_id=project,
        cluster_id=project,
        spec=TrainingSpec(image="x", completions=pods, parallelism=pods),
    )
    refs = [PodRef(pod_set="main", index=index, attempt=1, try_=0) for index in range(pods)]
    placements = tuple(
        Placement(pod=ref, node_key="n", node_name=f"n{ref.index % 100}", pool="default") for ref in refs
    )
    chain, commit = carry_out(create, chain, 1)
    commits.append(commit)
    chain, commit = carry_out(PlacePods(workload_id=chain.state.workload_id, placements=placements), chain, 2)
    commits.append(commit)
    before, _ = fold({}, commits)
    began = time.process_time()
    for number in range(FACTS):
        fact = PodFact(pod=refs[number % pods], kind="running", at=now)
        report = ReportPods(workload_id=chain.state.workload_id, facts=(fact,))
        _, commit = carry_out(report, chain, 3)
        fold(before, [commit])
    return 1e6 * (time.process_time() - began) / FACTS


def run(report: Report, *, short: bool) -> None:
    """Print the figures of wide workloads beside narrow ones."""
    narrow, wide = _fact_micros(PODS_OF_NARROW), _fact_micros(10_000)
    report.add(Figure(name="one fact of one pod of 10", value=narrow, unit="µs of CPU"))
    report.add(
        Figure(
            name="one fact of one pod of 10,000", value=wide, unit="µs of CPU", goal=MOST_RATIO * narrow, at_most=True
        )
    )
    if short:
        return
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder) / "up").start()
        try:
            added = stack.muster("cluster", "add", "sim", "--simulated", f"{NODES}x8")
            assert added.returncode == 0, added.stderr
            found = {pods: _per_pod(stack.api(), pods) for pods in RUNS_SECONDS}
            stack.stop()
        finally:
            stack.close()
    for place, what in enumerate(("submission to all running", "first end to Completed")):
        few, many = found[1_000][place], found[10_000][place]
        report.add(Figure(name=f"1,000 pods, {what}", value=few, unit="ms per pod"))
        report.add(
            Figure(name=f"10,000 pods, {what}", value=many, unit="ms per pod", goal=MOST_RATIO * few, at_most=True)
        )
