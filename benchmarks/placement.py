"""How much of a cluster's GPUs a policy gives away: the protocol of the FGD paper, the product beside FGD and best
fit.

    make bench-placement ARGS='--pods FILE.csv --nodes FILE.csv --seeds 42..51 --demand 1.3'

Pods are sorted by name and shuffled with the seed; clones are added, or pods removed, until they ask for `--demand`
times the GPUs that there are. They come one at a time and stay; a pod that does not fit is dropped. Told is how much
of all GPUs is allocated when pods for 90 %, 100 % and all of that have come (mean of the seeds), and how many of the
widest pods were refused, as a policy could otherwise look good by refusing them.

FGD and best fit are told the mix of the pods beforehand or need none; the product knows only what has come. Without
`--pods`, the lists in ../shared/data/openb are used, and a generated trace where they are missing.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.placement_product import Product
from benchmarks.placement_rivals import Begins, BestFit, Fgd
from benchmarks.placement_trace import Trace, a_part, generated, read_nodes, read_pods, run_of
from benchmarks.report import OUT, Figure, Report

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "openb"
NODES, PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_"
POLICIES: dict[str, Begins] = {"BestFit": BestFit, "FGD": Fgd, "Muster": Product}
ARRIVED = (0.9, 1.0)
"""Of the capacity; and all that comes."""
PUBLISHED = {
    "default": {"BestFit": 93.08, "FGD": 95.39},
    "gpushare60": {"BestFit": 89.36, "FGD": 91.40},
    "multigpu30": {"BestFit": 94.72, "FGD": 96.46},
    "cpu100": {"BestFit": 93.44, "FGD": 95.35},
}
"""Per cent allocated at 130 %."""
SHORT_ONE_IN = 8
"""Of nodes and pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one policy, one list and one seed."""

    policy: str
    list: str
    seed: int
    allocated: tuple[float, ...]
    """Per cent of all GPUs, at 90 %, at 100 % and in the end."""
    refused_wide: int
    """Of the pods with the most GPUs: those that found no room."""
    wide: int
    wide_gpus: int
    refused: int
    pods: int
    seconds: float


def outcome(trace: Trace, policy: str, seed: int, demand: float) -> Outcome:
    run = run_of(trace, seed=seed, demand=demand)
    begun = time.process_time()
    placing = POLICIES[policy](run)
    came = given = refused = refused_wide = 0
    wide_gpus = max(pod.gpus for pod in run.pods)
    allocated: list[float] = []
    for pod in run.pods:
        came += pod.demand_milli
        if placing.place(pod) is not None:
            given += pod.demand_milli
        else:
            refused += 1
            refused_wide += pod.gpus == wide_gpus
        if len(allocated) < len(ARRIVED) and came >= ARRIVED[len(allocated)] * run.capacity_milli:
            allocated.append(100 * given / run.capacity_milli)
    last = 100 * given / run.capacity_milli
    allocated += [last] * (len(ARRIVED) + 1 - len(allocated))
    return Outcome(
        policy=policy,
        list=trace.name,
        seed=seed,
        allocated=tuple(allocated),
        refused_wide=refused_wide,
        wide=sum(pod.gpus == wide_gpus for pod in run.pods),
        wide_gpus=wide_gpus,
        refused=refused,
        pods=len(run.pods),
        seconds=time.process_time() - begun,
    )


def traces(pods: Sequence[Path], nodes: Path | None) -> list[Trace]:
    """The lists that were asked for, else those of the folder, else a generated one."""
    if not pods:
        pods = sorted(DATA.glob(f"{PODS}*.csv"))
    nodes = nodes or DATA / NODES
    if not pods or not nodes.exists():
        print(f"{DATA} is not there: a generated trace is used, for which nothing is published")
        return [generated()]
    of_nodes = read_nodes(nodes)
    return [Trace(name=file.stem.removeprefix(PODS), nodes=of_nodes, pods=read_pods(file)) for file in pods]


def run(report: Report, *, short: bool) -> None:
    """One list and one seed; `make bench-placement` runs all."""
    trace = traces((), None)[0] if DATA.exists() else generated(nodes=800, pods=4_000)
    trace = a_part(trace, one_in=SHORT_ONE_IN) if short else trace
    ours, fgd = (outcome(trace, policy, 42, 1.3) for policy in ("Muster", "FGD"))
    report.add(
        Figure(
            name=f"GPUs allocated of {trace.name} at 130 %, baseline FGD",
            value=ours.allocated[-1],
            unit="%",
            baseline=fgd.allocated[-1],
            goal_ratio=1.0,
        )
    )
    report.add(
        Figure(
            name="pods placed, one at a time",
            value=ours.pods / ours.seconds,
            unit="/s",
            baseline=fgd.pods / fgd.seconds,
        )
    )


def told(found: Sequence[Outcome]) -> str:
    """One list: a line per policy, and the product against FGD."""
    first = found[0]
    seeds = sorted({each.seed for each in found})
    wide_refused = f"{first.wide_gpus}-GPU pods refused"
    lines = [
        f"\n{first.list}: {first.pods:,} pods, seeds {seeds[0]}..{seeds[-1]}",
        f"  {'':9}{'90 %':>8}{'100 %':>8}{'end':>8}{'published':>11}  {wide_refused:>22}{'all refused':>13}",
    ]
    by_policy = {name: [each for each in found if each.policy == name] for name in POLICIES}
    for name, of in by_policy.items():
        if not of:
            continue
        means = "".join(f"{fmean(each.allocated[n] for each in of):8.2f}" for n in range(len(ARRIVED) + 1))
        published = PUBLISHED.get(first.list, {}).get(name)
        wide = f"{fmean(each.refused_wide for each in of):.1f} of {fmean(each.wide for each in of):.1f}"
        refused = f"{fmean(each.refused for each in of):.1f}"
        lines.append(f"  {name:9}{means}{f'{published:.2f}' if published else '-':>11}  {wide:>22}{refused:>13}")
    if by_policy["Muster"] and by_policy["FGD"]:
        pairs = list(zip(by_policy["Muster"], by_policy["FGD"], strict=True))
        above = [[a.allocated[n] - b.allocated[n] for a, b in pairs] for n in range(len(ARRIVED) + 1)]
        lines.append("  above FGD" + "".join(f"{fmean(each):+8.2f}" for each in above)[1:])
        lines.append("  the least" + "".join(f"{min(each):+8.2f}" for each in above)[1:])
    return "\n".join(lines)


def in_turn(tasks: Iterable[tuple[Trace, str, int, float]], jobs: int) -> list[Outcome]:
    if jobs == 1:
        return [_one(task) for task in tasks]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(_one, tasks))


def _one(task: tuple[Trace, str, int, float]) -> Outcome:
    found = outcome(*task)
    print(
        f"{found.list} {found.policy} {found.seed}: {found.allocated[-1]:.2f} ({found.seconds:.0f} s)", file=sys.stderr
    )
    return found


def seeds_of(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main(progress: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(
        prog="make bench-placement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=Path, nargs="+", default=[], metavar="FILE", help="lists of pods")
    parser.add_argument("--nodes", type=Path, metavar="FILE", help="the nodes")
    parser.add_argument("--seeds", type=seeds_of, default=range(42, 52), help="such as 42..51 (default) or 7")
    parser.add_argument(
        "--demand", type=float, default=1.3, help="asked for in the end, times the capacity (default 1.3)"
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (default 1)")
    arguments = parser.parse_args()
    kept: list[Outcome] = []
    for trace in traces(arguments.pods, arguments.nodes):
        tasks = [(trace, name, seed, arguments.demand) for name in arguments.policies for seed in arguments.seeds]
        found = in_turn(tasks, arguments.jobs)
        progress(told(found))
        kept += found
    OUT.mkdir(exist_ok=True)
    (OUT / "placement.json").write_text(json.dumps([asdict(each) for each in kept], indent=1) + "\n")
    progress("\nall of it: out/placement.json")


if __name__ == "__main__":
    main()
