"""Fairness over time, on a virtual clock: what becomes of thirty days of a fifth more load than there is room for, for
three seeds; and how far what projects hold of a pool is from an ideal, once reclaim has settled. Some minutes.

What is evicted goes on from its last checkpoint, one an hour: what it did since is lost.
"""

import sys
from datetime import timedelta

from benchmarks.report import Figure, Report, quantile
from development.fairness.load import SIZES, Load
from development.fairness.shares import steps
from development.fairness.world import BEGIN

LOAD = 1.2
NODES = 2
DAYS, SHORT_DAYS = 30, 3
SEEDS = (1, 2, 3)
MOST_SHARE_ERROR = 0.01


def run(report: Report, *, short: bool) -> None:
    """Print the figures."""
    _shares(report, nodes=16 if short else 64, seeds=SEEDS[:1] if short else SEEDS)
    for seed in SEEDS[:1] if short else SEEDS:
        _days(report, seed, SHORT_DAYS if short else DAYS)


def _shares(report: Report, *, nodes: int, seeds: tuple[int, ...]) -> None:
    found = [step for seed in seeds for step in steps(nodes=nodes, seed=seed)]
    what = f"of a pool of {8 * nodes} GPUs, {len(found)} changes of demand"
    error = 100 * max(step.error for step in found)
    most = 100 * MOST_SHARE_ERROR
    report.add(Figure(name=f"share error, the largest: {what}", value=error, unit="%", goal=most, at_most=True))
    cycles = max(step.cycles for step in found)
    report.add(Figure(name="cycles until quotas and shares are reached", value=cycles, unit="", goal=1, at_most=True))
    below = sum(step.below_quota for step in found)
    report.add(Figure(name="projects below a quota that they want", value=below, unit="", goal=0, at_most=True))


def _days(report: Report, seed: int, days: int) -> None:
    load = Load(nodes=NODES, load=LOAD, seed=seed)

    def tell(seconds: float, _: float) -> None:
        if sys.stderr.isatty():
            print(f"\rseed {seed}: day {int(seconds / 86_400)} of {days}", end="", file=sys.stderr, flush=True)

    outcome = load.run(days, tell)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    until, of = BEGIN + timedelta(days=days * 2 / 3), f"seed {seed}, {days} days"
    early = sum(each.arrived <= until for each in outcome.arrived)
    name = f"{of}: of {early} that came in the first {days * 2 // 3}, not started"
    report.add(Figure(name=name, value=len(outcome.unstarted(until)), unit="jobs", goal=0, at_most=True))
    in_turn = len(outcome.in_turn())
    report.add(Figure(name=f"{of}: evicted each other in turn", value=in_turn, unit="", goal=0, at_most=True))
    report.add(Figure(name=f"{of}: evictions", value=len(outcome.evicted_for) / days / 24, unit="an hour"))
    used, in_all = sum(outcome.busy_gpu_hours.values()), load.gpus * days * 24
    lost = 100 * outcome.lost_gpu_hours / used
    report.add(Figure(name=f"{of}: GPU-hours lost to evictions", value=lost, unit="%"))
    report.add(Figure(name=f"{of}: GPUs in use", value=100 * used / in_all, unit="%"))
    for size in sorted({*SIZES}):
        if waits := outcome.waits(size, until):
            name = f"{of}: wait of jobs of {size} GPUs"
            report.add(Figure(name=f"{name}, p50", value=quantile(waits, 0.5), unit="hours"))
            report.add(Figure(name=f"{name}, p99", value=quantile(waits, 0.99), unit="hours"))
